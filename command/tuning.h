/* Tuning files: which tilings, backward algorithm and schedule were fastest for a spec, a class of
 * shapes and a device. `rota tune` writes them; --tuning adopts them: bits change only where the
 * user asks. */
#ifndef ROTA_COMMAND_TUNING_H
#define ROTA_COMMAND_TUNING_H

#include "command/inputs.h"
#include "command/model.h"
#include "generator/script_tuning.h"

typedef struct TuningKey {
  char *spec;       /* what is computed, in words; owned */
  char shape[64];   /* "4096x4096x16": lengths and (sequence, kv head) pairs, rounded up to powers
                       of two */
  char device[96];  /* "NVIDIA H200", or the architecture where no GPU is */
  int32_t n_q, n_k; /* the lengths themselves */
  bool device_present; /* a GPU that can be measured */
} TuningKey;

/* What a file has for a key, by direction: each pass may have been tuned alone. */
typedef struct TuningChoice {
  bool found[2];
  char tiling[2][TILING_CHOICE_MAX];
  bool measured[2]; /* else the model's word */
  Backward backward;
  char schedule[SYMBOL_NAME_MAX];
} TuningChoice;

/* What was tuned. */
typedef struct TuningRecord {
  const Candidate *best[2]; /* by direction; NULL: not tuned */
  double milliseconds[2];
  json_t *candidates[2]; /* kept beside the choice; borrowed */
  bool measured;
} TuningRecord;

/* The key of a model and shape on the device that the options name. Free in any case. */
rota_status tuning_key_create(const Options *options, Model *model, TuningKey *key);
void tuning_key_free(TuningKey *key);

/* The choice for a key, perhaps none. FILE if it is no tuning file. */
rota_status tuning_find(const char *path, const TuningKey *key, TuningChoice *choice);
/* Adds what was tuned to the file, in place of what the key had for that direction. The file
 * appears whole or not at all. */
rota_status tuning_record(const char *path, const TuningKey *key, const TuningRecord *record);

/* --tuning FILE: puts the file's choice into the model's spec, and says on stderr what was adopted,
 * or that there is none. */
rota_status tuning_adopt(const Options *options, Model *model);

#endif

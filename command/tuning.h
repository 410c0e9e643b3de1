/* Tuning files: which backward algorithm and schedule was fastest for a spec, a class of shapes and
 * a device. `rota tune` writes them; --tuning adopts them: bits change only where the user asks. */
#ifndef ROTA_COMMAND_TUNING_H
#define ROTA_COMMAND_TUNING_H

#include "command/inputs.h"
#include "command/model.h"

typedef struct TuningKey {
  char *spec;      /* what is computed, in words; owned */
  char shape[64];  /* "4096x4096x16": lengths and (sequence, kv head) pairs, rounded up to powers
                      of two */
  char device[96]; /* "NVIDIA H200", or the architecture where no GPU is */
  bool device_present; /* a GPU that can be measured */
} TuningKey;

typedef struct TuningChoice {
  Backward backward;
  char schedule[SYMBOL_NAME_MAX];
  double milliseconds;
  bool measured; /* else the model's word */
} TuningChoice;

/* The key of a model and shape on the device that the options name. Free in any case. */
rota_status tuning_key_create(const Options *options, Model *model, TuningKey *key);
void tuning_key_free(TuningKey *key);

/* The choice for a key; `found` false if the file has none. FILE if it is no tuning file. */
rota_status tuning_find(const char *path, const TuningKey *key, TuningChoice *choice, bool *found);
/* Adds the choice to the file, in place of an earlier one for the key; `candidates` (borrowed) is
 * kept beside it. The file appears whole or not at all. */
rota_status tuning_record(const char *path, const TuningKey *key, const TuningChoice *choice,
                          json_t *candidates);

/* --tuning FILE: puts the file's choice into the model's spec, and says on stderr what was adopted,
 * or that there is none. */
rota_status tuning_adopt(const Options *options, Model *model);

#endif

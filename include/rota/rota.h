/* Rota: a just-in-time generator of attention kernels.
 *
 * Flow: context -> spec -> kernel -> plan -> run.
 *
 *     rota_context_create(NULL, &context);
 *     rota_spec_create_from_script(context, text, "model.lua", &spec);
 *     rota_kernel_prepare(context, spec, &kernel_request, &kernel);
 *     rota_plan_create(kernel, &plan_request, &plan);
 *     rota_run(plan, &arguments, workspace, rota_plan_workspace_size(plan), stream);
 *
 * Ownership: whatever a `create`, `prepare` or `load` function returns belongs to the caller and is
 * released with its `destroy`; a kernel keeps what it needs of its spec, and a plan of its kernel,
 * so that they may be destroyed in any order; the context must outlive all of them. Every other
 * pointer is borrowed for the call.
 *
 * Errors: a function that can fail returns a rota_status; unless it is ROTA_OK,
 * rota_error_message() says, in the calling thread, what was wrong, where, and what to do.
 *
 * Thread safety: a context may be used by any number of threads at once; specs, kernels and plans
 * are immutable after creation, and one plan may run on several streams at once (with separate
 * workspaces).
 *
 * Units: sizes in elements unless a name says bytes; strides in elements; lengths in tokens.
 */
#ifndef ROTA_ROTA_H
#define ROTA_ROTA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ROTA_VERSION_MAJOR 0
#define ROTA_VERSION_MINOR 1
#define ROTA_VERSION_PATCH 0

#if defined(__GNUC__)
#define ROTA_API __attribute__((visibility("default")))
#else
#define ROTA_API
#endif

/* Status codes: name, value, meaning. */
#define ROTA_STATUS_LIST(X)                                                                        \
  X(OK, 0, "success")                                                                              \
  X(INVALID_ARGUMENT, 1, "an argument is missing or out of its range")                             \
  X(SCRIPT, 2, "a Lua script or an expression in it is wrong")                                     \
  X(UNSUPPORTED, 3, "the request is valid but no kernel serves it")                                \
  X(NONDETERMINISTIC, 4, "determinism was requested and cannot be honoured")                       \
  X(OUT_OF_MEMORY, 5, "memory ran out")                                                            \
  X(COMPILE, 6, "the compiler refused the generated source")                                       \
  X(NO_COMPILER, 7, "NVRTC was not found and the kernel is not in the cache")                      \
  X(NO_DEVICE, 8, "no CUDA driver or no usable GPU")                                               \
  X(DRIVER, 9, "the CUDA driver reported an error")                                                \
  X(WORKSPACE, 10, "the workspace is missing, too small or misaligned")                            \
  X(SCHEDULE, 11, "a schedule failed verification")                                                \
  X(FILE, 12, "a file could not be read or written, or its content is damaged")                    \
  X(NOT_PREPARED, 13, "the call would have to compile or allocate where it must not")              \
  X(INTERNAL, 14, "a fault in Rota itself; please report it")

typedef enum rota_status {
#define X(name, value, meaning) ROTA_##name = value,
  ROTA_STATUS_LIST(X)
#undef X
} rota_status;

typedef enum rota_dtype { ROTA_BF16 = 0, ROTA_FP16 = 1, ROTA_FP32 = 2, ROTA_INT32 = 3 } rota_dtype;

typedef enum rota_direction { ROTA_FORWARD = 0, ROTA_BACKWARD = 1 } rota_direction;

typedef enum rota_device_kind {
  ROTA_DEVICE_AUTO = 0, /* CUDA where a usable GPU is, else the CPU */
  ROTA_DEVICE_CUDA = 1,
  ROTA_DEVICE_CPU = 2
} rota_device_kind;

/* Layout class: which addresses a kernel can take. */
typedef enum rota_layout {
  ROTA_LAYOUT_ALIGNED = 0, /* bases and strides multiples of 16 bytes: 16-byte loads */
  ROTA_LAYOUT_ANY = 1      /* any base, any stride: element loads, slower */
} rota_layout;

typedef struct rota_context rota_context;
typedef struct rota_spec rota_spec;
typedef struct rota_kernel rota_kernel;
typedef struct rota_plan rota_plan;

/* ---- Errors and version ------------------------------------------------------------------- */

/* The message of this thread's last failure, "" if there was none; valid until the thread's next
 * call. */
ROTA_API const char *rota_error_message(void);
/* "INVALID_ARGUMENT" and the like; "UNKNOWN" for a value that is no status. */
ROTA_API const char *rota_status_name(rota_status status);
/* Version of the library in use, "0.1.0": compare with ROTA_VERSION_*. */
ROTA_API const char *rota_version(void);

/* ---- Context ------------------------------------------------------------------------------ */

typedef struct rota_context_options {
  const char *cache_dir; /* NULL: ROTA_CACHE_DIR, else $XDG_CACHE_HOME/rota, else ~/.cache/rota; "":
                            no disk cache */
  int64_t cache_max_bytes; /* 0: 1 GiB; the least recently used entries go first */
  const char *nvrtc_path;  /* NULL: ROTA_NVRTC, else searched; the path of libnvrtc.so.* */
  int debug;               /* -1: ROTA_DEBUG, 0 quiet .. 4 every stage, to stderr */
} rota_context_options;

/* Creates a context. Touches neither driver nor compiler: both are looked for when first needed.
 * `options` may be NULL. */
ROTA_API rota_status rota_context_create(const rota_context_options *options,
                                         rota_context **context);
ROTA_API void rota_context_destroy(rota_context *context);

/* ---- Spec: what is computed --------------------------------------------------------------- */

/* Runs a model script (`return rota.attention{...}`) in the sandbox. `text` is NUL-terminated;
 * `chunk_name` stands in error messages. Errors: SCRIPT with `file:line: message`;
 * INVALID_ARGUMENT; UNSUPPORTED. */
ROTA_API rota_status rota_spec_create_from_script(rota_context *context, const char *text,
                                                  const char *chunk_name, rota_spec **spec);
/* The same, reading the script from a file. Also: FILE. */
ROTA_API rota_status rota_spec_create_from_file(rota_context *context, const char *path,
                                                rota_spec **spec);

/* The spec as plain fields, for callers without a script. Zero-initialise, then set what differs
 * from the defaults. */
typedef struct rota_spec_fields {
  rota_dtype dtype;            /* of Q, K, V, O and the gradients; default BF16 */
  int32_t head_dim;            /* of Q and K: 1 .. 1024 */
  int32_t head_dim_v;          /* of V and O; 0: head_dim */
  int32_t heads;               /* query heads; default 1 */
  int32_t kv_heads;            /* key and value heads; divides heads; 0: heads */
  const char *mask;            /* Lua expression in the vocabulary of lua/masks.lua; NULL: full */
  const char *score;           /* Lua expression in the vocabulary of lua/scores.lua; NULL: none */
  float scale;                 /* softmax scale; 0: 1/sqrt(head_dim) */
  bool sink_logit;             /* one learnable logit per query head in the softmax's denominator */
  bool allow_nondeterministic; /* false (default): gradients are bit-reproducible */
  const char *backward;        /* NULL or "auto"; "ordered", "exact", "two_pass",
                                * "materialised", "atomic" */
  const char *bound;           /* what "exact" scales by: NULL or "norm"; "spread", tighter, for
                                * which the forward pass writes mean_square: docs/exact.md */
  const char *schedule;        /* of lua/schedules.lua: "shift", "shift:stagger=3"; NULL: auto */
  const char *forward_tiling;  /* query and kv rows of a tile, "128x64", as `rota tune` lists */
  const char *backward_tiling; /* them; NULL or "auto": the first that the architecture has */
} rota_spec_fields;
ROTA_API rota_status rota_spec_create(rota_context *context, const rota_spec_fields *fields,
                                      rota_spec **spec);
ROTA_API void rota_spec_destroy(rota_spec *spec);

/* Reads the spec back (strings are borrowed from it: mask and score are NULL here). */
ROTA_API void rota_spec_get(const rota_spec *spec, rota_spec_fields *fields);

/* ---- Kernel: a program compiled and loaded ------------------------------------------------- */

typedef struct rota_kernel_request {
  rota_direction direction;
  rota_device_kind device;
  int32_t device_ordinal; /* CUDA device, 0 .. */
  rota_layout layout;
  /* "sm_80", "sm_90", ...; NULL: the device's own, sm_80 where there is none. With
   * ROTA_DEVICE_CUDA and an architecture that no GPU here runs, the kernel is compiled alone: it
   * can be looked at and exported, but rota_plan_create answers NO_DEVICE. */
  const char *architecture;
} rota_kernel_request;

/* Says without compiling whether the request would be served: OK, or UNSUPPORTED / NONDETERMINISTIC
 * with the reason, or NO_DEVICE where CUDA is asked for and there is none. */
ROTA_API rota_status rota_supports(rota_context *context, const rota_spec *spec,
                                   const rota_kernel_request *request);

/* Emits, compiles (or takes from the cache) and loads. The only call that may take a second.
 * On the CPU device nothing is compiled. One kernel serves all lengths. */
ROTA_API rota_status rota_kernel_prepare(rota_context *context, const rota_spec *spec,
                                         const rota_kernel_request *request, rota_kernel **kernel);
ROTA_API void rota_kernel_destroy(rota_kernel *kernel);

/* The generated source as one self-contained file; borrowed, valid while the kernel lives. */
ROTA_API const char *rota_kernel_source(const rota_kernel *kernel);

typedef struct rota_kernel_info {
  rota_device_kind device; /* CUDA or CPU, never AUTO */
  bool cache_hit;          /* the cubin came from memory or disk */
  double compile_seconds;  /* 0 on a hit */
  double load_seconds;     /* from request to ready, without compiling */
  size_t cubin_bytes;
  int32_t registers;        /* of the entry that uses most; 0 on the CPU device */
  int32_t spill_bytes;      /* local memory per thread, worst entry */
  int32_t shared_bytes;     /* per block, static and dynamic, worst entry */
  const char *architecture; /* borrowed from the kernel */
  const char *algorithm;    /* "forward", "ordered", ...; borrowed */
  const char *compile_log;  /* NVRTC's and ptxas's words; "" on a hit; borrowed */
} rota_kernel_info;
ROTA_API void rota_kernel_get_info(const rota_kernel *kernel, rota_kernel_info *info);

/* Writes the kernel to `path` so that rota_kernel_import can load it where no NVRTC is. */
ROTA_API rota_status rota_kernel_export(const rota_kernel *kernel, const char *path);
/* Loads what rota_kernel_export wrote. FILE if damaged or written by another version. */
ROTA_API rota_status rota_kernel_import(rota_context *context, const char *path,
                                        int32_t device_ordinal, rota_kernel **kernel);

/* ---- Plan: one shape, verified and uploaded ------------------------------------------------ */

/* Lengths, on the host. Dense: batch, n_q, n_k. Packed: cu_seqlens_* (batch + 1 ascending offsets
 * into the packed rows; then n_q, n_k are ignored and batch strides must not be needed). seqused_*
 * (batch entries): how many rows of a sequence's slot are in use; outputs beyond are written as
 * zeros (LSE: -inf). */
typedef struct rota_lengths {
  int32_t batch;
  int32_t n_q, n_k;
  const int32_t *cu_seqlens_q, *cu_seqlens_k;
  const int32_t *seqused_q, *seqused_k;
} rota_lengths;

/* A named tensor of the mask or score: `document`, `bias`... */
typedef struct rota_named_tensor {
  const char *name;
  rota_dtype dtype;  /* INT32 or FP32, as the spec declares it */
  int32_t rank;      /* 1 .. 4 */
  int64_t size[4];   /* elements */
  int64_t stride[4]; /* elements */
  const void *data;  /* host memory, copied into the plan; NULL for a tensor of the score that each
                        run passes */
} rota_named_tensor;

/* A run-time value of a named parameter of the mask or score (another window is no recompile). */
typedef struct rota_named_value {
  const char *name;
  double value; /* must be integral for an int parameter */
} rota_named_value;

typedef struct rota_plan_request {
  rota_lengths lengths;
  int32_t heads, kv_heads; /* 0: the spec's; their quotient must be the spec's */
  const rota_named_tensor *tensors;
  int32_t tensor_count;
  const rota_named_value *values;
  int32_t value_count;
  size_t workspace_limit; /* bytes; 0: 512 MiB. Kernels that pass matrices through memory keep to
                           * it, but for 2 KiB of rounding, the larger the faster; no other kernel's
                           * need is changed by it */
} rota_plan_request;

/* Builds tile map and schedule, verifies them and uploads the tables. Errors: INVALID_ARGUMENT
 * (lengths, a tensor that is missing, or whose index could run out of bounds), SCHEDULE, WORKSPACE
 * (the limit is too small; the message says what suffices), UNSUPPORTED (too large a plane for such
 * kernels), OUT_OF_MEMORY, DRIVER. */
ROTA_API rota_status rota_plan_create(const rota_kernel *kernel, const rota_plan_request *request,
                                      rota_plan **plan);
/* Launches still in flight must have ended. */
ROTA_API void rota_plan_destroy(rota_plan *plan);

/* Bytes of scratch memory a run needs (0 is possible); 256-byte aligned device memory, any content.
 */
ROTA_API size_t rota_plan_workspace_size(const rota_plan *plan);

typedef struct rota_plan_info {
  int64_t full_tiles, partial_tiles,
      empty_tiles; /* over all sequences, of one query head (the mean where heads differ) */
  int32_t tile_q, tile_kv;
  int64_t table_bytes;
  double plan_seconds;
} rota_plan_info;
ROTA_API void rota_plan_get_info(const rota_plan *plan, rota_plan_info *info);

#define ROTA_DIGEST_SIZE 33 /* 32 hex digits and NUL */
/* Hash of all that decides the bits of the result: cubin and pattern tables. */
ROTA_API void rota_plan_digest(const rota_plan *plan, char digest[ROTA_DIGEST_SIZE]);

/* Saves the plan's tables; rota_plan_load gives them to a kernel with the same program (else
 * INVALID_ARGUMENT). */
ROTA_API rota_status rota_plan_save(const rota_plan *plan, const char *path);
ROTA_API rota_status rota_plan_load(const rota_kernel *kernel, const char *path, rota_plan **plan);

/* ---- Run ---------------------------------------------------------------------------------- */

/* A tensor [batch, row, head, dim] by strides in elements; dim is contiguous. Packed: stride_batch
 * is ignored. Device memory for a CUDA plan, host memory for a CPU plan. */
typedef struct rota_tensor {
  void *data;
  int64_t stride_batch, stride_row, stride_head;
} rota_tensor;

/* Outputs share no memory with inputs or each other: they may be written while those are read. */
typedef struct rota_arguments {
  rota_tensor q, k,
      v; /* inputs, [.., n_q, heads, head_dim], [.., n_k, kv_heads, head_dim], [.., head_dim_v] */
  rota_tensor o; /* [.., n_q, heads, head_dim_v]: output of forward, input of backward */
  rota_tensor
      lse; /* fp32 [.., n_q, heads] (natural logarithm): output of forward, input of backward */
  rota_tensor d_o;           /* backward: gradient of o */
  rota_tensor d_q, d_k, d_v; /* backward: outputs */
  rota_tensor d_lse;         /* backward, optional (data NULL): gradient of lse, fp32 */
  /* Where the spec has bound = "spread" (else data NULL), fp32 [.., n_q, heads]: the mean of |V|^2
   * over the keys by their probabilities, or somewhat more; output of forward, input of backward.
   * O, lse and it must be of one forward pass. */
  rota_tensor mean_square;
  const float *sink;                /* [heads], required where the spec has sink_logit */
  float *d_sink;                    /* [heads], backward, optional */
  const rota_named_tensor *tensors; /* tensors of the score that the plan was not given data for */
  int32_t tensor_count;
} rota_arguments;

/* Forward: writes o and lse, and mean_square where the spec asks. Backward: writes d_q, d_k, d_v.
 * On CUDA asynchronous on `stream` (a CUstream or cudaStream_t; NULL is the legacy default stream);
 * on the CPU device it returns when done. Allocates nothing, synchronises nothing, may be captured
 * in a CUDA graph. Errors: INVALID_ARGUMENT (a missing pointer; a layout the kernel was not
 * prepared for), WORKSPACE, DRIVER. */
ROTA_API rota_status rota_run(const rota_plan *plan, const rota_arguments *arguments,
                              void *workspace, size_t workspace_size, void *stream);

#ifdef __cplusplus
}
#endif
#endif

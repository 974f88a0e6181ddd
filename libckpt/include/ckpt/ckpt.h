/* clang-format off */
/* libckpt, C ABI version 1: the only exported symbols. ckpt.hpp (C++) and the Python package sit on this and on nothing
 * else.
 *
 * A program describes its state once (tensors by address, values, blobs), opens a session, and calls step() at every step
 * boundary, equally often on all ranks. The library stages the state when a save is due or when the job must make room,
 * and says at each step what to do.
 *
 * Conventions. Functions return NULL for success or an error that the caller frees. Options structs start with
 * `struct_size` = sizeof of the struct that the caller was compiled with; a shorter one from an older header is honoured.
 * Strings are UTF-8, copied before a call returns unless said otherwise. Nothing throws across this boundary, and nothing
 * here ends the process. After fork() every handle fails in the child with FAILED_PRECONDITION.
 *
 * Threads. One session per rank. step, save_begin, save_fence, track, phase and finish: from the loop's thread only.
 * Waits and progress: any thread.
 *
 * Three facts, three words: STAGED (this rank's copy is consistent, its loop may go on), STAGED_GANG (all ranks have one),
 * SHARED (durable: committed in the job's store). Nothing says "saved" before it is. */
#ifndef CKPT_CKPT_H_
#define CKPT_CKPT_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define CKPT_API __attribute__((visibility("default")))
#else
#define CKPT_API
#endif

#define CKPT_ABI_VERSION 1u
#define CKPT_EXIT_SUSPENDED 75 /* a rank leaves with this after STOP */
#define CKPT_UNSET_RANK UINT32_MAX

/* Version of the loaded library; never lower than CKPT_ABI_VERSION of the header it ships with. */
CKPT_API uint32_t ckpt_abi_version(void);

/* ---- errors ------------------------------------------------------------------------------------------------------- */
typedef struct ckpt_error_t ckpt_error_t;
/* gRPC's code numbers (3 INVALID_ARGUMENT, 4 DEADLINE_EXCEEDED, 5 NOT_FOUND, 8 RESOURCE_EXHAUSTED, 9
 * FAILED_PRECONDITION, 14 UNAVAILABLE, 15 DATA_LOSS …); 0 for NULL. */
CKPT_API int32_t ckpt_error_code(const ckpt_error_t* error);
/* 1 if the failed operation may have been applied all the same, else 0. */
CKPT_API int32_t ckpt_error_outcome(const ckpt_error_t* error);
/* Names job, rank, path and what to do. Valid until the error is freed. */
CKPT_API const char* ckpt_error_message(const ckpt_error_t* error);
CKPT_API void ckpt_error_free(ckpt_error_t* error);

/* ---- types -------------------------------------------------------------------------------------------------------- */
typedef struct ckpt_session_t ckpt_session_t;
typedef struct ckpt_state_t ckpt_state_t;
typedef struct ckpt_save_t ckpt_save_t;
typedef struct ckpt_reader_t ckpt_reader_t;
typedef struct ckpt_comm_t ckpt_comm_t;

typedef enum ckpt_dtype_t {
  CKPT_BOOL = 1, CKPT_U8 = 2, CKPT_I8 = 3, CKPT_U16 = 4, CKPT_I16 = 5, CKPT_U32 = 6, CKPT_I32 = 7, CKPT_U64 = 8,
  CKPT_I64 = 9, CKPT_F16 = 10, CKPT_BF16 = 11, CKPT_F32 = 12, CKPT_F64 = 13, CKPT_F8_E4M3 = 14, CKPT_F8_E5M2 = 15,
  CKPT_C64 = 16, CKPT_C128 = 17, CKPT_F4X2 = 18
} ckpt_dtype_t;

typedef enum ckpt_placement_t {
  CKPT_UNSHARDED = 0,  /* one owner; ranks that claim the same name must hold the same content, else the save fails */
  CKPT_REPLICATED = 1, /* declared equal on all ranks: written once, split over them */
  CKPT_SHARDED = 2,    /* each rank holds the box local_offset/local_shape of global_shape */
  CKPT_PER_RANK = 3    /* every rank has its own under this name */
} ckpt_placement_t;

typedef enum ckpt_scope_t { CKPT_SHARED_VALUE = 0, CKPT_RANK_VALUE = 1 } ckpt_scope_t;

typedef enum ckpt_level_t {
  CKPT_LEVEL_NONE = 0,
  CKPT_LEVEL_STAGED = 1,      /* this rank's copy is consistent */
  CKPT_LEVEL_STAGED_GANG = 2, /* all ranks of the gang have one */
  CKPT_LEVEL_SHARED = 3       /* durable: committed in the job's store */
} ckpt_level_t;

typedef enum ckpt_request_kind_t {
  CKPT_REQUEST_NONE = 0,
  CKPT_REQUEST_SAVE = 1, /* state was staged inside this step; go on */
  CKPT_REQUEST_STOP = 2  /* state is staged, communicators are down: leave with CKPT_EXIT_SUSPENDED */
} ckpt_request_kind_t;

typedef struct ckpt_request_t {
  ckpt_request_kind_t kind;
  uint64_t boundary;            /* the library's own count of step() calls in this epoch */
  int64_t deadline_boottime_ns; /* for STOP: when the process will be killed; 0 none */
} ckpt_request_t;

typedef enum ckpt_phase_t { CKPT_PHASE_TRAIN = 0, CKPT_PHASE_SETUP = 1, CKPT_PHASE_COMPILE = 2, CKPT_PHASE_EVALUATION = 3 } ckpt_phase_t;

/* ---- state: a description; no bytes are copied ------------------------------------------------------------------------ */
typedef struct ckpt_tensor_desc_t {
  size_t struct_size;
  const char* name;             /* unique within the rank; any UTF-8 up to 4 KiB */
  ckpt_dtype_t dtype;
  ckpt_placement_t placement;
  uint32_t ndim;                /* 0 to 32 */
  const uint64_t* global_shape; /* ndim numbers */
  const uint64_t* local_shape;  /* NULL: the whole tensor */
  const uint64_t* local_offset; /* NULL: zeros */
  const int64_t* strides;       /* in elements; NULL: row-major over local_shape */
  void* data;                   /* caller's; must not change between step's return of a fence-less save and … see save_fence */
  uint32_t device;              /* 0 the host; 1 + n: CUDA device n of the driver, whose memory `data` then is */
  void* stream;                 /* the caller's stream on that device, NULL the default one */
  const char* tied_to;          /* name of a tensor whose memory this is; stored once. NULL none */
  uint32_t frozen;              /* 1: does not change between saves */
} ckpt_tensor_desc_t;

CKPT_API ckpt_error_t* ckpt_state_create(ckpt_state_t** out_state);
CKPT_API ckpt_error_t* ckpt_state_add_tensor(ckpt_state_t* state, const ckpt_tensor_desc_t* desc);
/* The tensor lies at `data` now, with the shape and strides it was added with (an allocator moved it, a framework replaced
 * it). Allowed inside before_stage, and not while an overlapped save is being copied. */
CKPT_API ckpt_error_t* ckpt_state_move_tensor(ckpt_state_t* state, const char* name, void* data);
/* Sets (or replaces) a value: canonical JSON text of the value tree in docs/format/v1.md; a plain number, string or
 * boolean is its own JSON. */
CKPT_API ckpt_error_t* ckpt_state_add_value(ckpt_state_t* state, const char* name, ckpt_scope_t scope, const char* json);
/* Sets (or replaces) a blob: bytes that no reader interprets. */
CKPT_API ckpt_error_t* ckpt_state_add_blob(ckpt_state_t* state, const char* name, ckpt_scope_t scope, const char* media_type,
                                           const void* bytes, size_t size);
CKPT_API void ckpt_state_free(ckpt_state_t* state);

/* ---- session -------------------------------------------------------------------------------------------------------- */
/* Agreement between the ranks of a program that runs without ckpt-run: in `in` of n bytes, out world_size * n bytes in
 * rank order. Called from the loop's thread only, at the same points on every rank: open, every step, wait, close. */
typedef struct ckpt_collective_t {
  size_t struct_size;
  void* ctx;
  int32_t (*allgather)(void* ctx, const void* in, size_t n, void* out, int64_t deadline_boottime_ns); /* 0 is success */
} ckpt_collective_t;

typedef struct ckpt_session_options_t {
  size_t struct_size;
  const char* job;       /* NULL: CKPT_JOB, else "default" */
  const char* store;     /* directory; NULL: CKPT_STORE, else "./ckpt/<job>" */
  uint32_t rank;         /* CKPT_UNSET_RANK: RANK, else 0 */
  uint32_t world_size;   /* 0: WORLD_SIZE, else 1 */
  const ckpt_collective_t* collective; /* needed for world_size > 1 without ckpt-run */
  uint64_t signals;      /* bit n: signal n asks for a suspend (1<<15 is SIGTERM); handlers only set a flag, and chain */
  uint64_t save_every;   /* boundaries between saves made by step(); 0 none. CKPT_SAVE_EVERY overrides */
  uint32_t keep_copy_threads; /* threads for copying; 0 chooses */
  void (*log)(void* ctx, int32_t level, const char* message); /* 0 debug … 3 error; NULL: warnings to stderr */
  void* log_ctx;
  uint32_t alone;        /* 1: straight to the store, also where CKPT_RUN is set: for checkpoints beside those of the gang */
  /* What is removed after a save has become durable (under ckpt-run: its --keep-… decide): all but the newest `keep_last`
   * whole ones, and the first at or after each multiple of `keep_every`, and the newest of every `keep_hours` hours, and those
   * with a file PINNED in their directory, and what one of these refers to. 0: CKPT_KEEP_LAST, CKPT_KEEP_EVERY,
   * CKPT_KEEP_HOURS, else no such rule; without keep_last nothing is removed. */
  uint64_t keep_last, keep_every, keep_hours;
} ckpt_session_options_t;

/* Opens the session of this rank. Under ckpt-run (CKPT_RUN in the environment) it connects there; else the library runs by
 * itself, straight to the store. CKPT_RUN set but nothing in reach is UNAVAILABLE, never a quiet standalone run. */
CKPT_API ckpt_error_t* ckpt_session_open(const ckpt_session_options_t* options, ckpt_session_t** out_session);
/* Drains what is in flight until the deadline (nanoseconds from now; negative: no limit), then abandons it loudly (an
 * error that says what is not durable). Frees the session in every case. */
CKPT_API ckpt_error_t* ckpt_session_close(ckpt_session_t* session, int64_t timeout_ns);
/* Declares what step() saves. `before_stage` (may be NULL) is called on the loop's thread once before each staging, to
 * refresh values; a non-zero result fails that save. The state must outlive the session or the next track. Every rank calls
 * it at the same point, before its first step. */
CKPT_API ckpt_error_t* ckpt_session_track(ckpt_session_t* session, ckpt_state_t* state,
                                          int32_t (*before_stage)(void* ctx, ckpt_state_t* state), void* ctx);
/* The step boundary. Some nanoseconds and no system call when nothing is asked. An error means that a save failed or was
 * refused; training goes on, and out_request says NONE. */
CKPT_API ckpt_error_t* ckpt_session_step(ckpt_session_t* session, int64_t user_step, ckpt_request_t* out_request);
/* Says that no boundary will come for about `expected_ns` (0 unknown): set-up, compile, evaluation. */
CKPT_API ckpt_error_t* ckpt_session_phase(ckpt_session_t* session, ckpt_phase_t phase, int64_t expected_ns);
/* The training is complete: a suspend that has not released anything yet is void. */
CKPT_API ckpt_error_t* ckpt_session_finish(ckpt_session_t* session);
/* JSON: job, rank, epoch, mode, last saves with levels, capabilities. Valid until the next call or close. */
CKPT_API ckpt_error_t* ckpt_session_describe(ckpt_session_t* session, const char** out_json);

/* ---- saves ----------------------------------------------------------------------------------------------------------- */
typedef struct ckpt_save_options_t {
  size_t struct_size;
  int64_t step;           /* the user's step number that the checkpoint is named by */
  uint32_t overlap;       /* 1: return at once, copy in the background; the state must not change before save_fence */
  int64_t timeout_ns;     /* for a free staging slot; 0: RESOURCE_EXHAUSTED at once if the last save still drains */
  /* With `overlap`, may be NULL: asked once, on the loop's thread, by the next call that waits for the copy (save_fence,
   * save_begin, save_wait, a step that stops, finish, close), when it is complete; until then the save is not staged. Not 0:
   * the state was changed meanwhile, and the save fails with FAILED_PRECONDITION. */
  int32_t (*changed)(void* ctx);
  void* ctx;
} ckpt_save_options_t;

/* Saves the tracked state now. All ranks call it at the same boundary. Without `overlap` the state is staged on return. */
CKPT_API ckpt_error_t* ckpt_save_begin(ckpt_session_t* session, const ckpt_save_options_t* options, ckpt_save_t** out_save);
/* Blocks until an overlapped copy is complete: call it before the update that changes the state. */
CKPT_API ckpt_error_t* ckpt_save_fence(ckpt_session_t* session);
/* DEADLINE_EXCEEDED: the save goes on. Any other error is the save's own, and final. */
CKPT_API ckpt_error_t* ckpt_save_wait(ckpt_save_t* save, ckpt_level_t level, int64_t timeout_ns);
CKPT_API ckpt_error_t* ckpt_save_progress(ckpt_save_t* save, ckpt_level_t* out_level, uint64_t* out_bytes_done,
                                          uint64_t* out_bytes_total);
CKPT_API ckpt_error_t* ckpt_save_cancel(ckpt_save_t* save);
CKPT_API void ckpt_save_free(ckpt_save_t* save); /* the save goes on */

/* ---- reading --------------------------------------------------------------------------------------------------------- */
/* Selector: NULL or "" what this session resumes from (staged RAM or the newest durable checkpoint), "latest" the newest
 * durable one, "step:N", or a checkpoint's name. NOT_FOUND: there is nothing at all (a fresh start). DATA_LOSS: there are
 * checkpoints and none loads; never a silent start from zero. */
CKPT_API ckpt_error_t* ckpt_reader_open(ckpt_session_t* session, const char* selector, ckpt_reader_t** out_reader);
/* Without a session: claims no epoch and changes nothing, so it may look at a job that runs elsewhere. `path`: a job's
 * directory, or that of one checkpoint. Selectors as above, but "" is the newest durable one. `rank`: whose own tensors and
 * values are read. NOT_FOUND: there is none. */
CKPT_API ckpt_error_t* ckpt_reader_open_path(const char* path, const char* selector, uint32_t rank, ckpt_reader_t** out_reader);
/* JSON array of the job's checkpoints, newest first. Valid until the next call or close. */
CKPT_API ckpt_error_t* ckpt_reader_list(ckpt_session_t* session, const char** out_json);
CKPT_API ckpt_error_t* ckpt_reader_step(ckpt_reader_t* reader, int64_t* out_step);
/* In place, into the tensors of `state`, verified. Missing, extra, wrong shape or dtype: one INVALID_ARGUMENT that lists
 * them all, before a byte is written. Values and blobs of `state` are replaced by the stored ones. */
CKPT_API ckpt_error_t* ckpt_reader_load(ckpt_reader_t* reader, ckpt_state_t* state);
/* The tensors of `state` only, in place and verified; the checkpoint may hold more, and values and blobs of `state` stay. */
CKPT_API ckpt_error_t* ckpt_reader_load_part(ckpt_reader_t* reader, ckpt_state_t* state);
/* JSON: name, step, world_size; tensors with name, dtype, global shape, and rank (one of each rank's own) or tied_to;
 * names of values and blobs. Valid until the next call or close. */
CKPT_API ckpt_error_t* ckpt_reader_contents(ckpt_reader_t* reader, const char** out_json);
/* JSON of a value, or the bytes of a blob. Valid until the reader is closed. NOT_FOUND if there is none. */
CKPT_API ckpt_error_t* ckpt_reader_value(ckpt_reader_t* reader, const char* name, const char** out_json);
CKPT_API ckpt_error_t* ckpt_reader_blob(ckpt_reader_t* reader, const char* name, const void** out_bytes, size_t* out_size);
CKPT_API void ckpt_reader_close(ckpt_reader_t* reader);

/* ---- communicators ----------------------------------------------------------------------------------------------------- */
/* The gang's key-value channel, valid during `up` only. Several ranks without ckpt-run have none: unimplemented. */
typedef struct ckpt_kv_t ckpt_kv_t;
CKPT_API ckpt_error_t* ckpt_kv_set(ckpt_kv_t* kv, const char* key, const void* value, size_t size);
/* Copies at most *inout_size bytes; sets *inout_size to the size of the value. Blocks until some rank has set `key`. */
CKPT_API ckpt_error_t* ckpt_kv_wait(ckpt_kv_t* kv, const char* key, void* value, size_t* inout_size, int64_t timeout_ns);

/* What the library calls to take a communicator down and up again; all on the loop's thread, 0 is success. */
typedef struct ckpt_comm_ops_t {
  size_t struct_size;
  void* ctx;
  const char* name;
  int32_t (*quiesce)(void* ctx, int64_t deadline_boottime_ns);
  int32_t (*down)(void* ctx, int64_t deadline_boottime_ns);
  int32_t (*up)(void* ctx, const char* fresh_id, ckpt_kv_t* kv, int64_t deadline_boottime_ns);
  int32_t (*verify)(void* ctx, int64_t deadline_boottime_ns);
} ckpt_comm_ops_t;

/* Registers a communicator and brings it up under this epoch's id (every rank, in the same order). */
CKPT_API ckpt_error_t* ckpt_comm_register(ckpt_session_t* session, const ckpt_comm_ops_t* ops, ckpt_comm_t** out_comm);
/* Takes it down and forgets it. */
CKPT_API ckpt_error_t* ckpt_comm_unregister(ckpt_comm_t* comm);

/* ---- NCCL --------------------------------------------------------------------------------------------------------------- */
/* A world of all ranks of the session and what is split from it, taken down and built again together. From the loop's thread.
 * Splits, streams and buffers are declared before connect, the same on all ranks in the same order. Communicators are
 * non-blocking: after ncclInProgress, ask ncclCommGetAsyncError. */
typedef struct ckpt_nccl_t ckpt_nccl_t;

typedef struct ckpt_nccl_split_t {
  size_t struct_size;
  const char* name;
  uint32_t parent;    /* 0 the world, else the index of an earlier split */
  int32_t color;      /* ranks of `parent` with the same one form a communicator; -1: this rank is in none */
  int32_t key;        /* their order */
  const void* config; /* ncclConfig_t, NULL: NCCL's defaults */
} ckpt_nccl_split_t;

/* `device`: as in a tensor, 1 + n. `config`: the world's ncclConfig_t as the program's own header has it, or NULL. Loads
 * libnccl.so.2: UNIMPLEMENTED if there is none or before 2.18, FAILED_PRECONDITION if something has it linked statically. */
CKPT_API ckpt_error_t* ckpt_nccl_create(ckpt_session_t* session, uint32_t device, const void* config, ckpt_nccl_t** out_nccl);
CKPT_API ckpt_error_t* ckpt_nccl_add_split(ckpt_nccl_t* nccl, const ckpt_nccl_split_t* split, uint32_t* out_index);
/* A stream that carries collectives: drained before anything is taken down. The default stream is anyway. */
CKPT_API ckpt_error_t* ckpt_nccl_add_stream(ckpt_nccl_t* nccl, void* stream);
/* Memory to be registered with communicator `index` whenever it is built. `window_flags` negative: ncclCommRegister; else a
 * window with these flags, the same on all of its ranks. */
CKPT_API ckpt_error_t* ckpt_nccl_add_buffer(ckpt_nccl_t* nccl, uint32_t index, void* memory, uint64_t bytes,
                                            int32_t window_flags);
/* A captured graph holds communicator `index`, or no longer (`held` 0). NCCL cannot take down what a graph holds, so a stop
 * is refused, with the graph's name, while one does. */
CKPT_API ckpt_error_t* ckpt_nccl_graph(ckpt_nccl_t* nccl, uint32_t index, const char* graph, uint32_t held);
/* Registers and builds all of it (every rank, in the same order as other communicators), and checks it. */
CKPT_API ckpt_error_t* ckpt_nccl_connect(ckpt_nccl_t* nccl);
/* ncclComm_t of communicator `index`; NULL while it is down, and for a rank that is in none. Ask again after each step. */
CKPT_API ckpt_error_t* ckpt_nccl_handle(ckpt_nccl_t* nccl, uint32_t index, void** out_comm);
/* ncclWindow_t of a buffer; NULL while down. */
CKPT_API ckpt_error_t* ckpt_nccl_window(ckpt_nccl_t* nccl, const void* memory, void** out_window);
/* JSON array of what is known of whether they can go down and come back: {"check", "verdict": yes, no or unknown, "reason"};
 * graphs, IPC handles, driver, MIG, compute mode, NVLS. What says no, but for graphs, is refused by create. Valid until the
 * next call. */
CKPT_API ckpt_error_t* ckpt_nccl_report(ckpt_nccl_t* nccl, const char** out_json);
/* Drains it, takes it down and frees it, also if that fails. Before the session is closed. */
CKPT_API ckpt_error_t* ckpt_nccl_close(ckpt_nccl_t* nccl);

#ifdef __cplusplus
}
#endif
#endif /* CKPT_CKPT_H_ */

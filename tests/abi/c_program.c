/* libckpt from plain C11: every struct and most functions of ckpt.h, older and newer callers included. */
#define _POSIX_C_SOURCE 200809L
#include <ckpt/ckpt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int failures = 0;

#define EXPECT(condition)                                              \
  do {                                                                 \
    if (!(condition)) {                                                \
      printf("FAILED line %d: %s\n", __LINE__, #condition);            \
      ++failures;                                                      \
    }                                                                  \
  } while (0)

/* The error's code; prints what was not expected. */
static int32_t code_of(ckpt_error_t* error, int32_t expected, int line) {
  const int32_t code = ckpt_error_code(error);
  if (code != expected) {
    printf("FAILED line %d: code %d instead of %d: %s\n", line, (int)code, (int)expected, ckpt_error_message(error));
    ++failures;
  }
  ckpt_error_free(error);
  return code;
}
#define OK(call) code_of((call), 0, __LINE__)
#define FAILS(expected, call) code_of((call), (expected), __LINE__)

enum { INVALID_ARGUMENT = 3, DEADLINE_EXCEEDED = 4, NOT_FOUND = 5, ALREADY_EXISTS = 6, FAILED_PRECONDITION = 9, UNIMPLEMENTED = 12 };

static int refreshed = 0;
static int32_t refresh(void* ctx, ckpt_state_t* state) {
  ++refreshed;
  return ckpt_error_code(ckpt_state_add_value(state, "step", CKPT_SHARED_VALUE, (const char*)ctx));
}

static void describe_weights(ckpt_tensor_desc_t* desc, float* weights, const uint64_t* shape) {
  memset(desc, 0, sizeof *desc);
  desc->struct_size = sizeof *desc;
  desc->name = "weights";
  desc->dtype = CKPT_F32;
  desc->ndim = 2;
  desc->global_shape = shape;
  desc->data = weights;
}

static void test_state(void) {
  float weights[6] = {0};
  const uint64_t shape[2] = {2, 3};
  ckpt_state_t* state = NULL;
  ckpt_tensor_desc_t desc;
  OK(ckpt_state_create(&state));
  describe_weights(&desc, weights, shape);
  desc.struct_size = 3; /* not even the size itself */
  FAILS(INVALID_ARGUMENT, ckpt_state_add_tensor(state, &desc));
  desc.struct_size = offsetof(ckpt_tensor_desc_t, device); /* an older header */
  desc.device = 77;                                        /* which it did not have: not read */
  OK(ckpt_state_add_tensor(state, &desc));
  FAILS(ALREADY_EXISTS, ckpt_state_add_tensor(state, &desc));
  {
    struct {
      ckpt_tensor_desc_t known;
      uint64_t from_the_future;
    } newer;
    describe_weights(&newer.known, weights, shape);
    newer.known.name = "newer";
    newer.known.struct_size = sizeof newer;
    newer.from_the_future = 0;
    OK(ckpt_state_add_tensor(state, &newer.known));
    newer.known.name = "newer still";
    newer.from_the_future = 1;
    FAILS(UNIMPLEMENTED, ckpt_state_add_tensor(state, &newer.known));
  }
  FAILS(INVALID_ARGUMENT, ckpt_state_add_value(state, "v", CKPT_SHARED_VALUE, "{no json"));
  FAILS(INVALID_ARGUMENT, ckpt_state_add_value(state, NULL, CKPT_SHARED_VALUE, "1"));
  FAILS(INVALID_ARGUMENT, ckpt_state_add_tensor(NULL, &desc));
  desc.struct_size = sizeof desc;
  desc.name = "elsewhere";
  FAILS(UNIMPLEMENTED, ckpt_state_add_tensor(state, &desc)); /* device 77 */
  ckpt_state_free(state);
  ckpt_state_free(NULL);
}

static void test_life(const char* store) {
  float weights[6] = {1, 2, 3, 4, 5, 6};
  const uint64_t shape[2] = {2, 3};
  ckpt_state_t* state = NULL;
  ckpt_session_t* session = NULL;
  ckpt_save_t* save = NULL;
  ckpt_reader_t* reader = NULL;
  ckpt_tensor_desc_t desc;
  ckpt_session_options_t options;
  ckpt_save_options_t save_options;
  ckpt_request_t request;
  ckpt_level_t level;
  uint64_t done = 0, total = 0;
  int64_t step = 0;
  const char* json = NULL;
  const void* bytes = NULL;
  size_t size = 0;

  memset(&options, 0, sizeof options);
  options.struct_size = offsetof(ckpt_session_options_t, rank); /* older: rank is unset, not 0 */
  options.job = "c-program";
  options.store = store;
  OK(ckpt_state_create(&state));
  describe_weights(&desc, weights, shape);
  OK(ckpt_state_add_tensor(state, &desc));
  OK(ckpt_state_add_blob(state, "rng", CKPT_SHARED_VALUE, "application/octet-stream", "\0\1\2", 3));
  OK(ckpt_session_open(&options, &session));
  FAILS(NOT_FOUND, ckpt_reader_open(session, NULL, &reader));
  EXPECT(reader == NULL);
  OK(ckpt_session_track(session, state, refresh, "41"));
  OK(ckpt_session_phase(session, CKPT_PHASE_COMPILE, 1000000000));
  FAILS(INVALID_ARGUMENT, ckpt_session_phase(session, (ckpt_phase_t)9, 0));
  OK(ckpt_session_step(session, 1, &request));
  EXPECT(request.kind == CKPT_REQUEST_NONE && request.boundary == 1);

  memset(&save_options, 0, sizeof save_options);
  save_options.struct_size = sizeof save_options;
  save_options.step = 41;
  OK(ckpt_save_begin(session, &save_options, &save));
  EXPECT(refreshed == 1);
  memset(weights, 0, sizeof weights); /* it is staged */
  OK(ckpt_save_wait(save, CKPT_LEVEL_STAGED, 0));
  FAILS(INVALID_ARGUMENT, ckpt_save_wait(save, (ckpt_level_t)9, 0));
  OK(ckpt_save_wait(save, CKPT_LEVEL_SHARED, -1));
  OK(ckpt_save_progress(save, &level, &done, &total));
  EXPECT(level == CKPT_LEVEL_SHARED && done == total);
  OK(ckpt_save_fence(session));
  ckpt_save_free(save);

  OK(ckpt_reader_list(session, &json));
  EXPECT(strstr(json, "\"s41.e1.a1\"") != NULL);
  OK(ckpt_reader_open(session, "step:41", &reader));
  OK(ckpt_reader_step(reader, &step));
  EXPECT(step == 41);
  OK(ckpt_reader_load(reader, state));
  EXPECT(weights[0] == 1 && weights[5] == 6);
  OK(ckpt_reader_value(reader, "step", &json));
  EXPECT(strcmp(json, "41") == 0);
  FAILS(NOT_FOUND, ckpt_reader_value(reader, "nothing", &json));
  OK(ckpt_reader_blob(reader, "rng", &bytes, &size));
  EXPECT(size == 3 && memcmp(bytes, "\0\1\2", 3) == 0);
  ckpt_reader_close(reader);

  OK(ckpt_session_describe(session, &json));
  EXPECT(strstr(json, "\"mode\":\"standalone\"") != NULL);
  OK(ckpt_session_finish(session));
  FAILS(FAILED_PRECONDITION, ckpt_session_step(session, 2, &request));
  EXPECT(request.kind == CKPT_REQUEST_NONE);
  OK(ckpt_session_close(session, -1));
  ckpt_state_free(state);
}

/* After test_life: what it saved, seen without a session. */
static void test_reading_alone(const char* store) {
  float weights[6] = {0};
  const uint64_t shape[2] = {2, 3};
  char path[128];
  ckpt_state_t* state = NULL;
  ckpt_state_t* empty = NULL;
  ckpt_reader_t* reader = NULL;
  ckpt_tensor_desc_t desc;
  const char* json = NULL;
  OK(ckpt_state_create(&state));
  OK(ckpt_state_create(&empty));
  describe_weights(&desc, weights, shape);
  OK(ckpt_state_add_tensor(state, &desc));
  snprintf(path, sizeof path, "%s/nothing-here", store);
  FAILS(NOT_FOUND, ckpt_reader_open_path(path, NULL, 0, &reader));
  FAILS(NOT_FOUND, ckpt_reader_open_path(store, "step:40", 0, &reader));
  EXPECT(reader == NULL);
  snprintf(path, sizeof path, "%s/s41.e1.a1", store);
  OK(ckpt_reader_open_path(path, NULL, 0, &reader)); /* the checkpoint itself */
  OK(ckpt_reader_load_part(reader, empty));          /* nothing is asked for */
  FAILS(INVALID_ARGUMENT, ckpt_reader_load(reader, empty));
  OK(ckpt_reader_load_part(reader, state));
  EXPECT(weights[0] == 1 && weights[5] == 6);
  ckpt_reader_close(reader);
  OK(ckpt_reader_open_path(store, NULL, 0, &reader)); /* the job's newest */
  OK(ckpt_reader_contents(reader, &json));
  EXPECT(strcmp(json,
                "{\"name\":\"s41.e1.a1\",\"step\":41,\"world_size\":1,\"tensors\":[{\"name\":\"weights\",\"dtype\":\"F32\","
                "\"shape\":[2,3]}],\"values\":[\"step\"],\"blobs\":[\"rng\"]}") == 0);
  OK(ckpt_reader_value(reader, "step", &json));
  EXPECT(strcmp(json, "41") == 0);
  ckpt_reader_close(reader);
  snprintf(path, sizeof path, "%s/EPOCH.2.claim", store);
  EXPECT(access(path, F_OK) != 0); /* nothing was claimed */
  ckpt_state_free(state);
  ckpt_state_free(empty);
}

static void test_mistakes(void) {
  ckpt_session_options_t options;
  ckpt_session_t* session = NULL;
  ckpt_request_t request;
  memset(&options, 0, sizeof options);
  options.struct_size = sizeof options;
  options.rank = 3;
  options.world_size = 2;
  FAILS(INVALID_ARGUMENT, ckpt_session_open(&options, &session));
  options.rank = 0;
  FAILS(INVALID_ARGUMENT, ckpt_session_open(&options, &session)); /* two ranks and no collective */
  options.world_size = 1;
  options.job = "../escape";
  FAILS(INVALID_ARGUMENT, ckpt_session_open(&options, &session));
  EXPECT(session == NULL);
  FAILS(INVALID_ARGUMENT, ckpt_session_open(NULL, NULL));
  FAILS(INVALID_ARGUMENT, ckpt_session_step(NULL, 1, &request));
  FAILS(INVALID_ARGUMENT, ckpt_session_close(NULL, 0));
  options.job = "test";
  setenv("CKPT_COMPRESS", "20", 1);
  FAILS(INVALID_ARGUMENT, ckpt_session_open(&options, &session)); /* no such level: it is read */
  unsetenv("CKPT_COMPRESS");
  setenv("CKPT_RUN", "/nonexistent/run.sock", 1);
  options.job = "test";
  FAILS(14, ckpt_session_open(&options, &session)); /* UNAVAILABLE, never a quiet standalone run */
  options.store = "/tmp/ckpt-abi-never-made";
  options.alone = 1;
  OK(ckpt_session_open(&options, &session)); /* not that of the gang */
  OK(ckpt_session_close(session, 0));
  unsetenv("CKPT_RUN");
  EXPECT(ckpt_error_code(NULL) == 0 && ckpt_error_outcome(NULL) == 0);
  EXPECT(strcmp(ckpt_error_message(NULL), "") == 0);
  ckpt_error_free(NULL);
  ckpt_save_free(NULL);
  ckpt_reader_close(NULL);
}

int main(void) {
  char store[] = "/tmp/ckpt-abi-XXXXXX";
  char command[64];
  unsetenv("CKPT_RUN");
  unsetenv("CKPT_JOB");
  unsetenv("CKPT_STORE");
  unsetenv("CKPT_SAVE_EVERY");
  unsetenv("RANK");
  unsetenv("WORLD_SIZE");
  if (mkdtemp(store) == NULL) return 1;
  EXPECT(ckpt_abi_version() >= CKPT_ABI_VERSION);
  test_state();
  test_life(store);
  test_reading_alone(store);
  test_mistakes();
  snprintf(command, sizeof command, "rm -rf '%s'", store);
  if (system(command) != 0) return 1;
  if (failures == 0) printf("OK\n");
  return failures == 0 ? 0 : 1;
}

/* A program that saves and returns from main without close: its last save is complete all the same. */
#include <ckpt/ckpt.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define ELEMENTS (UINT64_C(8) << 20) /* 64 MiB: not written in the time that it takes to return */

static uint64_t* data;

static void Check(ckpt_error_t* error, const char* what) {
  if (error == NULL) return;
  fprintf(stderr, "%s: %s\n", what, ckpt_error_message(error));
  exit(1);
}

static ckpt_session_t* Open(const char* store, ckpt_state_t** state) {
  ckpt_session_t* session = NULL;
  ckpt_session_options_t options = {0};
  ckpt_tensor_desc_t tensor = {0};
  const uint64_t shape[] = {ELEMENTS};
  options.struct_size = sizeof options;
  options.store = store;
  options.rank = 0;
  options.world_size = 1;
  Check(ckpt_session_open(&options, &session), "open");
  data = calloc(ELEMENTS, sizeof *data);
  tensor.struct_size = sizeof tensor;
  tensor.name = "data";
  tensor.dtype = CKPT_U64;
  tensor.placement = CKPT_UNSHARDED;
  tensor.ndim = 1;
  tensor.global_shape = shape;
  tensor.data = data;
  Check(ckpt_state_create(state), "state");
  Check(ckpt_state_add_tensor(*state, &tensor), "tensor");
  Check(ckpt_session_track(session, *state, NULL, NULL), "track");
  return session;
}

/* Returns as main does. */
static int SaveAndReturn(const char* store) {
  ckpt_state_t* state = NULL;
  ckpt_session_t* session = Open(store, &state);
  ckpt_save_options_t options = {0};
  ckpt_save_t* save = NULL;
  for (uint64_t i = 0; i < ELEMENTS; ++i) data[i] = i * 3;
  options.struct_size = sizeof options;
  options.step = 42;
  Check(ckpt_save_begin(session, &options, &save), "save");
  ckpt_save_free(save);
  memset(data, 0, ELEMENTS * sizeof *data);
  return 0;
}

static int Restored(const char* store) {
  ckpt_state_t* state = NULL;
  ckpt_session_t* session = Open(store, &state);
  ckpt_reader_t* reader = NULL;
  int64_t step = 0;
  Check(ckpt_reader_open(session, NULL, &reader), "reader");
  Check(ckpt_reader_step(reader, &step), "step");
  Check(ckpt_reader_load(reader, state), "load");
  ckpt_reader_close(reader);
  for (uint64_t i = 0; i < ELEMENTS; ++i)
    if (data[i] != i * 3) return 1;
  Check(ckpt_session_close(session, -1), "close");
  ckpt_state_free(state);
  return step == 42 ? 0 : 1;
}

int main(void) {
  char directory[] = "/tmp/ckpt-exit-XXXXXX";
  char command[64];
  int status = 0, failed = 1;
  pid_t child;
  unsetenv("CKPT_RUN");
  unsetenv("CKPT_SAVE_EVERY");
  if (mkdtemp(directory) == NULL) return 1;
  child = fork();
  if (child == 0) return SaveAndReturn(directory);
  if (waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0) {
    failed = Restored(directory);
  } else {
    fprintf(stderr, "the program that saved ended with status %d\n", status);
  }
  snprintf(command, sizeof command, "rm -rf %s", directory);
  if (system(command) != 0) return 1;
  return failed;
}

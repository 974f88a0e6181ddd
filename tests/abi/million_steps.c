/* Usage: million_steps COUNT STORE. Steps, with a tracked tensor and nothing asked. */
#include <ckpt/ckpt.h>
#include <stdio.h>
#include <stdlib.h>

static void check(ckpt_error_t* error) {
  if (error == NULL) return;
  fprintf(stderr, "%s\n", ckpt_error_message(error));
  exit(1);
}

int main(int argc, char** argv) {
  static float weights[64];
  const uint64_t shape[1] = {64};
  ckpt_tensor_desc_t tensor = {0};
  ckpt_session_options_t options = {0};
  ckpt_state_t* state;
  ckpt_session_t* session;
  ckpt_request_t request;
  long count, step;
  if (argc != 3) return 2;
  count = atol(argv[1]);
  tensor.struct_size = sizeof tensor;
  tensor.name = "weights";
  tensor.dtype = CKPT_F32;
  tensor.ndim = 1;
  tensor.global_shape = shape;
  tensor.data = weights;
  options.struct_size = sizeof options;
  options.store = argv[2];
  options.rank = CKPT_UNSET_RANK;
  options.signals = UINT64_C(1) << 15;
  check(ckpt_state_create(&state));
  check(ckpt_state_add_tensor(state, &tensor));
  check(ckpt_session_open(&options, &session));
  check(ckpt_session_track(session, state, NULL, NULL));
  for (step = 1; step <= count; ++step) {
    check(ckpt_session_step(session, step, &request));
    if (request.kind != CKPT_REQUEST_NONE || request.boundary != (uint64_t)step) return 1;
  }
  check(ckpt_session_close(session, -1));
  ckpt_state_free(state);
  return 0;
}

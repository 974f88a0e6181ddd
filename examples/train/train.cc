// Trains a byte-level language model on a text, data-parallel: one process a rank, gradients
// averaged by Gloo, Adam.
//
// Built twice from this file. `train_plain` knows nothing of libckpt and finds its peers through a
// directory
// (--rendezvous). `train` can be suspended, killed and moved at any step. Both print the loss of
// every step bit for bit, so that the two can be compared.
#include <gloo/allreduce.h>
#include <gloo/context.h>
#include <gloo/math.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <thread>

#include "examples/train/data.h"
#include "examples/train/model.h"
#include "examples/train/options.h"
#include "examples/train/report.h"
#if defined(TRAIN_WITH_CKPT)
#include "examples/train/with_ckpt.h"
#else
#include "examples/train/without_ckpt.h"
#endif

namespace train {
namespace {

// The sum over all ranks, in place; the order of additions depends on the world size only.
void SumOverRanks(const std::shared_ptr<gloo::Context>& context, float* values, size_t count) {
  if (context->size == 1) return;
  gloo::AllreduceOptions options(context);
  options.setOutput(values, count);
  options.setReduceFunction(
      static_cast<void (*)(void*, const void*, const void*, size_t)>(&gloo::sum<float>));
  gloo::allreduce(options);
}

int Train(const Options& options) {
  std::vector<uint8_t> text;
  std::string error;
  Shape shape;
  shape.hidden = options.hidden;
  if (!ReadText(options.text, shape.context, &text, &error)) {
    fprintf(stderr, "train: %s\n", error.c_str());
    return 2;
  }
  Model model(shape, options.seed);
  Batches batches(std::move(text), shape.context, options.batch, options.seed, options.rank);
  Harness harness(options, &model, &batches);
  Report report(options);

  for (int64_t step = harness.first_step(); step <= options.steps; ++step) {
    batches.Next();
    float loss = model.ForwardBackward(batches.contexts(), batches.targets());
    SumOverRanks(harness.context(), model.gradient().data(), model.gradient().size());
    SumOverRanks(harness.context(), &loss, 1);
    model.Update(step, 1.0f / static_cast<float>(options.world), options.learning_rate);
    report.Loss(step, loss / static_cast<float>(options.world));
    std::this_thread::sleep_for(std::chrono::milliseconds(options.pause_ms));
    if (harness.Boundary(step)) return harness.exit_code();
  }
  report.Final(model, batches);
  harness.Finish();
  return 0;
}

}  // namespace
}  // namespace train

int main(int argc, char** argv) {
  train::Options options;
  if (!train::ParseOptions(argc, argv, &options)) return 2;
  try {
    return train::Train(options);
  } catch (const std::exception& error) {
    fprintf(stderr, "train: rank %d: %s\n", options.rank, error.what());
    return 1;
  }
}

// The trainer with libckpt: what is tracked, and what happens at a step boundary.
#pragma once

#include <ckpt/ckpt.hpp>
#include <cstdio>
#include <string>

#include "examples/train/data.h"
#include "examples/train/model.h"
#include "examples/train/options.h"
#include "integrations/gloo/ckpt_gloo.h"

namespace train {

class Harness {
 public:
  Harness(const Options& options, Model* model, Batches* batches)
      : batches_(batches),
        session_(SessionOptions(options)),
        world_(options.rank, options.world, "world", options.host) {
    Describe(options, model);
    session_.Track(state_);
    if (session_.Restore()) {
      batches_->Restore(static_cast<uint64_t>(random_state_), samples_seen_);
      printf("rank %d: goes on after step %lld\n", options.rank, static_cast<long long>(step_));
      fflush(stdout);
    }
    if (ckpt_error_t* error = world_.Register(session_.handle())) {
      const std::string message = ckpt_error_message(error);
      ckpt_error_free(error);
      throw std::runtime_error(message + " " + world_.last_error());
    }
  }

  int64_t first_step() const { return step_ + 1; }
  const std::shared_ptr<gloo::Context>& context() const { return world_.context(); }

  // True: the state is staged and this rank must leave.
  bool Boundary(int64_t step) {
    step_ = step;
    random_state_ = static_cast<int64_t>(batches_->random_state());
    samples_seen_ = batches_->samples_seen();
    const ckpt::Request request = session_.Step(step);
    if (request.error) fprintf(stderr, "train: %s (training goes on)\n", request.error->what());
    return request.stop();
  }
  int exit_code() const { return session_.exit_code(); }

  void Finish() {
    session_.Finish();
    session_.Close();
  }

 private:
  static ckpt::Options SessionOptions(const Options& options) {
    ckpt::Options session;
    session.save_every = static_cast<uint64_t>(options.save_every);
    return session;
  }

  // Weights and moments are equal on all ranks; the histogram is sharded, a row a rank; where a
  // rank is in its data is its own.
  void Describe(const Options& options, Model* model) {
    const std::pair<const char*, std::vector<float>*> parts[] = {{"weights/", &model->weights()},
                                                                 {"moment1/", &model->moment1()},
                                                                 {"moment2/", &model->moment2()}};
    for (const auto& [prefix, values] : parts) {
      for (const TensorView& view : model->tensors()) {
        state_.Tensor(prefix + view.name, values->data() + view.offset, view.shape,
                      ckpt::Placement::kReplicated);
      }
    }
    ckpt::TensorSpec histogram;
    histogram.name = "data/histogram";
    histogram.dtype = ckpt::DType::kU64;
    histogram.data = batches_->histogram().data();
    histogram.shape = {static_cast<uint64_t>(options.world), 256};
    histogram.local_shape = {1, 256};
    histogram.local_offset = {static_cast<uint64_t>(options.rank), 0};
    histogram.placement = ckpt::Placement::kSharded;
    state_.Tensor(histogram)
        .Value("step", &step_)
        .Value("data/random_state", &random_state_, ckpt::Scope::kRank)
        .Value("data/samples_seen", &samples_seen_, ckpt::Scope::kRank);
  }

  Batches* batches_;
  int64_t step_ = 0;
  int64_t random_state_ = 0;
  int64_t samples_seen_ = 0;
  ckpt::State state_;
  ckpt::Session session_;
  ckpt_gloo::Communicator world_;
};

}  // namespace train

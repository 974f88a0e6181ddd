// Logistic regression that goes on where it was: run it, kill -9 it at any moment, run it again.
#include <ckpt/ckpt.hpp>
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

int main() {
  constexpr int kFeatures = 2000, kSteps = 20000;
  std::vector<double> weights(kFeatures, 0.0), x(kFeatures);
  std::minstd_rand random(1);
  double loss = 0.7;
  long step = 0;
  ckpt::State state;  // what makes up the training, bound by address
  state.Tensor("weights", weights.data(), {kFeatures});
  state.Value("step", &step).Value("loss", &loss).Blob("random", &random);

  ckpt::Options options;
  options.save_every = 500;
  ckpt::Session session(options);
  session.Track(state);
  if (session.Restore()) std::printf("resumed at step %ld\n", step);

  while (step < kSteps) {
    double guess = 0, truth = 0;
    for (int i = 0; i < kFeatures; ++i) {
      x[i] = random() / 2147483647.0 - 0.5;
      guess += weights[i] * x[i];
      truth += std::sin(i) * x[i];
    }
    const double error = 1 / (1 + std::exp(-guess)) - (truth > 0 ? 1 : 0);
    for (int i = 0; i < kFeatures; ++i) weights[i] -= 0.1 * error * x[i];
    loss += 0.001 * (-std::log(1 - std::abs(error)) - loss);
    if (++step % 1000 == 0) std::printf("step %ld loss %a\n", step, loss);
    if (session.Step(step).stop()) return session.exit_code();
  }
  std::printf("done: loss %a, first weight %a\n", loss, weights[0]);
  session.Finish();
  session.Close();
}

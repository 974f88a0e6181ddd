#include "examples/train/model.h"

#include <cblas.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "examples/train/random.h"

namespace train {
namespace {

enum Tensor { kEmbedding, kW1, kB1, kW2, kB2, kW3, kB3 };
constexpr int kBytes = 256;

// out[m×n] = a[m×k] · b[k×n] (+ out if `add`), row-major, with either side transposed.
void Gemm(bool ta, bool tb, int m, int n, int k, const float* a, const float* b, float* out,
          bool add) {
  cblas_sgemm(CblasRowMajor, ta ? CblasTrans : CblasNoTrans, tb ? CblasTrans : CblasNoTrans, m, n,
              k, 1.0f, a, ta ? m : k, b, tb ? k : n, add ? 1.0f : 0.0f, out, n);
}

void AddBiasTanh(float* rows, const float* bias, int batch, int width) {
  for (int r = 0; r < batch; ++r) {
    for (int i = 0; i < width; ++i) rows[r * width + i] = std::tanh(rows[r * width + i] + bias[i]);
  }
}

void TanhBackward(float* delta, const float* value, size_t count) {
  for (size_t i = 0; i < count; ++i) delta[i] *= 1.0f - value[i] * value[i];
}

void SumRows(const float* rows, float* out, int batch, int width) {
  std::fill(out, out + width, 0.0f);
  for (int r = 0; r < batch; ++r) {
    for (int i = 0; i < width; ++i) out[i] += rows[r * width + i];
  }
}

}  // namespace

Model::Model(const Shape& shape, uint64_t seed) : shape_(shape) {
  openblas_set_num_threads(1);  // one rank, one core; and sums in one order
  const uint64_t in = static_cast<uint64_t>(shape.context * shape.embedding);
  const uint64_t hidden = static_cast<uint64_t>(shape.hidden);
  const std::vector<std::pair<std::string, std::vector<uint64_t>>> list = {
      {"embedding", {kBytes, static_cast<uint64_t>(shape.embedding)}},
      {"layer1.weight", {in, hidden}},
      {"layer1.bias", {hidden}},
      {"layer2.weight", {hidden, hidden}},
      {"layer2.bias", {hidden}},
      {"head.weight", {hidden, kBytes}},
      {"head.bias", {kBytes}}};
  size_t total = 0;
  for (const auto& [name, dims] : list) {
    size_t size = 1;
    for (const uint64_t dim : dims) size *= dim;
    tensors_.push_back({name, dims, total, size});
    total += size;
  }
  weights_.resize(total);
  moment1_.assign(total, 0.0f);
  moment2_.assign(total, 0.0f);
  gradient_.assign(total, 0.0f);
  Random random(seed);
  for (const TensorView& tensor : tensors_) {
    if (tensor.shape.size() < 2) continue;  // biases start at zero
    const float scale = 1.0f / std::sqrt(static_cast<float>(tensor.shape[0]));
    for (size_t i = 0; i < tensor.size; ++i) {
      weights_[tensor.offset + i] = (random.NextFloat() * 2 - 1) * scale;
    }
  }
}

void Model::Forward(std::span<const uint8_t> contexts, int batch) {
  const int in = shape_.context * shape_.embedding;
  input_.resize(static_cast<size_t>(batch) * in);
  for (int r = 0; r < batch; ++r) {
    for (int c = 0; c < shape_.context; ++c) {
      std::memcpy(&input_[static_cast<size_t>(r) * in + c * shape_.embedding],
                  W(kEmbedding) + contexts[r * shape_.context + c] * shape_.embedding,
                  shape_.embedding * sizeof(float));
    }
  }
  const int hidden = shape_.hidden;
  hidden1_.resize(static_cast<size_t>(batch) * hidden);
  hidden2_.resize(hidden1_.size());
  logits_.resize(static_cast<size_t>(batch) * kBytes);
  Gemm(false, false, batch, hidden, in, input_.data(), W(kW1), hidden1_.data(), false);
  AddBiasTanh(hidden1_.data(), W(kB1), batch, hidden);
  Gemm(false, false, batch, hidden, hidden, hidden1_.data(), W(kW2), hidden2_.data(), false);
  AddBiasTanh(hidden2_.data(), W(kB2), batch, hidden);
  Gemm(false, false, batch, kBytes, hidden, hidden2_.data(), W(kW3), logits_.data(), false);
}

// Leaves d loss / d logits in logits_.
float Model::SoftmaxLoss(std::span<const uint8_t> targets, int batch) {
  double loss = 0;
  for (int r = 0; r < batch; ++r) {
    float* row = &logits_[static_cast<size_t>(r) * kBytes];
    for (int i = 0; i < kBytes; ++i) row[i] += W(kB3)[i];
    const float peak = *std::max_element(row, row + kBytes);
    float sum = 0;
    const float target = row[targets[r]];
    for (int i = 0; i < kBytes; ++i) {
      row[i] = std::exp(row[i] - peak);
      sum += row[i];
    }
    loss += std::log(sum) - (target - peak);
    for (int i = 0; i < kBytes; ++i) row[i] = row[i] / sum / static_cast<float>(batch);
    row[targets[r]] -= 1.0f / static_cast<float>(batch);
  }
  return static_cast<float>(loss / batch);
}

float Model::ForwardBackward(std::span<const uint8_t> contexts, std::span<const uint8_t> targets) {
  const int batch = static_cast<int>(targets.size());
  const int hidden = shape_.hidden;
  const int in = shape_.context * shape_.embedding;
  Forward(contexts, batch);
  const float loss = SoftmaxLoss(targets, batch);

  Gemm(true, false, hidden, kBytes, batch, hidden2_.data(), logits_.data(), G(kW3), false);
  SumRows(logits_.data(), G(kB3), batch, kBytes);
  delta2_.resize(hidden2_.size());
  Gemm(false, true, batch, hidden, kBytes, logits_.data(), W(kW3), delta2_.data(), false);
  TanhBackward(delta2_.data(), hidden2_.data(), delta2_.size());

  Gemm(true, false, hidden, hidden, batch, hidden1_.data(), delta2_.data(), G(kW2), false);
  SumRows(delta2_.data(), G(kB2), batch, hidden);
  delta1_.resize(hidden1_.size());
  Gemm(false, true, batch, hidden, hidden, delta2_.data(), W(kW2), delta1_.data(), false);
  TanhBackward(delta1_.data(), hidden1_.data(), delta1_.size());

  Gemm(true, false, in, hidden, batch, input_.data(), delta1_.data(), G(kW1), false);
  SumRows(delta1_.data(), G(kB1), batch, hidden);
  delta_input_.resize(input_.size());
  Gemm(false, true, batch, in, hidden, delta1_.data(), W(kW1), delta_input_.data(), false);
  std::fill(G(kEmbedding), G(kEmbedding) + tensors_[kEmbedding].size, 0.0f);
  for (int r = 0; r < batch; ++r) {
    for (int c = 0; c < shape_.context; ++c) {
      float* to = G(kEmbedding) + contexts[r * shape_.context + c] * shape_.embedding;
      const float* from = &delta_input_[static_cast<size_t>(r) * in + c * shape_.embedding];
      for (int i = 0; i < shape_.embedding; ++i) to[i] += from[i];
    }
  }
  return loss;
}

void Model::Update(int64_t step, float gradient_scale, float learning_rate) {
  constexpr float kBeta1 = 0.9f, kBeta2 = 0.99f, kEpsilon = 1e-8f;
  const float correct1 = 1.0f / (1.0f - std::pow(kBeta1, static_cast<float>(step)));
  const float correct2 = 1.0f / (1.0f - std::pow(kBeta2, static_cast<float>(step)));
  for (size_t i = 0; i < weights_.size(); ++i) {
    const float g = gradient_[i] * gradient_scale;
    moment1_[i] = kBeta1 * moment1_[i] + (1 - kBeta1) * g;
    moment2_[i] = kBeta2 * moment2_[i] + (1 - kBeta2) * g * g;
    weights_[i] -=
        learning_rate * (moment1_[i] * correct1) / (std::sqrt(moment2_[i] * correct2) + kEpsilon);
  }
}

}  // namespace train

// A byte-level language model: embeddings of the last kContext bytes, two hidden layers, a softmax
// over the next byte. Everything that training changes lives in three flat arrays (weights and
// Adam's two moments); the tensors are views.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace train {

struct Shape {
  int context = 24;
  int embedding = 64;
  int hidden = 1664;
};

struct TensorView {
  std::string name;
  std::vector<uint64_t> shape;
  size_t offset = 0;  // into the flat arrays
  size_t size = 0;
};

class Model {
 public:
  explicit Model(const Shape& shape, uint64_t seed);

  // Mean loss (nats a byte) over the batch; leaves the gradient in gradient(). `contexts` is batch
  // × context bytes.
  float ForwardBackward(std::span<const uint8_t> contexts, std::span<const uint8_t> targets);
  // One Adam update with gradient() × `gradient_scale`; `step` counts from 1.
  void Update(int64_t step, float gradient_scale, float learning_rate);

  const std::vector<TensorView>& tensors() const { return tensors_; }
  std::vector<float>& weights() { return weights_; }
  std::vector<float>& moment1() { return moment1_; }
  std::vector<float>& moment2() { return moment2_; }
  std::vector<float>& gradient() { return gradient_; }
  const Shape& shape() const { return shape_; }

 private:
  const float* W(int tensor) const { return weights_.data() + tensors_[tensor].offset; }
  float* G(int tensor) { return gradient_.data() + tensors_[tensor].offset; }
  void Forward(std::span<const uint8_t> contexts, int batch);
  float SoftmaxLoss(std::span<const uint8_t> targets, int batch);

  Shape shape_;
  std::vector<TensorView> tensors_;
  std::vector<float> weights_, moment1_, moment2_, gradient_;
  std::vector<float> input_, hidden1_, hidden2_, logits_, delta2_, delta1_, delta_input_;
};

}  // namespace train

#include "examples/train/report.h"

#include <bit>
#include <stdexcept>
#include <string>

namespace train {
namespace {

// FNV-1a, 64 bits: plain enough to be obviously right.
uint64_t Fnv(const void* data, size_t size, uint64_t hash) {
  const auto* bytes = static_cast<const unsigned char*>(data);
  for (size_t i = 0; i < size; ++i) hash = (hash ^ bytes[i]) * 1099511628211u;
  return hash;
}

FILE* OpenOrThrow(const std::string& path, const char* mode) {
  FILE* file = fopen(path.c_str(), mode);
  if (file == nullptr) throw std::runtime_error("cannot write '" + path + "'");
  return file;
}

}  // namespace

Report::Report(const Options& options) : options_(options) {
  if (options.rank == 0 && !options.loss_file.empty())
    losses_ = OpenOrThrow(options.loss_file, "a");
}

Report::~Report() {
  if (losses_ != nullptr) fclose(losses_);
}

void Report::Loss(int64_t step, float loss) {
  if (options_.rank != 0) return;
  if (losses_ != nullptr) {
    fprintf(losses_, "%lld %08x %.6f\n", static_cast<long long>(step),
            std::bit_cast<uint32_t>(loss), loss);
    fflush(losses_);
  }
  printf("step %lld loss %.4f\n", static_cast<long long>(step), loss);
  fflush(stdout);
}

void Report::Final(Model& model, Batches& batches) {
  uint64_t hash = 14695981039346656037u;
  for (const auto* values : {&model.weights(), &model.moment1(), &model.moment2()}) {
    hash = Fnv(values->data(), values->size() * sizeof(float), hash);
  }
  hash = Fnv(batches.histogram().data(), batches.histogram().size() * sizeof(uint64_t), hash);
  const uint64_t position[] = {batches.random_state(),
                               static_cast<uint64_t>(batches.samples_seen())};
  hash = Fnv(position, sizeof position, hash);
  printf("rank %d: digest of the final state %016llx\n", options_.rank,
         static_cast<unsigned long long>(hash));
  if (options_.digest_file.empty()) return;
  FILE* file = OpenOrThrow(options_.digest_file + "." + std::to_string(options_.rank), "w");
  fprintf(file, "%016llx\n", static_cast<unsigned long long>(hash));
  fclose(file);
}

}  // namespace train

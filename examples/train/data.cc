#include "examples/train/data.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>

namespace train {

Batches::Batches(std::vector<uint8_t> text, int context, int batch, uint64_t seed, int rank)
    : text_(std::move(text)),
      context_(context),
      batch_(batch),
      random_(seed * 1000003 + static_cast<uint64_t>(rank) + 1),
      histogram_(256, 0),
      contexts_(static_cast<size_t>(batch) * static_cast<size_t>(context)),
      targets_(static_cast<size_t>(batch)) {}

void Batches::Next() {
  const size_t starts = text_.size() - static_cast<size_t>(context_);
  for (int r = 0; r < batch_; ++r) {
    const uint8_t* sample = text_.data() + random_.Next() % starts;
    std::memcpy(&contexts_[static_cast<size_t>(r * context_)], sample,
                static_cast<size_t>(context_));
    targets_[static_cast<size_t>(r)] = sample[context_];
    ++histogram_[sample[context_]];
  }
  samples_seen_ += batch_;
}

bool ReadText(const std::string& path, int context, std::vector<uint8_t>* text,
              std::string* error) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    *error = "cannot read the text '" + path + "': " + std::strerror(errno);
    return false;
  }
  text->assign(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  if (text->size() > static_cast<size_t>(context)) return true;
  *error = "the text '" + path + "' has " + std::to_string(text->size()) + " bytes; at least " +
           std::to_string(context + 1) + " are needed to train on";
  return false;
}

}  // namespace train

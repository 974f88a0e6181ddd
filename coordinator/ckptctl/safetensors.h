// The header of a safetensors file that somebody else wrote: any JSON spelling, any order of its
// entries. (Our own shards have one spelling and a reader of their own: format/shard.h.)
//
// I1  A header is refused, naming file and tensor, unless its tensors cover the data of the file
//     exactly once, with sizes that are those of their shapes.
// I2  Memory is that of what is kept: no tree is built, and nothing nests.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "libckpt/base/status.h"
#include "libckpt/format/types.h"

namespace ckpt::ckptctl {

// In the metadata of what `export` writes: as JSON, the true dtypes by name of tensors that are in
// a container, since not every reader of safetensors knows theirs (complex ones, 4-bit floats).
inline constexpr char kDTypesKey[] = "ckpt.dtypes";

struct SafetensorsEntry {
  std::string name;
  format::DType dtype = format::DType::kU8;
  std::vector<uint64_t> shape;
  uint64_t begin = 0, end = 0;  // bytes of the file
};

struct SafetensorsHeader {
  std::vector<std::pair<std::string, std::string>> metadata;  // __metadata__, in its order
  std::vector<SafetensorsEntry> tensors;                      // by begin
};

// How long the header is, its eight bytes of length included, from those eight.
// Errors: kDataLoss naming `file`, as below.
Result<uint64_t> SafetensorsHeaderBytes(const std::string& file, std::string_view first8,
                                        uint64_t file_bytes);
// `json`: what follows the length. Errors: kDataLoss for what no writer of safetensors makes or for
// a file that is cut short; kFailedPrecondition for a dtype that checkpoints cannot hold, and for
// one of our own shards.
Result<SafetensorsHeader> ParseSafetensorsHeader(const std::string& file, std::string_view json,
                                                 uint64_t file_bytes);
// Gives tensors the dtypes that kDTypesKey tells, and takes it out of the metadata. kDataLoss
// naming the tensor if it is not in the container of that dtype.
Status ApplyTrueDTypes(const std::string& file, SafetensorsHeader* header);

}  // namespace ckpt::ckptctl

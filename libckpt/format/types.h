// What a checkpoint is made of: element types, boxes of a tensor, tensors, the layout of one rank,
// and the value tree. Pure data with encoders; docs/format/v1.md is normative for every byte that
// reaches a disk.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "libckpt/base/bytes.h"
#include "libckpt/base/ids.h"
#include "libckpt/base/limits.h"
#include "libckpt/base/status.h"

namespace ckpt::format {

// Numbers are part of the C ABI, the frames and the format: only ever add.
enum class DType : uint8_t {
  kBool = 1,
  kU8 = 2,
  kI8 = 3,
  kU16 = 4,
  kI16 = 5,
  kU32 = 6,
  kI32 = 7,
  kU64 = 8,
  kI64 = 9,
  kF16 = 10,
  kBF16 = 11,
  kF32 = 12,
  kF64 = 13,
  kF8E4M3 = 14,
  kF8E5M2 = 15,
  kC64 = 16,
  kC128 = 17,
  kF4x2 = 18,  // two 4-bit floats in a byte
};
// Bytes of one element; 0 for a number that is no dtype.
uint32_t ElementBytes(DType dtype);
// safetensors' spelling ("F32", "BF16", "F8_E4M3" …); for what it cannot say (complex128, packed
// fp4) our own in the index and a container dtype in the shard: see v1.md.
std::string_view DTypeName(DType dtype);
Result<DType> ParseDType(std::string_view name);

// A box of a tensor in global coordinates, row-major. Zero dims: the one element of a scalar.
struct Box {
  std::vector<uint64_t> offset;
  std::vector<uint64_t> shape;
  bool operator==(const Box&) const = default;
  uint64_t ElementCount() const;  // 1 for zero dims; overflow was refused by CheckTensor
  bool Empty() const { return ElementCount() == 0; }
  // Whether `inner` lies within; and the common part (empty shape product 0 if none). Same number
  // of dims.
  bool Contains(const Box& inner) const;
  Box Intersect(const Box& other) const;
};

// How copies of a tensor on several ranks relate.
enum class Placement : uint8_t {
  kUnsharded = 0,  // one owner, or several that claim the same content; different content fails the
                   // save by name
  kReplicated =
      1,         // declared equal on all ranks of its replica group: written once, split over them
  kSharded = 2,  // each rank holds a box of the global shape; equal boxes are replicas
  kPerRank = 3,  // every rank has its own under this name
};

// One tensor as one rank holds it.
struct TensorMeta {
  std::string name;
  DType dtype = DType::kU8;
  Placement placement = Placement::kUnsharded;
  std::vector<uint64_t> global_shape;
  Box local;            // what this rank holds
  std::string tied_to;  // name of the tensor whose memory this shares; empty if none. Stored once,
                        // aliased on load
  bool frozen = false;  // hint: does not change between saves
  bool operator==(const TensorMeta&) const = default;
  uint64_t LocalBytes() const { return local.ElementCount() * ElementBytes(dtype); }
};
// kInvalidArgument, naming the tensor, for overflow, too many dims, a box outside the global shape,
// a bad name or dtype.
Status CheckTensor(const TensorMeta& tensor);
// The part of it that is about the local box: for a tensor that is otherwise equal to one that was
// checked.
Status CheckLocalBox(const TensorMeta& tensor);

// Everything one rank tracks, without bytes. Tensors are in the order of the state; names are
// unique but for kPerRank.
struct RankLayout {
  Rank rank;
  std::vector<TensorMeta> tensors;
  bool operator==(const RankLayout&) const = default;
  std::string Encode() const;
  static Result<RankLayout> Decode(std::string_view bytes);
  uint64_t Hash() const;  // over Encode()
};

// The tagged value tree. Lists, dicts and tuples keep order; floats are kept by their bits; see
// v1.md for the JSON form.
struct Value;
using ValueList = std::vector<Value>;
struct ValueTuple {
  std::vector<Value> items;
  bool operator==(const ValueTuple&) const;
};
struct ValueBytes {
  std::string bytes;
  bool operator==(const ValueBytes&) const = default;
};
struct ValueBigInt {
  std::string decimal;
  bool operator==(const ValueBigInt&) const = default;
};  // beyond int64
struct ValueEntry;
using ValueDict = std::vector<ValueEntry>;  // keys may be of any scalar type
struct ValueDictBox {
  ValueDict items;
  bool operator==(const ValueDictBox&) const;
};
struct Value {
  std::variant<std::monostate, bool, int64_t, double, std::string, ValueBytes, ValueBigInt,
               ValueList, ValueTuple, ValueDictBox>
      v;
  bool operator==(const Value&) const;  // floats by bits: NaN equals itself, -0.0 differs from 0.0
  // Canonical JSON of v1.md: the only accepted spelling of a value.
  std::string ToJson() const;
  // Strict: depth ≤ kValueDepthMax, no duplicate keys, no recursion on the input, nothing after the
  // value.
  static Result<Value> FromJson(std::string_view json);
};
struct ValueEntry {
  Value first, second;
  bool operator==(const ValueEntry&) const = default;
};

// Small things of one rank: values by name, and blobs (bytes with a media type).
enum class Scope : uint8_t {
  kShared = 0,
  kPerRank = 1
};  // kShared: all ranks must agree, checked at commit
struct NamedValue {
  std::string name;
  Scope scope = Scope::kShared;
  Value value;
  bool operator==(const NamedValue&) const = default;
};
struct NamedBlob {
  std::string name;
  Scope scope = Scope::kShared;
  std::string media_type;
  std::string bytes;
  bool operator==(const NamedBlob&) const = default;
};
struct RankValues {
  std::vector<NamedValue> values;
  std::vector<NamedBlob> blobs;
  bool operator==(const RankValues&) const = default;
  std::string Encode() const;
  static Result<RankValues> Decode(std::string_view bytes);
};

}  // namespace ckpt::format

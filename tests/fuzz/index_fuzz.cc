// The index of a shard: what is read is consistent and is written again byte for byte.
#include "libckpt/base/bytes.h"
#include "libckpt/base/digest.h"
#include "libckpt/format/index.h"
#include "tests/fuzz/fuzz.h"

using namespace ckpt;
using format::ShardIndex;

namespace {

void Read(std::string_view bytes, uint64_t file_bytes) {
  const auto index = ShardIndex::Decode(bytes, file_bytes);
  if (!index.ok()) return;
  FUZZ_CHECK(index->Encode() == bytes);
  uint64_t at = 0;
  for (const format::ChunkEntry& chunk : index->chunks) {
    FUZZ_CHECK(chunk.begin == at && chunk.end > chunk.begin);
    at = chunk.end;
  }
  FUZZ_CHECK(at == index->stream_bytes);
  const auto chunks = index->ChunkOf(0, index->stream_bytes);
  FUZZ_CHECK(chunks.first == 0 && chunks.last == index->chunks.size());
  if (!index->chunks.empty()) FUZZ_CHECK(!index->DescribeChunk(0).empty());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ByteReader in(fuzz::Text(data, size));
  const auto file_bytes = in.Get<uint64_t>();
  if (in.failed()) return 0;
  Read(in.rest(), file_bytes);
  if (in.rest().size() < sizeof(Digest)) return 0;
  // The same with a digest that is right.
  std::string whole(in.rest().substr(0, in.rest().size() - sizeof(Digest)));
  const Digest digest = DigestOf(AsBytes(whole));
  whole.append(reinterpret_cast<const char*>(digest.bytes.data()), digest.bytes.size());
  Read(whole, file_bytes);
  return 0;
}

// Shards and their indexes.
#include "libckpt/format/shard.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "libckpt/format/index.h"
#include "libckpt/format/test_data_test.h"

namespace ckpt::format {
namespace {

ShardTensor Whole(std::string name, DType dtype, std::vector<uint64_t> shape) {
  const TensorMeta meta = WholeTensor(std::move(name), dtype, std::move(shape));
  return {meta.name, meta.dtype, meta.placement, meta.global_shape, meta.local};
}

TEST(ShardKeys, AreUniqueAndCanBeUndone) {
  std::set<std::string> keys;
  std::vector<ShardTensor> tensors;
  for (const std::string& name : OddNames()) tensors.push_back(Whole(name, DType::kU8, {4, 6}));
  tensors.push_back(Whole("x", DType::kU8, {4, 6}));
  tensors.back().box = Box{{1, 0}, {2, 6}};
  tensors.push_back(tensors.back());
  tensors.back().box = Box{{3, 6}, {1, 0}};
  tensors.push_back(Whole("__metadata__", DType::kU8, {4, 6}));
  tensors.back().box = Box{{0, 0}, {1, 6}};
  for (const ShardTensor& tensor : tensors) {
    const std::string key = ShardKey(tensor);
    EXPECT_TRUE(keys.insert(key).second) << key;
    EXPECT_NE(key, "__metadata__");
    const auto parsed = ParseShardKey(key);
    ASSERT_TRUE(parsed.ok()) << key;
    EXPECT_EQ(parsed->name, tensor.name);
    EXPECT_EQ(parsed->sliced, !tensor.Whole());
    EXPECT_EQ(parsed->box, tensor.Whole() ? Box{} : tensor.box);
  }
  EXPECT_EQ(ShardKey(Whole("a.b/c", DType::kU8, {1})), "a.b/c");
  EXPECT_TRUE(keys.contains("x#1:3,0:6"));
  for (const char* bad : {"x#", "x#1", "x#1:", "x#3:1", "x#01:2", "x#1:2,", "x#1:2#", "x%", "x%2",
                          "x%41", "__metadata__", "x#1:18446744073709551616", "x#-1:2"}) {
    EXPECT_FALSE(ParseShardKey(bad).ok()) << bad;
  }
}

TEST(ShardLayoutTest, OneMoreTensorDoesNotMoveTheData) {
  std::vector<ShardTensor> tensors;
  for (char c = 'a'; c < 'e'; ++c) tensors.push_back(Whole({c}, DType::kF32, {8}));
  const auto before = LayOutShard(tensors);
  tensors.push_back(Whole("e", DType::kF32, {8}));
  const auto after = LayOutShard(tensors);
  ASSERT_TRUE(before.ok() && after.ok());
  EXPECT_EQ(before->header.size(), after->header.size());
  EXPECT_EQ(before->header.size() % kShardAlignment, 0u);
  EXPECT_GE(before->header.size(), before->header.find_last_not_of(' ') + 1 + 512);
  EXPECT_EQ(LayOutShard({})->stream_bytes, kShardAlignment);
}

TEST(ShardLayoutTest, CoversTheStreamAndAlignsEveryTensor) {
  for (const auto& tensors : RichShards()) {
    for (const uint64_t chunk_bytes : {uint64_t{16}, uint64_t{256}, kChunkBytesDefault}) {
      const auto layout = LayOutShard(tensors, chunk_bytes);
      ASSERT_TRUE(layout.ok()) << layout.status().ToString();
      uint64_t at = layout->header.size();
      for (const ShardTensor& tensor : layout->tensors) {
        EXPECT_EQ(tensor.begin, at);
        EXPECT_EQ(tensor.begin % ElementBytes(tensor.dtype), 0u) << tensor.name;
        at = tensor.end;
      }
      EXPECT_EQ(at, layout->stream_bytes);
      at = 0;
      for (const ChunkRange& chunk : layout->chunks) {
        EXPECT_EQ(chunk.begin, at);
        EXPECT_GT(chunk.end, chunk.begin);
        at = chunk.end;
      }
      EXPECT_EQ(at, layout->stream_bytes);
    }
  }
}

TEST(ShardLayoutTest, AChunkBeginsAtEachChangeOfElementSize) {
  const auto layout = LayOutShard({Whole("a", DType::kF64, {5}), Whole("b", DType::kI64, {1}),
                                   Whole("c", DType::kF32, {0}), Whole("d", DType::kF16, {3})},
                                  16);
  ASSERT_TRUE(layout.ok()) << layout.status().ToString();
  const uint64_t data = layout->header.size();
  const std::vector<ChunkRange> expected = {{0, data},
                                            {data, data + 16},
                                            {data + 16, data + 32},
                                            {data + 32, data + 48},
                                            {data + 48, data + 54}};
  EXPECT_EQ(layout->chunks, expected);
  EXPECT_EQ(ChunkOf(layout->chunks, data, data + 1), (ChunkSpan{1, 2}));
  EXPECT_EQ(ChunkOf(layout->chunks, data + 15, data + 33), (ChunkSpan{1, 4}));
  EXPECT_EQ(ChunkOf(layout->chunks, 0, UINT64_MAX), (ChunkSpan{0, 5}));
  EXPECT_EQ(ChunkOf(layout->chunks, data + 5, data + 5), ChunkSpan{});
  EXPECT_EQ(ChunkOf(layout->chunks, data + 54, data + 60), ChunkSpan{});
}

TEST(ShardLayoutTest, RefusesDisorderDuplicatesAndBadChunks) {
  const ShardTensor a = Whole("a", DType::kF32, {2}), b = Whole("b", DType::kF64, {2});
  EXPECT_FALSE(LayOutShard({a, b}).ok());
  EXPECT_FALSE(LayOutShard({a, a}).ok());
  EXPECT_TRUE(LayOutShard({b, a}).ok());
  for (const uint64_t bad : {uint64_t{0}, uint64_t{24}, kChunkBytesMax + 16}) {
    EXPECT_FALSE(LayOutShard({a}, bad).ok()) << bad;
  }
  ShardTensor broken = a;
  broken.box.shape = {3};
  EXPECT_FALSE(LayOutShard({broken}).ok());
  const uint64_t huge = uint64_t{1} << 62;
  EXPECT_FALSE(LayOutShard({Whole("a", DType::kU8, {huge}), Whole("b", DType::kU8, {huge})}).ok());
}

TEST(ShardHeaderTest, ParsesWhatIsWrittenAndAgreesWithTheIndex) {
  for (const auto& tensors : RichShards()) {
    const auto layout = LayOutShard(tensors, 256);
    ASSERT_TRUE(layout.ok());
    EXPECT_EQ(*ShardHeaderBytes(layout->header.substr(0, 8), layout->stream_bytes),
              layout->header.size());
    const auto header = ParseShardHeader(layout->header, layout->stream_bytes);
    ASSERT_TRUE(header.ok()) << header.status().ToString();
    EXPECT_TRUE(CheckHeader(*header, layout->tensors).ok());
    auto other = layout->tensors;
    std::swap(other[0].name, other[1].name);
    EXPECT_EQ(CheckHeader(*header, other).code(), Code::kDataLoss);
    EXPECT_FALSE(ParseShardHeader(layout->header, layout->stream_bytes + 1).ok());
    EXPECT_FALSE(ParseShardHeader(layout->header, layout->stream_bytes - 1).ok());
    const size_t end = layout->header.find_last_not_of(' ') + 1;
    for (size_t size = 0; size <= end; size += 7) {
      EXPECT_FALSE(ParseShardHeader(layout->header.substr(0, size), layout->stream_bytes).ok());
    }
  }
}

std::string HeaderOf(const std::string& json) {
  ByteWriter writer;
  writer.Put<uint64_t>(4088).PutRaw(json);
  std::string header = std::move(writer).Take();
  header.resize(4096, ' ');
  return header;
}

TEST(ShardHeaderTest, HostileHeadersAreRefused) {
  const std::string good = R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})";
  ASSERT_TRUE(ParseShardHeader(HeaderOf(good), 4100).ok());
  const char* bad[] = {
      "",
      "[]",
      "{",
      R"({"a":1})",
      R"({"a":{"dtype":"U8","shape":[4]}})",
      R"({"a":{"dtype":"U9","shape":[4],"data_offsets":[0,4]}})",
      R"({"a":{"dtype":"U8","shape":[5],"data_offsets":[0,4]}})",
      R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[4,0]}})",
      R"({"a":{"dtype":"U8","shape":[-4],"data_offsets":[0,4]}})",
      R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4,8]}})",
      R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})",
      R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})",
      R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[3],"data_offsets":[1,4]}})",
      R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"a":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})",
      R"({"a":{"dtype":"F64","shape":[2305843009213693952,8],"data_offsets":[0,0]}})",
      R"({"a":{"dtype":"U8","shape":[18446744073709551616],"data_offsets":[0,4]}})"};
  for (const char* json : bad) EXPECT_FALSE(ParseShardHeader(HeaderOf(json), 4100).ok()) << json;
  EXPECT_FALSE(ParseShardHeader(HeaderOf(std::string(4000, '[')), 4100).ok());
  for (const uint64_t length : {uint64_t{0}, uint64_t{1}, uint64_t{4089}, uint64_t{8184},
                                UINT64_MAX, UINT64_MAX - 8, uint64_t{1} << 40}) {
    ByteWriter first8;
    first8.Put<uint64_t>(length);
    EXPECT_FALSE(ShardHeaderBytes(first8.str(), 4100).ok()) << length;
  }
  EXPECT_FALSE(ShardHeaderBytes("1234567", 4100).ok());
}

class IndexTest : public testing::Test {
 protected:
  IndexTest() {
    layout_ = *LayOutShard(RichShards()[0], 256);
    stream_ = ShardStream(layout_);
    index_ = IndexOf(RichManifest(), Rank(0), layout_, stream_);
    bytes_ = index_.Encode();
  }
  // `bytes` with a new own digest: damage that the digest does not show.
  static std::string Resigned(std::string bytes) {
    bytes.resize(bytes.size() - 16);
    const Digest digest = DigestOf(AsBytes(bytes));
    return bytes.append(reinterpret_cast<const char*>(digest.bytes.data()), 16);
  }
  ShardLayout layout_;
  std::string stream_;
  ShardIndex index_;
  std::string bytes_;
};

TEST_F(IndexTest, RoundTrips) {
  const auto decoded = ShardIndex::Decode(bytes_, stream_.size());
  ASSERT_TRUE(decoded.ok()) << decoded.status().ToString();
  EXPECT_EQ(*decoded, index_);
  EXPECT_EQ(DigestOf(AsBytes(bytes_).first(bytes_.size() - 16)), IndexDigest(bytes_));
  EXPECT_EQ(decoded->ChunkOf(0, 1), (ChunkSpan{0, 1}));
  EXPECT_EQ(decoded->ChunkOf(0, UINT64_MAX).last, index_.chunks.size());
  EXPECT_NE(decoded->DescribeChunk(1).find("'"), std::string::npos);
  EXPECT_NE(decoded->DescribeChunk(0).find("header"), std::string::npos);
}

TEST_F(IndexTest, EveryTruncationAndEveryChangedByteIsSeen) {
  for (size_t i = 0; i < bytes_.size(); ++i) {
    EXPECT_EQ(ShardIndex::Decode(bytes_.substr(0, i), stream_.size()).status().code(),
              Code::kDataLoss);
    std::string damaged = bytes_;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x10);
    ASSERT_EQ(ShardIndex::Decode(damaged, stream_.size()).status().code(), Code::kDataLoss) << i;
  }
  EXPECT_FALSE(ShardIndex::Decode(bytes_ + "x", stream_.size()).ok());
}

// What an adversary can do who makes digests good again: no crash, no wrong table, no allocation
// beyond the input. A change either is refused or is one that only says something else.
TEST_F(IndexTest, ConsistentUnderDamageThatHasAGoodDigest) {
  for (size_t i = 0; i + 16 < bytes_.size(); ++i) {
    if (bytes_[i] == 'k' && i % 97 != 0) continue;  // the inside of the long name
    for (const int value : {0x01, 0x80, 0xff}) {
      std::string damaged = bytes_;
      damaged[i] = static_cast<char>(damaged[i] ^ value);
      const auto decoded = ShardIndex::Decode(Resigned(damaged), stream_.size());
      if (!decoded.ok()) continue;
      ASSERT_EQ(decoded->chunks.back().end, stream_.size());
      ASSERT_EQ(decoded->tensors.back().end, stream_.size());
    }
  }
  for (size_t size = 16; size < bytes_.size(); size += 3) {
    EXPECT_FALSE(ShardIndex::Decode(Resigned(bytes_.substr(0, size)), stream_.size()).ok());
  }
}

TEST_F(IndexTest, RealFileSizeNewerVersionsFeaturesAndCodecs) {
  EXPECT_EQ(ShardIndex::Decode(bytes_, stream_.size() - 1).status().code(), Code::kDataLoss);
  const auto code_with = [&](size_t offset, char value) {
    std::string changed = bytes_;
    changed[offset] = value;
    return ShardIndex::Decode(Resigned(changed), stream_.size()).status().code();
  };
  EXPECT_EQ(code_with(8, 2), Code::kFailedPrecondition);
  EXPECT_EQ(code_with(12, 2), Code::kFailedPrecondition);
  EXPECT_EQ(code_with(12, 1), Code::kDataLoss);  // origins that are not there
  const size_t last_chunk = bytes_.size() - 16 - 48;
  for (char codec = 3; codec < 6; ++codec) {
    EXPECT_EQ(code_with(last_chunk, codec), Code::kFailedPrecondition);
  }
  EXPECT_EQ(code_with(last_chunk, 1), Code::kDataLoss);  // compressed, and no smaller
  for (const size_t byte : {1, 2, 3, 4})                 // an origin, a check, a chunk of an origin
    EXPECT_EQ(code_with(last_chunk + byte, 1), Code::kDataLoss) << byte;
  for (const size_t count : {size_t{36}, size_t{40}}) {  // huge counts
    std::string changed = bytes_;
    std::fill_n(changed.begin() + static_cast<long>(count), count == 36 ? 4 : 8, '\xff');
    EXPECT_EQ(ShardIndex::Decode(Resigned(changed), stream_.size()).status().code(),
              Code::kDataLoss);
  }
}

// Own chunks raw and compressed, others in two origins.
ShardIndex Referring(const ShardIndex& raw) {
  ShardIndex index = raw;
  const auto origin = [](int64_t step, uint64_t bytes) {
    Origin made;
    made.id = {Epoch(1), Step(step), Attempt(1)};
    made.uid = CheckpointUid(JobId{}, made.id);
    made.shard = Rank(3);
    made.file_bytes = bytes;
    made.file = ShardFileName(Rank(3));
    return made;
  };
  index.origins = {origin(1, 100'000), origin(2, 5000)};
  index.file_bytes = 0;
  for (size_t c = 0; c < index.chunks.size(); ++c) {
    ChunkEntry& chunk = index.chunks[c];
    if (c != 0 && c % 3 != 0) {
      chunk.origin = static_cast<uint8_t>(c % 3);
      chunk.origin_chunk = static_cast<uint32_t>(c + 7);
      chunk.stored_offset = 0;
      continue;
    }
    if (c != 0 && chunk.raw_bytes() > 4) {
      chunk.codec = c % 2 == 0 ? Codec::kZstd : Codec::kPlanes;
      chunk.stored_bytes = chunk.raw_bytes() / 2;
    }
    chunk.stored_offset = index.file_bytes;
    index.file_bytes += chunk.stored_bytes;
  }
  return index;
}

TEST_F(IndexTest, CodecsAndReferencesComeBack) {
  const auto raw = ShardIndex::Decode(bytes_, stream_.size());
  ASSERT_TRUE(raw.ok());
  const ShardIndex index = Referring(*raw);
  const auto decoded = ShardIndex::Decode(index.Encode(), index.file_bytes);
  ASSERT_TRUE(decoded.ok()) << decoded.status().ToString();
  EXPECT_EQ(*decoded, index);
  const Origin& first = index.origins[0];
  EXPECT_EQ(decoded->Seed(1), ChunkSeed(first.uid, 3, 8));
  EXPECT_EQ(decoded->Seed(3), raw->Seed(3));
  EXPECT_NE(decoded->DescribeChunk(1).find("stored in s1.e1.a1"), std::string::npos);
}

TEST_F(IndexTest, ReferencesThatCannotBeAreRefused) {
  const auto raw = ShardIndex::Decode(bytes_, stream_.size());
  ASSERT_TRUE(raw.ok());
  const auto code = [&](auto change) {
    ShardIndex index = Referring(*raw);
    change(&index);
    return ShardIndex::Decode(index.Encode(), index.file_bytes).status().code();
  };
  const auto entry = [](ShardIndex* index) { return &index->chunks[1]; };
  EXPECT_EQ(code([&](ShardIndex*) {}), Code::kOk);
  EXPECT_EQ(code([&](ShardIndex* i) { entry(i)->origin = 3; }), Code::kDataLoss);
  EXPECT_EQ(code([&](ShardIndex* i) { entry(i)->origin_chunk = 0; }), Code::kDataLoss);
  EXPECT_EQ(code([&](ShardIndex* i) { entry(i)->stored_offset = 100'000; }), Code::kDataLoss);
  EXPECT_EQ(code([&](ShardIndex* i) { entry(i)->stored_offset = UINT64_MAX; }), Code::kDataLoss);
  EXPECT_EQ(code([&](ShardIndex* i) { i->origins[0].file = "../x"; }), Code::kDataLoss);
  EXPECT_EQ(code([&](ShardIndex* i) { i->origins[0].uid = i->uid; }), Code::kDataLoss);
  EXPECT_EQ(code([&](ShardIndex* i) { std::swap(i->origins[0], i->origins[1]); }), Code::kDataLoss);
  EXPECT_EQ(code([&](ShardIndex* i) { i->origins.push_back(i->origins[1]); }), Code::kDataLoss);
  EXPECT_EQ(code([&](ShardIndex* i) {
              i->origins.push_back(i->origins[1]);  // that no chunk refers to
              i->origins.back().id.step = Step(3);
            }),
            Code::kDataLoss);
  EXPECT_EQ(code([&](ShardIndex* i) {  // the header
              i->chunks[0].origin = 1;
              i->chunks[0].origin_chunk = 1;
            }),
            Code::kDataLoss);
  EXPECT_EQ(code([&](ShardIndex* i) {
              for (int64_t step = 3; step < 6; ++step) {
                i->origins.push_back(i->origins[1]);
                i->origins.back().id.step = Step(step);
              }
            }),
            Code::kDataLoss);
}

}  // namespace
}  // namespace ckpt::format

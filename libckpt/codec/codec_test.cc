#include "libckpt/codec/codec.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

namespace ckpt::codec {
namespace {

// bf16 numbers as trained weights are: normal, a few scales.
std::string Weights(size_t count, uint32_t element_bytes) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal(0, 0.02f);
  std::string bytes;
  for (size_t i = 0; i < count; ++i) {
    const float value = normal(random);
    uint64_t bits = 0;
    if (element_bytes == 8) {
      const double wide = value;
      std::memcpy(&bits, &wide, 8);
    } else {
      uint32_t word;
      std::memcpy(&word, &value, 4);
      bits = element_bytes == 2 ? word >> 16 : word;
    }
    for (uint32_t b = 0; b < element_bytes; ++b) bytes += static_cast<char>(bits >> (8 * b));
  }
  return bytes;
}

std::string Noise(size_t size) {
  std::mt19937 random(11);
  std::string bytes(size, 0);
  for (char& c : bytes) c = static_cast<char>(random());
  return bytes;
}

void ExpectRoundTrip(const std::string& chunk, uint32_t element_bytes, bool is_float,
                     Codec wanted) {
  const auto encoded = Encode(AsBytes(chunk), element_bytes, is_float, 1);
  ASSERT_TRUE(encoded.ok()) << encoded.status().ToString();
  EXPECT_EQ(encoded->codec, wanted);
  const std::string& stored = wanted == Codec::kRaw ? chunk : encoded->bytes;
  EXPECT_LE(stored.size(), chunk.size());
  std::string out(chunk.size(), 'x');
  const Status status =
      Decode(wanted, AsBytes(stored), element_bytes, std::as_writable_bytes(std::span(out)));
  ASSERT_TRUE(status.ok()) << status.ToString();
  EXPECT_TRUE(out == chunk);
}

TEST(Codec, RoundTripsWhatItMeets) {
  for (const uint32_t width : {2u, 4u, 8u})
    ExpectRoundTrip(Weights(100'000, width), width, true, Codec::kPlanes);
  ExpectRoundTrip(std::string(1 << 20, 'a'), 1, false, Codec::kZstd);
  ExpectRoundTrip(Noise(1 << 20), 4, false, Codec::kRaw);
  ExpectRoundTrip(Noise(1 << 20), 4, true, Codec::kRaw);
  ExpectRoundTrip("", 4, true, Codec::kRaw);
  ExpectRoundTrip(std::string(6, 'q'), 4, true,
                  Codec::kRaw);  // not whole elements, and too short to gain
}

TEST(Codec, PlanesBeatPlainZstdOnWeights) {
  const std::string chunk = Weights(512 * 1024, 2);
  const auto planes = Encode(AsBytes(chunk), 2, true, 1);
  const auto plain = Encode(AsBytes(chunk), 2, false, 1);
  ASSERT_TRUE(planes.ok() && plain.ok());
  ASSERT_EQ(planes->codec, Codec::kPlanes);
  const size_t plain_size = plain->codec == Codec::kRaw ? chunk.size() : plain->bytes.size();
  EXPECT_LT(planes->bytes.size(), plain_size);
  EXPECT_GT(static_cast<double>(chunk.size()) / static_cast<double>(planes->bytes.size()), 1.3);
}

TEST(Codec, EveryTruncationIsAnError) {
  const std::string chunk = Weights(300, 4) + std::string(400, '\0');
  for (const bool is_float : {true, false}) {
    const auto encoded = Encode(AsBytes(chunk), 4, is_float, 3);
    ASSERT_TRUE(encoded.ok());
    ASSERT_NE(encoded->codec, Codec::kRaw);
    std::string out(chunk.size(), 0);
    for (size_t size = 0; size < encoded->bytes.size(); ++size) {
      EXPECT_FALSE(Decode(encoded->codec, AsBytes(encoded->bytes).first(size), 4,
                          std::as_writable_bytes(std::span(out)))
                       .ok())
          << size;
    }
    std::string longer(chunk.size() + 4, 0);
    EXPECT_FALSE(Decode(encoded->codec, AsBytes(encoded->bytes), 4,
                        std::as_writable_bytes(std::span(longer)))
                     .ok());
  }
}

TEST(Codec, RandomBytesNeverReadBeyond) {
  std::mt19937 random(5);
  std::string out(4096, 0);
  for (int i = 0; i < 2000; ++i) {
    const std::string stored = Noise(random() % 512);
    for (const Codec codec : {Codec::kZstd, Codec::kPlanes, static_cast<Codec>(9)}) {
      EXPECT_FALSE(Decode(codec, AsBytes(stored), 2, std::as_writable_bytes(std::span(out))).ok());
    }
  }
}

TEST(Codec, RefusesALevelThatDoesNotExist) {
  EXPECT_FALSE(Encode(AsBytes("abc"), 1, false, 0).ok());
}

}  // namespace
}  // namespace ckpt::codec

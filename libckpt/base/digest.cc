#include "libckpt/base/digest.h"

#if defined(CKPT_XXH_DISPATCH)
#include <xxh_x86dispatch.h>
#else
#include <xxhash.h>
#endif

#include <cstring>

namespace ckpt {
namespace {

Digest FromHash(XXH128_hash_t hash) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, hash);
  Digest digest;
  std::memcpy(digest.bytes.data(), canonical.digest, digest.bytes.size());
  return digest;
}

}  // namespace

std::string Digest::ToString() const {
  JobId hex;
  hex.bytes = bytes;
  return hex.ToString();
}

Result<Digest> Digest::Parse(std::string_view hex) {
  auto parsed = JobId::Parse(hex);
  if (!parsed.ok())
    return InvalidArgument("'" + std::string(hex) + "' is not a digest (32 hex digits)");
  Digest digest;
  digest.bytes = parsed->bytes;
  return digest;
}

Digest DigestOf(ByteSpan data, uint64_t seed) {
  return FromHash(XXH3_128bits_withSeed(data.data(), data.size(), seed));
}

uint64_t Hash64(ByteSpan data, uint64_t seed) {
  return XXH3_64bits_withSeed(data.data(), data.size(), seed);
}

uint64_t ChunkSeed(const std::array<uint8_t, 16>& checkpoint_uid, uint32_t shard, uint64_t chunk) {
  ByteWriter writer;
  writer.PutRaw(std::string_view(reinterpret_cast<const char*>(checkpoint_uid.data()),
                                 checkpoint_uid.size()));
  writer.Put<uint32_t>(shard).Put<uint64_t>(chunk);
  return Hash64(AsBytes(writer.str()));
}

struct DigestStream::State {
  XXH3_state_t* xxh = XXH3_createState();
  ~State() { XXH3_freeState(xxh); }
};

DigestStream::DigestStream(uint64_t seed) : state_(std::make_unique<State>()) {
  XXH3_128bits_reset_withSeed(state_->xxh, seed);
}
DigestStream::~DigestStream() = default;
DigestStream::DigestStream(DigestStream&&) noexcept = default;
DigestStream& DigestStream::operator=(DigestStream&&) noexcept = default;

void DigestStream::Update(ByteSpan data) {
  XXH3_128bits_update(state_->xxh, data.data(), data.size());
}
Digest DigestStream::Finish() const { return FromHash(XXH3_128bits_digest(state_->xxh)); }

}  // namespace ckpt

// What a session runs with: explicit options first, then the environment that ckpt-run, torchrun
// and their like set, then defaults for a laptop.
#include <charconv>
#include <cstdlib>

#include "libckpt/api/handles.h"
#include "libckpt/base/limits.h"
#include "libckpt/os/file.h"
#include "libckpt/storage/file/file_store.h"

namespace ckpt::api {
namespace {

constexpr uint64_t kTokenBytesMax = 4096;

std::string FromEnv(const char* name) { return OrEmpty(std::getenv(name)); }

Result<uint64_t> NumberFromEnv(const char* name, uint64_t otherwise) {
  const std::string text = FromEnv(name);
  if (text.empty()) return otherwise;
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size())
    return InvalidArgument(std::string("the environment variable ") + name + " is '" + text +
                           "', which is no number");
  return number;
}

Result<uint32_t> SmallNumberFromEnv(const char* name, uint32_t otherwise) {
  CKPT_ASSIGN_OR_RETURN(const uint64_t number, NumberFromEnv(name, otherwise));
  if (number > kRanksMax)
    return InvalidArgument(std::string("the environment variable ") + name + " is " +
                           std::to_string(number) + "; at most " + std::to_string(kRanksMax) +
                           " ranks are possible");
  return static_cast<uint32_t>(number);
}

// How shards are stored: CKPT_COMPRESS (level of zstd), CKPT_REFERENCES (1), CKPT_WRITE_THREADS.
Result<engine::WriteSettings> WriteSettingsFromEnv() {
  engine::WriteSettings write;
  CKPT_ASSIGN_OR_RETURN(const uint64_t level, NumberFromEnv("CKPT_COMPRESS", 0));
  CKPT_ASSIGN_OR_RETURN(const uint64_t references, NumberFromEnv("CKPT_REFERENCES", 0));
  CKPT_ASSIGN_OR_RETURN(write.threads, SmallNumberFromEnv("CKPT_WRITE_THREADS", 0));
  if (level > 19)
    return InvalidArgument("the environment variable CKPT_COMPRESS is " + std::to_string(level) +
                           "; 0 is off, 1 to 19 are levels");
  write.compression_level = static_cast<int>(level);
  write.references = references != 0;
  return write;
}

Result<uint64_t> OptionOrEnv(uint64_t option, const char* name) {
  if (option != 0) return option;
  return NumberFromEnv(name, 0);
}

Result<std::optional<storage::KeepRules>> ReadKeepRules(const ckpt_session_options_t& raw) {
  CKPT_ASSIGN_OR_RETURN(const uint64_t last, OptionOrEnv(raw.keep_last, "CKPT_KEEP_LAST"));
  CKPT_ASSIGN_OR_RETURN(const uint64_t every, OptionOrEnv(raw.keep_every, "CKPT_KEEP_EVERY"));
  CKPT_ASSIGN_OR_RETURN(const uint64_t hours, OptionOrEnv(raw.keep_hours, "CKPT_KEEP_HOURS"));
  return storage::MakeKeepRules(last, every, hours);
}

Result<std::string> ReadToken() {
  const std::string path = FromEnv("CKPT_TOKEN_FILE");
  if (path.empty()) return std::string();
  Result<std::string> token = os::ReadFile(os::PosixFileSystem(), path, kTokenBytesMax);
  if (!token.ok()) return std::move(token).status().Annotate("CKPT_TOKEN_FILE");
  while (!token->empty() && (token->back() == '\n' || token->back() == '\r')) token->pop_back();
  return token;
}

Result<session::Allgather> ReadCollective(const ckpt_collective_t* raw) {
  if (raw == nullptr) return session::Allgather();
  ckpt_collective_t collective{};
  CKPT_RETURN_IF_ERROR(ReadStruct(raw, "ckpt_collective_t", &collective));
  if (collective.allgather == nullptr)
    return InvalidArgument("ckpt_collective_t: allgather is NULL");
  return session::Allgather([collective](const void* in, size_t n, void* out, int64_t deadline) {
    return collective.allgather(collective.ctx, in, n, out, deadline) == 0;
  });
}

}  // namespace

Result<session::Options> ResolveOptions(const ckpt_session_options_t& raw) {
  session::Options options;
  options.job = raw.job != nullptr ? raw.job : FromEnv("CKPT_JOB");
  if (options.job.empty()) options.job = "default";
  options.store = raw.store != nullptr ? raw.store : FromEnv("CKPT_STORE");
  if (options.store.empty()) options.store = "./ckpt/" + options.job;
  uint32_t rank = raw.rank;
  if (rank == CKPT_UNSET_RANK) {
    CKPT_ASSIGN_OR_RETURN(rank, SmallNumberFromEnv("RANK", 0));
  }
  options.rank = Rank(rank);
  options.world = raw.world_size;
  if (options.world == 0) {
    CKPT_ASSIGN_OR_RETURN(options.world, SmallNumberFromEnv("WORLD_SIZE", 1));
  }
  CKPT_ASSIGN_OR_RETURN(options.allgather, ReadCollective(raw.collective));
  options.signals = raw.signals;
  options.copy_threads = raw.keep_copy_threads;
  CKPT_ASSIGN_OR_RETURN(options.save_every, NumberFromEnv("CKPT_SAVE_EVERY", raw.save_every));
  if (raw.alone == 0) options.run_socket = FromEnv("CKPT_RUN");
  if (!options.run_socket.empty()) {
    CKPT_ASSIGN_OR_RETURN(options.token, ReadToken());
  } else {
    CKPT_ASSIGN_OR_RETURN(options.write, WriteSettingsFromEnv());
    CKPT_ASSIGN_OR_RETURN(options.keep, ReadKeepRules(raw));
  }
  return options;
}

session::Parts RealParts() {
  session::Parts parts;
  parts.open_store = [](const std::string& path) -> Result<std::unique_ptr<storage::Store>> {
    if (path.find("://") != std::string::npos)
      return Unimplemented("store '" + path + "': this version stores in directories only");
    return std::unique_ptr<storage::Store>(storage::OpenFileStore(path));
  };
  return parts;
}

}  // namespace ckpt::api

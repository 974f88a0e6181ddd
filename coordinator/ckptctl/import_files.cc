#include "coordinator/ckptctl/import_files.h"

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <unordered_map>

#include "libckpt/base/limits.h"
#include "libckpt/os/file.h"
#include "libckpt/os/uring/uring_file.h"
#include "libckpt/storage/file/file_io.h"
#include "libckpt/storage/file/file_store.h"

namespace ckpt::ckptctl {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kFileEnd = ".safetensors";
constexpr std::string_view kIndexEnd = ".safetensors.index.json";
constexpr uint64_t kIndexJsonBytesMax = uint64_t{64} << 20;

// Where a path leads: a downloaded model is mostly links to where its bytes are.
Result<std::string> Resolved(const std::string& path) {
  std::error_code error;
  const auto real = std::filesystem::canonical(path, error);
  if (error) return NotFound(path + ": " + error.message());
  return real.string();
}

// Names that come twice are refused, and what nests deeper than anybody's metadata.
Result<Json> ParseIndexJson(const std::string& path, const std::string& text) {
  std::vector<std::set<std::string>> keys;
  std::string refused;
  const auto look = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key && !keys.back().insert(parsed.get<std::string>()).second)
      refused = "'" + parsed.get<std::string>() + "' comes twice";
    if (depth > static_cast<int>(kValueDepthMax)) refused = "it nests too deep";
    return refused.empty();
  };
  Json json = Json::parse(text, look, /*allow_exceptions=*/false);
  if (!refused.empty()) return DataLoss(path + ": " + refused);
  if (!json.is_object() || !json.contains("weight_map") || !json["weight_map"].is_object())
    return DataLoss(path + " is no index of safetensors files: it has no weight_map");
  for (const auto& [name, file] : json["weight_map"].items()) {
    const std::string text_of = file.is_string() ? file.get<std::string>() : "";
    if (text_of.empty() || text_of.find('/') != std::string::npos || text_of[0] == '.')
      return DataLoss(path + ": tensor '" + name + "' is in no file beside it");
  }
  return json;
}

// Pre: the depth is bounded.
format::Value ToValue(const Json& json) {
  if (json.is_boolean()) return {json.get<bool>()};
  if (json.is_number_unsigned() && json.get<uint64_t>() > uint64_t{INT64_MAX})
    return {format::ValueBigInt{json.dump()}};
  if (json.is_number_integer()) return {json.get<int64_t>()};
  if (json.is_number_float()) return {json.get<double>()};
  if (json.is_string()) return {json.get<std::string>()};
  if (json.is_array()) {
    format::ValueList list;
    for (const Json& item : json) list.push_back(ToValue(item));
    return {std::move(list)};
  }
  if (!json.is_object()) return {};
  format::ValueDictBox dict;
  for (const auto& [key, item] : json.items())
    dict.items.push_back({format::Value{key}, ToValue(item)});
  return {std::move(dict)};
}

class Opener {
 public:
  Status Add(const std::string& path) {
    CKPT_ASSIGN_OR_RETURN(const std::string real, Resolved(path));
    if (std::filesystem::is_directory(real)) return AddDirectory(path, real);
    if (path.ends_with(kIndexEnd)) return AddIndex(path, os::ParentOf(path));
    return AddFile(path, os::BaseName(path)).status();
  }

  Result<ImportSource> Finish() {
    std::unordered_map<std::string, const ImportFile*> seen;
    for (const ImportFile& file : source_.files) {
      for (const SafetensorsEntry& entry : file.header.tensors) {
        const auto [it, inserted] = seen.emplace(entry.name, &file);
        if (!inserted)
          return FailedPrecondition("tensor '" + entry.name + "' is in " + it->second->path +
                                    " and in " + file.path + "; name one of them only");
        source_.tensors.push_back(
            {entry.name, entry.dtype, entry.shape, file.reader.get(), entry.begin});
        source_.bytes += entry.end - entry.begin;
      }
    }
    if (!metadata_.items.empty())
      source_.values.values.insert(
          source_.values.values.begin(),
          {kFileMetadataValue, format::Scope::kShared, format::Value{std::move(metadata_)}});
    return std::move(source_);
  }

 private:
  Status AddDirectory(const std::string& path, const std::string& real) {
    CKPT_ASSIGN_OR_RETURN(const storage::DirectoryKind kind, storage::KindOfDirectory(real));
    if (kind != storage::DirectoryKind::kNeither)
      return FailedPrecondition(path + " holds checkpoints already; `ckptctl cp` copies one");
    CKPT_ASSIGN_OR_RETURN(const auto entries, os::PosixFileSystem().List(real));
    std::vector<std::string> files, indexes;
    for (const os::DirEntry& entry : entries) {
      if (entry.name.ends_with(kIndexEnd)) indexes.push_back(entry.name);
      if (entry.name.ends_with(kFileEnd)) files.push_back(entry.name);
    }
    if (indexes.size() > 1)
      return FailedPrecondition(path + " has several indexes; name one of them: " + indexes[0] +
                                ", " + indexes[1]);
    if (!indexes.empty()) return AddIndex(os::JoinPath(path, indexes[0]), path);
    if (files.empty()) return NotFound(path + " has no file that ends with .safetensors");
    for (const std::string& file : files)
      CKPT_RETURN_IF_ERROR(AddFile(os::JoinPath(path, file), file).status());
    return OkStatus();
  }

  Status AddIndex(const std::string& path, const std::string& directory) {
    CKPT_ASSIGN_OR_RETURN(const std::string real, Resolved(path));
    CKPT_ASSIGN_OR_RETURN(const std::string text,
                          os::ReadFile(os::PosixFileSystem(), real, kIndexJsonBytesMax));
    CKPT_ASSIGN_OR_RETURN(const Json json, ParseIndexJson(path, text));
    std::map<std::string, std::set<std::string>> tensors_of;
    for (const auto& [tensor, file] : json["weight_map"].items())
      tensors_of[file.get<std::string>()].insert(tensor);
    for (auto& [name, wanted] : tensors_of) {
      Result<const ImportFile*> file = AddFile(os::JoinPath(directory, name), name);
      if (!file.ok())
        return std::move(file).status().Annotate(path + " has '" + *wanted.begin() + "' in it");
      for (const SafetensorsEntry& entry : (*file)->header.tensors) {
        if (wanted.erase(entry.name) == 0)
          return DataLoss((*file)->path + " has '" + entry.name + "', which " + path +
                          " does not have there");
      }
      if (!wanted.empty())
        return DataLoss((*file)->path + " has no '" + *wanted.begin() + "', which " + path +
                        " has there");
    }
    KeepIndexMetadata(json);
    return OkStatus();
  }

  // Valid until the next.
  Result<const ImportFile*> AddFile(const std::string& path, const std::string& name) {
    CKPT_ASSIGN_OR_RETURN(const std::string real, Resolved(path));
    ImportFile file{name, path, nullptr, {}};
    CKPT_ASSIGN_OR_RETURN(
        file.reader,
        storage::OpenAttemptFile(os::UringFileSystem(), os::ParentOf(real), os::BaseName(real)));
    const uint64_t size = file.reader->size();
    std::string first8(std::min<uint64_t>(size, 8), '\0');
    CKPT_RETURN_IF_ERROR(file.reader->Read(0, std::as_writable_bytes(std::span(first8))));
    CKPT_ASSIGN_OR_RETURN(const uint64_t header, SafetensorsHeaderBytes(path, first8, size));
    std::string json(header - 8, '\0');
    CKPT_RETURN_IF_ERROR(file.reader->Read(8, std::as_writable_bytes(std::span(json))));
    CKPT_ASSIGN_OR_RETURN(file.header, ParseSafetensorsHeader(path, json, size));
    CKPT_RETURN_IF_ERROR(ApplyTrueDTypes(path, &file.header));
    KeepFileMetadata(name, file.header.metadata);
    source_.files.push_back(std::move(file));
    return &source_.files.back();
  }

  // That a file is in the usual form is nothing to remember.
  void KeepFileMetadata(const std::string& name,
                        const std::vector<std::pair<std::string, std::string>>& metadata) {
    if (metadata.empty()) return;
    if (metadata.size() == 1 && metadata[0] == std::pair<std::string, std::string>("format", "pt"))
      return;
    format::ValueDictBox dict;
    for (const auto& [key, text] : metadata)
      dict.items.push_back({format::Value{key}, format::Value{text}});
    metadata_.items.push_back({format::Value{name}, format::Value{std::move(dict)}});
  }

  // Nor is how large it was.
  void KeepIndexMetadata(const Json& index) {
    if (!index.contains("metadata") || !index["metadata"].is_object()) return;
    Json metadata = index["metadata"];
    metadata.erase("total_size");
    if (metadata.empty()) return;
    source_.values.values.push_back(
        {kIndexMetadataValue, format::Scope::kShared, ToValue(metadata)});
  }

  ImportSource source_;
  format::ValueDictBox metadata_;  // of each file
};

}  // namespace

Result<ImportSource> OpenImport(const std::vector<std::string>& paths) {
  Opener opener;
  for (const std::string& path : paths) CKPT_RETURN_IF_ERROR(opener.Add(path));
  return opener.Finish();
}

}  // namespace ckpt::ckptctl

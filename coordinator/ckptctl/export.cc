// export: the tensors of a checkpoint as safetensors files that other programs read: whole, in one
// file or in several with the index that Hugging Face's loaders expect.
#include <CLI/CLI.hpp>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "coordinator/ckptctl/import_files.h"
#include "coordinator/ckptctl/job_file.h"
#include "coordinator/ckptctl/offline.h"
#include "coordinator/ckptctl/tensors.h"
#include "coordinator/ckptctl/work_progress.h"
#include "libckpt/base/clock.h"
#include "libckpt/engine/block_stream.h"
#include "libckpt/format/shard.h"
#include "libckpt/os/uring/uring_file.h"
#include "libckpt/storage/file/file_io.h"

namespace ckpt::ckptctl {
namespace {

using Json = nlohmann::ordered_json;

struct OutFile {
  std::string name;
  std::vector<WholeTensor> tensors;
  uint64_t bytes = 0;
};

// In order of name; a tensor is never split.
std::vector<OutFile> Distribute(const std::vector<WholeTensor>& tensors, uint64_t bytes_max) {
  std::vector<OutFile> files(1);
  for (const WholeTensor& tensor : tensors) {
    if (files.back().bytes != 0 && files.back().bytes + tensor.bytes() > bytes_max) {
      files.emplace_back();
    }
    files.back().bytes += tensor.bytes();
    files.back().tensors.push_back(tensor);
  }
  for (size_t i = 0; i < files.size(); ++i) {
    char name[64];
    std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", i + 1, files.size());
    files[i].name = files.size() == 1 ? "model.safetensors" : name;
  }
  return files;
}

// What the files said of themselves that this was imported from, where they agree. Others are
// recognised by "format", and ours by "ckpt" (they are shards).
Json MetadataOf(const engine::CheckpointReader& reader) {
  std::map<std::string, std::set<std::string>> said;
  const Result<format::RankValues> values = reader.Values(Rank(0));
  for (const format::NamedValue& value :
       values.ok() ? values->values : decltype(values->values)()) {
    const auto* files = std::get_if<format::ValueDictBox>(&value.value.v);
    if (value.name != kFileMetadataValue || files == nullptr) continue;
    for (const format::ValueEntry& file : files->items) {
      const auto* entries = std::get_if<format::ValueDictBox>(&file.second.v);
      for (const format::ValueEntry& entry : entries ? entries->items : format::ValueDict()) {
        const auto* key = std::get_if<std::string>(&entry.first.v);
        const auto* text = std::get_if<std::string>(&entry.second.v);
        if (key != nullptr && text != nullptr) said[*key].insert(*text);
      }
    }
  }
  Json metadata{{"format", "pt"}};
  for (const auto& [key, texts] : said) {
    if (texts.size() == 1 && key != "ckpt" && key != kDTypesKey) metadata[key] = *texts.begin();
  }
  return metadata;
}

// Eight bytes of length, then JSON, padded so that the data begin at a multiple of eight.
std::string Header(const OutFile& file, const Json& metadata) {
  Json json;
  json["__metadata__"] = metadata;
  Json contained = Json::object();
  for (const WholeTensor& tensor : file.tensors) {
    const std::string_view dtype = format::DTypeName(tensor.meta.dtype);
    if (dtype != format::ContainerDType(tensor.meta.dtype)) contained[tensor.name] = dtype;
  }
  if (!contained.empty()) json["__metadata__"][kDTypesKey] = contained.dump();
  uint64_t at = 0;
  for (const WholeTensor& tensor : file.tensors) {
    const format::TensorMeta& meta = tensor.meta;
    const format::ShardTensor shard{
        meta.name,
        meta.dtype,
        meta.placement,
        meta.local.shape,
        {std::vector<uint64_t>(meta.local.shape.size(), 0), meta.local.shape}};
    Json& entry = json[tensor.name];
    entry["dtype"] = std::string(format::ContainerDType(meta.dtype));
    entry["shape"] = format::ContainerShape(shard);
    entry["data_offsets"] = std::vector<uint64_t>{at, at + tensor.bytes()};
    at += tensor.bytes();
  }
  std::string text = json.dump(-1, ' ', false, Json::error_handler_t::replace);
  text.resize((text.size() + 7) / 8 * 8, ' ');
  std::string header;
  for (int i = 0; i < 8; ++i) header += static_cast<char>(uint64_t{text.size()} >> (8 * i));
  return header + text;
}

class Exporter {
 public:
  Exporter(engine::CheckpointReader* reader, std::string directory, uint64_t total)
      : reader_(reader),
        directory_(std::move(directory)),
        total_(total),
        metadata_(MetadataOf(*reader)) {}

  Status Write(const OutFile& out) {
    const std::string header = Header(out, metadata_);
    const uint64_t bytes = header.size() + out.bytes;
    CKPT_ASSIGN_OR_RETURN(const auto file, storage::CreateAttemptFile(os::UringFileSystem(),
                                                                      directory_, out.name, bytes));
    engine::BlockStream stream(file.get(), bytes);
    uint64_t part = 0;
    const auto append = [&](ByteSpan span) {
      return stream.Append(part++, {span}, [](uint64_t) {});
    };
    CKPT_RETURN_IF_ERROR(append(AsBytes(header)));
    std::vector<std::byte> tensor_bytes;
    for (const WholeTensor& tensor : out.tensors) {
      if (InterruptNote::Noted()) return Cancelled("interrupted");
      // Chunks at its ends belong to its neighbours too.
      const auto progress = [&](uint64_t done, uint64_t) {
        progress_.Show(done_ + std::min(done, tensor.bytes()), total_);
      };
      CKPT_RETURN_IF_ERROR(LoadWhole(reader_, tensor, &tensor_bytes, progress));
      CKPT_RETURN_IF_ERROR(append(tensor_bytes));
      progress_.Show(done_ += tensor_bytes.size(), total_);
    }
    CKPT_RETURN_IF_ERROR(stream.Flush());
    return file->Finish();
  }

 private:
  engine::CheckpointReader* const reader_;
  const std::string directory_;
  const uint64_t total_;
  const Json metadata_;
  uint64_t done_ = 0;
  WorkProgress progress_{"exported"};
};

Status WriteIndex(const std::vector<OutFile>& files, uint64_t total, const std::string& directory) {
  Json json{{"metadata", {{"total_size", total}}}, {"weight_map", Json::object()}};
  for (const OutFile& file : files) {
    for (const WholeTensor& tensor : file.tensors) json["weight_map"][tensor.name] = file.name;
  }
  return os::WriteNewFile(os::PosixFileSystem(),
                          os::JoinPath(directory, "model.safetensors.index.json"),
                          json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

// All files in `directory`, which is there and empty.
Status WriteAll(engine::CheckpointReader* reader, const std::vector<OutFile>& files,
                const std::string& directory) {
  uint64_t total = 0;
  for (const OutFile& file : files) total += file.bytes;
  Exporter exporter(reader, directory, total);
  for (const OutFile& file : files) CKPT_RETURN_IF_ERROR(exporter.Write(file));
  if (files.size() > 1) CKPT_RETURN_IF_ERROR(WriteIndex(files, total, directory));
  return os::PosixFileSystem().SyncDir(directory);
}

Status Export(const OfflineOptions& options, const std::string& to, uint64_t bytes_max,
              std::ostream& out) {
  os::FileSystem& fs = os::PosixFileSystem();
  CKPT_ASSIGN_OR_RETURN(Target target, OpenTarget(options.path));
  CKPT_ASSIGN_OR_RETURN(const AttemptId id, SelectCheckpoint(target, options));
  CKPT_ASSIGN_OR_RETURN(const auto reader, engine::OpenCheckpoint(target.store.get(), id));
  CKPT_ASSIGN_OR_RETURN(const bool taken, os::Exists(fs, to));
  if (taken) return AlreadyExists(to + " exists already: name a directory that is to be made");
  CKPT_ASSIGN_OR_RETURN(const std::vector<WholeTensor> tensors, WholeTensors(*reader));
  for (const WholeTensor& tensor : tensors) {
    if (tensor.name == "__metadata__")
      return FailedPrecondition("a tensor called '__metadata__' cannot be in a safetensors file");
  }
  const std::vector<OutFile> files = Distribute(tensors, bytes_max);
  // Under another name until it is whole.
  const std::string temporary = to + ".part";
  const InterruptNote note;
  CKPT_RETURN_IF_ERROR(fs.MakeDir(temporary).Annotate(
      "making " + temporary + " (if it is left of an export that was killed, remove it)"));
  Status status = WriteAll(reader.get(), files, temporary);
  if (status.ok()) status = fs.RenameNoReplace(temporary, to);
  if (status.ok()) status = fs.SyncDir(os::ParentOf(to));
  if (!status.ok()) {
    fs.RemoveTree(temporary).IgnoreError();
    return status.Annotate("exporting " + id.ToString());
  }
  uint64_t bytes = 0;
  Json names = Json::array();
  for (const OutFile& file : files) {
    bytes += file.bytes;
    names.push_back(file.name);
  }
  if (options.json) {
    out << Json{{"checkpoint", id.ToString()},
                {"to", to},
                {"files", names},
                {"tensors", tensors.size()},
                {"bytes", bytes}}
               .dump(2)
        << "\n";
  } else {
    out << id.ToString() << ": " << tensors.size() << " tensors, " << FormatBytes(bytes) << ", in "
        << files.size() << (files.size() == 1 ? " file" : " files") << " in " << to << "\n";
  }
  return OkStatus();
}

}  // namespace

void RegisterExport(CLI::App& app, const Globals& globals, Run* run) {
  auto options = std::make_shared<OfflineOptions>();
  auto to = std::make_shared<std::string>();
  auto size = std::make_shared<std::string>("5GB");
  CLI::App* verb = app.add_subcommand(
      "export", "write the tensors, whole, as safetensors files into a new directory");
  verb->fallthrough();
  verb->add_option("PATH", options->path, "a job's directory, or one checkpoint's")->required();
  verb->add_option("TO", *to, "the directory to be made")->required();
  AddCheckpointFlag(verb, options.get());
  verb->add_option("--file-size", *size, "of one file, at most (default 5GB)");
  verb->callback([=, &globals] {
    *run = [=, &globals] {
      options->json = globals.json();
      const Result<uint64_t> bytes_max = ParseBytes(*size);
      const Status status =
          bytes_max.ok() ? Export(*options, *to, *bytes_max, std::cout) : bytes_max.status();
      if (!status.ok()) Fail(status);
      return OfflineExitCode(status);
    };
  });
}

}  // namespace ckpt::ckptctl

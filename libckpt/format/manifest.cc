#include "libckpt/format/manifest.h"

#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <unordered_set>

#include "libckpt/base/digest.h"
#include "libckpt/format/json.h"
#include "libckpt/format/manifest_tables.h"
#include "libckpt/format/value_json.h"

namespace ckpt::format {
namespace {

constexpr std::string_view kKind = "MANIFEST";
constexpr std::string_view kPlacements[] = {"unsharded", "replicated", "sharded", "per_rank"};
constexpr std::string_view kScopes[] = {"shared", "per_rank"};
constexpr std::string_view kModes[] = {"standalone", "managed"};

template <typename Enum, size_t kCount>
Enum TakeEnum(JsonObject* object, std::string_view key, const std::string_view (&names)[kCount]) {
  const std::string text = object->String(key);
  for (size_t i = 0; i < kCount; ++i) {
    if (names[i] == text) return static_cast<Enum>(i);
  }
  object->Fail("unknown '" + std::string(key) + "'");
  return Enum{};
}

// --- writing; keys rise within each object ---

void PutText(std::string* out, std::string_view prefix, std::string_view text) {
  *out += prefix;
  AppendJsonString(out, text);
}

template <typename Int>
void PutNumbers(std::string* out, const std::vector<Int>& numbers) {
  *out += '[';
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (i != 0) *out += ',';
    *out += std::to_string(numbers[i]);
  }
  *out += ']';
}

template <typename List, typename Put>
void PutList(std::string* out, const List& list, Put put) {
  *out += '[';
  for (size_t i = 0; i < list.size(); ++i) {
    if (i != 0) *out += ',';
    put(list[i]);
  }
  *out += ']';
}

void PutFile(std::string* out, const ManifestFile& file) {
  *out += "{\"bytes\":" + std::to_string(file.bytes);
  PutText(out, ",\"index\":", file.index_name);
  *out += ",\"index_bytes\":" + std::to_string(file.index_bytes);
  PutText(out, ",\"index_digest\":", file.index_digest.ToString());
  PutText(out, ",\"name\":", file.name);
  *out += ",\"shard\":" + std::to_string(file.shard.value()) + '}';
}

void PutItem(std::string* out, const Item& item) {
  if (const auto* value = std::get_if<NamedValue>(&item)) {
    PutText(out, "{\"kind\":\"value\",\"name\":", value->name);
    PutText(out, ",\"scope\":", kScopes[static_cast<size_t>(value->scope)]);
    *out += ",\"value\":" + value->value.ToJson() + '}';
    return;
  }
  const auto& blob = std::get<NamedBlob>(item);
  PutText(out, "{\"bytes\":", Base64Encode(blob.bytes));
  PutText(out, ",\"kind\":\"blob\",\"media_type\":", blob.media_type);
  PutText(out, ",\"name\":", blob.name);
  PutText(out, ",\"scope\":", kScopes[static_cast<size_t>(blob.scope)]);
  *out += '}';
}

// Which of the rows before spells the same cut.
class SpelledCuts {
 public:
  std::optional<size_t> Find(const std::vector<TensorRow>& rows, size_t row) {
    const Cut& cut = *rows[row].cut;
    const uint64_t hash = Hash64(std::as_bytes(std::span(cut.boxes_of)), cut.boxes.size());
    const auto [begin, end] = by_hash_.equal_range(hash);
    for (auto at = begin; at != end; ++at) {
      if (*rows[at->second].cut == cut) return at->second;
    }
    by_hash_.emplace(hash, row);
    return std::nullopt;
  }

 private:
  std::unordered_multimap<uint64_t, size_t> by_hash_;
};

void PutTensorRow(std::string* out, const std::vector<TensorRow>& rows, size_t number,
                  SpelledCuts* spelled) {
  const TensorRow& row = rows[number];
  *out += '{';
  const auto like = row.cut != nullptr ? spelled->Find(rows, number) : std::nullopt;
  if (like) {
    *out += "\"boxes_like\":" + std::to_string(*like) + ',';
  } else if (row.cut != nullptr) {
    *out += "\"boxes\":";
    PutList(out, row.cut->boxes, [&](const Box& box) {
      *out += '[';
      PutNumbers(out, box.offset);
      *out += ',';
      PutNumbers(out, box.shape);
      *out += ']';
    });
    *out += ",\"boxes_of\":";
    PutNumbers(out, row.cut->boxes_of);
    *out += ',';
  }
  PutText(out, "\"dtype\":", DTypeName(row.meta.dtype));
  if (row.meta.frozen) *out += ",\"frozen\":true";
  PutText(out, ",\"name\":", row.meta.name);
  PutText(out, ",\"placement\":", kPlacements[static_cast<size_t>(row.meta.placement)]);
  *out += ",\"shape\":";
  PutNumbers(out, row.meta.global_shape);
  if (!row.meta.tied_to.empty()) PutText(out, ",\"tied_to\":", row.meta.tied_to);
  *out += '}';
}

void PutRowLists(std::string* out, const char* name, const RowLists& lists) {
  *out += "\"" + std::string(name) + "\":";
  PutList(out, lists.lists, [&](const std::vector<uint32_t>& list) { PutNumbers(out, list); });
  *out += ",\"" + std::string(name) + "_of\":";
  PutNumbers(out, lists.of);
}

std::string Spell(const Manifest& manifest, const ManifestTables& tables) {
  std::string out = "{\"attempt\":" + std::to_string(manifest.id.attempt.value());
  out += ",\"digest\":\"\",\"epoch\":" + std::to_string(manifest.id.epoch.value());
  out += ",\"features\":{},\"files\":";
  PutList(&out, manifest.files, [&](const ManifestFile& file) { PutFile(&out, file); });
  out += ",\"format\":" + std::to_string(kFormatVersion) + ",\"items\":";
  PutList(&out, tables.items, [&](const Item& item) { PutItem(&out, item); });
  PutText(&out, ",\"job\":", manifest.job.ToString());
  PutText(&out, ",\"kind\":", kKind);
  PutText(&out, ",\"mode\":", kModes[static_cast<size_t>(manifest.mode)]);
  if (!manifest.origins.empty()) {
    out += ",\"origins\":";
    PutList(&out, manifest.origins, [&](const ManifestOrigin& origin) {
      out += "{\"bytes\":" + std::to_string(origin.bytes);
      PutText(&out, ",\"checkpoint\":", origin.id.ToString());
      out += '}';
    });
  }
  out += ",\"ranks\":{";
  PutRowLists(&out, "items", tables.rank_items);
  out += ',';
  PutRowLists(&out, "tensors", tables.rank_tensors);
  out += "},\"step\":" + std::to_string(manifest.id.step.value()) + ",\"tensors\":";
  SpelledCuts spelled;
  PutList(&out, tables.tensors, [&](const TensorRow& row) {
    PutTensorRow(&out, tables.tensors, static_cast<size_t>(&row - tables.tensors.data()), &spelled);
  });
  PutText(&out, ",\"uid\":", UidToString(manifest.uid()));
  out += ",\"world\":" + std::to_string(manifest.world());
  PutText(&out, ",\"writer\":", manifest.writer);
  return out + '}';
}

// --- reading ---

template <typename Int>
bool ReadNumbers(const JsonView& list, int64_t min, uint64_t max, std::vector<Int>* out) {
  if (!list.Is(JsonKind::kArray)) return false;
  for (JsonView at = list.First(); !list.IsEnd(at); at = at.Next()) {
    int64_t negative = 0;
    uint64_t number = 0;
    if (at.AsUint64(&number) && number <= max) {
      out->push_back(static_cast<Int>(number));
    } else if (min < 0 && at.AsInt64(&negative) && negative >= min) {
      out->push_back(static_cast<Int>(negative));
    } else {
      return false;
    }
  }
  return true;
}

ManifestFile ReadFile(JsonObject object, Status* status) {
  ManifestFile file;
  file.bytes = object.Uint("bytes", INT64_MAX);
  file.index_name = object.String("index");
  file.index_bytes = object.Uint("index_bytes", kIndexBytesMax);
  file.index_digest = object.Take(Digest::Parse(object.String("index_digest")));
  file.name = object.String("name");
  file.shard = Rank(static_cast<uint32_t>(object.Uint("shard", kRanksMax - 1)));
  *status = object.status();
  return file;
}

ManifestOrigin ReadOrigin(JsonObject object, Status* status) {
  ManifestOrigin origin;
  origin.bytes = object.Uint("bytes", INT64_MAX);
  origin.id = object.Take(AttemptId::Parse(object.String("checkpoint")));
  *status = object.status();
  return origin;
}

Item ReadValueItem(JsonObject* object) {
  NamedValue value;
  value.name = object->String("name");
  value.scope = TakeEnum<Scope>(object, "scope", kScopes);
  const JsonView node = object->Any("value");
  if (!node.valid()) return value;
  value.value = object->Take(ValueFromView(node));
  if (!object->failed() && value.value.ToJson() != node.Spelled()) {
    object->Fail("value '" + value.name + "' is not in canonical spelling");
  }
  return value;
}

Item ReadBlobItem(JsonObject* object) {
  NamedBlob blob;
  blob.bytes = object->Base64("bytes");
  blob.media_type = object->String("media_type");
  blob.name = object->String("name");
  blob.scope = TakeEnum<Scope>(object, "scope", kScopes);
  return blob;
}

Item ReadItem(JsonObject object, Status* status) {
  const std::string kind = object.String("kind");
  if (kind != "value" && kind != "blob") object.Fail("unknown 'kind' of an item");
  Item item = kind == "blob" ? ReadBlobItem(&object) : ReadValueItem(&object);
  *status = object.status();
  return item;
}

Box ReadBox(JsonObject* object, const JsonView& pair) {
  Box box;
  const bool good = pair.Is(JsonKind::kArray) && pair.CountChildren() == 2 &&
                    ReadNumbers(pair.First(), 0, UINT64_MAX, &box.offset) &&
                    ReadNumbers(pair.First().Next(), 0, UINT64_MAX, &box.shape);
  if (!good) object->Fail("a box is malformed");
  return box;
}

void ReadBoxes(JsonObject* object, TensorRow* row) {
  const JsonView boxes = object->Array("boxes");
  if (!boxes.valid()) return;
  Cut cut;
  for (JsonView at = boxes.First(); !boxes.IsEnd(at); at = at.Next()) {
    cut.boxes.push_back(ReadBox(object, at));
  }
  if (cut.boxes.empty()) object->Fail("'boxes' is empty");
  if (!ReadNumbers(object->Array("boxes_of"), -1, INT32_MAX, &cut.boxes_of)) {
    object->Fail("'boxes_of' is malformed");
  }
  row->cut = std::make_shared<const Cut>(std::move(cut));
}

// The rows so far tell which ones spell their boxes themselves.
void ReadLike(JsonObject* object, const std::vector<TensorRow>& before, std::vector<bool>* spells,
              TensorRow* row) {
  spells->resize(before.size() + 1);
  (*spells)[before.size()] = object->Has("boxes");
  if (!object->Has("boxes_like")) return;
  const uint64_t like = object->Uint("boxes_like");
  if (object->Has("boxes") || object->Has("boxes_of") || like >= before.size() || !(*spells)[like])
    return object->Fail("'boxes_like' names no tensor before it that has boxes");
  row->cut = before[like].cut;
}

TensorRow ReadTensorRow(JsonObject object, Status* status) {
  TensorRow row;
  row.meta.name = object.String("name");
  row.meta.dtype = object.Take(ParseDType(object.String("dtype")));
  row.meta.placement = TakeEnum<Placement>(&object, "placement", kPlacements);
  if (!ReadNumbers(object.Array("shape"), 0, UINT64_MAX, &row.meta.global_shape)) {
    object.Fail("'shape' is malformed");
  }
  row.meta.frozen = object.Has("frozen") && object.Bool("frozen");
  if (object.Has("frozen") && !row.meta.frozen) object.Fail("'frozen' is only ever true");
  if (object.Has("tied_to")) {
    row.meta.tied_to = object.String("tied_to");
    if (row.meta.tied_to.empty()) object.Fail("'tied_to' is empty");
  }
  row.meta.local =
      Box{std::vector<uint64_t>(row.meta.global_shape.size(), 0), row.meta.global_shape};
  if (object.Has("boxes") || object.Has("boxes_of")) ReadBoxes(&object, &row);
  *status = object.status();
  return row;
}

// Reads each element of the list `key` with `read(JsonObject, Status*)`.
template <typename T, typename Read>
Status ReadTable(JsonObject* object, std::string_view key, Read read, std::vector<T>* out) {
  const JsonView list = object->Array(key);
  CKPT_RETURN_IF_ERROR(object->status());
  for (JsonView at = list.First(); !list.IsEnd(at); at = at.Next()) {
    Status status;
    out->push_back(read(
        JsonObject("MANIFEST, '" + std::string(key) + "' " + std::to_string(out->size()) + ",", at),
        &status));
    CKPT_RETURN_IF_ERROR(status);
  }
  return OkStatus();
}

void ReadRowLists(JsonObject* ranks, const std::string& name, RowLists* out) {
  const JsonView lists = ranks->Array(name);
  if (!lists.valid()) return;
  for (JsonView at = lists.First(); !lists.IsEnd(at); at = at.Next()) {
    if (!ReadNumbers(at, 0, UINT32_MAX, &out->lists.emplace_back())) {
      return ranks->Fail("a list of '" + name + "' is malformed");
    }
  }
  if (!ReadNumbers(ranks->Array(name + "_of"), 0, UINT32_MAX, &out->of)) {
    ranks->Fail("'" + name + "_of' is malformed");
  }
}

Result<ManifestTables> ReadTables(JsonObject* object, uint64_t world) {
  ManifestTables tables;
  CKPT_RETURN_IF_ERROR(ReadTable(object, "items", ReadItem, &tables.items));
  std::vector<bool> spells;
  const auto read_row = [&](JsonObject row_object, Status* status) {
    TensorRow row = ReadTensorRow(row_object, status);
    if (!status->ok()) return row;
    ReadLike(&row_object, tables.tensors, &spells, &row);
    *status = row_object.status();
    return row;
  };
  CKPT_RETURN_IF_ERROR(ReadTable(object, "tensors", read_row, &tables.tensors));
  const JsonView ranks_object = object->Object("ranks");
  CKPT_RETURN_IF_ERROR(object->status());
  JsonObject ranks("MANIFEST, 'ranks',", ranks_object);
  ReadRowLists(&ranks, "items", &tables.rank_items);
  ReadRowLists(&ranks, "tensors", &tables.rank_tensors);
  if (!ranks.failed() &&
      (tables.rank_tensors.of.size() != world || tables.rank_items.of.size() != world)) {
    ranks.Fail("not one entry per rank");
  }
  CKPT_RETURN_IF_ERROR(ranks.status());
  return tables;
}

// Features change how the rest is read, so they come first.
Status CheckFeatures(JsonObject* object) {
  const JsonView features = object->Object("features");
  if (!features.valid()) return object->status();
  for (JsonView name = features.First(); !features.IsEnd(name); name = name.Next().Next()) {
    const JsonView release = name.Next();
    return FailedPrecondition("MANIFEST needs feature '" + std::string(name.text()) +
                              "', known to release " +
                              (release.Is(JsonKind::kString) ? std::string(release.text()) : "?") +
                              " and later; this is release " + std::string(kWriterVersion));
  }
  return OkStatus();
}

Status CheckFiles(const std::vector<ManifestFile>& files, uint32_t world) {
  std::unordered_set<std::string> names = {std::string(kManifestFile), std::string(kCommitFile),
                                           std::string(kDrainingFile), std::string(kOriginsFile),
                                           std::string(kPinnedFile)};
  for (size_t i = 0; i < files.size(); ++i) {
    const ManifestFile& file = files[i];
    if (file.shard.value() >= world || (i != 0 && file.shard <= files[i - 1].shard)) {
      return InvalidArgument("file '" + file.name + "' is of no rank, or out of order");
    }
    for (const std::string& name : {file.name, file.index_name}) {
      CKPT_RETURN_IF_ERROR(CheckName("file", name));
      if (!names.insert(name).second) return InvalidArgument("two files are named '" + name + "'");
    }
    if (file.index_bytes > kIndexBytesMax || file.bytes > INT64_MAX) {
      return ResourceExhausted("file '" + file.name + "' or its index is too large");
    }
  }
  return OkStatus();
}

Status CheckOrigins(const Manifest& manifest) {
  const auto& origins = manifest.origins;
  if (origins.size() > kManifestOriginsMax)
    return InvalidArgument("it refers to " + std::to_string(origins.size()) + " checkpoints");
  for (size_t i = 0; i < origins.size(); ++i) {
    if (origins[i].id == manifest.id || (i != 0 && !(origins[i - 1].id < origins[i].id)))
      return InvalidArgument("origin " + origins[i].id.ToString() + " is itself or out of order");
  }
  return OkStatus();
}

Status AsDamage(const Status& status) {
  if (status.ok() || status.code() == Code::kFailedPrecondition) return status;
  return DataLoss("MANIFEST is damaged: " + status.message());
}

Result<Manifest> Read(const JsonDocument& document) {
  JsonObject object("MANIFEST", document.root());
  CKPT_RETURN_IF_ERROR(CheckFeatures(&object));
  Manifest manifest;
  manifest.job = object.Take(JobId::Parse(object.String("job")));
  manifest.id.epoch = Epoch(object.Uint("epoch"));
  manifest.id.step = Step(object.Int("step"));
  manifest.id.attempt = Attempt(static_cast<uint32_t>(object.Uint("attempt", UINT32_MAX)));
  manifest.mode = TakeEnum<CommitMode>(&object, "mode", kModes);
  manifest.writer = object.String("writer");
  const uint64_t world = object.Uint("world", kRanksMax);
  if (object.String("uid") != UidToString(manifest.uid())) object.Fail("its uid is not its own");
  CKPT_RETURN_IF_ERROR(object.status());
  CKPT_RETURN_IF_ERROR(ReadTable(&object, "files", ReadFile, &manifest.files));
  CKPT_RETURN_IF_ERROR(AsDamage(CheckFiles(manifest.files, static_cast<uint32_t>(world))));
  if (object.Has("origins")) {
    CKPT_RETURN_IF_ERROR(ReadTable(&object, "origins", ReadOrigin, &manifest.origins));
    CKPT_RETURN_IF_ERROR(AsDamage(CheckOrigins(manifest)));
  }
  CKPT_ASSIGN_OR_RETURN(const ManifestTables tables, ReadTables(&object, world));
  CKPT_RETURN_IF_ERROR(AsDamage(tables.Check()));
  if (world == 0) return DataLoss("MANIFEST is damaged: no ranks");
  tables.Expand(&manifest);
  return manifest;
}

}  // namespace

Result<std::string> Manifest::Encode() const {
  CKPT_RETURN_IF_ERROR(CheckFiles(files, world()));
  CKPT_RETURN_IF_ERROR(CheckOrigins(*this));
  if (!IsUtf8(writer)) return InvalidArgument("the writer's version is not UTF-8");
  CKPT_ASSIGN_OR_RETURN(const ManifestTables tables, ManifestTables::Build(*this));
  CKPT_RETURN_IF_ERROR(tables.Check());
  std::string text = SignDocument(Spell(*this, tables));
  if (text.size() <= kManifestBytesMax) return text;
  return ResourceExhausted("MANIFEST would have " + std::to_string(text.size()) +
                           " bytes, more than " + std::to_string(kManifestBytesMax) +
                           ": put large values into tensors");
}

Result<Manifest> Manifest::Decode(std::string_view bytes) {
  CKPT_ASSIGN_OR_RETURN(const JsonDocument document, OpenDocument(kKind, bytes, kManifestBytesMax));
  return Read(document);
}

Digest ManifestDigest(std::string_view manifest) { return DigestOf(AsBytes(manifest)); }

}  // namespace ckpt::format

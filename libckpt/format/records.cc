#include "libckpt/format/records.h"

#include <algorithm>

#include "libckpt/format/json.h"
#include "libckpt/format/names.h"

namespace ckpt::format {
namespace {

// Fields in rising order of keys, as text that is already canonical.
using Fields = std::vector<std::pair<std::string_view, std::string>>;

std::string Text(std::string_view text) {
  std::string out;
  AppendJsonString(&out, text);
  return out;
}

// For what people wrote: a record must stay readable whatever is in it.
std::string FreeText(std::string text) {
  if (!IsUtf8(text)) {
    std::replace_if(
        text.begin(), text.end(), [](char c) { return static_cast<uint8_t>(c) >= 0x80; }, '?');
  }
  return Text(text);
}

std::string EncodeRecord(std::string_view kind, const JobId& job, Fields fields) {
  fields.emplace_back("digest", "\"\"");
  fields.emplace_back("format", std::to_string(kFormatVersion));
  fields.emplace_back("job", Text(job.ToString()));
  fields.emplace_back("kind", Text(kind));
  std::sort(fields.begin(), fields.end());
  std::string out = "{";
  for (const auto& [key, value] : fields) {
    if (out.size() > 1) out += ',';
    out += Text(key) + ':' + value;
  }
  return SignDocument(out + '}');
}

// Sorted, without equals.
std::string SpellAttempts(std::vector<AttemptId> ids) {
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  std::string list = "[";
  for (const AttemptId& id : ids) {
    if (list.size() > 1) list += ',';
    list += Text(id.ToString());
  }
  return list + ']';
}

JobId GetJob(JsonObject* object) { return object->Take(JobId::Parse(object->String("job"))); }
AttemptId GetAttempt(JsonObject* object) {
  return object->Take(AttemptId::Parse(object->String("attempt")));
}

// Attempts in rising order, none twice.
std::vector<AttemptId> GetAttempts(JsonObject* object, std::string_view key) {
  std::vector<AttemptId> adopted;
  const JsonView list = object->Array(key);
  if (!list.valid()) return adopted;
  for (JsonView at = list.First(); !list.IsEnd(at); at = at.Next()) {
    const AttemptId id =
        object->Take(AttemptId::Parse(at.Is(JsonKind::kString) ? at.text() : std::string_view()));
    if (!adopted.empty() && id <= adopted.back())
      object->Fail("'" + std::string(key) + "' is out of order");
    if (object->failed()) break;
    adopted.push_back(id);
  }
  return adopted;
}

}  // namespace

std::string JobFile::Encode() const { return EncodeRecord("JOB", job, {}); }

Result<JobFile> JobFile::Decode(std::string_view bytes) {
  CKPT_ASSIGN_OR_RETURN(const JsonDocument document, OpenDocument("JOB", bytes, kRecordBytesMax));
  JsonObject object("JOB", document.root());
  JobFile file{GetJob(&object)};
  CKPT_RETURN_IF_ERROR(object.status());
  return file;
}

std::string ClaimFile::Encode() const {
  return EncodeRecord("CLAIM", job,
                      {{"claimant", FreeText(claimant)}, {"epoch", std::to_string(epoch.value())}});
}

Result<ClaimFile> ClaimFile::Decode(std::string_view bytes) {
  CKPT_ASSIGN_OR_RETURN(const JsonDocument document, OpenDocument("CLAIM", bytes, kRecordBytesMax));
  JsonObject object("CLAIM", document.root());
  ClaimFile file{GetJob(&object), Epoch(object.Uint("epoch")), object.String("claimant")};
  CKPT_RETURN_IF_ERROR(object.status());
  return file;
}

std::string EpochFile::Encode() const {
  return EncodeRecord("EPOCH", job,
                      {{"adopted", SpellAttempts(adopted)},
                       {"epoch", std::to_string(epoch.value())},
                       {"shape", FreeText(shape)}});
}

Result<EpochFile> EpochFile::Decode(std::string_view bytes) {
  CKPT_ASSIGN_OR_RETURN(const JsonDocument document, OpenDocument("EPOCH", bytes, kRecordBytesMax));
  JsonObject object("EPOCH", document.root());
  EpochFile file;
  file.job = GetJob(&object);
  file.epoch = Epoch(object.Uint("epoch"));
  file.adopted = GetAttempts(&object, "adopted");
  file.shape = object.String("shape");
  CKPT_RETURN_IF_ERROR(object.status());
  return file;
}

std::string CommitFile::Encode() const {
  return EncodeRecord("COMMIT", job,
                      {{"attempt", Text(id.ToString())},
                       {"coordinator", Text(Base64Encode(coordinator))},
                       {"epoch", std::to_string(epoch.value())},
                       {"manifest_digest", Text(manifest_digest.ToString())}});
}

Result<CommitFile> CommitFile::Decode(std::string_view bytes) {
  CKPT_ASSIGN_OR_RETURN(const JsonDocument document,
                        OpenDocument("COMMIT", bytes, kRecordBytesMax));
  JsonObject object("COMMIT", document.root());
  CommitFile file;
  file.job = GetJob(&object);
  file.id = GetAttempt(&object);
  file.manifest_digest = object.Take(Digest::Parse(object.String("manifest_digest")));
  file.epoch = Epoch(object.Uint("epoch"));
  file.coordinator = object.Base64("coordinator");
  CKPT_RETURN_IF_ERROR(object.status());
  return file;
}

std::string OriginsFile::Encode() const {
  return EncodeRecord("ORIGINS", job,
                      {{"attempt", Text(id.ToString())},
                       {"base", Text(base.ToString())},
                       {"origins", SpellAttempts(origins)}});
}

Result<OriginsFile> OriginsFile::Decode(std::string_view bytes) {
  CKPT_ASSIGN_OR_RETURN(const JsonDocument document,
                        OpenDocument("ORIGINS", bytes, kRecordBytesMax));
  JsonObject object("ORIGINS", document.root());
  OriginsFile file{GetJob(&object), GetAttempt(&object)};
  file.base = object.Take(AttemptId::Parse(object.String("base")));
  file.origins = GetAttempts(&object, "origins");
  if (!std::binary_search(file.origins.begin(), file.origins.end(), file.base))
    object.Fail("'base' is none of 'origins'");
  CKPT_RETURN_IF_ERROR(object.status());
  return file;
}

std::string DrainingFile::Encode() const {
  return EncodeRecord("DRAINING", job, {{"attempt", Text(id.ToString())}});
}

Result<DrainingFile> DrainingFile::Decode(std::string_view bytes) {
  CKPT_ASSIGN_OR_RETURN(const JsonDocument document,
                        OpenDocument("DRAINING", bytes, kRecordBytesMax));
  JsonObject object("DRAINING", document.root());
  DrainingFile file{GetJob(&object), GetAttempt(&object)};
  CKPT_RETURN_IF_ERROR(object.status());
  return file;
}

}  // namespace ckpt::format

// Types, values, names and records.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "libckpt/base/digest.h"
#include "libckpt/format/json.h"
#include "libckpt/format/names.h"
#include "libckpt/format/records.h"
#include "libckpt/format/test_data_test.h"
#include "libckpt/format/types.h"
#include "libckpt/format/values.h"

namespace ckpt::format {
namespace {

TEST(DTypes, NamesSizesAndNumbersStand) {
  const std::pair<const char*, uint32_t> expected[] = {
      {"BOOL", 1}, {"U8", 1},      {"I8", 1},      {"U16", 2}, {"I16", 2},   {"U32", 4},
      {"I32", 4},  {"U64", 8},     {"I64", 8},     {"F16", 2}, {"BF16", 2},  {"F32", 4},
      {"F64", 8},  {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"C64", 8}, {"C128", 16}, {"F4X2", 1}};
  for (uint8_t number = 1; number <= std::size(expected); ++number) {
    const auto dtype = static_cast<DType>(number);
    EXPECT_EQ(DTypeName(dtype), expected[number - 1].first);
    EXPECT_EQ(ElementBytes(dtype), expected[number - 1].second);
    EXPECT_EQ(*ParseDType(DTypeName(dtype)), dtype);
  }
  EXPECT_EQ(ElementBytes(static_cast<DType>(0)), 0u);
  EXPECT_EQ(ElementBytes(static_cast<DType>(19)), 0u);
  EXPECT_FALSE(ParseDType("").ok());
  EXPECT_FALSE(ParseDType("f32").ok());
}

TEST(Boxes, ContainIntersectAndCount) {
  const Box scalar;
  EXPECT_EQ(scalar.ElementCount(), 1u);
  EXPECT_EQ(scalar.Intersect(scalar), scalar);
  EXPECT_TRUE(scalar.Contains(scalar));
  const Box a{{0, 0}, {4, 4}}, b{{2, 3}, {4, 4}}, apart{{4, 0}, {1, 4}};
  EXPECT_EQ(a.Intersect(b), (Box{{2, 3}, {2, 1}}));
  EXPECT_TRUE(a.Intersect(apart).Empty());
  EXPECT_TRUE(a.Contains(Box{{1, 1}, {3, 3}}));
  EXPECT_FALSE(a.Contains(b));
  EXPECT_FALSE(a.Contains(scalar));
}

TEST(CheckTensorTest, RefusesByName) {
  const auto expect_bad = [](TensorMeta tensor, const char* why) {
    const Status status = CheckTensor(tensor);
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_NE(status.message().find(why), std::string::npos) << status.message();
  };
  TensorMeta good = WholeTensor("w", DType::kF32, {2, 3});
  EXPECT_TRUE(CheckTensor(good).ok());
  TensorMeta bad = good;
  bad.dtype = static_cast<DType>(99);
  expect_bad(bad, "'w'");
  bad = good;
  bad.placement = static_cast<Placement>(4);
  expect_bad(bad, "placement");
  bad = good;
  bad.name = "\xff";
  expect_bad(bad, "UTF-8");
  bad.name = std::string(kTensorNameBytesMax + 1, 'x');
  expect_bad(bad, "longer");
  bad = good;
  bad.local.shape = {2};
  expect_bad(bad, "number of dimensions");
  bad = good;
  bad.local.offset = {1, 0};
  expect_bad(bad, "dimension 0");
  bad.local.offset = {UINT64_MAX, 0};
  expect_bad(bad, "dimension 0");
  bad = good;
  bad.tied_to = "w";
  expect_bad(bad, "itself");
  expect_bad(WholeTensor("w", DType::kU8, std::vector<uint64_t>(33, 1)), "33 dimensions");
  expect_bad(WholeTensor("w", DType::kF32, {uint64_t{1} << 62}), "overflows");
  expect_bad(WholeTensor("w", DType::kU8, {uint64_t{1} << 40, 0, uint64_t{1} << 40}), "overflows");
  EXPECT_TRUE(CheckTensor(WholeTensor("w", DType::kU8, {uint64_t{1} << 40, 0})).ok());
  for (const std::string& name : OddNames()) {
    EXPECT_TRUE(CheckTensor(WholeTensor(name, DType::kU8, {1})).ok()) << name;
  }
}

TEST(RankLayoutTest, RoundTripsAndRefusesEveryTruncation) {
  for (const RankLayout& layout : RichManifest().layouts) {
    const std::string bytes = layout.Encode();
    const auto decoded = RankLayout::Decode(bytes);
    ASSERT_TRUE(decoded.ok()) << decoded.status().ToString();
    EXPECT_EQ(*decoded, layout);
    EXPECT_EQ(decoded->Hash(), layout.Hash());
    for (size_t size = 0; size < bytes.size(); ++size) {
      EXPECT_FALSE(RankLayout::Decode(bytes.substr(0, size)).ok()) << size;
    }
    EXPECT_FALSE(RankLayout::Decode(bytes + '\0').ok());
  }
  std::string huge = RankLayout{}.Encode();
  huge[4] = huge[5] = huge[6] = huge[7] = '\xff';
  EXPECT_FALSE(RankLayout::Decode(huge).ok());
}

TEST(Values, EveryKindHasOneSpelling) {
  for (const auto& [value, json] : SpelledValues()) {
    EXPECT_EQ(value.ToJson(), json);
    EXPECT_TRUE(CheckValue(value).ok()) << json;
    const auto read = Value::FromJson(json);
    ASSERT_TRUE(read.ok()) << json << ": " << read.status().ToString();
    EXPECT_EQ(*read, value) << json;
  }
}

TEST(Values, FloatsByBitsAndIntsAreNotFloats) {
  EXPECT_FALSE(Value{0.0} == Value{-0.0});
  EXPECT_FALSE(Value{1.0} == Value{int64_t{1}});
  EXPECT_EQ(Value{std::bit_cast<double>(0x7ff8000000000001u)},
            Value{std::bit_cast<double>(0x7ff8000000000001u)});
  // Random bit patterns come back as they were.
  uint64_t bits = 0x9e3779b97f4a7c15u;
  for (int i = 0; i < 20000; ++i) {
    bits = bits * 6364136223846793005u + 1442695040888963407u;
    const Value value{std::bit_cast<double>(bits)};
    const auto read = Value::FromJson(value.ToJson());
    ASSERT_TRUE(read.ok()) << value.ToJson();
    ASSERT_EQ(*read, value) << value.ToJson();
  }
}

TEST(Values, OtherSpellingsAreRefused) {
  const char* refused[] = {"",
                           " 1",
                           "1 ",
                           "01",
                           "-0",
                           "1e5",
                           "1.50",
                           "1E+16",
                           "+1",
                           "[1,]",
                           "[1 ,2]",
                           "{\"a\": 1}",
                           "nul",
                           "NaN",
                           "1e999",
                           "9223372036854775808",
                           "-9223372036854775809",
                           "1]",
                           "1 2",
                           R"("\u0041")",
                           R"("\/")",
                           "\"\xff\"",
                           R"({"a":1,"a":2})",
                           R"({"$i":"5"})",
                           R"({"$i":"9223372036854775807"})",
                           R"({"$i":"-0"})",
                           R"({"$i":"+9223372036854775808"})",
                           R"({"$i":"09223372036854775808"})",
                           R"({"$f":"3ff0000000000000"})",
                           R"({"$f":"7FF0000000000000"})",
                           R"({"$f":"7ff"})",
                           R"({"$b":"A"})",
                           R"({"$b":"AB=="})",
                           R"({"$b":"A==="})",
                           R"({"$b":5})",
                           R"({"$b":"QQ==","$t":[]})",
                           R"({"$t":{}})",
                           R"({"$x":[]})",
                           R"({"$":1})",
                           R"({"$s":"QUJD"})",
                           R"({"$d":[]})",
                           R"({"$d":[["a",1]]})",
                           R"({"$d":[[1,2],[1,3]]})",
                           R"({"$d":[[[],2]]})",
                           R"({"$d":[[1]]})",
                           R"({"$d":[1]})",
                           R"({"a":1,"$b":"QQ=="})"};
  for (const char* json : refused) {
    const auto read = Value::FromJson(json);
    EXPECT_FALSE(read.ok()) << json;
    EXPECT_EQ(read.status().code(), Code::kInvalidArgument) << json;
  }
}

std::string Nested(size_t depth, const std::string& open, const std::string& close) {
  std::string text;
  for (size_t i = 0; i < depth; ++i) text += open;
  text += "1";
  for (size_t i = 0; i < depth; ++i) text += close;
  return text;
}

TEST(Values, DepthIsBounded) {
  const std::pair<const char*, const char*> kinds[] = {
      {"[", "]"}, {"{\"a\":", "}"}, {"{\"$t\":[", "]}"}, {"{\"$d\":[[1,", "]]}"}};
  for (const auto& [open, close] : kinds) {
    const auto deepest = Value::FromJson(Nested(kValueDepthMax, open, close));
    ASSERT_TRUE(deepest.ok()) << open << deepest.status().ToString();
    EXPECT_TRUE(CheckValue(*deepest).ok());
    EXPECT_FALSE(CheckValue(Value{ValueList{*deepest}}).ok());
    EXPECT_FALSE(Value::FromJson(Nested(kValueDepthMax + 1, open, close)).ok()) << open;
    EXPECT_FALSE(Value::FromJson(Nested(1000000, open, close)).ok()) << open;
  }
  EXPECT_FALSE(Value::FromJson(std::string(5000000, '[')).ok());
}

TEST(Values, CheckNamesWhatCannotBeKept) {
  EXPECT_FALSE(CheckValue(Value{ValueBigInt{"5"}}).ok());
  EXPECT_FALSE(CheckValue(Value{ValueBigInt{"1" + std::string(kBigIntDigitsMax, '0')}}).ok());
  EXPECT_FALSE(CheckValue(Value{ValueDictBox{{{Value{ValueList{}}, Value{}}}}}).ok());
  const ValueEntry one = {Value{int64_t{1}}, Value{}};
  EXPECT_FALSE(CheckValue(Value{ValueDictBox{{one, one}}}).ok());
  RankValues values;
  values.values.push_back({"lr", Scope::kShared, Value{ValueBigInt{"x"}}});
  EXPECT_NE(CheckRankValues(values).message().find("'lr'"), std::string::npos);
  values.values = {{"a", Scope::kShared, Value{}}, {"a", Scope::kPerRank, Value{}}};
  EXPECT_FALSE(CheckRankValues(values).ok());
  values.values.clear();
  values.blobs.push_back({"big", Scope::kShared, "x", std::string(kValueBytesMax + 1, 'x')});
  EXPECT_EQ(CheckRankValues(values).code(), Code::kResourceExhausted);
}

TEST(RankValuesTest, RoundTripsAndRefusesEveryTruncation) {
  for (const RankValues& values : RichManifest().values) {
    const std::string bytes = values.Encode();
    const auto decoded = RankValues::Decode(bytes);
    ASSERT_TRUE(decoded.ok()) << decoded.status().ToString();
    EXPECT_EQ(*decoded, values);
    for (size_t size = 0; size < bytes.size(); ++size) {
      EXPECT_FALSE(RankValues::Decode(bytes.substr(0, size)).ok()) << size;
    }
  }
}

TEST(Names, FilesAndUid) {
  EXPECT_EQ(ShardFileName(Rank(3)), "shard-00003.safetensors");
  EXPECT_EQ(IndexFileName(Rank(65535)), "shard-65535.index");
  EXPECT_EQ(*ParseEpochFileName("EPOCH.7"), Epoch(7));
  EXPECT_EQ(*ParseClaimFileName("EPOCH.18446744073709551615.claim"), Epoch(UINT64_MAX));
  for (const char* bad : {"EPOCH.", "EPOCH.0", "EPOCH.07", "EPOCH.7x", "epoch.7", "EPOCH.-1",
                          "EPOCH.18446744073709551616", "EPOCH.7.claim"}) {
    EXPECT_FALSE(ParseEpochFileName(bad).ok()) << bad;
  }
  EXPECT_FALSE(ParseClaimFileName("EPOCH.7").ok());
  const JobId job{{1, 2, 3}};
  const AttemptId id{Epoch(1), Step(2), Attempt(3)};
  EXPECT_NE(CheckpointUid(job, id), CheckpointUid(job, {Epoch(2), Step(1), Attempt(3)}));
  EXPECT_NE(CheckpointUid(job, id), CheckpointUid(JobId{}, id));
}

TEST(Base64Test, KnownAnswersAndStrictness) {
  const std::pair<const char*, const char*> known[] = {
      {"", ""}, {"f", "Zg=="}, {"fo", "Zm8="}, {"foo", "Zm9v"}, {"foob", "Zm9vYg=="}};
  std::string bytes;
  for (const auto& [raw, text] : known) {
    EXPECT_EQ(Base64Encode(raw), text);
    ASSERT_TRUE(Base64Decode(text, &bytes)) << text;
    EXPECT_EQ(bytes, raw);
  }
  for (const char* bad : {"Z", "Zg=", "Zh==", "Zm9=", "====", "Zg==Zg==", "Zm9v\n", "Zm-v"}) {
    EXPECT_FALSE(Base64Decode(bad, &bytes)) << bad;
  }
}

// Every record: round trip, every truncation, every changed byte.
template <typename Record>
void CheckRecord(const Record& record) {
  const std::string bytes = record.Encode();
  const auto decoded = Record::Decode(bytes);
  ASSERT_TRUE(decoded.ok()) << bytes << decoded.status().ToString();
  EXPECT_EQ(*decoded, record);
  for (size_t i = 0; i < bytes.size(); ++i) {
    EXPECT_EQ(Record::Decode(bytes.substr(0, i)).status().code(), Code::kDataLoss) << i;
    for (const int flip : {1, 0x20, 0x80}) {
      std::string damaged = bytes;
      damaged[i] = static_cast<char>(damaged[i] ^ flip);
      EXPECT_EQ(Record::Decode(damaged).status().code(), Code::kDataLoss) << damaged;
    }
  }
  EXPECT_FALSE(Record::Decode(bytes + "\n").ok());
}

TEST(Records, RoundTripAndEveryDamageIsSeen) {
  const JobId job{{0xab, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}};
  const AttemptId id{Epoch(7), Step(-3), Attempt(2)};
  CheckRecord(JobFile{job});
  CheckRecord(ClaimFile{job, Epoch(7), "host é \"x\""});
  CheckRecord(EpochFile{job, Epoch(UINT64_MAX), {}, ""});
  CheckRecord(EpochFile{job, Epoch(8), {{Epoch(6), Step(9), Attempt(1)}, id}, "4 ranks"});
  CheckRecord(CommitFile{job, id, DigestOf(AsBytes("m")), Epoch(8), std::string("\0\xff", 2)});
  CheckRecord(DrainingFile{job, id});
}

TEST(Records, AnotherKindOrANewerFormatIsNotTaken) {
  const JobId job{{1}};
  const std::string record = JobFile{job}.Encode();
  EXPECT_EQ(DrainingFile::Decode(record).status().code(), Code::kDataLoss);
  std::string newer = record;
  const size_t digest = newer.find("\"digest\":\"") + 10;
  newer.erase(digest, 32);
  newer.replace(newer.find("\"format\":1"), 10, "\"format\":2");
  EXPECT_EQ(JobFile::Decode(SignDocument(newer)).status().code(), Code::kFailedPrecondition);
}

// L63.
TEST(Records, ACommitWithoutADigestCommitsNothing) {
  const CommitFile commit{
      JobId{{1}}, {Epoch(1), Step(1), Attempt(1)}, DigestOf(AsBytes("m")), Epoch(1), ""};
  const std::string text = commit.Encode();
  ASSERT_TRUE(CommitFile::Decode(text).ok());
  const auto cut = [&](const std::string& key, bool sign) {
    std::string changed = text;
    const size_t own = changed.find("\"digest\":\"") + 10;
    if (sign) changed.erase(own, 32);
    const size_t at = changed.find("\"" + key + "\":\"");
    changed.erase(at, changed.find("\"", at + key.size() + 4) + 2 - at);  // with its comma
    return sign ? SignDocument(changed) : changed;
  };
  EXPECT_EQ(CommitFile::Decode(cut("digest", false)).status().code(), Code::kDataLoss);
  EXPECT_EQ(CommitFile::Decode(cut("manifest_digest", true)).status().code(), Code::kDataLoss);
}

TEST(Records, UnknownKeysAreIgnoredAndEpochListsAreSorted) {
  const std::string text = SignDocument(R"({"digest":"","format":1,"future":{"z":1.5},"job":")" +
                                        JobId{{9}}.ToString() + R"(","kind":"JOB"})");
  const auto read = JobFile::Decode(text);
  ASSERT_TRUE(read.ok()) << read.status().ToString();
  EXPECT_EQ(read->job, JobId{{9}});
  const AttemptId a{Epoch(1), Step(5), Attempt(1)}, b{Epoch(2), Step(1), Attempt(1)};
  const EpochFile file{JobId{{1}}, Epoch(3), {b, a, b}, "odd \xff host"};
  EXPECT_EQ(EpochFile::Decode(file.Encode())->shape, "odd ? host");
  EXPECT_EQ(EpochFile::Decode(file.Encode())->adopted, (std::vector<AttemptId>{a, b}));
}

}  // namespace
}  // namespace ckpt::format

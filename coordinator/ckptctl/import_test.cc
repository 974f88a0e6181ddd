// import: what other programs write becomes a checkpoint that is whole; what is malformed is
// refused by name, and nothing is left of it.
#include <filesystem>

#include "coordinator/ckptctl/safetensors.h"
#include "coordinator/ckptctl/tensors.h"
#include "coordinator/ckptctl/tools_world.h"
#include "libckpt/base/fault.h"
#include "libckpt/base/rng.h"

namespace ckpt::ckptctl {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

std::string RandomBytes(size_t size, uint64_t seed) {
  Rng rng(seed);
  std::string bytes(size, '\0');
  for (char& byte : bytes) byte = static_cast<char>(rng.Below(256));
  return bytes;
}

std::string WithLength(const std::string& header) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(uint64_t{header.size()} >> (8 * i));
  return bytes + header;
}

struct Given {
  std::string name, dtype;
  std::vector<uint64_t> shape;
  std::string bytes;
};

// As another program might write it: data in the given order, names in the header in another.
std::string File(const std::vector<Given>& tensors, const Json& metadata = nullptr) {
  std::map<std::string, Json> entries;
  std::string data;
  for (const Given& tensor : tensors) {
    entries[tensor.name] = {{"shape", tensor.shape},
                            {"data_offsets", {data.size(), data.size() + tensor.bytes.size()}},
                            {"dtype", tensor.dtype}};
    data += tensor.bytes;
  }
  Json json = Json::object();
  for (auto it = entries.rbegin(); it != entries.rend(); ++it) json[it->first] = it->second;
  if (!metadata.is_null()) json["__metadata__"] = metadata;
  return WithLength(json.dump(1) + "   ") + data;
}

class ImportTest : public Tools {
 protected:
  std::string Put(const std::string& name, const std::string& bytes) {
    const std::string path = root_ + "/" + name;
    fs::create_directories(fs::path(path).parent_path());
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }
  // Both are what `given` says.
  void ExpectHolds(const std::string& checkpoint, const std::vector<Given>& given) {
    Target target = std::move(OpenTarget(checkpoint)).value();
    const AttemptId id = SelectCheckpoint(target, {}).value();
    const auto reader = engine::OpenCheckpoint(target.store.get(), id);
    ASSERT_TRUE(reader.ok()) << reader.status().ToString();
    const std::vector<WholeTensor> tensors = WholeTensors(**reader).value();
    ASSERT_EQ(tensors.size(), given.size());
    for (const WholeTensor& tensor : tensors) {
      const auto it = std::find_if(given.begin(), given.end(),
                                   [&](const Given& g) { return g.name == tensor.name; });
      ASSERT_NE(it, given.end()) << tensor.name;
      std::vector<std::byte> bytes;
      const Status loaded = LoadWhole(reader->get(), tensor, &bytes);
      ASSERT_TRUE(loaded.ok()) << loaded.ToString();
      EXPECT_EQ(AsText(ByteSpan(bytes)), it->bytes) << tensor.name;
      if (it->dtype == "F4") continue;
      EXPECT_EQ(format::DTypeName(tensor.meta.dtype), it->dtype) << tensor.name;
      EXPECT_EQ(tensor.meta.global_shape, it->shape) << tensor.name;
    }
  }
  // Refused with that exit code and those words, and nothing is left.
  void ExpectRefused(const std::vector<std::string>& from, int code, const std::string& words) {
    std::vector<std::string> line = {"import"};
    line.insert(line.end(), from.begin(), from.end());
    line.push_back(root_ + "/refused");
    const std::string said = Verb(line);
    EXPECT_EQ(code_, code) << said;
    EXPECT_NE(said.find(words), std::string::npos) << "wanted: " << words << "\n" << said;
    EXPECT_FALSE(fs::exists(root_ + "/refused")) << said;
  }
};

std::vector<Given> EveryDType() {
  std::vector<Given> given;
  uint64_t seed = 1;
  for (const auto& [dtype, bytes] : std::vector<std::pair<std::string, uint64_t>>{{"BOOL", 1},
                                                                                  {"U8", 1},
                                                                                  {"I8", 1},
                                                                                  {"F8_E4M3", 1},
                                                                                  {"F8_E5M2", 1},
                                                                                  {"U16", 2},
                                                                                  {"I16", 2},
                                                                                  {"F16", 2},
                                                                                  {"BF16", 2},
                                                                                  {"U32", 4},
                                                                                  {"I32", 4},
                                                                                  {"F32", 4},
                                                                                  {"U64", 8},
                                                                                  {"I64", 8},
                                                                                  {"F64", 8},
                                                                                  {"C64", 8}}) {
    given.push_back({"of " + dtype, dtype, {3, 5}, RandomBytes(15 * bytes, ++seed)});
    given.push_back({"scalar " + dtype, dtype, {}, RandomBytes(bytes, ++seed)});
    given.push_back({"empty " + dtype, dtype, {2, 0, 7}, ""});
  }
  return given;
}

TEST_F(ImportTest, EveryDTypeAndTheWayBackIsTheSame) {
  std::vector<Given> given = EveryDType();
  given.push_back({"four bits", "F4", {3, 6}, RandomBytes(9, 99)});
  given.push_back({"a # in it, % and ü", "F32", {2}, RandomBytes(8, 100)});
  const std::string file = Put("in.safetensors", File(given));
  EXPECT_EQ(Verb({"import", file, root_ + "/a"}),
            "s0.e1.a1: 50 tensors, 929 B, of 1 file, in DIR/a, every chunk verified\n");
  EXPECT_EQ(code_, 0);
  ExpectHolds(root_ + "/a", given);
  EXPECT_NE(Verb({"verify", root_ + "/a"}).find("s0.e1.a1: ok"), std::string::npos);
  EXPECT_EQ(code_, 0);
}

TEST_F(ImportTest, ExportImportDiffSaysEqual) {
  std::vector<Given> given = EveryDType();
  given.push_back({"four bits", "F4", {3, 6}, RandomBytes(9, 99)});
  Verb({"import", Put("in.safetensors", File(given)), root_ + "/a"});
  ASSERT_EQ(code_, 0);
  for (const char* size : {"5GB", "64"}) {  // in one file, and in many with an index
    Verb({"export", root_ + "/a", root_ + "/out", "--file-size", size});
    ASSERT_EQ(code_, 0);
    Verb({"import", root_ + "/out", root_ + "/b"});
    ASSERT_EQ(code_, 0);
    EXPECT_NE(
        Verb({"diff", root_ + "/a", root_ + "/b"}).find("49 tensors are the same, 0 differences\n"),
        std::string::npos);
    EXPECT_EQ(code_, 0);
    fs::remove_all(root_ + "/out");
    fs::remove_all(root_ + "/b");
  }
}

// More than a block in one tensor, many tensors in a block, another order in the file.
TEST_F(ImportTest, WhatIsLargerThanABlockAndWhatIsMuchSmaller) {
  std::vector<Given> given;
  for (int i = 0; i < 300; ++i) {
    const uint64_t n = static_cast<uint64_t>(i * 37 % 1000);
    given.push_back({"small" + std::to_string(i),
                     i % 3 == 0 ? "F32" : "U8",
                     {n},
                     RandomBytes(i % 3 == 0 ? 4 * n : n, static_cast<uint64_t>(i))});
  }
  given.push_back({"a", "BF16", {1'700'001}, RandomBytes(3'400'002, 7)});
  given.push_back({"b", "F64", {3, 100'000}, RandomBytes(2'400'000, 8)});
  const std::string one = Put("one.safetensors", File({given.begin(), given.begin() + 150}));
  const std::string two = Put("two.safetensors", File({given.begin() + 150, given.end()}));
  const auto json = nlohmann::json::parse(Verb({"-o", "json", "import", one, two, root_ + "/c"}));
  EXPECT_EQ(code_, 0);
  EXPECT_EQ(json["tensors"], 302);
  EXPECT_EQ(json["checkpoint"], "s0.e1.a1");
  EXPECT_EQ(json["files"],
            (std::vector<std::string>{"DIR/one.safetensors", "DIR/two.safetensors"}));
  ExpectHolds(root_ + "/c", given);
}

TEST_F(ImportTest, ADownloadedModelIsWhatItsIndexNames) {
  const std::vector<Given> first = {{"w", "F32", {4}, RandomBytes(16, 1)}};
  const std::vector<Given> second = {{"x", "BF16", {2, 2}, RandomBytes(8, 2)}};
  // As a cache of downloads has them: links to where the bytes are.
  Put("blobs/1", File(first, {{"format", "pt"}, {"quantized", "no"}}));
  Put("blobs/2", File(second, {{"format", "pt"}}));
  fs::create_directories(root_ + "/model");
  fs::create_symlink("../blobs/1", root_ + "/model/model-00001-of-00002.safetensors");
  fs::create_symlink("../blobs/2", root_ + "/model/model-00002-of-00002.safetensors");
  Put("model/consolidated.safetensors", File({{"w", "F32", {1}, "1234"}}));
  Put("model/config.json", "{}");
  const Json index{
      {"metadata", {{"total_size", 24}, {"made_by", {{"who", "x"}, {"n", 3}}}}},
      {"weight_map",
       {{"w", "model-00001-of-00002.safetensors"}, {"x", "model-00002-of-00002.safetensors"}}}};
  Put("model/model.safetensors.index.json", index.dump());
  const std::string said = Verb({"import", root_ + "/model", root_ + "/c"});
  ASSERT_EQ(code_, 0) << said;
  std::vector<Given> all = first;
  all.push_back(second[0]);
  ExpectHolds(root_ + "/c", all);
  const auto shown = nlohmann::json::parse(Verb({"-o", "json", "inspect", root_ + "/c"}));
  ASSERT_EQ(shown["values"].size(), 2u) << shown.dump(1);
  EXPECT_EQ(shown["values"][0]["name"], "safetensors.metadata");
  EXPECT_EQ(shown["values"][0]["value"],
            R"({"model-00001-of-00002.safetensors":{"format":"pt","quantized":"no"}})");
  EXPECT_EQ(shown["values"][1]["name"], "safetensors.index");
  EXPECT_EQ(shown["values"][1]["value"], R"({"made_by":{"who":"x","n":3}})");
  // By its index it is the same.
  Verb({"import", root_ + "/model/model.safetensors.index.json", root_ + "/d"});
  EXPECT_EQ(code_, 0);
  Verb({"diff", root_ + "/c", root_ + "/d"});
  EXPECT_EQ(code_, 0);
}

TEST_F(ImportTest, AnIndexThatIsNotTrueIsRefused) {
  const auto with = [&](const Json& weight_map) {
    return Put("m/model.safetensors.index.json", Json{{"weight_map", weight_map}}.dump());
  };
  Put("m/a.safetensors", File({{"w", "U8", {1}, "1"}, {"v", "U8", {1}, "2"}}));
  ExpectRefused({with({{"w", "a.safetensors"}})}, 4, "a.safetensors has 'v', which ");
  ExpectRefused({with({{"w", "a.safetensors"}, {"v", "a.safetensors"}, {"u", "a.safetensors"}})}, 4,
                "a.safetensors has no 'u', which ");
  ExpectRefused({with({{"w", "a.safetensors"}, {"v", "b.safetensors"}})}, 4, "has 'v', which");
  ExpectRefused({with({{"w", "b.safetensors"}})}, 1, "DIR/m/b.safetensors: No such file");
  ExpectRefused({with({{"w", "../a.safetensors"}})}, 4, "tensor 'w' is in no file beside it");
  ExpectRefused({with({{"w", 3}})}, 4, "tensor 'w' is in no file beside it");
  Put("m/model.safetensors.index.json",
      R"({"weight_map":{"w":"a.safetensors","w":"a.safetensors"}})");
  ExpectRefused({root_ + "/m"}, 4, "'w' comes twice");
  Put("m/model.safetensors.index.json", "[1");
  ExpectRefused({root_ + "/m"}, 4, "is no index of safetensors files");
  Put("m/model.safetensors.index.json",
      R"({"weight_map":{},"metadata":)" + std::string(100, '[') + std::string(100, ']') + "}");
  ExpectRefused({root_ + "/m"}, 4, "it nests too deep");
  Put("m/other.safetensors.index.json", "{}");
  ExpectRefused({root_ + "/m"}, 1, "has several indexes; name one of them");
}

TEST_F(ImportTest, WhatIsNoWholeFileIsRefusedByName) {
  struct Case {
    std::string header, data;
    int code;
    std::string words;
  };
  const std::string w = R"({"w":{"dtype":"U8","shape":[4],"data_offsets":[0,4]})";
  for (const Case& c : std::vector<Case>{
           {R"({"w":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
            R"("w":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
            "12345678", 4, "'w': comes twice"},
           {w + R"(,"x":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})", "123456", 4,
            "the data of 'x' overlap those of 'w'"},
           {w + R"(,"x":{"dtype":"U8","shape":[4],"data_offsets":[5,9]}})", "123456789", 4,
            "bytes between 'w' and 'x' belong to no tensor"},
           {w + "}", "12345", 4, "1 bytes after 'w' belong to no tensor"},
           {w + "}", "123", 4, "is cut short: 'w' ends at byte 4 of data that have 3"},
           {R"({"w":{"dtype":"U8","shape":[5],"data_offsets":[0,4]}})", "1234", 4,
            "'w': the size of its data is not that of its shape"},
           {R"({"w":{"dtype":"F32","shape":[4611686018427387905],"data_offsets":[0,4]}})", "1234",
            4, "'w': the size of its data is not that of its shape"},
           {R"({"w":{"dtype":"U8","shape":[4],"data_offsets":[4,0]}})", "1234", 4, "'w': the size"},
           {R"({"w":{"dtype":"U8","shape":[-4],"data_offsets":[0,4]}})", "1234", 4,
            "'w': a negative number where none belongs, at 'shape'"},
           {R"({"w":{"dtype":"U8","shape":[4.0],"data_offsets":[0,4]}})", "1234", 4, "not whole"},
           {R"({"w":{"dtype":"U8","data_offsets":[0,4]}})", "1234", 4, "'w': lacks its shape"},
           {R"({"w":{"dtype":"U8","shape":[4],"shape":[4],"data_offsets":[0,4]}})", "1234", 4,
            "'w': has 'shape' twice"},
           {R"({"w":{"dtype":"U8","shape":[4],"data_offsets":[0,4],"codec":"x"}})", "1234", 4,
            "'w': has an unknown field 'codec'"},
           {R"({"w":{"dtype":"F6_E3M2","shape":[4],"data_offsets":[0,3]}})", "123", 1,
            "'w': dtype 'F6_E3M2': checkpoints do not know it"},
           {R"({"w":{"dtype":"F4","shape":[3],"data_offsets":[0,2]}})", "12", 4, "'w': has an odd"},
           {R"({"w":[1]})", "", 4, "'w': a list where none belongs"},
           {R"({"w":{"dtype":"U8","shape":[[4]],"data_offsets":[0,4]}})", "1234", 4,
            "a list where"},
           {R"({"w":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)", "1234", 4, "is no JSON"},
           {R"( {})", "", 4, "does not begin with '{'"},
           {R"({"__metadata__":{"a":1}})", "", 4, "'__metadata__': a number where none belongs"},
           {R"({"__metadata__":{"ckpt":"1"}})", "", 1, "is a shard of a checkpoint"},
           {w + R"(,"__metadata__":{"ckpt.dtypes":"{\"w\":\"C64\"}"}})", "1234", 4,
            "'w': ckpt.dtypes says another dtype than it can be"},
           {w + R"(,"__metadata__":{"ckpt.dtypes":"{\"w\":\"X\"}"}})", "1234", 4, "another dtype"},
           {w + R"(,"__metadata__":{"ckpt.dtypes":"{\"v\":\"C64\"}"}})", "1234", 4,
            "names a tensor that is not there"},
           {w + R"(,"__metadata__":{"ckpt.dtypes":"[[[["}})", "1234", 4, "is no JSON object"}}) {
    SCOPED_TRACE(c.header);
    const std::string file = Put("bad.safetensors", WithLength(c.header) + c.data);
    ExpectRefused({file}, c.code, c.words);
    ExpectRefused({file}, c.code, "DIR/bad.safetensors");
  }
  ExpectRefused({Put("bad.safetensors", "1234")}, 4, "is no safetensors file: it has 4 bytes");
  ExpectRefused({Put("bad.safetensors", WithLength(std::string(100, ' ')).substr(0, 50))}, 4,
                "bad.safetensors: is cut short: its header has 100 bytes, the file 50");
  ExpectRefused({Put("bad.safetensors", "<!DOCTYPE html><html>")}, 4,
                "is no safetensors file: it begins with a length of");
  ExpectRefused({root_ + "/nowhere"}, 1, "DIR/nowhere: No such file or directory");
  fs::create_directories(root_ + "/none");
  ExpectRefused({root_ + "/none"}, 1, "DIR/none has no file that ends with .safetensors");
}

TEST_F(ImportTest, ANameInTwoFilesAndACheckpointAreRefused) {
  const std::string a = Put("m/a.safetensors", File({{"w", "U8", {1}, "1"}}));
  const std::string b = Put("m/b.safetensors", File({{"w", "U8", {1}, "2"}}));
  ExpectRefused({a, b}, 1,
                "tensor 'w' is in DIR/m/a.safetensors and in DIR/m/b.safetensors; name one");
  ExpectRefused({root_ + "/m"}, 1, "tensor 'w' is in DIR/m/a.safetensors and in");
  Save(Id(1, 100));
  ExpectRefused({path_}, 1, "holds checkpoints already; `ckptctl cp` copies one");
  ExpectRefused({PathOf(Id(1, 100))}, 1, "holds checkpoints already; `ckptctl cp` copies one");
  const std::string said = Verb({"import", a, path_});
  EXPECT_EQ(code_, 1);
  EXPECT_NE(said.find("DIR/train exists already"), std::string::npos) << said;
  EXPECT_TRUE(fs::exists(PathOf(Id(1, 100), "COMMIT")));
}

TEST_F(ImportTest, EveryTruncationIsRefused) {
  const std::string whole = File({{"w", "F32", {3}, RandomBytes(12, 1)}, {"v", "U8", {2}, "ab"}});
  for (size_t size = 0; size < whole.size(); ++size) {
    SCOPED_TRACE(size);
    ExpectRefused({Put("cut.safetensors", whole.substr(0, size))}, 4, "DIR/cut.safetensors");
  }
}

TEST_F(ImportTest, WhateverFailsNothingIsLeft) {
  const std::string file = Put("in.safetensors", File(EveryDType()));
  for (const char* point : {"engine.import.commit", "store.copy.after_manifest", "store.file.write",
                            "store.file.before_sync"}) {
    SCOPED_TRACE(point);
    const ArmedFault fault(point, Unavailable("the disk is away"));
    const std::string said = Verb({"import", file, root_ + "/c"});
    EXPECT_TRUE(fault.fired());
    EXPECT_EQ(code_, 1) << said;
    EXPECT_NE(said.find("the disk is away"), std::string::npos) << said;
    EXPECT_NE(said.find("(nothing is left there)"), std::string::npos) << said;
    EXPECT_FALSE(fs::exists(root_ + "/c"));
  }
  Verb({"import", file, root_ + "/c"});
  EXPECT_EQ(code_, 0);
}

}  // namespace
}  // namespace ckpt::ckptctl

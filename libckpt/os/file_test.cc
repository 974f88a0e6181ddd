#include "libckpt/os/file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>

#include "libckpt/base/aligned_buffer.h"
#include "libckpt/base/fault.h"

namespace ckpt::os {
namespace {

class FileTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string path = testing::TempDir() + "ckpt-file-XXXXXX";
    ASSERT_NE(mkdtemp(path.data()), nullptr);
    dir_ = path;
  }
  void TearDown() override { EXPECT_TRUE(fs_.RemoveTree(dir_).ok()); }
  std::string At(const std::string& name) const { return JoinPath(dir_, name); }
  void Put(const std::string& name, std::string_view text) {
    const Status status = WriteNewFile(fs_, At(name), text);
    ASSERT_TRUE(status.ok()) << status.ToString();
  }
  std::string Get(const std::string& name) {
    const Result<std::string> text = ReadFile(fs_, At(name), 1 << 20);
    return text.ok() ? *text : text.status().ToString();
  }

  FileSystem& fs_ = PosixFileSystem();
  std::string dir_;
};

TEST_F(FileTest, WritesAndReadsAtOffsets) {
  auto file = fs_.Open(At("f"), OpenOptions::CreateNew());
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  EXPECT_TRUE((*file)->PWrite(4, AsBytes("world")).ok());
  EXPECT_TRUE((*file)->PWrite(0, AsBytes("abcd")).ok());
  EXPECT_EQ(*(*file)->Size(), 9u);
  std::string text(9, ' ');
  EXPECT_TRUE((*file)->PRead(0, std::as_writable_bytes(std::span(text))).ok());
  EXPECT_EQ(text, "abcdworld");
  EXPECT_EQ((*file)->PRead(1, std::as_writable_bytes(std::span(text))).code(), Code::kDataLoss);
  EXPECT_EQ(*(*file)->PReadSome(7, std::as_writable_bytes(std::span(text))), 2u);
  EXPECT_EQ(*(*file)->PReadSome(99, std::as_writable_bytes(std::span(text))), 0u);
  EXPECT_TRUE((*file)->Truncate(3).ok());
  EXPECT_TRUE((*file)->Sync().ok());
  EXPECT_TRUE((*file)->Close().ok());
  EXPECT_EQ((*file)->Close().code(), Code::kFailedPrecondition);
  EXPECT_EQ((*file)->PWrite(0, AsBytes("x")).code(), Code::kFailedPrecondition);
  EXPECT_EQ((*file)->PReadSome(0, {}).status().code(), Code::kFailedPrecondition);
  EXPECT_EQ((*file)->Sync().code(), Code::kFailedPrecondition);
  EXPECT_EQ(Get("f"), "abc");
}

TEST_F(FileTest, AllocateKeepsTheSizeAndRefusesTheImpossible) {
  auto file = fs_.Open(At("f"), OpenOptions::CreateNew());
  ASSERT_TRUE(file.ok());
  EXPECT_TRUE((*file)->Allocate(1 << 20).ok());
  EXPECT_TRUE((*file)->Allocate(0).ok());
  EXPECT_EQ(*(*file)->Size(), 0u);
}

TEST_F(FileTest, ExclusiveCreationFailsOnFilesAndLinks) {
  Put("f", "1");
  EXPECT_EQ(fs_.Open(At("f"), OpenOptions::CreateNew()).status().code(), Code::kAlreadyExists);
  ASSERT_EQ(symlink("nowhere", At("l").c_str()), 0);
  EXPECT_EQ(fs_.Open(At("l"), OpenOptions::CreateNew()).status().code(), Code::kAlreadyExists);
  EXPECT_EQ(Get("f"), "1");
}

TEST_F(FileTest, NeverFollowsALinkAtTheEnd) {  // I3
  Put("f", "secret");
  ASSERT_EQ(symlink("f", At("l").c_str()), 0);
  EXPECT_EQ(fs_.Open(At("l"), OpenOptions::Read()).status().code(), Code::kPermissionDenied);
  EXPECT_EQ(fs_.Open(At("l"), OpenOptions::CreateOrTruncate()).status().code(),
            Code::kPermissionDenied);
  EXPECT_EQ(Get("f"), "secret");
  EXPECT_EQ(fs_.Stat(At("l"))->type, FileType::kSymlink);
}

TEST_F(FileTest, FilesGetTheModeOfTheUmask) {
  const mode_t before = umask(027);
  Put("f", "");
  ASSERT_TRUE(fs_.MakeDir(At("d")).ok());
  umask(before);
  EXPECT_EQ(fs_.Stat(At("f"))->mode, 0640u);
  EXPECT_EQ(fs_.Stat(At("d"))->mode, 0750u);
}

TEST_F(FileTest, BeneathStaysBeneath) {
  ASSERT_TRUE(fs_.MakeDirs(At("a/b")).ok());
  Put("a/b/f", "in");
  Put("out", "out");
  ASSERT_EQ(symlink("b", At("a/link").c_str()), 0);
  ASSERT_EQ(symlink("../out", At("a/escape").c_str()), 0);
  const auto open = [&](const std::string& name) {
    return fs_.OpenBeneath(At("a"), name, OpenOptions::Read()).status();
  };
  EXPECT_TRUE(open("b/f").ok());
  EXPECT_EQ(open("link/f").code(), Code::kPermissionDenied);
  EXPECT_EQ(open("escape").code(), Code::kPermissionDenied);
  for (const char* bad : {"", "/etc/passwd", "../out", "b/../../out", "b//f", "./b/f", "b/"}) {
    EXPECT_EQ(open(bad).code(), Code::kInvalidArgument) << bad;
  }
  EXPECT_TRUE(fs_.OpenBeneath(At("a"), "b/new", OpenOptions::CreateNew()).ok());
  EXPECT_EQ(fs_.Stat(At("a/b/new"))->type, FileType::kRegular);
}

TEST_F(FileTest, DirectoriesLinksAndRenames) {
  EXPECT_TRUE(fs_.MakeDir(At("d")).ok());
  EXPECT_EQ(fs_.MakeDir(At("d")).code(), Code::kAlreadyExists);
  EXPECT_EQ(fs_.MakeDir(At("x/y")).code(), Code::kNotFound);
  EXPECT_TRUE(fs_.MakeDirs(At("x/y/z")).ok());
  EXPECT_TRUE(fs_.MakeDirs(At("x/y/z")).ok());
  Put("f", "f");
  EXPECT_EQ(fs_.MakeDirs(At("f/g")).code(), Code::kAlreadyExists) << "a file is in the way";
  EXPECT_TRUE(fs_.Link(At("f"), At("g")).ok());
  EXPECT_EQ(fs_.Stat(At("f"))->links, 2u);
  Put("h", "h");
  EXPECT_EQ(fs_.Link(At("f"), At("h")).code(), Code::kAlreadyExists);
  EXPECT_EQ(fs_.RenameNoReplace(At("f"), At("h")).code(), Code::kAlreadyExists);
  EXPECT_EQ(Get("h"), "h");
  EXPECT_TRUE(fs_.RenameNoReplace(At("f"), At("i")).ok());
  EXPECT_TRUE(fs_.Rename(At("i"), At("h")).ok());
  EXPECT_EQ(Get("h"), "f");
  EXPECT_TRUE(fs_.RenameNoReplace(At("x"), At("w")).ok()) << "directories too";
  EXPECT_TRUE(fs_.SyncDir(dir_).ok());
  EXPECT_EQ(fs_.SyncDir(At("none")).code(), Code::kNotFound);
  EXPECT_TRUE(fs_.Unlink(At("g")).ok());
  EXPECT_EQ(fs_.Unlink(At("g")).code(), Code::kNotFound);
  EXPECT_EQ(fs_.RemoveDir(At("none")).code(), Code::kNotFound);
  EXPECT_TRUE(fs_.RemoveDir(At("d")).ok());
  EXPECT_FALSE(*Exists(fs_, At("d")));
  EXPECT_TRUE(*Exists(fs_, At("h")));
}

TEST_F(FileTest, ListsSortedWithTypes) {
  Put("b", "");
  ASSERT_TRUE(fs_.MakeDir(At("a")).ok());
  ASSERT_EQ(symlink("b", At("c").c_str()), 0);
  ASSERT_EQ(mkfifo(At("d").c_str(), 0600), 0);
  const auto entries = fs_.List(dir_);
  ASSERT_TRUE(entries.ok());
  ASSERT_EQ(entries->size(), 4u);
  const std::vector<FileType> types = {FileType::kDirectory, FileType::kRegular, FileType::kSymlink,
                                       FileType::kOther};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ((*entries)[i].name, std::string(1, static_cast<char>('a' + i)));
    EXPECT_EQ((*entries)[i].type, types[i]);
  }
  EXPECT_EQ(fs_.List(At("none")).status().code(), Code::kNotFound);
}

TEST_F(FileTest, RemoveTreeTakesLinksNotWhatTheyPointTo) {
  ASSERT_TRUE(fs_.MakeDirs(At("keep")).ok());
  Put("keep/f", "kept");
  ASSERT_TRUE(fs_.MakeDirs(At("t/u/v")).ok());
  Put("t/u/f", "");
  ASSERT_EQ(symlink("../../keep", At("t/u/l").c_str()), 0);
  ASSERT_EQ(symlink("keep", At("l").c_str()), 0);
  EXPECT_TRUE(fs_.RemoveTree(At("t")).ok());
  EXPECT_TRUE(fs_.RemoveTree(At("t")).ok()) << "nothing there is OK";
  EXPECT_TRUE(fs_.RemoveTree(At("l")).ok());
  EXPECT_FALSE(*Exists(fs_, At("t")));
  EXPECT_EQ(Get("keep/f"), "kept");
}

TEST_F(FileTest, ReplaceFileIsOneStep) {
  EXPECT_TRUE(ReplaceFile(fs_, At("f"), "one").ok());
  EXPECT_TRUE(ReplaceFile(fs_, At("f"), "2").ok());
  EXPECT_EQ(Get("f"), "2");
  EXPECT_EQ(fs_.List(dir_)->size(), 1u);
  EXPECT_EQ(ReadFile(fs_, At("f"), 0).status().code(), Code::kResourceExhausted);
}

TEST(Path, Parts) {
  EXPECT_EQ(JoinPath("a", "b"), "a/b");
  EXPECT_EQ(JoinPath("a/", "b"), "a/b");
  EXPECT_EQ(JoinPath("", "b"), "b");
  EXPECT_EQ(JoinPath("/", "b"), "/b");
  EXPECT_EQ(ParentOf("a/b"), "a");
  EXPECT_EQ(ParentOf("a/b/"), "a");
  EXPECT_EQ(ParentOf("a"), ".");
  EXPECT_EQ(ParentOf("/a"), "/");
  EXPECT_EQ(ParentOf("/"), "/");
  EXPECT_EQ(ParentOf("a//b"), "a");
  EXPECT_EQ(BaseName("a/b/"), "b");
  EXPECT_EQ(BaseName("b"), "b");
  EXPECT_EQ(BaseName("/"), "/");
}

#if defined(CKPT_FAULTS)
TEST_F(FileTest, AFailedSyncIsTerminal) {  // I1
  auto file = fs_.Open(At("f"), OpenOptions::CreateNew());
  ASSERT_TRUE(file.ok());
  {
    ArmedFault fault("os.file.sync", ErrnoStatus(EIO, "syncing f"));
    EXPECT_EQ((*file)->Sync().code(), Code::kDataLoss);
    ASSERT_TRUE(fault.fired());
  }
  EXPECT_EQ((*file)->Sync().code(), Code::kFailedPrecondition);
  EXPECT_EQ((*file)->PWrite(0, AsBytes("x")).code(), Code::kFailedPrecondition);
  EXPECT_EQ((*file)->Truncate(0).code(), Code::kFailedPrecondition);
  EXPECT_TRUE((*file)->Close().ok());
}

// Fails the n-th call for n = 1, 2, … until none fires: the old content or the new, never a mix.
TEST_F(FileTest, ReplaceFileSurvivesAFailureAnywhere) {
  Put("f", "old");
  for (uint64_t n = 1;; ++n) {
    ASSERT_LT(n, 50u);
    ArmedFault fault("*", Unavailable("planned"), n);
    const Status status = ReplaceFile(fs_, At("f"), "new");
    if (!fault.fired()) {
      EXPECT_TRUE(status.ok());
      EXPECT_GT(n, 4u);
      break;
    }
    EXPECT_FALSE(status.ok()) << n;
    const std::string text = Get("f");
    EXPECT_TRUE(text == "old" || text == "new") << text;
  }
}
#endif

// Pages that differ.
AlignedBuffer PatternPages(size_t pages) {
  AlignedBuffer buffer(pages * kPageBytes);
  for (size_t i = 0; i < buffer.size(); ++i) buffer.data()[i] = std::byte(i * 31 + i / kPageBytes);
  return buffer;
}

TEST_F(FileTest, DirectFilesTakePagesAndEverythingElse) {
  OpenOptions options = OpenOptions::CreateNew();
  options.direct = true;
  auto file = fs_.Open(At("f"), options);
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  const bool was_direct = (*file)->direct();  // not on every file system
  const AlignedBuffer pages = PatternPages(64);
  ASSERT_TRUE((*file)->PWrite(0, pages.span()).ok());
  EXPECT_EQ((*file)->direct(), was_direct);
  ASSERT_TRUE((*file)->PWrite(pages.size(), AsBytes("tail")).ok());  // no page: off from here on
  EXPECT_FALSE((*file)->direct());
  ASSERT_TRUE((*file)->PWrite(1, pages.span().subspan(1, 9)).ok());
  ASSERT_TRUE((*file)->Sync().ok());
  ASSERT_TRUE((*file)->Close().ok());
  EXPECT_EQ(Get("f"), std::string(AsText(pages.span())) + "tail");
}

TEST_F(FileTest, DirectReadsEndWhereTheFileEnds) {
  const AlignedBuffer pages = PatternPages(16);
  const std::string bytes(AsText(pages.span().first(15 * kPageBytes + 100)));
  Put("f", bytes);
  OpenOptions options = OpenOptions::Read();
  options.direct = true;
  auto file = fs_.Open(At("f"), options);
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  AlignedBuffer out(16 * kPageBytes);
  const auto got = (*file)->PReadSome(0, out.span());
  ASSERT_TRUE(got.ok()) << got.status().ToString();
  EXPECT_EQ(*got, bytes.size());
  EXPECT_EQ(AsText(out.span().first(*got)), bytes);
  const auto last = (*file)->PReadSome(15 * kPageBytes, out.span().first(kPageBytes));
  ASSERT_TRUE(last.ok());
  EXPECT_EQ(*last, 100u);
  EXPECT_EQ((*file)->PReadSome(16 * kPageBytes, out.span()).value(), 0u);
  char odd[7];
  ASSERT_TRUE((*file)->PRead(3, std::as_writable_bytes(std::span(odd))).ok());
  EXPECT_EQ(std::string(odd, sizeof odd), bytes.substr(3, 7));
}

TEST_F(FileTest, BufferedStreamsArePushedToTheDiskAsTheyCome) {
  OpenOptions options = OpenOptions::CreateNew();
  options.direct = true;
  auto file = fs_.Open(At("f"), options);
  ASSERT_TRUE(file.ok());
  const AlignedBuffer pages = PatternPages(256);
  const ByteSpan odd = pages.span().subspan(1);  // unaligned memory: through the page cache
  for (uint64_t i = 0; i < 20; ++i) ASSERT_TRUE((*file)->PWrite(i * odd.size(), odd).ok());
  ASSERT_TRUE((*file)->Sync().ok());
  EXPECT_EQ((*file)->Size().value(), 20 * odd.size());
  std::vector<std::byte> out(odd.size());
  ASSERT_TRUE((*file)->PRead(19 * odd.size(), out).ok());
  EXPECT_TRUE(std::equal(out.begin(), out.end(), odd.begin()));
}

}  // namespace
}  // namespace ckpt::os

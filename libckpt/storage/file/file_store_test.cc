// What only the directory store does: the order of its system calls, full disks, links, copies.
#include "libckpt/storage/file/file_store.h"

#include <sys/stat.h>
#include <unistd.h>

#include "libckpt/storage/file/file_io.h"
#include "libckpt/storage/file/file_world.h"
#include "libckpt/storage/file/recording_fs.h"

namespace ckpt::testing {
namespace {

using Lines = std::vector<std::string>;

class FileStoreOrder : public ::testing::Test {
 protected:
  FastFileWorld world_;
  RecordingFs fs_{os::PosixFileSystem(), world_.path()};
  std::unique_ptr<storage::EpochStore> store_ = storage::OpenFileStore(fs_, world_.path());
};

TEST_F(FileStoreOrder, AClaimIsDurableBeforeAnythingIsRead) {
  ASSERT_OK(store_->OpenJob({}).status());
  fs_.Take();
  ASSERT_OK(Claim(*store_).status());
  EXPECT_EQ(fs_.Take(), (Lines{"list .",  // the next number
                               "create ~EPOCH.1.claim",
                               "write ~EPOCH.1.claim",
                               "sync ~EPOCH.1.claim",
                               "close ~EPOCH.1.claim",
                               "link EPOCH.1.claim",
                               "unlink ~EPOCH.1.claim",
                               "syncdir .",
                               "list .",  // .trash
                               "list .",
                               "list .",  // two that agree
                               "create ~EPOCH.1",
                               "write ~EPOCH.1",
                               "sync ~EPOCH.1",
                               "close ~EPOCH.1",
                               "link EPOCH.1",
                               "unlink ~EPOCH.1",
                               "syncdir .",
                               "list .",  // the look
                               "list ."}));
}

TEST_F(FileStoreOrder, ASaveSyncsBeforeItLinksAndLooksAfterItSynced) {
  ASSERT_OK(Claim(*store_).status());
  fs_.Take();
  ASSERT_OK(store_->BeginAttempt(Id(1, 10)));
  EXPECT_EQ(fs_.Take(), (Lines{"list .", "mkdir s10.e1.a1", "syncdir ."}));
  auto writer = store_->CreateFile(Id(1, 10), "data", ContentOf(Id(1, 10)).size());
  ASSERT_TRUE(writer.ok());
  ASSERT_OK((*writer)->Write(0, AsBytes(ContentOf(Id(1, 10)))));
  ASSERT_OK((*writer)->Finish());
  const std::string data = " s10.e1.a1/data";
  EXPECT_EQ(fs_.Take(), (Lines{"create" + data, "allocate" + data, "write" + data, "sync" + data,
                               "close" + data}));
  ASSERT_OK(CommitAttempt(*store_, Id(1, 10)));
  const std::string dir = "s10.e1.a1";
  Lines expected;
  for (const std::string name : {"MANIFEST", "COMMIT"}) {
    for (const std::string verb : {"create ", "write ", "sync ", "close "})
      expected.push_back(verb + dir + "/~" + name);
    expected.insert(expected.end(), {"link " + dir + "/" + name, "unlink " + dir + "/~" + name,
                                     "syncdir " + dir, "list ."});
  }
  EXPECT_EQ(fs_.Take(), expected);
}

TEST_F(FileStoreOrder, ADrainingMarkIsDurableBeforeItsLook) {
  ASSERT_OK(Claim(*store_).status());
  ASSERT_OK(WriteAttempt(*store_, Id(1, 10)));
  fs_.Take();
  ASSERT_OK(store_->MarkDraining(Id(1, 10)));
  const std::string mark = "s10.e1.a1/~DRAINING";
  EXPECT_EQ(fs_.Take(),
            (Lines{"create " + mark, "write " + mark, "sync " + mark, "close " + mark,
                   "link s10.e1.a1/DRAINING", "unlink " + mark, "syncdir s10.e1.a1", "list ."}));
}

TEST_F(FileStoreOrder, WhatWasReservedAndNotUsedGoesBackBeforeTheSync) {
  ASSERT_OK(Claim(*store_).status());
  ASSERT_OK(store_->BeginAttempt(Id(1, 10)));
  auto writer = store_->CreateFile(Id(1, 10), "data", 1 << 16);
  ASSERT_TRUE(writer.ok());
  ASSERT_OK((*writer)->Write(0, AsBytes("abc")));
  fs_.Take();
  ASSERT_OK((*writer)->Finish());
  const std::string data = " s10.e1.a1/data";
  EXPECT_EQ(fs_.Take(), (Lines{"truncate" + data, "sync" + data, "close" + data}));
}

// Nothing a store does overwrites: no name is opened for writing but a new one.
TEST_F(FileStoreOrder, NothingIsOverwritten) {
  ASSERT_OK(Claim(*store_).status());
  ASSERT_OK(Save(*store_, Id(1, 10)));
  ASSERT_OK(CommitAttempt(*store_, Id(1, 10)));
  ASSERT_OK(Claim(*store_).status());
  for (const std::string& line : fs_.Take()) {
    EXPECT_FALSE(line.starts_with("overwrite")) << line;
    EXPECT_FALSE(line.starts_with("rename")) << line;
  }
}

TEST(FileStore, NoTemporaryFilesAreLeft) {
  FastFileWorld world;
  auto store = world.Actor();
  ASSERT_OK(Claim(*store).status());
  ASSERT_OK(Save(*store, Id(1, 10)));
  for (const std::string& key : world.Keys())
    EXPECT_EQ(key.find(".tmp-"), std::string::npos) << key;
}

TEST(FileStore, AFullDiskSaysWhatIsNeededWhatIsFreeAndTheWayOut) {
  CKPT_NEEDS_FAULTS();
  FastFileWorld world;
  auto store = world.Actor();
  ASSERT_OK(Claim(*store).status());
  ASSERT_OK(store->BeginAttempt(Id(1, 10)));
  Status status;
  {
    ArmedFault fault("os.file.allocate", ErrnoStatus(28, "reserving"));
    status = store->CreateFile(Id(1, 10), "data", uint64_t{3} << 30).status();
    ASSERT_TRUE(fault.fired());
  }
  EXPECT_CODE(status, kResourceExhausted);
  for (const char* part : {"3.00 GiB needed", " free on the file system of ", "another store"})
    EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
}

TEST(FileStore, AStoreThatCannotBeMadeNamesItsPath) {
  FastFileWorld world;
  world.Plant("plain", "a file where a directory should be");
  auto store = storage::OpenFileStore(world.path() + "/plain/job");
  const Status status = store->OpenJob({}).status();
  EXPECT_FALSE(status.ok());
  EXPECT_NE(status.message().find(world.path() + "/plain"), std::string::npos) << status.message();
}

TEST(FileStore, LinksInTheWayAreNotFollowed) {
  FastFileWorld world;
  auto store = world.Actor();
  ASSERT_OK(Claim(*store).status());
  ASSERT_OK(Save(*store, Id(1, 10)));
  const std::string other = world.path() + "/s20.e1.a1";
  ASSERT_EQ(::symlink("s10.e1.a1", other.c_str()), 0);
  ASSERT_EQ(::symlink("/etc/passwd", (world.path() + "/s10.e1.a1/passwd").c_str()), 0);
  EXPECT_EQ(Visible(*store), std::vector{Id(1, 10)});
  EXPECT_CODE(store->OpenFile(Id(1, 20), "data").status(), kPermissionDenied);
  EXPECT_CODE(store->OpenFile(Id(1, 10), "passwd").status(), kPermissionDenied);
}

TEST(FileStore, ForeignThingsUnderOurNamesAreNoRecords) {
  FastFileWorld world;
  auto store = world.Actor();
  ASSERT_OK(Claim(*store).status());
  ASSERT_OK(Save(*store, Id(1, 10)));
  world.Plant("EPOCH.9/file", "a directory under a list's name");
  world.Plant("EPOCH.9.claim/file", "and a claim's");
  world.Plant("s30.e1.a1", "a file under an attempt's name");
  ASSERT_EQ(::symlink("EPOCH.1", (world.path() + "/EPOCH.8").c_str()), 0);
  EXPECT_EQ(*store->HighestEpoch(), Epoch(1));
  EXPECT_EQ(Visible(*store), std::vector{Id(1, 10)});
  EXPECT_EQ(Claim(*world.Actor())->epoch, Epoch(2));
}

TEST(FileStore, FilesHaveTheUsersMode) {
  FastFileWorld world;
  const mode_t before = ::umask(027);
  auto store = world.Actor();
  ASSERT_OK(Claim(*store).status());
  ASSERT_OK(Save(*store, Id(1, 10)));
  ::umask(before);
  for (const char* key : {"/JOB", "/EPOCH.1", "/s10.e1.a1/COMMIT", "/s10.e1.a1/data"}) {
    const auto stat = os::PosixFileSystem().Stat(world.path() + key);
    ASSERT_TRUE(stat.ok());
    EXPECT_EQ(stat->mode, 0640u) << key;
  }
}

// A directory that a group shares: what is made in it is the group's too.
TEST(FileStore, TheParentsGroupIsKept) {
  if (::geteuid() != 0) GTEST_SKIP() << "SKIPPED: only root can give a directory to a group";
  constexpr gid_t kGroup = 12345;
  FastFileWorld world;
  const std::string shared = world.path() + "/shared";
  ASSERT_OK(os::PosixFileSystem().MakeDirs(shared));
  ASSERT_EQ(::chown(shared.c_str(), 0, kGroup), 0);
  ASSERT_EQ(::chmod(shared.c_str(), 02775), 0);
  auto store = storage::OpenFileStore(shared + "/job");
  ASSERT_OK(Claim(*store).status());
  ASSERT_OK(Save(*store, Id(1, 10)));
  for (const char* key : {"", "/JOB", "/EPOCH.1", "/EPOCH.1.claim", "/s10.e1.a1",
                          "/s10.e1.a1/MANIFEST", "/s10.e1.a1/COMMIT", "/s10.e1.a1/data"}) {
    struct stat found {};
    ASSERT_EQ(::stat((shared + "/job" + key).c_str(), &found), 0) << key;
    EXPECT_EQ(found.st_gid, kGroup) << key;
    if (S_ISDIR(found.st_mode)) EXPECT_NE(found.st_mode & S_ISGID, 0u) << key;
  }
}

// A file system without hard links: an exclusive rename does it.
TEST(FileStore, WithoutHardLinksAnExclusiveRenameNamesTheRecord) {
  class NoLinks : public RecordingFs {
   public:
    using RecordingFs::RecordingFs;
    Status Link(const std::string&, const std::string& to) override {
      return ErrnoStatus(1, "linking " + to);  // EPERM, as vfat answers
    }
  };
  FastFileWorld world;
  NoLinks fs(os::PosixFileSystem(), world.path());
  auto store = storage::OpenFileStore(fs, world.path());
  ASSERT_OK(Claim(*store).status());
  ASSERT_OK(Save(*store, Id(1, 10)));
  EXPECT_OK(CommitAttempt(*store, Id(1, 10)));
  EXPECT_EQ(Claim(*world.Actor())->epoch, Epoch(2));
  EXPECT_EQ(Visible(*world.Actor()), std::vector{Id(1, 10)});
}

TEST(CheckpointDirectory, ACopyElsewhereNeedsNoList) {
  FastFileWorld world;
  auto store = world.Actor();
  ASSERT_OK(Claim(*store).status());
  const AttemptId id = Id(1, 10);
  ASSERT_OK(Save(*store, id));
  ASSERT_OK(WriteAttempt(*store, Id(1, 20)));
  ASSERT_OK(world.Rename(id.ToString(), "my-backup"));
  auto& fs = os::PosixFileSystem();
  EXPECT_EQ(*storage::KindOfDirectory(fs, world.path()), storage::DirectoryKind::kJob);
  EXPECT_EQ(*storage::KindOfDirectory(fs, world.path() + "/my-backup"),
            storage::DirectoryKind::kCheckpoint);
  EXPECT_EQ(*storage::KindOfDirectory(fs, world.path() + "/s20.e1.a1"),
            storage::DirectoryKind::kNeither);
  EXPECT_CODE(storage::KindOfDirectory(fs, world.path() + "/nowhere").status(), kNotFound);

  auto copy = storage::OpenCheckpointDirectory(fs, world.path() + "/my-backup");
  ASSERT_TRUE(copy.ok()) << copy.status().ToString();
  EXPECT_EQ(Visible(**copy), std::vector{id});
  EXPECT_OK(CheckBytes(**copy, id));
  EXPECT_CODE((*copy)->ReadManifest(Id(1, 11)).status(), kNotFound);
  EXPECT_CODE((*copy)->BeginAttempt(Id(1, 11)), kFailedPrecondition);
  EXPECT_CODE(Claim(**copy).status(), kFailedPrecondition);
  EXPECT_CODE(storage::OpenCheckpointDirectory(fs, world.path() + "/s20.e1.a1").status(),
              kNotFound);
}

// Sizes around a page and around where direct I/O begins, reserved, over-reserved and not reserved.
TEST(FileStoreIo, EverySizeReadsBackAndIsWhatTheFileHas) {
  FileWorld world;
  auto store = storage::OpenFileStore(world.path());
  ASSERT_TRUE(store->OpenJob(JobId{}).ok() && Claim(*store).ok());
  ASSERT_OK(store->BeginAttempt(Id(1, 1)));
  int number = 0;
  const uint64_t mib = uint64_t{1} << 20;
  for (const uint64_t size : {uint64_t{1}, mib - 1, mib, mib + 1, 3 * mib + 4095, 3 * mib + 4096}) {
    for (const uint64_t hint : {uint64_t{0}, size, 2 * size}) {
      const std::string name = "data-" + std::to_string(number++);
      AlignedBuffer memory(size);
      for (uint64_t i = 0; i < size; ++i) memory.data()[i] = std::byte((i * 7 + i / 4096) & 255);
      auto writer = store->CreateFile(Id(1, 1), name, hint);
      ASSERT_TRUE(writer.ok()) << writer.status().ToString();
      const uint64_t half = size / 2 / kPageBytes * kPageBytes;
      ASSERT_OK((*writer)->Write(half, memory.span().subspan(half, size - half)));
      ASSERT_OK((*writer)->Write(0, memory.span().first(half)));
      ASSERT_OK((*writer)->Finish());
      const auto reader = store->OpenFile(Id(1, 1), name);
      ASSERT_TRUE(reader.ok());
      ASSERT_EQ((*reader)->size(), size) << "hint " << hint;
      AlignedBuffer scratch;
      for (const auto reuse : {storage::Reuse::kOnce, storage::Reuse::kShared}) {
        for (const uint64_t begin : {uint64_t{0}, size / 3, size - 1}) {
          const auto got = (*reader)->Fetch(begin, size - begin, reuse, &scratch);
          ASSERT_TRUE(got.ok()) << got.status().ToString();
          ASSERT_TRUE(std::equal(got->begin(), got->end(), memory.data() + begin)) << size;
        }
        EXPECT_CODE((*reader)->Fetch(size - 1, 2, reuse, &scratch).status(), kDataLoss);
        EXPECT_CODE((*reader)->Fetch(UINT64_MAX, 2, reuse, &scratch).status(), kDataLoss);
      }
    }
  }
}

}  // namespace
}  // namespace ckpt::testing

// What a forked child holds of its parent.
#include "libckpt/os/fork.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <optional>
#include <vector>

#include "libckpt/os/file.h"
#include "libckpt/os/memfd.h"

namespace ckpt::os {
namespace {

// → the exit status of a child that runs `body`
template <typename Body>
int InChild(Body&& body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body());
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(Fork, AChildHoldsNoRegisteredDescriptor) {
  int fds[2];
  ASSERT_EQ(::pipe(fds), 0);
  const auto is_open = [&] { return ::fcntl(fds[0], F_GETFD) >= 0 ? 1 : 0; };
  std::optional<ClosedInChildren> closed(fds[0]);
  EXPECT_EQ(InChild(is_open), 0);
  EXPECT_EQ(is_open(), 1);
  closed.reset();
  EXPECT_EQ(InChild(is_open), 1) << "the number may be another file's by now";
  ::close(fds[0]);
  ::close(fds[1]);
}

TEST(Fork, AChildHoldsNoFileThatIsBeingWritten) {
  const std::string path = testing::TempDir() + "fork_test." + std::to_string(::getpid());
  Result<std::unique_ptr<File>> file = PosixFileSystem().Open(path, OpenOptions::CreateNew());
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  const auto held = [&] {
    for (int fd = 0; fd < 1024; ++fd) {
      char target[4096];
      const std::string link = "/proc/self/fd/" + std::to_string(fd);
      const ssize_t bytes = ::readlink(link.c_str(), target, sizeof target);
      if (bytes > 0 && std::string_view(target, static_cast<size_t>(bytes)) == path) return 1;
    }
    return 0;
  };
  EXPECT_EQ(held(), 1);
  EXPECT_EQ(InChild(held), 0);
  EXPECT_TRUE((*file)->Close().ok());
  EXPECT_TRUE(PosixFileSystem().Unlink(path).ok());
}

TEST(Fork, MoreDescriptorsThanPlacesAreNoError) {
  std::vector<std::unique_ptr<ClosedInChildren>> many;
  for (int i = 0; i < 200; ++i) many.push_back(std::make_unique<ClosedInChildren>(1000 + i));
  many.clear();
  int fds[2];
  ASSERT_EQ(::pipe(fds), 0);
  const ClosedInChildren closed(fds[0]);
  EXPECT_EQ(InChild([&] { return ::fcntl(fds[0], F_GETFD) >= 0 ? 1 : 0; }), 0);
  ::close(fds[1]);
}

TEST(Fork, AChildHasNoMappingAndTheParentsIsWhole) {
  Result<Mapping> mapping = Mapping::Anonymous(1 << 16, true);
  ASSERT_TRUE(mapping.ok());
  mapping->data()[0] = std::byte{7};
  const int result = InChild([&] {
    unsigned char resident = 0;
    // Unmapped is ENOMEM.
    return ::mincore(mapping->data(), 4096, &resident) != 0 && errno == ENOMEM ? 0 : 1;
  });
  EXPECT_EQ(result, 0);
  EXPECT_EQ(mapping->data()[0], std::byte{7});
}

}  // namespace
}  // namespace ckpt::os

#include "coordinator/agent/state_dir.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

namespace ckpt::agent {
namespace {

TEST(StateDir, WhatWasNotSavedToTheEndIsRemovedAndNoProblem) {
  const std::string path = testing::TempDir() + "state-" + std::to_string(getpid());
  const Result<StateDir> dir = StateDir::Open(path);
  ASSERT_TRUE(dir.ok());
  v1::Launch launch;
  launch.set_job("j");
  launch.set_epoch(4);
  ASSERT_TRUE(dir->SaveLaunch(launch).ok());
  std::filesystem::create_directory(path + "/jobs/j.e5");  // and then it was killed
  std::vector<std::string> problems;
  const auto launches = dir->LoadLaunches(&problems);
  ASSERT_TRUE(launches.ok());
  ASSERT_EQ(launches->size(), 1u);
  EXPECT_EQ((*launches)[0].launch.epoch(), 4u);
  EXPECT_TRUE(problems.empty());
  EXPECT_FALSE(std::filesystem::exists(path + "/jobs/j.e5"));
  std::filesystem::remove_all(path);
}

}  // namespace
}  // namespace ckpt::agent

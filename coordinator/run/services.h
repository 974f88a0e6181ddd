// What everything in one ckpt-run shares: its loop, its threads, its memory budget, its store.
#pragma once

#include <memory>
#include <string>

#include "coordinator/run/options.h"
#include "coordinator/run/staging_area.h"
#include "libckpt/engine/retention.h"
#include "libckpt/os/event_loop.h"
#include "libckpt/os/thread.h"
#include "libckpt/storage/store.h"

namespace ckpt::run {

struct Services {
  Options options;
  os::EventLoop* loop = nullptr;
  // Threads: "ckpt-prep" lays out staging memory, "ckpt-write" writes shards, "ckpt-store" makes
  // plans and talks to the store for the leader, one call after the other.
  os::WorkerPool* prep = nullptr;
  os::WorkerPool* write = nullptr;
  os::WorkerPool* store_calls = nullptr;
  std::shared_ptr<storage::Store> store;
  std::shared_ptr<engine::Retention> retention;  // of it
  std::shared_ptr<StagingBudget> budget;
  std::string dir;           // private, 0700
  std::string command_path;  // argv[0] of the ranks, found
};

// One line for people, on stderr: "ckpt-run: …".
void Say(const std::string& line);

}  // namespace ckpt::run

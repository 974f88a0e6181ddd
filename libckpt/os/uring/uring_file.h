// The machine's own file system, whose large files go through io_uring: a few threads keep many
// blocks under way. For ckpt-run and the tools only: libckpt is a guest in a training and uses the
// pool of threads that stands behind the same interface.
//
// Only transfers go through the ring (File::StartWrite, StartRead, of direct files); sizes, syncs
// and names are PosixFileSystem's, so their order is the caller's.
//
// I1  Memory of a transfer is not given up before the kernel is done with it: also after errors,
//     also when the file is destroyed.
// I2  What the ring does not move whole (a short write, a full disk, a queue that refuses) is
//     finished by pwrite and pread: their errors are the only ones there are.
#pragma once

#include "libckpt/os/file.h"
#include "libckpt/os/machine_check.h"

namespace ckpt::os {

// PosixFileSystem() where the kernel or a container's profile refuses io_uring: asked once, by
// making a ring. Threads: safe. Never destroyed.
FileSystem& UringFileSystem();

// Whether a ring can be had and moves something, and if not, which error stands in the way and
// where it comes from. A warning is as bad as it gets.
Finding CheckUring();

}  // namespace ckpt::os

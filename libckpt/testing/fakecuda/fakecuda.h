// A CUDA driver in software, as a libcuda.so.1 of its own: programs that find the driver at run
// time find this one when its folder comes first for the loader. It says so in the device's name.
// What it does as the real one does: work on streams is asynchronous and ordered by events only
// (the legacy default stream waits for blocking ones and they for it); device memory faults when
// the host touches it, and after it is unmapped; copies from and to pageable host memory are staged
// before the call returns; calls need a current context; memory is finite; what fails on the device
// sticks. What it does not do: kernels, graphs, peer access.
//
// Environment: CKPT_FAKECUDA_DEVICES (1), CKPT_FAKECUDA_MIB (1024), CKPT_FAKECUDA_COPY_US,
// _DRIVER (13000), _COMPUTE_MODE (0), _MULTICAST (0), _MIG (set: the name of an instance),
// _UPLOAD_US (a copy, one to the device takes effect so much later),
// CKPT_FAKECUDA_FAIL=CALL:NTH:RESULT[:sticky],… (that call's n-th passage answers RESULT; sticky:
// and all that follow). The controls below are found by dlsym.
#pragma once

#include <cstdint>

extern "C" {
void fakecuda_fail(const char* call, uint64_t nth, int result,
                   int sticky);                // from now; replaces the earlier one of that call
uint64_t fakecuda_passages(const char* call);  // so far
void fakecuda_copy_us(uint64_t us);
void fakecuda_break_at_copy(
    uint64_t nth);  // that copy from now is an illegal address, when it is its turn
uint64_t fakecuda_used_bytes(int ordinal);
uint64_t fakecuda_pinned_bytes();

// For other doubles (libckpt/testing/fakenccl). The device whose context is current on this thread;
// -1 none.
int fakecuda_current_ordinal();
// Runs `kernel` on the CPU when it is its turn on the stream; a CUresult other than 0 breaks the
// device.
int fakecuda_launch(void* stream, int (*kernel)(void*), void* argument);
// Where a kernel of a double finds device memory; null: it is none.
void* fakecuda_alias(const void* memory, uint64_t bytes);
}

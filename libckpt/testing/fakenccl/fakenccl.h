// NCCL in software, as a libnccl.so.2 of its own, over the double of the driver
// (libckpt/testing/fakecuda): programs that find NCCL at run time find this one when its folder
// comes first for the loader. Ranks are threads of one process or processes of one machine.
//
// What it does as the real one does: bytes move from rank to rank; a collective runs on its stream
// and waits there for the peers, for ever if one is missing or called something else; a
// communicator is built when all ranks came, by an id that is used once; two ranks on one device
// are refused; non-blocking communicators are in progress until they are asked; finalize waits for
// all ranks and for everything enqueued, destroy and abort wait for captured graphs that hold the
// communicator; the peers of an aborted rank fail asynchronously. What it does not do: group calls,
// other collectives, speed.
//
// Environment: CKPT_FAKENCCL_VERSION (23203), CKPT_FAKENCCL_SILENT_ABORT (peers of an aborted rank
// hang, as they do over NVLink), CKPT_FAKENCCL_FAIL=CALL:NTH:RESULT[:sticky],… (that call's n-th
// passage answers RESULT; CALL.async: what it started ends so; RESULT -1: it never returns).
#pragma once

#include <cstdint>

struct ncclComm;

extern "C" {
void fakenccl_fail(const char* call, uint64_t nth, int result, int sticky);  // from now
uint64_t fakenccl_passages(const char* call);                                // so far
void fakenccl_async_error(ncclComm* comm, int result);
// A captured graph holds the communicator (1), does no longer (-1).
void fakenccl_hold(ncclComm* comm, int change);
uint64_t fakenccl_registered_bytes();  // of all communicators of this process
uint64_t fakenccl_living();            // communicators of this process
}

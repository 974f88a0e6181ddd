#!/bin/bash
# Usage: no_system_calls.sh PROGRAM
# A million steps make as many system calls as a thousand.
set -u
command -v strace >/dev/null || { echo "SKIPPED: strace is not installed, nothing was checked"; exit 0; }
strace -c -f -o /dev/null true 2>/dev/null || { echo "SKIPPED: strace may not trace here, nothing was checked"; exit 0; }
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
unset CKPT_RUN CKPT_SAVE_EVERY RANK WORLD_SIZE
calls() {
  strace -f -o "$dir/trace.$1" "$2" "$1" "$dir/store.$1" || { echo "FAILED: the program exited with $?" >&2; exit 1; }
  grep -c '(' "$dir/trace.$1"
}
few=$(calls 1000 "$1") || exit 1
many=$(calls 1000000 "$1") || exit 1
echo "system calls: $few for 1,000 steps, $many for 1,000,000"
# The runs differ by what the loader and the heap happen to do, not by steps.
[ "$many" -le $((few + 50)) ] || { echo "FAILED: steps make system calls"; exit 1; }

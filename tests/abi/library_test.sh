#!/bin/bash
# Usage: library_test.sh LIBCKPT_SO CKPT_H
# libckpt needs the C++ runtime, zstd and xxhash only; it exports the functions of ckpt.h, all of
# them, and nothing else.
set -u
library=$1 header=$2 bad=0

for needed in $(readelf -d "$library" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p'); do
  case $needed in
    libstdc++.so.* | libgcc_s.so.* | libm.so.* | libc.so.* | ld-linux*.so.* | libzstd.so.* | libxxhash.so.*) ;;
    *) echo "needs $needed, which a guest in someone's program must not bring" && bad=1 ;;
  esac
done

exported=$(nm -D --defined-only "$library" | awk '$2 != "A" {print $3}' | sed 's/@.*//' | sort)
declared=$(grep -o '\bckpt_[a-z_]*(' "$header" | tr -d '(' | sort -u)
for symbol in $exported; do
  grep -qx "$symbol" <<<"$declared" || { echo "exports $symbol, which ckpt.h does not declare" && bad=1; }
done
for function in $declared; do
  grep -qx "$function" <<<"$exported" || { echo "does not export $function of ckpt.h" && bad=1; }
done
[ -n "$exported" ] || { echo "exports nothing" && bad=1; }
[ "$bad" = 0 ] && echo "$(wc -w <<<"$exported") functions, no other symbol, no other library"
exit $bad

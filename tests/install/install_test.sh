#!/bin/bash
# Usage: install_test.sh BUILD_DIR SOURCE_DIR CMAKE CXX
# Installs to a temporary prefix, builds examples/quickstart as a separate project against it, by
# find_package and by pkg-config, and runs it: killed and gone on.
set -eu
build=$1 source=$2 cmake=$3 cxx=$4
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

"$cmake" --install "$build" --prefix "$dir/prefix" --component Unspecified >/dev/null
for file in include/ckpt/ckpt.h include/ckpt/ckpt.hpp; do
  [ -e "$dir/prefix/$file" ] || { echo "FAILED: $file is not installed"; exit 1; }
done

"$cmake" --install "$build" --prefix "$dir/prefix" --component programs >/dev/null
for program in ckpt-run ckpt-agent ckptd ckptctl; do
  "$dir/prefix/bin/$program" --help >/dev/null || { echo "FAILED: $program is not installed"; exit 1; }
done

cp -r "$source/examples/quickstart" "$dir/project"
"$cmake" -S "$dir/project" -B "$dir/project/build" -DCMAKE_PREFIX_PATH="$dir/prefix" \
  -DCMAKE_CXX_COMPILER="$cxx" -DCMAKE_BUILD_TYPE=Release >"$dir/log" 2>&1 &&
  "$cmake" --build "$dir/project/build" >>"$dir/log" 2>&1 || { cat "$dir/log"; exit 1; }
"$source/examples/quickstart/kill_test.sh" "$dir/project/build/quickstart"

pc=$(find "$dir/prefix" -name ckpt.pc)
[ -n "$pc" ] || { echo "FAILED: ckpt.pc is not installed"; exit 1; }
export PKG_CONFIG_PATH=${pc%/*}
lib=$(pkg-config --variable=libdir ckpt)
# shellcheck disable=SC2046
"$cxx" -std=c++17 "$source/examples/quickstart/quickstart.cc" -o "$dir/by_pkg_config" \
  $(pkg-config --cflags --libs ckpt)
cd "$dir"
LD_LIBRARY_PATH=$lib CKPT_STORE=$dir/store ./by_pkg_config | tail -n 1

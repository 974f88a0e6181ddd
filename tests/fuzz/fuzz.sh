#!/usr/bin/env bash
# fuzz.sh TARGET SECONDS JOBS [OPTION…]: replays what was found before (corpus), then fuzzes from the seeds and from what earlier
# runs have kept. One input may take 10 s and no allocation 64 MiB; what is found is written to found/ beside TARGET.
set -euo pipefail
target=$1 seconds=$2 jobs=$3
shift 3
name=$(basename "$target") build=$(dirname "$target")
here=$(dirname "$(readlink -f "$0")")
mkdir -p "$build/found" "$build/seeds/${name#fuzz_}" "$build/kept/$name"
folders=("$build/kept/$name" "$build/seeds/${name#fuzz_}")
[ ! -d "$here/corpus/${name#fuzz_}" ] || folders+=("$here/corpus/${name#fuzz_}")
options=(-rss_limit_mb=1024 -malloc_limit_mb=64 -timeout=10 -max_len=65536 "-artifact_prefix=$build/found/$name-")
[ "$jobs" = 1 ] || options+=("-fork=$jobs")
"$target" "${options[@]}" "$@" "-max_total_time=$seconds" -print_final_stats=1 "${folders[@]}" 2>&1 |
  { grep -E -v '^#[0-9]+[[:space:]]+(NEW|REDUCE|pulse)|^[[:space:]]+NEW_(FUNC|PC)|^INFO: ' || true; }

#!/bin/bash
# Usage: kill_test.sh PROGRAM [SEED]
# Kills the program with SIGKILL at random moments, starts it again until it is through, and compares
# what it printed last, bit for bit, with an uninterrupted run. Then the same once with SIGTERM, which
# must end it with 75 at a step that is saved.
set -u
program=$(realpath "$1")
seed=${2:-$RANDOM}
echo "seed $seed"
RANDOM=$seed
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir" || exit 1
unset CKPT_RUN CKPT_JOB CKPT_SAVE_EVERY RANK WORLD_SIZE

fail() {
  echo "FAILED: $*"
  for log in *.log; do echo "--- $log"; tail -n 5 "$log"; done
  exit 1
}

began=$(date +%s%N)
CKPT_STORE=whole "$program" >whole.log 2>&1 || fail "the uninterrupted run exited with $?"
whole_ms=$((($(date +%s%N) - began) / 1000000))

# Runs it and kills it after a random part of the time that a whole run takes.
run_and_kill() {
  CKPT_STORE=killed "$program" >"$1" 2>&1 &
  local pid=$!
  local after_ms=$((RANDOM * whole_ms * 8 / 10 / 32768))
  sleep "$((after_ms / 1000)).$(printf %03d $((after_ms % 1000)))"
  kill -KILL "$pid" 2>/dev/null && kills=$((kills + 1))
  wait "$pid" 2>/dev/null
}

kills=0
for run in 1 2 3 4 5 6; do
  run_and_kill "killed.$run.log"
  code=$?
  [ "$code" = 0 ] || [ "$code" = 137 ] || fail "run $run exited with $code"
done 2>/dev/null
CKPT_STORE=killed "$program" >killed.last.log 2>&1 || fail "the last run exited with $?"
[ "$kills" -ge 1 ] || fail "no run was killed"
resumed=$(grep -l '^resumed at step' killed.*.log | wc -l)
[ "$resumed" -ge 1 ] || fail "no run resumed"
result() { grep '^done' "$1"; }
[ -n "$(result whole.log)" ] || fail "no result"
[ "$(result whole.log)" = "$(result killed.last.log)" ] || fail "the results differ"
echo "killed $kills times, resumed $resumed times: the same result"

CKPT_STORE=stopped "$program" >stopped.1.log 2>&1 &
pid=$!
for _ in $(seq 1 600); do  # once the session is open it has a handler
  grep -q 'step' stopped.1.log && break
  [ -e stopped/JOB ] && grep -q 'SigCgt:.*[4-7c-f]...$' "/proc/$pid/status" 2>/dev/null && break
  sleep 0.02
done
kill -TERM "$pid" 2>/dev/null
wait "$pid"
code=$?
[ "$code" = 75 ] || [ "$code" = 0 ] || fail "after SIGTERM it exited with $code"
if [ "$code" = 75 ]; then
  CKPT_STORE=stopped "$program" >stopped.2.log 2>&1 || fail "after SIGTERM, going on exited with $?"
  grep -q '^resumed at step' stopped.2.log || fail "after SIGTERM it did not resume"
  [ "$(result whole.log)" = "$(result stopped.2.log)" ] || fail "after SIGTERM the results differ"
  echo "stopped by SIGTERM with 75, $(head -n 1 stopped.2.log): the same result"
fi

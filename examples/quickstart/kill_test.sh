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

CKPT_STORE=whole "$program" >whole.log 2>&1 || fail "the uninterrupted run exited with $?"

kills=0 resumed=0
for run in $(seq 1 60); do
  CKPT_STORE=killed "$program" >"killed.$run.log" 2>&1 &
  pid=$!
  # Later and later, so that slow machines get through as well.
  [ "$kills" -lt 8 ] && sleep "$(printf '%d.%03d' $((run / 8)) $((RANDOM % (100 * run) % 1000)))" &&
    kill -KILL "$pid" 2>/dev/null && kills=$((kills + 1))
  wait "$pid"
  code=$?
  grep -q '^resumed at step' "killed.$run.log" && resumed=$((resumed + 1))
  [ "$code" = 0 ] && break
  [ "$code" = 137 ] || fail "run $run exited with $code"
done
[ "$code" = 0 ] || fail "not through after $run runs"
[ "$kills" -ge 1 ] || fail "no run was killed"
[ "$(tail -n 1 whole.log)" = "$(tail -n 1 "killed.$run.log")" ] || fail "the results differ"
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
  [ "$(tail -n 1 whole.log)" = "$(tail -n 1 stopped.2.log)" ] || fail "after SIGTERM the results differ"
  echo "stopped by SIGTERM with 75, $(head -n 1 stopped.2.log): the same result"
fi

#!/usr/bin/env bash
# signals.sh -- SIGINT, SIGTERM, SIGUSR1 and RUN/STOP end a run after its step with a checkpoint and 85; two signals end it at
# once; afterwards the run goes on to the bits of one that nobody stopped. STEPS: of each run (400).
. "$(dirname "$0")/lib.sh"
make_text
set -m # else the shell would have its children ignore SIGINT
long=(--set "train_steps=${STEPS:-400}" --set eval.interval=0 --set eval.sample_interval=0 --set checkpoint.save_interval=0 --set checkpoint.keep=0)
mkfifo lines

# started NAME: a run in the background, once it has made two steps; its lines go on to be read by a cat
started() {
    "$TRAIN" "$TINY" --json "${long[@]}" --out "$1" >lines 2>err </dev/null &
    child=$!
    children+=("$child")
    exec 3<lines
    until_step 2 <&3
}
# ended: waits for it; its exit code in $code
ended() {
    cat <&3 >/dev/null
    wait "$child" 2>/dev/null
    code=$?
    exec 3<&-
}

"$TRAIN" "$TINY" "${long[@]}" --out whole >/dev/null 2>&1 </dev/null
for signal in INT TERM USR1; do
    started "run-$signal"
    kill -$signal "$child"
    ended
    check "signals: SIG$signal ends with 85 (got $code)" test "$code" -eq 85
    check "signals: SIG$signal leaves a checkpoint" test "$(checkpoint_steps "run-$signal" | wc -l)" -eq 1
    expect_code "signals: SIG$signal: the checkpoint verifies" 0 "$TRAIN" ckpt verify "run-$signal"
    expect_code "signals: SIG$signal: the same command goes on" 0 "$TRAIN" "$TINY" "${long[@]}" --out "run-$signal"
    same_run "signals: SIG$signal: to the bits of the whole run" whole "run-$signal"
done

started run-stop
touch run-stop/STOP
ended
check "signals: RUN/STOP ends with 85 (got $code)" test "$code" -eq 85
expect_code "signals: RUN/STOP is forgotten by the next start" 0 "$TRAIN" "$TINY" "${long[@]}" --out run-stop

# Both signals are pending before the run can act on the first. (ThreadSanitizer delivers signals itself, and drops the second.)
if [[ $TRAIN == */tsan/* ]]; then
    skip "signals: two signals end it at once" "ThreadSanitizer queues signals"
    finish
fi
started run-twice
kill -STOP "$child"
kill -INT "$child"
kill -TERM "$child"
kill -CONT "$child"
ended
check "signals: two signals end it at once, by a signal (got $code)" test "$code" -eq 130 -o "$code" -eq 143
finish

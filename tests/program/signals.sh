#!/usr/bin/env bash
# signals.sh -- tests that SIGINT, SIGTERM, SIGUSR1 and the file RUN/STOP end a run after its step with a checkpoint and
# exit code 85, that two signals end it at once, and that the resumed run has the bits of an uninterrupted one. STEPS: steps
# of each run (60).
. "$(dirname "$0")/lib.sh"
make_text
child='' code=''
set -m # without job control, background processes would ignore SIGINT
long=(--set "train_steps=${STEPS:-60}" --set eval.interval=0 --set eval.sample_interval=0 --set checkpoint.save_interval=0
    --set checkpoint.keep=0 --set data.seq_length=8 --set train_micro_batch_size_per_gpu=2)
"$TRAIN" "$TINY" "${long[@]}" --out whole >/dev/null 2>&1 </dev/null
for signal in INT TERM USR1; do
    held 2 "run-$signal" "${long[@]}"
    kill -$signal "$child"
    let_go
    check "signals: SIG$signal ends the run with exit code 85 (got $code)" test "$code" -eq 85
    check "signals: SIG$signal leaves one checkpoint" test "$(checkpoint_steps "run-$signal" | wc -l)" -eq 1
    expect_code "signals: the checkpoint after SIG$signal is valid" 0 "$TRAIN" ckpt verify "run-$signal"
    expect_code "signals: the same command resumes after SIG$signal" 0 "$TRAIN" "$TINY" "${long[@]}" --out "run-$signal"
    same_run "signals: the run resumed after SIG$signal has the same bits" whole "run-$signal"
done

held 2 run-stop "${long[@]}"
touch run-stop/STOP
let_go
check "signals: RUN/STOP ends the run with exit code 85 (got $code)" test "$code" -eq 85
expect_code "signals: RUN/STOP does not stop the next start" 0 "$TRAIN" "$TINY" "${long[@]}" --out run-stop

# A dry run saves nothing, so a signal ends it at once, also inside its step, which takes minutes here.
for ranks in 1 2; do
    for signal in TERM INT; do
        : >dry
        "$TRAIN" "$TINY" --dry-run --ranks $ranks --set train_micro_batch_size_per_gpu=20000 --set cpu.threads=1 >dry 2>&1 </dev/null &
        child=$!
        children+=("$child")
        for _ in {1..600}; do
            grep -q '^windows ' dry && break
            sleep 0.1
        done
        check "signals: a dry run of $ranks rank(s) reaches its step" grep -q '^windows ' dry
        kill -$signal "$child"
        wait "$child"
        code=$?
        check "signals: SIG$signal ends a dry run of $ranks rank(s) by that signal (got $code)" \
            test "$code" -eq "$((128 + $(kill -l $signal)))"
    done
done

# Both signals are pending before the run can act on the first. (ThreadSanitizer delivers signals itself, and drops the second.)
if [[ $TRAIN == */tsan/* ]]; then
    skip "signals: two signals end the run at once" "ThreadSanitizer queues signals"
    finish
fi
held 2 run-twice "${long[@]}"
kill -STOP "$child"
kill -INT "$child"
kill -TERM "$child"
kill -CONT "$child"
let_go
check "signals: two signals end the run at once with a signal's code (got $code)" test "$code" -eq 130 -o "$code" -eq 143

# Both streams of the console are a full pipe, so no reply to a signal can be printed.
rm err
ln -s held.lines err
held 2 run-deaf "${long[@]}"
for bytes in 4096 1; do LC_ALL=C dd if=/dev/zero of=held.lines oflag=nonblock bs=$bytes 2>/dev/null; done 4<>held.lines
for signal in INT TERM; do
    kill -$signal "$child"
    sleep 0.5
done
for _ in {1..50}; do
    kill -0 "$child" 2>/dev/null || break
    sleep 0.1
done
check "signals: two signals end at once a run whose console is not read" test -z "$(jobs -pr)"
let_go
check "signals: its exit code is a signal's (got $code)" test "$code" -eq 143
finish

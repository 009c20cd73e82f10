#!/usr/bin/env bash
# lock.sh -- tests that a run folder has one run at a time: a second one is refused while the first is alive and resumes
# after it has died. Also tests which folder a run chooses, which config changes it accepts, and that it never overwrites
# foreign files.
. "$(dirname "$0")/lib.sh"
make_text
mkfifo lines

"$TRAIN" "$TINY" --json --set train_steps=100000 --set eval.interval=0 --set eval.sample_interval=0 --out run >lines 2>err </dev/null &
first=$!
children+=("$first")
exec 3<lines
until_step 2 <&3
kill -STOP $first
expect_code "lock: a second run in the folder is refused" 73 timeout 60 "$TRAIN" "$TINY" --set train_steps=100000 \
    --set eval.interval=0 --set eval.sample_interval=0 --out run
check "lock: the message about a locked folder names the process" grep -q "process $first" output
rm run/lock
expect_code "lock: a second run is refused although the lock file was removed" 73 timeout 60 "$TRAIN" "$TINY" \
    --set train_steps=100000 --set eval.interval=0 --set eval.sample_interval=0 --out run
check "lock: the message says that the lock file was removed" grep -q 'although its lock file was removed' output
kill -CONT $first
# The pipe holds a few hundred lines, and the run saves every ten steps.
for ((lines = 0; lines < 5000; lines++)); do
    grep -q "process $first" run/lock && break
    read -r _ <&3 || break
done
check "lock: a save writes a removed lock file again" grep -q "process $first" run/lock
kill -KILL $first
exec 3<&-
{ wait "$first"; } 2>/dev/null

expect_code "lock: a killed run leaves no lock, and a changed train_steps is refused" 78 "$TRAIN" "$TINY" --out run
check "lock: the refused change is named with both values" grep -q 'run: shorter than before (100000 -> 40): --allow' output
expect_code "lock: harmless and allowed changes are accepted" 0 "$TRAIN" "$TINY" --out run \
    --allow-config-change --set checkpoint.keep=7
expect_code "lock: an impossible change is refused with --allow-config-change, too" 78 "$TRAIN" "$TINY" --out run \
    --allow-config-change --set model.num_layers=3
check "lock: the previous config is kept" test -s run/config.before-attempt-1.json
expect_code "lock: --resume never refuses an existing run folder" 73 "$TRAIN" "$TINY" --out run --resume never
mkdir other
echo mine >other/metrics.jsonl
expect_code "lock: a folder with other files is refused" 73 "$TRAIN" "$TINY" --out other
check "lock: a folder with other files is left unchanged" test "$(cat other/metrics.jsonl)" = mine

expect_code "lock: a run without --out succeeds" 0 "$TRAIN" "$TINY"
check "lock: the run folder without --out has the config's name" test -s out/tiny/result.json
expect_code "lock: a run with another seed succeeds" 0 "$TRAIN" "$TINY" --set seed=8
check "lock: a run with another seed gets another folder" test -s out/tiny-2/result.json
expect_code "lock: the first config starts again without --out" 0 "$TRAIN" "$TINY"
check "lock: the first config finds its own finished run" test ! -e out/tiny-3
expect_code "lock: --resume never succeeds" 0 "$TRAIN" "$TINY" --resume never
check "lock: --resume never starts a new run in a new folder" test -s out/tiny-3/result.json
same_run "lock: the same config gives the same bits" out/tiny out/tiny-3
finish

#!/usr/bin/env bash
# lock.sh -- one run folder, one run: a second is refused while the first lives, and goes on when it is gone. And which folder
# a run chooses, what of a changed config it accepts, and what it never overwrites.
. "$(dirname "$0")/lib.sh"
make_text
mkfifo lines

"$TRAIN" "$TINY" --json --set train_steps=100000 --set eval.interval=0 --set eval.sample_interval=0 --out run >lines 2>err </dev/null &
first=$!
children+=("$first")
exec 3<lines
until_step 2 <&3
kill -STOP $first
expect_code "lock: a second run is refused" 73 timeout 60 "$TRAIN" "$TINY" --set train_steps=100000 --set eval.interval=0 --set eval.sample_interval=0 --out run
check "lock: ... and told who holds the folder" grep -q "process $first" output
rm run/lock
expect_code "lock: ... nor without the lock file" 73 timeout 60 "$TRAIN" "$TINY" --set train_steps=100000 --set eval.interval=0 --set eval.sample_interval=0 --out run
check "lock: ... and told why" grep -q 'although its lock file was removed' output
kill -CONT $first
# A pipe holds a few hundred lines, and a save comes every ten steps.
for ((lines = 0; lines < 5000; lines++)); do
    grep -q "process $first" run/lock && break
    read -r _ <&3 || break
done
check "lock: a save puts it back" grep -q "process $first" run/lock
kill -KILL $first
exec 3<&-
{ wait "$first"; } 2>/dev/null

expect_code "lock: a killed run holds no lock; a changed number is refused" 78 "$TRAIN" "$TINY" --out run
check "lock: ... by key" grep -q 'train_steps was 100000, is 40' output
expect_code "lock: what is harmless or allowed goes on" 0 "$TRAIN" "$TINY" --out run --allow-config-change --set checkpoint.keep=7
expect_code "lock: what is impossible is refused even so" 78 "$TRAIN" "$TINY" --out run --allow-config-change --set model.num_layers=3
check "lock: the config of before is kept" test -s run/config.before-attempt-1.json
expect_code "lock: --resume never does not touch a run" 73 "$TRAIN" "$TINY" --out run --resume never
mkdir other
echo mine >other/metrics.jsonl
expect_code "lock: a folder with other things is refused" 73 "$TRAIN" "$TINY" --out other
check "lock: ... and untouched" test "$(cat other/metrics.jsonl)" = mine

expect_code "lock: without --out the name is the config's" 0 "$TRAIN" "$TINY"
check "lock: out/tiny" test -s out/tiny/result.json
expect_code "lock: another seed is another run" 0 "$TRAIN" "$TINY" --set seed=8
check "lock: out/tiny-2" test -s out/tiny-2/result.json
expect_code "lock: the first config finds its own run" 0 "$TRAIN" "$TINY"
check "lock: ... which is finished" test ! -e out/tiny-3
expect_code "lock: --resume never starts afresh" 0 "$TRAIN" "$TINY" --resume never
check "lock: out/tiny-3" test -s out/tiny-3/result.json
same_run "lock: the same config gives the same bits" out/tiny out/tiny-3
finish

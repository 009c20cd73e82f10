#!/usr/bin/env bash
# longer.sh -- tests runs that go on by the name of their folder: with their own config and ranks, with more steps than
# before, and from the newest checkpoint of another run.
. "$(dirname "$0")/lib.sh"
make_text
common=(--set eval.interval=0 --set eval.sample_interval=0 --set cpu.threads=1)
constant=(--set scheduler.type=Constant --set 'scheduler.params={}' --ranks 2)

# refused NAME CODE MESSAGE ARGUMENT...: expects that the command ends with exactly this error message
refused() {
    local name=$1 code=$2 message=$3
    shift 3
    expect_code "longer: $name exits with code $code" "$code" "$TRAIN" "$@"
    check "longer: $name is reported in one sentence" test "$(tail -n 1 output)" = "error[$code] $message"
}

# ---- the learning rate does not depend on the number of steps ----
expect_code "longer: a run of 24 steps succeeds" 0 "$TRAIN" "$TINY" "${common[@]}" "${constant[@]}" --set train_steps=24 \
    --out whole
expect_code "longer: a run of 14 steps succeeds" 0 "$TRAIN" "$TINY" "${common[@]}" "${constant[@]}" --set train_steps=14 \
    --out short
expect_code "longer: a finished run shows its result" 0 "$TRAIN" short
check "longer: a finished run says how to make it longer" \
    grep -qx 'run     short is finished; --set train_steps=N makes it longer' output
check "longer: a finished run prints its figures" grep -q '^done    14 steps' output
expect_code "longer: a finished run resumes with more steps" 0 "$TRAIN" short/ --set train_steps=24
check "longer: more steps that change no learning rate are accepted" \
    grep -qx 'config  train_steps was 14, is 24: the learning rate does not depend on it' output
check "longer: the run resumes on its own number of ranks" grep -q '^ranks   2 ' output
check "longer: only one result is called result.json" test -s short/result.before-attempt-2.json
same_run "longer: the run that became longer has the same bits as a long one" whole short
refused "a checkpoint past train_steps" 78 "short: its newest checkpoint, step 24, is past train_steps 20; write at least 24, \
or give --resume an earlier checkpoint and --out another folder" short --set train_steps=20 --allow-config-change
refused "--resume with a checkpoint past train_steps" 78 "--resume short: its newest checkpoint, step 24, is past \
train_steps 20; write at least 24, or give --resume an earlier checkpoint and --out another folder" "$TINY" --resume short/ \
    --set train_steps=20 --out other
refused "a named checkpoint past train_steps" 78 "--resume short/checkpoints/step_00000024: its step 24 is past train_steps 20; \
write train_steps of at least 24" "$TINY" --resume short/checkpoints/step_00000024 --set train_steps=20 --out other
expect_code "longer: a run resumes on another number of ranks" 0 "$TRAIN" short --ranks 1 --set train_steps=26 \
    --set gradient_accumulation_steps=4

# ---- the commands ----
check "longer: the folder has the command of each start" test "$(grep -c '^# attempt [0-3], 20..-.* UTC, in /' short/commands.txt)" \
    -eq 3
check "longer: the commands are those that were given" test "$(grep -v '^#' short/commands.txt | sed -n '2p;$p')" = \
    "$TRAIN short/ --set train_steps=24
$TRAIN short --ranks 1 --set train_steps=26 --set gradient_accumulation_steps=4"
check "longer: the commands are quoted for a shell" grep -q ' --set "scheduler.params={}" --ranks 2 ' short/commands.txt

# ---- leftovers ----
# A removal of checkpoints, or a file's write, that was interrupted leaves such names. A start with no step to train saves nothing.
rm short/result.json
mkdir -p short/checkpoints/.trash-step_00000003/deep short/checkpoints/.trash-mine kept/checkpoint
ln -s ../../kept short/checkpoints/.trash-step_00000004
for left in checkpoints/best.json.tmp-4194305-0 metrics.jsonl.tmp-4194305-3 a.tmp-b.tmp-4194305-0 mine.tmp-1 held.tmp-4194305-0; do
    echo half >"short/$left"
done
exec 9<short/held.tmp-4194305-0 && flock 9
expect_code "longer: a run with no step left ends with its result" 0 "$TRAIN" short
check "longer: a start of the run removes what an interrupted removal left" \
    test "$(cd short/checkpoints && echo .t*)" = .trash-mine
check "longer: a link is removed, and not what it leads to" test -d kept/checkpoint
exec 9<&-
check "longer: it removes half-written files, but none that is held or has another name" \
    test "$(cd short && find . -name '*.tmp-*' | sort | tr '\n' ' ')" = "./held.tmp-4194305-0 ./mine.tmp-1 "
check "longer: the start says that it removed them" grep -qx 'notice: short/checkpoints/best.json.tmp-4194305-0, which a killed process had left, is removed' \
    <(tr -s ' \n' ' ' <output | sed 's/ notice: /\nnotice: /g; s/is removed /is removed\n/g')

# ---- the learning rate depends on it ----
expect_code "longer: a run with a decaying learning rate succeeds" 0 "$TRAIN" "$TINY" "${common[@]}" --set train_steps=10 \
    --out decay
refused "a longer run with a decaying learning rate" 78 "decay: longer than before (10 -> 14): --allow-config-change goes on \
from step 10 with the new schedule" decay --set train_steps=14
refused "a longer run with another weight decay, too," 78 "the run in decay was started with another config: train_steps was \
10, is 14 (changes the run); optimizer.params.weight_decay was 0.1, is 0.2 (changes the run); choose another folder with \
--out, or say --allow-config-change" decay --set train_steps=14 --set optimizer.params.weight_decay=0.2
expect_code "longer: an allowed run resumes with the new schedule" 0 "$TRAIN" --resume decay --set train_steps=14 \
    --allow-config-change
check "longer: only the key that was changed is reported" test "$(grep '^config  [^ ]* was ' output)" = \
    'config  train_steps was 10, is 14: changes the run, as allowed'
check "longer: an allowed run trains the steps that were added" test "$(losses decay/metrics.jsonl | wc -l)" -eq 14
cp -r decay cut
rm -r cut/checkpoints/step_00000014
refused "a shorter run with a decaying learning rate" 78 "cut: shorter than before (14 -> 12): --allow-config-change goes on \
from step 10 with the new schedule" cut --set train_steps=12

# ---- the stored config ----
# origin KEY: prints the value of a key of the run "decay" and where it came from
origin() {
    python3 -c 'import json, sys; x = json.load(open("decay/config.origins.json"))[sys.argv[1]]; print(x["value"], x["origin"])' "$1"
}
check "longer: config.json is plain JSON" python3 -c 'import json; c = json.load(open("decay/config.json"))
assert c["train_steps"] == 14 and "total_num_steps" not in c["scheduler"]["params"]'
check "longer: a changed value has its new origin" test "$(origin train_steps)" = "14 --set"
check "longer: an unchanged value keeps its origin" test "$(origin optimizer.params.lr)" = "0.01 $TINY:$(sed -n '/"lr":/=' "$TINY")"
check "longer: a value that follows from others is listed" test "$(origin scheduler.params.total_num_steps)" = "14 derived"
# Older programs stored the config with comments and without a file of origins.
cp -r decay older
"$TRAIN" config show decay/config.json | sed 's/^{/{ "_world": 1,/' >older/config.json
rm older/config.origins.json
check "longer: the config of the older run has comments" grep -q '"lr": 0.01, *// ' older/config.json
expect_code "longer: the run of an older program resumes" 0 "$TRAIN" older --set train_steps=15 --allow-config-change
check "longer: the run of an older program has trained the steps that were added" \
    test "$(losses older/metrics.jsonl | wc -l)" -eq 15

# ---- hints ----
expect_code "longer: a run in out/ succeeds" 0 "$TRAIN" "$TINY" "${common[@]}" --set train_steps=6
expect_code "longer: the same config with more steps starts another run" 0 "$TRAIN" "$TINY" "${common[@]}" --set train_steps=8
check "longer: the other run has its own folder" test -s out/tiny-2/result.json
check "longer: a new run with more steps says how the old one is made longer" \
    grep -qx '        ./train out/tiny --set train_steps=8 --allow-config-change would make it longer' output
expect_code "longer: the hint's command succeeds" 0 "$TRAIN" out/tiny --set train_steps=8 --allow-config-change
expect_code "longer: a finished run with a decaying learning rate shows its result" 0 "$TRAIN" out/tiny
check "longer: making it longer needs the flag" \
    grep -qx 'run     out/tiny is finished; --set train_steps=N --allow-config-change makes it longer' output
mkdir elsewhere
expect_code "longer: a run in another working folder does not find its data" 66 env -C elsewhere "$TRAIN" ../decay
check "longer: missing data of a run are explained" test "$(tail -n 1 output)" = "error[66] no file matches text.txt; this \
run looks for its data from the folder that its commands.txt names"

# ---- another run from the newest checkpoint ----
expect_code "longer: --resume RUN starts another run" 0 "$TRAIN" "$TINY" "${common[@]}" --resume decay --set train_steps=16 \
    --out another
check "longer: --resume RUN starts from the newest checkpoint" \
    grep -qx 'resume  step 14 from decay/checkpoints/step_00000014' output

# ---- what is no run ----
refused "a run folder with --out" 64 "decay goes on in its own folder, without --out; ./train decay/config.json --resume decay \
--out other starts another run from its newest checkpoint" decay --out other
refused "a run folder with --resume never" 64 "decay goes on from its newest checkpoint, without --resume never; ./train \
decay/config.json --out ANOTHER starts another run with its config" decay --resume never
refused "a checkpoint in place of a config" 64 "decay/checkpoints/step_00000014 is a checkpoint: ./train decay goes on from \
the newest one of its run, and ./train CONFIG.json --resume decay/checkpoints/step_00000014 starts another run from it" \
    decay/checkpoints/step_00000014
refused "a folder that is no run" 64 "decay/checkpoints is a folder without config.json, so it is no run: give the folder of \
a run, such as out/demo, or a config file, e.g. configs/demo.json" decay/checkpoints/
refused "--resume of no run and no config" 64 "--resume nowhere: there is no such run; without a config, give the folder of a \
run, such as out/demo" --resume nowhere
cp -r decay 'two words'
refused "a checkpoint with a space in its path" 64 "two words/checkpoints/step_00000014 is a checkpoint: ./train \"two words\" \
goes on from the newest one of its run, and ./train CONFIG.json --resume \"two words/checkpoints/step_00000014\" starts another \
run from it" 'two words/checkpoints/step_00000014'
refused "a run folder with a space and --out" 64 "two words goes on in its own folder, without --out; ./train \"two \
words/config.json\" --resume \"two words\" --out \"an other\" starts another run from its newest checkpoint" 'two words' \
    --out 'an other'
refused "--best with a checkpoint whose path has a space" 64 "two words/checkpoints/step_00000014 is one checkpoint; --best \
chooses one of a run: give \"two words\", or leave it out" eval 'two words/checkpoints/step_00000014' --best
rm -r another/checkpoints
refused "--resume of a run without checkpoints" 66 "--resume another: this run has no checkpoint that can be opened" "$TINY" \
    --resume another --out other
check "longer: a refused start leaves no run folder" test ! -e other
finish

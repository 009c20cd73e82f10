#!/usr/bin/env bash
# origins.sh -- what a run depends on and what becomes of it: a text that changes or vanishes, a checkpoint named by
# --resume, a disk without room at the end, numbers that leave their range, an attempt with nothing left to train.
. "$(dirname "$0")/lib.sh"
make_text
common=(--set train_steps=20 --set eval.sample_tokens=100 --set eval.interval=0 --set eval.sample_interval=0 --set cpu.threads=1)

expect_code "origins: a run" 0 "$TRAIN" "$TINY" "${common[@]}" --out run
"$TRAIN" eval run >whole 2>err
check "origins: eval" test -s whole
"$TRAIN" generate run --prompt "the king" --tokens 8 --seed 3 >spoken 2>&1
check "origins: generate" grep -q '^the king.' spoken
cp text.txt kept.txt
sha256sum run/tokenizer.json >sum
# A model of a few steps draws bytes that are no UTF-8.
check "origins: the result is UTF-8" iconv -f UTF-8 -t UTF-8 -o /dev/null run/result.json

# Two lines change places: the same tokenizer and as many tokens, but other data.
awk 'NR == 1000 { kept = $0; next } NR == 1100 { print; print kept; next } { print }' kept.txt >text.txt
expect_code "origins: a finished run whose data have changed" 0 "$TRAIN" "$TINY" "${common[@]}" --out run
check "origins: ... says so" grep -qE 'the data have changed since \(train ([0-9]+) tokens .* -> train \1 tokens' output
check "origins: ... and shows its result" grep -q '^done' output
cp -r run cut
rm -r cut/result.json cut/checkpoints/step_00000020
expect_code "origins: a run does not go on with other data" 78 "$TRAIN" "$TINY" "${common[@]}" --out cut
check "origins: ... and says why" grep -q 'the data have changed since the newest checkpoint in cut (train ' output
expect_code "origins: ... unless that is allowed" 0 "$TRAIN" "$TINY" "${common[@]}" --allow-config-change --out cut
check "origins: ... which is printed" grep -q 'changed, as allowed' output
check "origins: ... and trains steps 11 to 20" grep -q 'resume  step 10 from' output
expect_code "origins: its own data are those of its last checkpoint" 0 "$TRAIN" "$TINY" "${common[@]}" --out cut
check "origins: ... and no change is printed" bash -c 'grep -q "^done" output && ! grep -q "have changed" output'
expect_code "origins: --resume with other data" 0 "$TRAIN" "$TINY" "${common[@]}" --resume run/checkpoints/step_00000010 --out moved
check "origins: ... says them" grep -q 'data    other than those of run/checkpoints/step_00000010: train ' output
tr 'a-m' 'n-za' <kept.txt >text.txt
expect_code "origins: --resume with another tokenizer" 78 "$TRAIN" "$TINY" "${common[@]}" --resume run/checkpoints/step_00000010 --out other
check "origins: ... and says why" grep -q 'its weights belong to another tokenizer' output
check "origins: ... writes nothing" test ! -e other

rm text.txt
expect_code "origins: generate needs no text" 0 "$TRAIN" generate run --prompt "the king" --tokens 8 --seed 3
check "origins: ... to say the same" cmp output spoken
expect_code "origins: eval does" 66 "$TRAIN" eval run

tr 'a-m' 'n-za' <kept.txt >text.txt
expect_code "origins: a run does not go on with another text" 78 "$TRAIN" "$TINY" "${common[@]}" --set train_steps=30 --allow-config-change --out run
check "origins: ... and says why" grep -q 'has another tokenizer' output
check "origins: ... and keeps its tokenizer" sha256sum --quiet -c sum
cp kept.txt text.txt
cp kept.txt other.txt
"$TRAIN" eval run >again 2>err
check "origins: eval of the old text gives the old figures" cmp whole again
expect_code "origins: eval of another text" 0 "$TRAIN" eval run --set data.val_text=other.txt
# The training text itself: were it cut into other tokens than the run's, the loss would be that of guessing (5.7).
loss=$(sed -E 's/.*val loss ([0-9.]+).*/\1/' output)
check "origins: ... in the run's own tokens: $loss < 4.5" awk "BEGIN { exit !($loss < 4.5) }"

expect_code "origins: --resume of nothing" 66 "$TRAIN" "$TINY" "${common[@]}" --resume nowhere --out new
check "origins: ... says what to give" grep -q '^error.66. --resume nowhere: no checkpoint is there; give one such as' output
check "origins: ... writes nothing" test ! -e new
mkdir nevr
expect_code "origins: --resume of a folder that is named like a word" 66 "$TRAIN" "$TINY" "${common[@]}" --resume nevr --out new
check "origins: ... is no slip" grep -q '^error.66. --resume nevr: no checkpoint is there' output
# What helps: a flag where the numbers change, no flag where the weights fit no longer.
for change in "optimizer.params.weight_decay=0.3 changes.the.run , or say --allow-config-change" "model.num_layers=3 impossible "; do
    read -r set effect advice <<<"$change"
    expect_code "origins: a run with $set" 78 "$TRAIN" "$TINY" "${common[@]}" --set "$set" --out run
    check "origins: ... says what it does" grep -q "$effect" output
    check "origins: ... and what helps" grep -q "choose another folder with --out$advice\$" output
done
from=run/checkpoints/step_00000010
expect_code "origins: --resume with another model is refused" 78 "$TRAIN" "$TINY" "${common[@]}" --resume $from --set model.num_layers=3 --out new
check "origins: ... which cannot go on" grep -q "^error.78. --resume $from: model.num_layers was 2 there and is 3 now, which cannot go on$" output
check "origins: ... writes nothing" test ! -e new
expect_code "origins: --resume with other numbers" 0 "$TRAIN" "$TINY" "${common[@]}" --resume $from --set optimizer.params.weight_decay=0.2 --out new
check "origins: ... says them" grep -q 'weight_decay was 0.1, is 0.2' output
check "origins: ... and trains steps 11 to 20" test "$(losses new/metrics.jsonl | wc -l)" -eq 10
expect_code "origins: --resume into a folder with checkpoints of its own" 0 "$TRAIN" "$TINY" "${common[@]}" --resume $from --set optimizer.params.weight_decay=0.2 --set train_steps=22 --allow-config-change --out new
check "origins: ... is passed over by name" grep -q 'is passed over' output

rm run/result.json
expect_code "origins: nothing left to train" 0 "$TRAIN" "$TINY" "${common[@]}" --out run
last=$(losses run/metrics.jsonl | tail -n 1 | sed -E 's/.*"loss": ([0-9.]{8}).*/\1/')
check "origins: ... has the loss of the last step there was" grep -q "\"loss\":[[:space:]]*$last" run/result.json
check "origins: ... and counts its tokens" grep -qE '"tokens":[[:space:]]*10240' run/result.json

cramped() { (ulimit -f 1; exec "$TRAIN" "$TINY" "${common[@]}" --set data.cache=elsewhere --out full); }
expect_code "origins: no room for the prepared text" 74 cramped
limited() { (ulimit -f 300; exec "$TRAIN" "$TINY" "${common[@]}" --out full); }
expect_code "origins: no room for the last checkpoint" 74 limited
check "origins: ... in whole sentences" grep -q 'its last checkpoint is not written' output
check "origins: ... no earlier one either ended the run" test "$(losses full/metrics.jsonl | wc -l)" -eq 20
expect_code "origins: with room the same command goes on" 0 "$TRAIN" "$TINY" "${common[@]}" --out full

expect_code "origins: diverged" 88 "$TRAIN" "$TINY" "${common[@]}" --set optimizer.params.lr=1e6 --set scheduler.type=Constant --set 'scheduler.params={}' --set model.norm=layernorm --set max_consecutive_skipped_steps=3 --set fp16.enabled=true --set fp16.loss_scale=1e30 --out nan
expect_code "origins: dry run" 0 "$TRAIN" "$TINY" "${common[@]}" --dry-run --out dry
check "origins: ... starts no run" test ! -e dry
finish

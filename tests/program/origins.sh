#!/usr/bin/env bash
# origins.sh -- tests changes in what a run depends on: a text that changes or vanishes, a checkpoint given with --resume, a
# disk that is full at the end, losses that become infinite, and an attempt with no steps left to train.
. "$(dirname "$0")/lib.sh"
make_text
common=(--set train_steps=20 --set eval.sample_tokens=100 --set eval.interval=0 --set eval.sample_interval=0 --set cpu.threads=1)

expect_code "origins: a run succeeds" 0 "$TRAIN" "$TINY" "${common[@]}" --out run
"$TRAIN" eval run >whole 2>err
check "origins: eval prints the loss" test -s whole
"$TRAIN" generate run --prompt "the king" --tokens 8 --seed 3 >output 2>&1
without_speed output >spoken
check "origins: generate continues the prompt" grep -q '^the king.' spoken
cp text.txt kept.txt
sha256sum run/tokenizer.json >sum
# A model trained for a few steps generates bytes that are not valid UTF-8.
check "origins: result.json is valid UTF-8" iconv -f UTF-8 -t UTF-8 -o /dev/null run/result.json

# Two lines are swapped: the tokenizer and the number of tokens stay the same, but the data differ.
awk 'NR == 1000 { kept = $0; next } NR == 1100 { print; print kept; next } { print }' kept.txt >text.txt
expect_code "origins: a finished run whose data have changed exits with code 0" 0 "$TRAIN" "$TINY" "${common[@]}" --out run
check "origins: a finished run reports that its data have changed" \
    grep -qE 'the data have changed since \(train ([0-9]+) tokens .* -> train \1 tokens' output
check "origins: a finished run whose data have changed prints its result" grep -q '^done' output
cp -r run cut
rm -r cut/result.json cut/checkpoints/step_00000020
expect_code "origins: a run with changed data is refused" 78 "$TRAIN" "$TINY" "${common[@]}" --out cut
check "origins: the message names the changed data" grep -q 'the data have changed since the newest checkpoint in cut (train ' \
    output
expect_code "origins: --allow-config-change resumes with changed data" 0 "$TRAIN" "$TINY" "${common[@]}" \
    --allow-config-change --out cut
check "origins: an allowed change of data is printed" grep -q 'changed, as allowed' output
check "origins: a run with changed data resumes at step 10" grep -q 'resume  step 10 from' output
expect_code "origins: the data of the last checkpoint are accepted afterwards" 0 "$TRAIN" "$TINY" "${common[@]}" --out cut
check "origins: accepted data cause no message about a change" bash \
    -c 'grep -q "^done" output && ! grep -q "have changed" output'
expect_code "origins: --resume accepts other data" 0 "$TRAIN" "$TINY" "${common[@]}" --resume run/checkpoints/step_00000010 \
    --out moved
check "origins: --resume prints that the data are others" \
    grep -q 'data    other than those of run/checkpoints/step_00000010: train ' output
tr 'a-m' 'n-za' <kept.txt >text.txt
expect_code "origins: --resume refuses another tokenizer" 78 "$TRAIN" "$TINY" "${common[@]}" \
    --resume run/checkpoints/step_00000010 --out other
check "origins: the message names the other tokenizer" grep -q 'its weights belong to another tokenizer' output
check "origins: a refused --resume leaves no run folder" test ! -e other

rm text.txt
expect_code "origins: generate runs without the training text" 0 "$TRAIN" generate run --prompt "the king" --tokens 8 --seed 3
without_speed output >text
check "origins: generate without the training text gives the same text" cmp text spoken
expect_code "origins: eval needs the training text" 66 "$TRAIN" eval run

tr 'a-m' 'n-za' <kept.txt >text.txt
expect_code "origins: a run does not resume with another text" 78 "$TRAIN" "$TINY" "${common[@]}" --set train_steps=30 \
    --allow-config-change --out run
check "origins: the message says that another text has another tokenizer" grep -q 'has another tokenizer' output
check "origins: a refused resume keeps the tokenizer" sha256sum --quiet -c sum
cp kept.txt text.txt
cp kept.txt other.txt
"$TRAIN" eval run >again 2>err
check "origins: eval of the old text gives the old loss" cmp whole again
expect_code "origins: eval accepts another text" 0 "$TRAIN" eval run --set data.val_text=other.txt
# This is the training text itself. If eval cut it into other tokens than the run's, the loss would be that of guessing
# (5.7).
loss=$(sed -nE 's/.*val loss ([0-9.]+).*/\1/p' output)
check "origins: eval of another text uses the run's tokenizer: $loss < 4.5" awk "BEGIN { exit !($loss < 4.5) }"

expect_code "origins: --resume of a missing checkpoint exits with code 66" 66 "$TRAIN" "$TINY" "${common[@]}" --resume nowhere \
    --out new
check "origins: --resume of a missing checkpoint shows an example" \
    grep -q '^error.66. --resume nowhere: no checkpoint is there; give one such as' output
check "origins: --resume of a missing checkpoint leaves no run folder" test ! -e new
mkdir nevr
expect_code "origins: --resume of a missing folder named like a word exits with code 66" 66 "$TRAIN" "$TINY" "${common[@]}" \
    --resume nevr --out new
check "origins: --resume of a missing folder named like a word suggests no other word" \
    grep -q '^error.66. --resume nevr: no checkpoint is there' output
# The message must advise a flag where a change alters the results, and no flag where the weights no longer fit.
for change in "optimizer.params.weight_decay=0.3 changes.the.run , or say --allow-config-change" \
    "model.num_layers=3 impossible , or write model.num_layers 2"; do
    read -r set effect advice <<<"$change"
    expect_code "origins: a run with $set is refused" 78 "$TRAIN" "$TINY" "${common[@]}" --set "$set" --out run
    check "origins: the refusal of $set names its effect" grep -q "$effect" output
    check "origins: the refusal of $set says what to do" grep -q "choose another folder with --out$advice\$" output
done
from=run/checkpoints/step_00000010
expect_code "origins: --resume with another model is refused" 78 "$TRAIN" "$TINY" "${common[@]}" --resume $from --set model.num_layers=3 --out new
check "origins: --resume with another model names the impossible change" \
    grep -q "^error.78. --resume $from: model.num_layers was 2 there and is 3 now, which cannot go on; write model.num_layers 2$" output
check "origins: --resume with another model leaves no run folder" test ! -e new
expect_code "origins: --resume with other sequences is refused" 78 "$TRAIN" "$TINY" "${common[@]}" --resume $from --set data.seq_length=16 --out new
check "origins: --resume with other sequences names the key that was written, not one that follows" \
    grep -q "^error.78. --resume $from: data.seq_length was 32 there and is 16 now, which cannot go on; write data.seq_length 32$" output
expect_code "origins: --resume with another weight decay succeeds" 0 "$TRAIN" "$TINY" "${common[@]}" --resume $from \
    --set optimizer.params.weight_decay=0.2 --out new
check "origins: --resume with another weight decay prints the change" grep -q 'weight_decay was 0.1, is 0.2' output
check "origins: --resume trains steps 11 to 20" test "$(losses new/metrics.jsonl | wc -l)" -eq 10
expect_code "origins: --resume into a folder with checkpoints succeeds" 0 "$TRAIN" "$TINY" "${common[@]}" --resume $from \
    --set optimizer.params.weight_decay=0.2 --set train_steps=22 --allow-config-change --out new
check "origins: --resume into a folder with checkpoints says that it is ignored" grep -q 'is passed over' output

# Moments are stored in the type in which a run keeps them. A run with the other type begins anew, on its weights if it is to.
for was in false true; do
    now=$([ $was = false ] && echo true || echo false) key=bf16.bf16_optimizer_states
    bf16=("${common[@]}" --set bf16.enabled=true --set train_steps=10)
    expect_code "origins: a run with $key $was" 0 "$TRAIN" "$TINY" "${bf16[@]}" --set $key=$was --out moments_$was
    expect_code "origins: the run does not resume with $now" 78 "$TRAIN" "$TINY" "${bf16[@]}" --set $key=$now --out moments_$was
    check "origins: the refusal names the key and both values, $was and $now" \
        grep -q "$key was $was, is $now (impossible); choose another folder with --out, or write $key $was\$" output
    from=moments_$was/checkpoints/step_00000010
    expect_code "origins: --resume with $key $now is refused" 78 "$TRAIN" "$TINY" "${bf16[@]}" --set train_steps=12 \
        --set $key=$now --resume $from --out moments_new
    check "origins: --resume with $key $now names both values" \
        grep -q "^error.78. --resume $from: $key was $was there and is $now now, which cannot go on; write $key $was\$" output
    expect_code "origins: checkpoint.init_from takes the weights of a run with $key $was" 0 "$TRAIN" "$TINY" "${bf16[@]}" \
        --set $key=$now --set checkpoint.init_from=moments_$was --out from_$was
done

rm run/result.json
expect_code "origins: a run with no steps left exits with code 0" 0 "$TRAIN" "$TINY" "${common[@]}" --out run
last=$(losses run/metrics.jsonl | tail -n 1 | sed -E 's/.*"loss": ([0-9.]{8}).*/\1/')
check "origins: a run with no steps left has the loss of the last step" grep -q "\"loss\":[[:space:]]*$last" run/result.json
check "origins: a run with no steps left has the number of tokens" grep -qE '"tokens":[[:space:]]*10240' run/result.json

cramped() { (ulimit -f 1; exec "$TRAIN" "$TINY" "${common[@]}" --set data.cache=elsewhere --out full); }
expect_code "origins: prepared text that does not fit on the disk exits with code 74" 74 cramped
limited() { (ulimit -f 300; exec "$TRAIN" "$TINY" "${common[@]}" --out full); }
expect_code "origins: a last checkpoint that does not fit on the disk exits with code 74" 74 limited
check "origins: a missing last checkpoint is reported" grep -q 'its last checkpoint is not written' output
check "origins: earlier failed saves do not end the run" test "$(losses full/metrics.jsonl | wc -l)" -eq 20
expect_code "origins: the run resumes when there is room" 0 "$TRAIN" "$TINY" "${common[@]}" --out full

expect_code "origins: a diverged run exits with code 88" 88 "$TRAIN" "$TINY" "${common[@]}" --set optimizer.params.lr=1e6 \
    --set scheduler.type=Constant --set 'scheduler.params={}' --set model.norm=layernorm --set max_consecutive_skipped_steps=3 \
    --set fp16.enabled=true --set fp16.loss_scale=1e30 --out nan
expect_code "origins: a dry run with --out succeeds" 0 "$TRAIN" "$TINY" "${common[@]}" --dry-run --out dry
check "origins: a dry run with --out leaves no run folder" test ! -e dry
finish

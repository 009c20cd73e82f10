#!/usr/bin/env bash
# learns.sh -- a tiny model learns a generated text: the loss falls below a bound, and everything a run leaves is there.
. "$(dirname "$0")/lib.sh"
make_text

expect_code "learns: the run ends with 0" 0 "$TRAIN" "$TINY" --set train_steps=150 --set steps_per_print=50 \
    --set eval.interval=50 --set checkpoint.save_interval=100 --out run
cp output console

first=$(losses run/metrics.jsonl | head -n 1 | sed -E 's/.*"loss": ([0-9.e+-]+).*/\1/')
last=$(losses run/metrics.jsonl | tail -n 1 | sed -E 's/.*"loss": ([0-9.e+-]+).*/\1/')
val=$(grep '"final": true' run/metrics.jsonl | sed -E 's/.*"loss": ([0-9.e+-]+).*/\1/')
# Uniform guessing costs ln 300 = 5.70; the grammar itself about 0.5 a token.
check "learns: first loss $first is that of guessing" awk "BEGIN { exit !($first > 5.4 && $first < 6.1) }"
check "learns: last training loss $last < 1.3" awk "BEGIN { exit !($last < 1.3) }"
check "learns: validation loss $val < 1.3" awk "BEGIN { exit !($val < 1.3) }"
check "learns: 150 training lines" test "$(losses run/metrics.jsonl | wc -l)" -eq 150
check "learns: bits per byte are printed" grep -q 'bits per byte' console
for file in config.json machine.json metrics.jsonl samples.txt result.json tokenizer.json checkpoints/step_00000150/model.safetensors; do
    check "learns: the run folder has $file" test -s "run/$file"
done

expect_code "learns: the finished run shows its result again" 0 "$TRAIN" "$TINY" --set train_steps=150 --set steps_per_print=50 \
    --set eval.interval=50 --set checkpoint.save_interval=100 --out run
check "learns: ... with bits per byte" grep -q 'bits per byte' output
check "learns: ... and trains nothing" test "$(losses run/metrics.jsonl | wc -l)" -eq 150
expect_code "learns: generate" 0 "$TRAIN" generate run --prompt "the king" --tokens 20
expect_code "learns: eval" 0 "$TRAIN" eval run
expect_code "learns: ckpt verify" 0 "$TRAIN" ckpt verify run
expect_code "learns: the stored config is a config" 0 "$TRAIN" config check run/config.json
expect_code "learns: with dump_state and memory_breakdown" 0 "$TRAIN" "$TINY" --out told --set dump_state=true --set memory_breakdown=true
check "learns: dump_state prints every key with its origin" grep -q '"train_steps": .*tiny.json' output
check "learns: memory_breakdown tells what is resident" grep -q 'after a step: resident' output
finish

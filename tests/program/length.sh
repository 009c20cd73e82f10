#!/usr/bin/env bash
# length.sh -- tests the length of a run in tokens, and its limit in time: a run that is stopped by max_time after every step,
# and goes on on another grid each time, is the uninterrupted one.
# shellcheck source-path=SCRIPTDIR
source "$(dirname "$0")/lib.sh"

make_text
# A step has 16 x 32 = 512 tokens on every grid, so 2000 tokens are 4 steps.
options=(--set train_steps=null --set train_tokens=2000 --set train_batch_size=16 --set train_micro_batch_size_per_gpu=4
    --set gradient_accumulation_steps=null --set fp64.enabled=true --set scheduler.params.warmup_num_steps=2
    --set eval.interval=2 --set eval.sample_interval=0)
expect_code "length: a run by tokens succeeds" 0 "$TRAIN" "$TINY" "${options[@]}" --out whole
check "length: it has the steps of its tokens" grep -q '^done    4 steps, 2,048 tokens' output
check "length: the schedule sees these steps" \
    test "$("$TRAIN" config show whole/config.json | sed -nE 's|^ *// "total_num_steps": ([0-9]+), .*|\1|p')" = 4
step=0
for grid in "1" "2" "2 --set parallel.tensor=2" "4 --set parallel.tensor=2 --set parallel.pipeline=2"; do
    read -ra on <<<"--ranks $grid"
    step=$((step + 1))
    expect_code "length: max_time stops step $step (--ranks $grid)" 85 "$TRAIN" "$TINY" "${options[@]}" --set max_time=1e-6 \
        "${on[@]}" --out timed
    check "length: the end says so (--ranks $grid)" grep -qE "^stopped after (step|the last step,) $step \(max_time: 1e-06 s\); " output
    check "length: step $step is saved (--ranks $grid)" test "$(checkpoint_steps timed | tail -n 1)" = $step
done
check "length: metrics.jsonl says so" grep -q '"event": "end", .*"text": "max_time reached"' timed/metrics.jsonl
expect_code "length: after its last step max_time does not stop the run again" 0 "$TRAIN" "$TINY" "${options[@]}" \
    --set max_time=1e-6 --out timed
steps=4
alike "length: the stopped run has the losses of the whole one" whole timed
expect_code "length: a run within max_time ends as usual" 0 "$TRAIN" "$TINY" "${options[@]}" --set max_time=3600 --out within
finish

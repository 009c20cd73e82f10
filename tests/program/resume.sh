#!/usr/bin/env bash
# resume.sh -- tests that a stopped and resumed run ends with the losses, weights and optimizer state of an uninterrupted
# run, bit for bit, in every dtype, and how damaged checkpoints and torn lines of metrics are handled.
. "$(dirname "$0")/lib.sh"
make_text
child='' code=''
set -m

common=(--set eval.interval=0 --set eval.sample_interval=0 --set train_steps=60 --set checkpoint.keep=0 --set data.seq_length=8
    --set train_micro_batch_size_per_gpu=2)
for dtype in f32 bf16 fp16 fp64; do
    case $dtype in
    f32) options=() ;;
    fp16) options=(--set fp16.enabled=true --set fp16.initial_scale_power=40 --set fp16.loss_scale_window=8 --set fp16.hysteresis=1) ;;
    *) options=(--set "$dtype.enabled=true") ;;
    esac
    options+=("${common[@]}")
    expect_code "resume: a whole run in $dtype succeeds" 0 "$TRAIN" "$TINY" "${options[@]}" --out whole-$dtype
    # Resumes from checkpoints of several steps, in copies of the run that are cut off at that step.
    for step in 10 30 50; do
        mkdir cut-$dtype-$step
        cp -r whole-$dtype/config.json whole-$dtype/metrics.jsonl whole-$dtype/tokenizer.json cut-$dtype-$step/
        mkdir cut-$dtype-$step/checkpoints
        cp -r whole-$dtype/checkpoints/step_000000$step cut-$dtype-$step/checkpoints/
        printf '{"event": "train", "step": 5' >>cut-$dtype-$step/metrics.jsonl
        expect_code "resume: a run in $dtype resumes from step $step" 0 "$TRAIN" "$TINY" "${options[@]}" --out cut-$dtype-$step
        same_run "resume: a run in $dtype resumed from step $step has the same bits" whole-$dtype cut-$dtype-$step
    done
    held 7 stopped-$dtype "${options[@]}"
    kill -TERM "$child"
    let_go
    if [ "$code" -ne 85 ]; then not_ok "resume: $dtype stopped: exit code $code, not 85"; continue; fi
    expect_code "resume: a stopped run in $dtype resumes" 0 "$TRAIN" "$TINY" "${options[@]}" --out stopped-$dtype
    same_run "resume: a stopped run in $dtype has the same bits" whole-$dtype stopped-$dtype
done
# The recomputation policy may change whenever a run is resumed, without changing a bit of the results.
for policy in selective full; do
    options=("${common[@]}" --set "activation_checkpointing.policy=$policy")
    expect_code "resume: a whole run with $policy recompute succeeds" 0 "$TRAIN" "$TINY" "${options[@]}" --out whole-$policy
    same_run "resume: $policy recompute has the same bits as policy none" whole-f32 whole-$policy
    mkdir -p mixed-$policy/checkpoints
    cp -r whole-f32/config.json whole-f32/metrics.jsonl whole-f32/tokenizer.json mixed-$policy/
    cp -r whole-f32/checkpoints/step_00000030 mixed-$policy/checkpoints/
    expect_code "resume: a run changes from no to $policy recompute" 0 "$TRAIN" "$TINY" "${options[@]}" --out mixed-$policy
    check "resume: a change to $policy recompute is printed" \
        grep -q 'activation_checkpointing.policy was "none", is "'$policy'"' output
    same_run "resume: a change to $policy recompute keeps the bits" whole-f32 mixed-$policy
done

check "resume: the fp16 run skips steps" grep -q '"applied": false' whole-fp16/metrics.jsonl

# Damage in the newest checkpoint is reported, and the run resumes from the one before it.
cp -r whole-f32 damaged
rm damaged/result.json
file=damaged/checkpoints/step_00000060/model.safetensors
printf '\x55' | dd of=$file bs=1 seek=$(($(stat -c %s $file) - 100)) conv=notrunc status=none
expect_code "resume: a run with a damaged last checkpoint resumes" 0 "$TRAIN" "$TINY" "${common[@]}" --out damaged
check "resume: the damaged checkpoint is named" grep -q 'step_00000060' output
check "resume: a run resumes from the checkpoint before the damaged one" grep -qE 'step 50 ' output
same_run "resume: the run after a damaged checkpoint has the same bits" whole-f32 damaged
for step in damaged/checkpoints/step_*; do
    printf '\x55' | dd of="$step/model.safetensors" bs=1 seek=5000 conv=notrunc status=none
    printf '\xaa' | dd of="$step/optimizer.safetensors" bs=1 seek=5000 conv=notrunc status=none
done
rm damaged/result.json
expect_code "resume: a run whose checkpoints are all damaged exits with code 65" 65 "$TRAIN" "$TINY" "${common[@]}" --out damaged
finish

#!/usr/bin/env bash
# cuda.sh -- a run on the CUDA device beside the same run on the CPU: the losses follow the CPU's, a rerun and a resumed run
# have the same bits, recomputing changes none, 16-bit types learn. On a GPU, or emulated where the program is built so.
# STEPS: length of the run (default 16, what the emulation does in seconds).
. "$(dirname "$0")/lib.sh"
make_text

steps=${STEPS:-16}
half=$((steps / 2))
if ! "$TRAIN" doctor | grep -q '^ok .*cuda '; then
    skip "cuda: runs on a GPU" "$("$TRAIN" doctor | grep -m 1 cuda | sed 's/  */ /g')"
    finish
fi

common=(--set eval.interval=0 --set eval.sample_interval=0 --set "train_steps=$steps" --set checkpoint.keep=0
    --set "checkpoint.save_interval=$half")

# run NAME OPTION...: to its end in folder NAME
run() {
    local name=$1
    shift
    expect_code "cuda: $name" 0 "$TRAIN" "$TINY" "${common[@]}" "$@" --out "$name"
}

# follows NAME A B BOUND: the losses of all steps differ by at most BOUND, relative
follows() {
    paste <(losses "$2/metrics.jsonl" | sed -E 's/.*"loss": ([0-9.e+-]+).*/\1/') \
        <(losses "$3/metrics.jsonl" | sed -E 's/.*"loss": ([0-9.e+-]+).*/\1/') |
        awk -v bound="$4" -v steps="$steps" '
            { d = ($1 - $2) / $2; if (d < 0) d = -d; if (d > worst) { worst = d; at = NR } n++ }
            END { printf "worst %.3g at step %d of %d\n", worst, at, n; exit !(n == steps && worst <= bound) }' >worst
    local code=$?
    if [ $code -eq 0 ]; then ok "$1 ($(cat worst))"; else not_ok "$1: $(cat worst), allowed $4"; fi
}

run cpu --set device=cpu
run f32 --set device=cuda
# Two f32 programs that add in other orders part by rounding only; over a long run that grows slowly.
follows "cuda: f32 losses follow the CPU's" f32 cpu "${BOUND:-1e-6}"
run again --set device=cuda
same_run "cuda: a rerun has the same bits" f32 again
run third --set device=cuda
same_run "cuda: and a third" f32 third

mkdir -p cut/checkpoints
cp -r f32/config.json f32/metrics.jsonl f32/tokenizer.json cut/
cp -r "$(printf 'f32/checkpoints/step_%08d' "$half")" cut/checkpoints/
run cut --set device=cuda
same_run "cuda: a resumed run has the same bits" f32 cut

for policy in selective full; do
    run "$policy" --set device=cuda --set activation_checkpointing.policy=$policy
    same_run "cuda: $policy recompute, the bits of none" f32 "$policy"
done
for dtype in bf16 fp16; do
    options=(--set "$dtype.enabled=true")
    [ $dtype = bf16 ] || options+=(--set fp16.initial_scale_power=24 --set fp16.loss_scale_window=4 --set fp16.hysteresis=1)
    run "cpu-$dtype" --set device=cpu "${options[@]}"
    run "$dtype" --set device=cuda "${options[@]}"
    # Activations of 8 or 11 bits: one other rounding moves a loss by about 1e-3.
    follows "cuda: $dtype losses follow the CPU's" "$dtype" "cpu-$dtype" "${BOUND16:-2e-3}"
    run "$dtype-again" --set device=cuda "${options[@]}"
    same_run "cuda: $dtype, a rerun has the same bits" "$dtype" "$dtype-again"
done
# A run may move from one device to the other.
mkdir -p moved/checkpoints
cp -r cpu/config.json cpu/metrics.jsonl cpu/tokenizer.json moved/
cp -r "$(printf 'cpu/checkpoints/step_%08d' "$half")" moved/checkpoints/
run moved --set device=cuda
follows "cuda: a run that moves from the CPU to the GPU" moved cpu "${BOUND:-1e-6}"
expect_code "cuda: generate" 0 "$TRAIN" generate f32 --prompt "the king" --tokens 8 --set device=cuda
expect_code "cuda: eval" 0 "$TRAIN" eval f32 --set device=cuda
finish

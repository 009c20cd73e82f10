#!/usr/bin/env bash
# bench_plan.sh -- compares what `./train plan` predicts for this machine with what `./train bench parallel` measures on it.
# First `./train bench machine` measures the machine file; it measures no training step. The machine must be idle meanwhile.
#
#   scripts/bench_plan.sh [--ranks N] [--batch N] [--length N] [--rounds N] [--machine FILE]
#
# --machine: a machine file from an earlier call, instead of measuring one. Each row is a way to train GPT-2 124M in f32 on CPUs.
# The exit code is 1 if a prediction differs from the measurement by more than 15 %.
set -u
cd "$(dirname "$0")/.." || exit 71
ranks=2 batch=8 length=256 rounds=3 machine=''
while [ $# -gt 1 ]; do
    case $1 in
    --ranks) ranks=$2 ;;
    --batch) batch=$2 ;;
    --length) length=$2 ;;
    --rounds) rounds=$2 ;;
    --machine) machine=$2 ;;
    *) break ;;
    esac
    shift 2
done
[ $# -eq 0 ] || { echo "bench_plan.sh: unknown option $1"; exit 64; }
train=${TRAIN:-./train}
folder=$(mktemp -d) || exit 71
trap 'rm -rf "$folder"' EXIT
if [ -z "$machine" ]; then
    machine=$folder/machine.json
    "$train" bench machine --device cpu --ranks "$ranks" --disk "$folder" >"$machine" || exit
fi
"$train" bench parallel --ranks "$ranks" --batch "$batch" --length "$length" --rounds "$rounds" --set device=cpu --json \
    >"$folder/measured" || exit

# number KEY FILE: prints the number of a key in a JSON text
number() { sed -nE "s/.*\"$1\": ?([0-9.e+-]+).*/\1/p" "$2" | head -n 1; }

# way NAME KEY DATA TENSOR PIPELINE STAGE SEQUENCE: predicts one way and prints its row
worst=0
way() {
    local ranks_of_way=$(($3 * $4 * $5)) micros=1 measured predicted error
    measured=$(number "$2_ms" "$folder/measured")
    [ -n "$measured" ] || { printf '%-12s the ranks do not divide the model so\n' "$1"; return; }
    if [ "$5" -gt 1 ]; then
        micros=$((4 * ranks))
        while [ $((batch % micros)) -ne 0 ]; do micros=$((micros - ranks)); done
    fi
    "$train" plan configs/gpt2_124m.json --machine "$machine" --world $ranks_of_way --json --set device=cpu \
        --set bf16.enabled=false --set data.seq_length="$length" --set train_batch_size="$batch" \
        --set train_micro_batch_size_per_gpu=$((batch / micros / $3)) --set gradient_accumulation_steps=$micros \
        --set parallel.data="$3" --set parallel.tensor="$4" --set parallel.pipeline="$5" --set zero_optimization.stage="$6" \
        --set parallel.sequence_parallel="$7" >"$folder/plan" || exit
    predicted=$(awk -v s="$(number step_seconds "$folder/plan")" 'BEGIN { printf "%.1f", 1000 * s }')
    error=$(awk -v p="$predicted" -v m="$measured" 'BEGIN { printf "%+.1f", 100 * (p / m - 1) }')
    worst=$(awk -v e="$error" -v w="$worst" 'BEGIN { e = e < 0 ? -e : e; print (e > w ? e : w) }')
    printf '%-12s %12s %12.1f %8s %%\n' "$1" "$predicted" "$measured" "$error"
}

printf '%-12s %12s %12s %10s\n' way 'predicted ms' 'measured ms' error
way 'one rank' one 1 1 1 0 false
way DDP ddp "$ranks" 1 1 0 false
way ZeRO-1 zero1 "$ranks" 1 1 1 false
way ZeRO-3 zero3 "$ranks" 1 1 3 false
way tensor tensor 1 "$ranks" 1 0 false
way 'tensor + SP' tensor_sp 1 "$ranks" 1 0 true
way pipeline pipeline 1 1 "$ranks" 0 false
echo "worst: $worst %"
awk -v w="$worst" 'BEGIN { exit w > 15 }'

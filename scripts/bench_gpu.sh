#!/usr/bin/env bash
# bench_gpu.sh -- measures the program's speed on a machine with one GPU: `bench step` and `bench ops` of GPT-2 124M in bf16 at
# 64 x 1024 tokens, or fewer sequences if memory is too small, and PyTorch's step on the same GPU if torch is installed. The
# result is one Markdown table.
#
#   scripts/bench_gpu.sh [FILE]        writes the table to FILE (default out/bench/gpu.md) and prints it
#
# PYTHON: the interpreter that has torch (default python3). Exit codes: 0 success, 1 a measurement failed, 69 no nvcc or no GPU.
# BENCH_TRAIN=PROGRAM: measures that program instead of building one (for tests of this script).
set -u
cd "$(dirname "$0")/.." || exit 71
. scripts/cuda_lib.sh
case ${1:-} in
--help | -h) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "scripts/${0##*/}"; exit 0 ;;
-*) echo "bench_gpu: unknown option $1 (see --help)" >&2; exit 64 ;;
esac
file=${1:-out/bench/gpu.md}
config=configs/gpt2_124m.json length=1024

no_gpu() {
    echo "bench_gpu: $1; nothing was measured" >&2
    exit 69
}
train=${BENCH_TRAIN:-build/gpu/train}
if [ -z "${BENCH_TRAIN:-}" ]; then
    nvcc=$(find_nvcc) || no_gpu "there is no nvcc here (PATH, CUDA_HOME)"
    has_gpu || no_gpu "there is no GPU here"
    LD_LIBRARY_PATH=$(cuda_library_path "${nvcc%/bin/nvcc}")
    export LD_LIBRARY_PATH
    make -s -j "$(nproc)" CUDA=1 BUILD=build/gpu build/gpu/train || exit 1
fi
device=$("$train" doctor | sed -n 's/^ok  *cuda  *cuda: //p')
[ -n "$device" ] || no_gpu "$("$train" doctor | sed -n 's/^.. *cuda *//p')"
mkdir -p "$(dirname "$file")" || exit 73
scratch=$(mktemp -d) || exit 71
trap 'rm -rf "$scratch"' EXIT
bad=0

# step BATCH: measures a step with that many sequences and stores its JSON output
step() {
    "$train" bench step "$config" --set device=cuda --set bf16.enabled=true --set "data.seq_length=$length" \
        --set "train_micro_batch_size_per_gpu=$1" --json >"$scratch/step" </dev/null
}
# value KEY [FACTOR]: prints a number of the step's JSON output, times FACTOR, with one decimal
value() { sed -nE "s/.*\"$1\":([0-9.e+-]+).*/\1/p" "$scratch/step" | awk -v f="${2:-1}" '{ printf "%.1f", $1 * f }'; }

step_rows() {
    echo "| step, $batch x $length tokens, bf16 | $(value ms) ms | $(value tokens_per_s) tokens/s, $(value gflops 0.001) TFLOP/s | $(value share 100) % of its products' rate |"
    for phase in forward backward update; do echo "| $phase | $(value ${phase}_ms) ms | | |"; done
    echo "| its products, replayed | $(value products_ms) ms | $(value products_gflops 0.001) TFLOP/s | |"
    echo "| attention | | | $(value attention_share 100) % of its products' rate |"
    echo "| optimizer | $(value optimizer_ms) ms | | copies of as many bytes take $(value loop_ms) ms |"
    echo "| the model's operations, causal attention once (6) and as a square (12) | | $(value gflops 0.001), $(value gflops12 0.001) TFLOP/s | $(utilisation) |"
    echo "| idle: the step less all its ops | $(awk -v a="$(value ms)" -v b="$(value ops_ms)" 'BEGIN { printf "%.1f", a - b }') ms | | |"
    echo "| memory of weights, gradients, optimizer, activations | $(value memory_mib) MiB | | |"
    grep -oE '"op_[a-z_]+_ms":[0-9.e+-]+' "$scratch/step" | sed -E 's/"op_(.*)_ms":(.*)/| in the step: \1 | \2 ms | | |/'
}
# peak: prints the dense bf16 TFLOP/s that the manufacturer states for this GPU; nothing if the GPU is not listed here
peak() {
    case $device in
    *H200* | *"H100 80GB HBM3"*) echo 989.4 ;;
    *A100*) echo 312 ;;
    esac
}
utilisation() {
    local of
    of=$(peak)
    [ -z "$of" ] || awk -v a="$(value gflops 0.001)" -v b="$(value gflops12 0.001)" -v p="$of" \
        'BEGIN { printf "MFU6 %.1f %%, MFU12 %.1f %% of %s TFLOP/s", 100 * a / p, 100 * b / p, p }'
}
# ops_rows: converts the output of `bench ops` to table rows; its columns after the name are separated by spaces
ops_rows() {
    sed -nE 's/^ceilings: copy loop ([0-9.]+ GB\/s); (.*) ([0-9.]+ GFLOP\/s)$/| copy | | \1 | ceiling |\n| \2 | | \3 | ceiling |/p' "$scratch/ops"
    sed -nE 's/^(.*[^ ]) +([0-9.]+) +([0-9.]+) +([0-9.]+) +([0-9.]+) +([0-9.]+)$/| \1 | \2 ms | \4 GB\/s, \5 GFLOP\/s | \6 % |/p' "$scratch/ops"
}

batch=64
until step $batch; do
    [ $? -eq 90 ] && [ $batch -gt 1 ] || { echo "bench_gpu: no step could be measured" >&2; bad=1 batch=0; break; }
    batch=$((batch / 2)) # exit code 90: the GPU's memory is too small
done
"$train" bench ops --device cuda --dtype bf16 --tokens $((64 * length)) >"$scratch/ops" </dev/null || bad=1
if "${PYTHON:-python3}" -c 'import torch' 2>/dev/null; then
    "${PYTHON:-python3}" tests/probe/pytorch_step.py >"$scratch/pytorch" </dev/null || bad=1
fi
{
    echo "$device; driver $(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1 || true);" \
        "$(date -u +%Y-%m-%d); $("$train" --version | head -n 1)"
    echo
    echo "| what | time | rate | of the ceiling |"
    echo "|---|---|---|---|"
    [ $batch -eq 0 ] || step_rows
    ops_rows
    if [ -f "$scratch/pytorch" ]; then
        sed -nE 's/^([^ ]+) = ([0-9.e+-]+) ?(.*)$/| PyTorch: \1 | | \2 \3 | |/p' "$scratch/pytorch"
    else
        echo "| PyTorch | not installed | | |"
    fi
} | tee "$file"
exit $bad

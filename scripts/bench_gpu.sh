#!/usr/bin/env bash
# bench_gpu.sh -- measures the program's speed on a machine with one GPU: `bench step` of GPT-2 124M in bf16 at 64 x 1024 tokens
# and of GPT-2 1558M at 8 x 1024 tokens with selective recomputation, or fewer sequences if memory is too small; `bench ops`; and
# PyTorch's step of GPT-2 124M on the same GPU if torch is installed. The result is one Markdown table.
#
#   scripts/bench_gpu.sh [FILE]        writes the table to FILE (default out/bench/gpu.md) and prints it
#   scripts/bench_gpu.sh --out DIR     writes it to DIR/bench_gpu.md, and what the measurements printed to DIR/bench_gpu.tar.gz
#
# Each measurement is stopped after its limit: 60 seconds for a step and for the ops, 100 for PyTorch, which measures for 60.
# PYTHON: the interpreter that has torch (default python3). Exit codes: 0 success, 1 a measurement failed, 69 no nvcc or no GPU.
# BENCH_TRAIN=PROGRAM: measures that program instead of building one; BENCH_LIMIT: the limit of every measurement in seconds
# (these are for tests of this script).
set -u
here=$PWD
cd "$(dirname "$0")/.." || exit 71
. scripts/cuda_lib.sh
keep_in=''
case ${1:-} in
--help | -h) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "scripts/${0##*/}"; exit 0 ;;
--out)
    [ $# -ge 2 ] || { echo "bench_gpu: --out needs a folder" >&2; exit 64; }
    keep_in=$(cd "$here" && realpath -m -- "$2")
    ;;
-*) echo "bench_gpu: unknown option $1 (see --help)" >&2; exit 64 ;;
esac
file=${keep_in:+$keep_in/bench_gpu.md} file=${file:-${1:-out/bench/gpu.md}}
length=1024

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

# measure NAME LIMIT COMMAND...: runs a measurement within its limit in seconds; stores its output and its messages. Returns its
# exit code, and notes why there is no result
measure() {
    local name=$1 limit=${BENCH_LIMIT:-$2} code
    shift 2
    timeout -k 5 "$limit" "$@" >"$scratch/$name" 2>"$scratch/$name.err" </dev/null
    code=$?
    cat "$scratch/$name.err" >&2
    case $code in
    0) ;;
    124 | 137) echo "stopped after $limit s" >"$scratch/$name.failed" ;;
    *) echo "exit code $code: $(tail -n 1 "$scratch/$name.err")" >"$scratch/$name.failed" ;;
    esac
    return $code
}
# steps NAME CONFIG BATCH SETTING...: measures a step with BATCH sequences, or a half, a quarter, ... of them if the GPU's memory
# is too small for more (exit code 90), and stores the JSON output as NAME. $batch is the number of sequences
steps() {
    local name=$1 config=$2 key code
    local -a sets=()
    batch=$3
    for key in "${@:4}"; do sets+=(--set "$key"); done
    while true; do
        measure "$name" 60 "$train" bench step "$config" --set device=cuda --set bf16.enabled=true --set "data.seq_length=$length" \
            "${sets[@]}" --set "train_micro_batch_size_per_gpu=$batch" --json
        code=$?
        [ $code -eq 90 ] && [ "$batch" -gt 1 ] || return $code
        rm "$scratch/$name.failed"
        batch=$((batch / 2))
    done
}
# value KEY [FACTOR]: prints a number of the JSON output $step, times FACTOR, with one decimal
value() { sed -nE "s/.*\"$1\":([0-9.e+-]+).*/\1/p" "$scratch/$step" | awk -v f="${2:-1}" '{ printf "%.1f", $1 * f }'; }

# step_rows NAME WHAT: prints the rows of a measured step, or why there are none
step_rows() {
    local step=$1
    if [ -f "$scratch/$step.failed" ]; then
        echo "| step of $2 | $(cat "$scratch/$step.failed") | | |"
        return
    fi
    echo "| step of $2, bf16 | $(value ms) ms | $(value tokens_per_s) tokens/s, $(value gflops 0.001) TFLOP/s | $(value share 100) % of its products' rate |"
    for phase in forward backward update; do echo "| $phase | $(value ${phase}_ms) ms | | |"; done
    echo "| its products, replayed | $(value products_ms) ms | $(value products_gflops 0.001) TFLOP/s | |"
    echo "| attention | | | $(value attention_share 100) % of its products' rate |"
    echo "| optimizer | $(value optimizer_ms) ms | | copies of as many bytes take $(value loop_ms) ms |"
    echo "| the model's operations, causal attention once (6) and as a square (12) | | $(value gflops 0.001), $(value gflops12 0.001) TFLOP/s | $(utilisation) |"
    echo "| idle: the step less all its ops | $(awk -v a="$(value ms)" -v b="$(value ops_ms)" 'BEGIN { printf "%.1f", a - b }') ms | | |"
    echo "| memory of weights, gradients, optimizer, activations | $(value memory_mib) MiB | | |"
    grep -oE '"op_[a-z_]+_ms":[0-9.e+-]+' "$scratch/$step" | sed -E 's/"op_(.*)_ms":(.*)/| in the step: \1 | \2 ms | | |/'
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

steps gpt2_124m configs/gpt2_124m.json 64 || bad=1
small=$batch
steps gpt2_1558m configs/gpt2_1558m.json 8 activation_checkpointing.policy=selective || bad=1
measure ops 60 "$train" bench ops --device cuda --dtype bf16 --tokens $((64 * length)) || bad=1
if "${PYTHON:-python3}" -c 'import torch' 2>/dev/null; then
    measure pytorch 100 "${PYTHON:-python3}" tests/probe/pytorch_step.py --seconds 60 || bad=1
fi
{
    echo "$device; driver $(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1 || true);" \
        "$(date -u +%Y-%m-%d); $("$train" --version | head -n 1)"
    echo
    echo "| what | time | rate | of the ceiling |"
    echo "|---|---|---|---|"
    step_rows gpt2_124m "GPT-2 124M, $small x $length tokens"
    step_rows gpt2_1558m "GPT-2 1558M, $batch x $length tokens, selective recomputation"
    ops_rows
    [ ! -f "$scratch/ops.failed" ] || echo "| the ops | $(cat "$scratch/ops.failed") | | |"
    if [ -f "$scratch/pytorch" ]; then
        sed -nE 's/^([^ ]+) = ([0-9.e+-]+) ?(.*)$/| PyTorch: \1 | | \2 \3 | |/p' "$scratch/pytorch"
        [ ! -f "$scratch/pytorch.failed" ] || echo "| PyTorch | $(cat "$scratch/pytorch.failed") | | |"
    else
        echo "| PyTorch | not installed | | |"
    fi
} | tee "$file"
[ -z "$keep_in" ] || tar -C "$scratch" -czf "$keep_in/bench_gpu.tar.gz" . || exit 73
exit $bad

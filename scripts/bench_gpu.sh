#!/usr/bin/env bash
# bench_gpu.sh -- measures the program's speed on a machine with one GPU: `bench step` of GPT-2 124M in bf16 at 64 x 1024 tokens
# and of GPT-2 1558M at 8 x 1024 tokens with selective recomputation, or fewer sequences if memory is too small; `bench ops`; and
# PyTorch's step of GPT-2 124M on the same GPU if torch is installed. The result is one Markdown table.
#
#   scripts/bench_gpu.sh [FILE]        writes the table to FILE (default out/bench/gpu.md) and prints it
#   scripts/bench_gpu.sh --out DIR     writes it to DIR/bench_gpu.md, and what the measurements printed to DIR/bench_gpu.tar.gz
#   scripts/bench_gpu.sh --choices ... measures instead what the program chooses by itself on a GPU: steps of GPT-2 124M with
#                                      several chunks of the head, with GELU in the product and after it, of few sequences, and
#                                      with attention for Hopper where the program has it;
#                                      the table is out/bench/gpu_choices.md, FILE or DIR/bench_choices.md
#
# Each measurement is stopped after its limit: 60 seconds for a step and for the ops, 30 with --choices, 100 for PyTorch, which
# measures for 60.
# PYTHON: the interpreter that has torch (default python3). Exit codes: 0 success, 1 a measurement failed, 69 no nvcc or no GPU.
# BENCH_TRAIN=PROGRAM: measures that program instead of building one; BENCH_LIMIT: the limit of every measurement in seconds
# (these are for tests of this script).
set -u
here=$PWD
cd "$(dirname "$0")/.." || exit 71
. scripts/cuda_lib.sh
keep_in='' named=bench_gpu limit=60 usual=out/bench/gpu.md
if [ "${1:-}" = --choices ]; then
    named=bench_choices limit=30 usual=out/bench/gpu_choices.md
    shift
fi
case ${1:-} in
--help | -h) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "scripts/${0##*/}"; exit 0 ;;
--out)
    [ $# -ge 2 ] || { echo "bench_gpu: --out needs a folder" >&2; exit 64; }
    keep_in=$(cd "$here" && realpath -m -- "$2")
    shift
    ;;
-*) echo "bench_gpu: unknown option $1 (see --help)" >&2; exit 64 ;;
esac
[ $# -le 1 ] || { echo "bench_gpu: $2: one word too many (see --help)" >&2; exit 64; }
file=${keep_in:+$keep_in/$named.md} file=${file:-${1:-$usual}}
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
        measure "$name" $limit "$train" bench step "$config" --set device=cuda --set bf16.enabled=true --set "data.seq_length=$length" \
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
# peak: prints the dense bf16 TFLOP/s that the manufacturer states for this GPU, from its machine file; nothing if it has none
peak() {
    local machine
    machine=$(grep -lxF "  \"gpu\": \"${device%% (sm_*}\"," configs/machines/*.json) || return 0
    sed -nE 's/^  "peak_bf16": ([0-9.]+)e12,$/\1/p' "$machine"
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

# header: prints the lines above the rows
header() {
    echo "$device; driver $(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1 || true);" \
        "$(date -u +%Y-%m-%d); $("$train" --version | head -n 1)"
    echo
    echo "| $1 | $2 | $3 | $4 |"
    echo "|---|---|---|---|"
}
# keep NAME: with --out, keeps what the measurements printed as NAME.tar.gz
keep() { [ -z "$keep_in" ] || tar -C "$scratch" -czf "$keep_in/$1.tar.gz" . || exit 73; }

# choice NAME WHAT BATCH SETTING...: measures a step of GPT-2 124M and prints its row
choice() {
    local step=$1 what=$2
    steps "$1" configs/gpt2_124m.json "$3" "${@:4}" || bad=1
    if [ -f "$scratch/$step.failed" ]; then
        echo "| $what | $(cat "$scratch/$step.failed") | | |"
    else
        echo "| $what, $batch sequences | $(value ms) ms | $(value tokens_per_s) tokens/s | $(awk -v a="$(value ms)" -v b="$(value ops_ms)" 'BEGIN { printf "%.1f", a - b }') ms |"
    fi
}
if [ $named = bench_choices ]; then
    gelu=model.fused_gelu chunk=model.head_chunk_rows
    {
        header "GPT-2 124M, bf16, $length tokens" step rate "idle: the step less all its ops"
        choice chunk_16384 "chunks of 16,384 rows, GELU in the product" 64 $chunk=16384 $gelu=true
        choice chunk_4096 "chunks of 4,096 rows" 64 $chunk=4096 $gelu=true
        choice chunk_1311 "chunks of 1,311 rows" 64 $chunk=1311 $gelu=true
        choice gelu_after "GELU after the product" 64 $chunk=16384 $gelu=false
        choice few "few sequences" 4 $chunk=16384 $gelu=true
        if "$train" doctor | grep -q '^ok  *attention .*portable and hopper'; then
            choice hopper "attention for Hopper" 64 $chunk=16384 $gelu=true cuda.attention=hopper
        fi
    } >"$scratch/table"
    tee "$file" <"$scratch/table"
    keep $named
    exit $bad
fi

steps gpt2_124m configs/gpt2_124m.json 64 || bad=1
small=$batch
steps gpt2_1558m configs/gpt2_1558m.json 8 activation_checkpointing.policy=selective || bad=1
measure ops 60 "$train" bench ops --device cuda --dtype bf16 --tokens $((64 * length)) || bad=1
if "${PYTHON:-python3}" -c 'import torch' 2>/dev/null; then
    measure pytorch 100 "${PYTHON:-python3}" tests/probe/pytorch_step.py --seconds 60 || bad=1
fi
{
    header what time rate "of the ceiling"
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
keep $named
exit $bad

#!/usr/bin/env bash
# reserve.sh -- tests NCCL's memory in the plan of a run whose ranks have a GPU each: an estimate for each communicator,
# which the measured amount replaces, and a warning if the estimate was too small. Ranks that share a GPU have no such part
# in their plan. Runs on the emulated device, where the emulated NCCL allocates as much as the test asks for.
. "$(dirname "$0")/lib.sh"

if ! "$TRAIN" doctor | grep -q '^ok .*cuda .*emulated'; then
    skip "reserve: the plan of ranks with a GPU each" "the program is not built for the emulated device"
    finish
fi
make_text
head -c 20000 text.txt >short.txt

# planned NAME DEVICES RANKS MIB OPTION...: expects that a dry run succeeds; writes its output to "said", with repeated
# blanks as one
planned() {
    local name=$1 devices=$2 ranks=$3 mib=$4
    shift 4
    expect_code "reserve: a dry run with $name succeeds" 0 \
        env EMU_DEVICES="$devices" EMU_NCCL_RESERVE=$((mib << 20)) "$TRAIN" "$TINY" --dry-run --ranks "$ranks" \
        --set device=cuda --set data.text=short.txt --set train_batch_size=4 --set train_micro_batch_size_per_gpu=1 \
        --set gradient_accumulation_steps=null --set model.tie_word_embeddings=true --set eval.interval=0 --set eval.sample_interval=0 \
        --set memory_breakdown=true "$@"
    tr -s ' \n' ' ' <output >said
}
# told NAME WORDS, untold NAME WORDS: expects that the output of the run has, or does not have, these words
told() { check "reserve: $1" grep -qF -- "$2" said; }
untold() { check "reserve: $1" bash -c '! grep -qF -- "$1" said' told "$2"; }

planned "one NCCL communicator" 2 2 40
told "the estimate for one communicator is in the plan" " reserve 200.0; available"
check "reserve: the plan names the rank that it is for" grep -qE \
    'memory plan 20[0-9]\.[0-9] MiB on rank 0.s GPU: weights .*; available [0-9.]+ GiB of 8\.0 GiB there' said
told "the measured memory of NCCL is printed with its estimate" \
    "memory reserve: NCCL and the code of kernels take 40.0 MiB of rank 0's GPU, the most of any, plan 200.0 MiB"
told "the plan after the measurement is printed" "laid out: resident"
check "reserve: the plan without NCCL has 42 MiB and not 202" grep -qE \
    "laid out: resident [0-9.]+ MiB, peak [0-9.]+ MiB on the host in rank 0's process, plan 4[1-4]\.[0-9] MiB on rank 0's GPU" said
untold "a sufficient estimate gives no warning" "warning: NCCL"
planned "456 MiB for NCCL and kernels" 2 2 456
untold "456 MiB for NCCL and kernels give no warning" "warning: NCCL"
planned "457 MiB for NCCL and kernels" 2 2 457
told "457 MiB for NCCL and kernels give a warning" \
    "warning: NCCL and the code of kernels take 457.0 MiB of the memory of rank 0's GPU, and the plan had 200.0 MiB for NCCL and 256.0 MiB for code:"
planned "tensor and pipeline ranks and tied embeddings" 4 4 30 --set parallel.tensor=2 --set parallel.pipeline=2
told "the estimate for three communicators is in the plan" " reserve 552.0; available"
told "the measured memory of three communicators is printed" \
    "NCCL and the code of kernels take 90.0 MiB of rank 0's GPU, the most of any, plan 552.0 MiB"
planned "ranks that share a GPU" 1 2 40
untold "ranks that share a GPU have no memory reserved for NCCL" " reserve "
check "reserve: ranks that share a GPU have one plan" \
    grep -qE 'memory plan [0-9.]+ MiB for all 2 ranks: weights .* GiB of 8\.0 GiB on the GPU' said
check "reserve: ranks that share a GPU have one plan for the GPU's memory" \
    grep -qE 'MiB on the host, plan [0-9.]+ MiB on the GPU for all 2 ranks' said
EMU_DEVICES=2 EMU_MEMORY=500 expect_code "reserve: a GPU with room for all but NCCL ends with 90" 90 "$TRAIN" "$TINY" \
    --dry-run --ranks 2 --set device=cuda
check "reserve: a GPU with room for all but NCCL is refused with both sizes" \
    grep -qE "the plan needs 20[0-9]\.[0-9] MiB and .* of GPU [01]'s memory are available" output
check "reserve: the message says how NCCL needs less memory" \
    grep -qF ", or set NCCL_MAX_CTAS=8 in the environment: NCCL has 200.0 MiB of it" output
NCCL_MAX_CTAS=8 EMU_DEVICES=2 EMU_MEMORY=500 expect_code "reserve: the suggested NCCL_MAX_CTAS is enough" 0 "$TRAIN" "$TINY" \
    --dry-run --ranks 2 --set device=cuda
# Estimates with nine channels and with eight, where there is less memory than either needs.
NCCL_MAX_CTAS=9 EMU_DEVICES=2 EMU_MEMORY=440 expect_code "reserve: a smaller GPU with NCCL_MAX_CTAS=9 ends with 90" 90 \
    "$TRAIN" "$TINY" --dry-run --ranks 2 --set device=cuda
check "reserve: NCCL_MAX_CTAS=8 is suggested instead of 9" \
    grep -qF ", or set NCCL_MAX_CTAS=8 in the environment: NCCL has 116.0 MiB of it" output
NCCL_MAX_CTAS=8 EMU_DEVICES=2 EMU_MEMORY=440 expect_code "reserve: a smaller GPU with NCCL_MAX_CTAS=8 ends with 90" 90 \
    "$TRAIN" "$TINY" --dry-run --ranks 2 --set device=cuda
check "reserve: no smaller NCCL_MAX_CTAS than 8 is suggested" bash -c '! grep -qF NCCL_MAX_CTAS output'
# One GPU has less memory than the other and becomes full only after the plan, because NCCL allocates more than its
# estimate.
# full NAME MIB,MIB RESERVED PLACE PATTERN: NCCL allocates RESERVED MiB; expects one error message from the rank PLACE that
# matches
full() {
    expect_code "reserve: $1 exits with code 90" 90 env EMU_DEVICES=2 EMU_MEMORY="$2" EMU_NCCL_RESERVE=$(($3 << 20)) timeout 60 "$TRAIN" "$TINY" --dry-run \
        --ranks 2 --set device=cuda --set data.text=short.txt --set parallel.timeout=30
    check "reserve: $1 is reported with rank and cause" grep -Eq "^error\[90\] $4: $5\$" output
    check "reserve: $1 is reported once" test "$(grep -c '^error' output)" -eq 1
}
nccls='Failed to CUDA malloc [0-9]+ bytes; free some of the GPU.s memory, or set NCCL_MAX_CTAS=8 in the environment'
full "an NCCL that gets no memory on one GPU" \
    8192,1000 900 "rank 1 dp 1" "group dp, call 0, connect of ranks 0, 1: NCCL on rank 1 says: .*: $nccls"
full "an NCCL that gets no memory on the first GPU" \
    1000,8192 871 "rank 0 dp 0" "group dp, call 0, connect of ranks 0, 1: NCCL on rank 0 says: .*: $nccls"
EMU_DEVICES=2 EMU_MEMORY=8192,500 expect_code "reserve: a plan that fits only one of two GPUs ends with 90" 90 "$TRAIN" \
    "$TINY" --dry-run --ranks 2 --set device=cuda
check "reserve: the GPU that is too small is named without a rank" \
    grep -qE "^error\[90\] the plan needs 20[0-9]\.[0-9] MiB and .* of GPU 1's memory are available" output
finish

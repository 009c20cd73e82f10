#!/usr/bin/env bash
# nccl_bench.sh -- tests `./train bench comm`, `bench parallel` and `bench machine` on emulated GPUs: with one GPU that ranks
# share, where calls are compared with its memory bandwidth, and with one GPU for each rank, where calls go through NCCL.
. "$(dirname "$0")/lib.sh"
if ! EMU_DEVICES=2 "$TRAIN" doctor | grep -q 'emulated GPU'; then
    skip "nccl bench: two GPUs" "this is not the program of \`make CUDA=emu\`"
    finish
fi
# Calls of 64 MiB take the emulator most of the time of this script: every fourth commit makes them.
sizes=4
[ $((${TEST_TURN:-0} % 4)) -ne 0 ] || sizes=5
EMU_DEVICES=1 expect_code "nccl bench: bench comm runs with two ranks on one GPU" 0 "$TRAIN" bench comm --ranks 2 \
    --device cuda --repetitions 1 --sizes $sizes
check "nccl bench: bench comm prints that two ranks share a GPU" grep -q '^cuda: .*, shared by 2 ranks as threads' output
check "nccl bench: bench comm compares a shared GPU with its memory bandwidth" grep -qE '^verb .* % memory$' output
EMU_DEVICES=2 expect_code "nccl bench: bench comm runs with a GPU for each of two ranks" 0 "$TRAIN" bench comm --ranks 2 \
    --device cuda --repetitions 1 --sizes $sizes
check "nccl bench: bench comm prints that ranks use NCCL" \
    grep -q '^cuda: .* each, 2 ranks as processes, NCCL 2.28.9, f32' output
check "nccl bench: bench comm over NCCL prints six calls of each size without memory bandwidth" \
    test "$(grep -cE '^[a-z+ -]+ [0-9.]+ [KM]iB +[0-9.]+ +[0-9.]+$' output)" -eq $((6 * sizes)) -a \
    "$(grep -ci -e memory -e 'above 100' output)" -eq 0
EMU_DEVICES=2 expect_code "nccl bench: bench parallel runs with a GPU for each of two ranks" 0 "$TRAIN" bench parallel "$TINY" \
    --rounds 1 --length 16 --batch 4 --set device=cuda
check "nccl bench: bench parallel measures each way with several GPUs" \
    test "$(grep -cE '^[A-Za-z0-9+ -]+ [0-9.]+ +[0-9.]+ +[0-9.]+ %   cuda: ' output)" -eq 7
for gpus in 1 2; do
    EMU_DEVICES=$gpus expect_code "nccl bench: bench machine measures a machine with $gpus GPU(s)" 0 "$TRAIN" bench machine \
        --device cuda --size 1 --repetitions 1
    check "nccl bench: bench machine counts $gpus GPU(s)" grep -q "^  \"devices_per_node\": $gpus,\$" output
    check "nccl bench: bench machine gives $gpus GPU(s) as many network interfaces" grep -q "^  \"nics_per_node\": $gpus,\$" output
    check "nccl bench: bench machine names the GPU" grep -qx '  "gpu": "emulated GPU",' output
done
check "nccl bench: bench machine measures the calls between GPUs" grep -q '"inside_bandwidth": "measured by ' output
check "nccl bench: bench machine does not measure the limit of power" grep -q '"product_sustained": "assumed, ' output
# A GPU that has a preset.
export EMU_DEVICES=1 EMU_NAME="NVIDIA H100 80GB HBM3"
"$TRAIN" plan "$TINY" --world 1 --set device=auto >output 2>&1
check "nccl bench: plan takes the preset that names the GPU" grep -q '^machine *h100: ' output
EMU_NAME="NVIDIA H100 NVL" expect_code "nccl bench: plan takes none for a name that only begins like one" 69 "$TRAIN" plan "$TINY" --world 1
expect_code "nccl bench: bench machine measures a GPU that has a preset" 0 "$TRAIN" bench machine --device cuda --size 1 --repetitions 1
check "nccl bench: bench machine keeps the data sheet's peak" grep -qE '^  "peak_bf16": 9.894e\+?14,$' output
check "nccl bench: bench machine says so" grep -qF '"peak_bf16": "the data sheet'"'"'s, as in the preset h100"' output
check "nccl bench: bench machine says which numbers are at their limits" \
    grep -q '"product_most": "the limit of what is possible: .* was measured by ' output
finish

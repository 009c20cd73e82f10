#!/usr/bin/env bash
# gpu_check_grids.sh -- runs scripts/gpu_check.sh with the program of the emulated build: grids of ranks, which share one
# emulated device or have one each, are compared with one rank. The output must say that no GPU has run them. The test runs
# a copy of the script, so it does not overwrite the results of a real run.
. "$(dirname "$0")/lib.sh"

if ! "$TRAIN" doctor | grep -q '^ok .*cuda .*emulated'; then
    skip "gpu_check: grids on the emulated device" "the program is not built for it"
    finish
fi
# shellcheck disable=SC2154 # lib.sh sets it
root=$(realpath "$here/../..")
mkdir -p project/tests
cp -r "$root/scripts" project/
cp -r "$root/tests/program" project/tests/
export EMU_DEVICES=4 CHECK_TRAIN=$TRAIN CHECK_TESTS=$PWD/none
expect_code "gpu_check: three grids pass on the emulated device" 0 project/scripts/gpu_check.sh nccl.1.pp2 nccl.2.zero3 \
    nccl.4.tp2pp2
check "gpu_check: all three grids on the emulated device are counted" test "$(tail -n 1 output)" = \
    "4 passed, 0 failed, 0 skipped"
check "gpu_check: the lines of emulated grids say that no GPU has run them" \
    test "$(grep -c '^ok *nccl.*; an emulated device: no GPU has run this$' output)" -eq 3
check "gpu_check: two of the emulated grids use NCCL" test "$(grep -c "of one rank's; NCCL 2" output)" -eq 2
check "gpu_check: results of emulated grids are kept" grep -q '^ok *nccl.4.tp2pp2 ' project/build/gpu_check/results.md
finish

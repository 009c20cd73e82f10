#!/usr/bin/env bash
# gpu_check_grids.sh -- scripts/gpu_check.sh with the program of the emulated build: grids of ranks train on emulated devices, one
# that they share or one each, beside one rank; and the output says that no GPU has run them. In a copy, so that a real run's results
# stay.
. "$(dirname "$0")/lib.sh"

if ! "$TRAIN" doctor | grep -q '^ok .*cuda .*emulated'; then
    skip "gpu_check: grids on the emulated device" "the program is not built for it"
    finish
fi
# shellcheck disable=SC2154 # lib.sh says where
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

#!/usr/bin/env bash
# gpu_check_grids.sh -- runs scripts/gpu_check.sh with the program of the emulated build: NCCL on one device, and
# grids of ranks that share one emulated device or have one each, compared with one rank. The output must say that no GPU has
# run them. They must fail if NCCL gives a wrong result. The test runs a copy of the script, so it does not overwrite the
# results of a real run. Needs test_nccl_self of the emulated build.
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
self=${TRAIN%/*}/tests/cuda/test_nccl_self
expect_code "gpu_check: the test of NCCL on one GPU is built" 0 test -x "$self"
[ -x "$self" ] || finish
# Copies of the programs do not find the emulated NCCL beside them, but only as a Python package, as PyTorch installs it.
mkdir -p built/tests/cuda site/nvidia/nccl/lib
cp "$TRAIN" built/train
cp "$self" built/tests/cuda/
ln -s "${TRAIN%/*}/libnccl.so.2" site/nvidia/nccl/lib/
export CHECK_TRAIN=$PWD/built/train CHECK_TESTS=$PWD/built/tests PYTHONPATH=$PWD/site CUDA_HOME=/toolkit
EMU_DEVICES=4 EMU_NCCL_RESERVE=$((1 << 20)) EMU_NCCL_COMMS=$PWD/comms expect_code \
    "gpu_check: five items about NCCL and grids pass on the emulated device" 0 project/scripts/gpu_check.sh \
    nccl.self nccl.1.pp2 nccl.4.tp2pp2 nccl.hosts.2.zero3 nccl.hosts.4.tp2
check "gpu_check: all five items on the emulated device are counted" test "$(tail -n 1 output)" = "6 passed, 0 failed, 0 skipped"
check "gpu_check: the lines of emulated items say that no GPU has run them" \
    test "$(grep -c '^ok *nccl.*; an emulated device: no GPU has run this$' output)" -eq 5
check "gpu_check: three of the emulated grids use NCCL, two of them with processes" \
    test "$(grep -oE "of one rank's; (processes, )?NCCL 2" output | sort | uniq -c | awk '{ printf "%s ", $1 }')" = '1 2 '
check "gpu_check: results of emulated grids are kept" grep -q '^ok *nccl.4.tp2pp2 ' project/build/gpu_check/results.md
check "gpu_check: nccl.self reports the time and memory of three communicators, and the library of the Python package" grep -qE \
    "^ok *nccl.self .*3 communicators of one rank in [0-9.]+ s, 3 MiB; NCCL 2.28.9, $PWD/site/nvidia/nccl/lib/libnccl.so.2;" output
check "gpu_check: nccl.self configures its communicators as the program does" \
    test "$(grep ' of 1:' comms | paste -sd ,)" = 'dp of 1: at most 16 CTAs,tp of 1: at most 64 CTAs,pp of 1: at most 8 CTAs'
check "gpu_check: processes on one GPU leave most of it to each other" \
    test "$(grep -c 'dp of 2: at most 2 CTAs\|tp of 2: at most 2 CTAs' comms)" -eq 5

# ---- wrong results and errors of the emulated NCCL
EMU_NCCL_FAULT=0:AllReduce:20:wrong expect_code "gpu_check: a wrong sum of NCCL ends with 1" 1 project/scripts/gpu_check.sh \
    nccl.self nccl.hosts.2.ddp
check "gpu_check: nccl.self finds a wrong sum" grep -q '^ *| ERROR: three streams: element 0 is ' output
check "gpu_check: nccl.hosts finds a wrong sum" grep -qE "^ *\| ERROR: in 6 steps losses are off one rank's by [0-9.]+e-03" output
while read -r fault code complaint; do
    EMU_NCCL_FAULT=$fault expect_code "gpu_check: nccl.self fails with $fault" "$code" "$self"
    check "gpu_check: nccl.self names the cause of $fault" grep -qE "^(ERROR: |error\[$code\] )$complaint" output
done <<'ROWS'
0:AllReduce:5:wrong 1 all-reduce of f64: element 0 is -1, not 1$
0:ReduceScatter:4:wrong 1 reduce-scatter of f32: element 0 is -1, not 1$
0:AllGather:3:wrong 1 all-gather of f64: element 0 is -1, not 1$
0:Broadcast:3:wrong 1 broadcast of f64: element 0 is -1, not 1$
0:Recv:2:wrong 1 message of f32: element 500 is -
0:GroupEnd:1:error=3 71 group dp, call .*: NCCL on rank 0 says: internal error
0:AllReduce:5:async=6 87 group tp, call .*: NCCL on rank 0 says: remote process exited
0:CommInitRankConfig:3:error=5 5 comm_init: invalid usage
0:CommDestroy:1:error=3 1 comm_destroy: internal error
version=22808 5 NCCL here is 2.28.8 
missing=ncclSend 5 NCCL here .* has no ncclSend
ROWS
finish

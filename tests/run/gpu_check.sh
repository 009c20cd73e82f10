#!/usr/bin/env bash
# gpu_check.sh -- scripts/gpu_check.sh itself: one sentence without a GPU; with stand-ins for the program and its tests, one
# line per item, going on past one that fails or hangs.
. "$(dirname "$0")/lib.sh"

# shellcheck disable=SC2154 # lib.sh says where
script=$here/../../scripts/gpu_check.sh
results=$here/../../build/gpu_check/results.md
if nvidia-smi -L >/dev/null 2>&1; then
    skip "gpu_check: without a GPU" "there is one"
else
    expect_code "gpu_check: without a GPU" 69 "$script"
    check "gpu_check: one sentence" test "$(wc -l <output)" -eq 1
fi
expect_code "gpu_check: an unknown item" 64 "$script" nonsense
expect_code "gpu_check: the list" 0 "$script" --list

mkdir tests
# stand_in NAME TEXT
stand_in() { printf '#!/bin/sh\n%s\n' "$2" >"$1" && chmod +x "$1"; }
stand_in train 'echo "ok    cuda          cuda: a stand-in"'
stand_in tests/test_ops 'echo "[       OK ] one"; exit 1'
# shellcheck disable=SC2016 # the stand-in expands it
stand_in tests/test_golden 'echo "[       OK ] one"; echo "[       OK ] two"; test "$TEST_DEVICE" = cuda'
export CHECK_TRAIN=$PWD/train CHECK_TESTS=$PWD/tests
expect_code "gpu_check: an item fails" 1 "$script" ops goldens
check "gpu_check: it is said" grep -q '^FAIL *ops .*exit 1' output
check "gpu_check: the next one is run" grep -q '^ok *goldens .*2 tests' output
check "gpu_check: the closing line" test "$(tail -n 1 output)" = "1 passed, 1 failed, 0 skipped"
check "gpu_check: the results are kept" grep -q '^ok *goldens .*2 tests' "$results"
stand_in tests/test_golden 'echo "[  SKIPPED ] one"'
expect_code "gpu_check: a test that skips the GPU fails" 1 "$script" goldens
check "gpu_check: and is named" grep -q 'test_golden did not use the GPU' output
stand_in tests/test_golden 'sleep 60'
expect_code "gpu_check: a test that hangs is stopped" 1 env CHECK_LIMIT=5 "$script" goldens
check "gpu_check: and it is said" grep -q '^FAIL *goldens .*stopped after 5 s' output
mkdir bin
stand_in bin/nvidia-smi 'echo 9.0'
stand_in bin/nvcc 'exit 0'
stand_in bin/make "echo \"\$@\" >$PWD/made"
env -u CHECK_TRAIN -u CHECK_TESTS PATH="$PWD/bin:$PATH" CHECK_LIMIT=5 "$script" ptx >output 2>&1
for name in train tests/test_ptx tests/test_model_cuda tests/test_trainer; do
    check "gpu_check: $name is built" grep -q "build/gpu/$name " <(sed 's/$/ /' made)
done
stand_in train 'echo "--    cuda          built in; no device: none here"'
expect_code "gpu_check: the program finds no GPU" 69 "$script" ops
finish

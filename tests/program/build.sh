#!/usr/bin/env bash
# build.sh -- tests what the Makefile finds: libraries with and without pkg-config or in given folders, and a toolkit that
# is reached through a link. Nothing is built: make only prints its commands.
. "$(dirname "$0")/lib.sh"

# shellcheck disable=SC2154 # lib.sh sets it
root=$(realpath "$here/../..")
# stand_in FILE TEXT: writes a fake program, a shell script with this text
stand_in() { printf '#!/bin/sh\n%s\n' "$2" >"$1" && chmod +x "$1"; }
mkdir -p bin toolkit/bin
stand_in bin/pkg-config 'exit 127' # as if pkg-config were not installed
make=(make -s -k -C "$root" BUILD="$PWD/build" PKG_CONFIG="$PWD/bin/pkg-config" CUDA=0)

if [ -f /usr/include/cjson/cJSON.h ] && [ -f /usr/include/cmocka.h ]; then
    "${make[@]}" -n "$PWD/build/train" "$PWD/build/tests/core/test_core" missing >commands 2>&1
    check "build: cJSON's headers are found without pkg-config" grep -q -- '-I/usr/include/cjson .*train.c' commands
    check "build: cJSON is linked without pkg-config" grep -q -- '/build/train .*-lcjson' commands
    check "build: cmocka is linked without pkg-config" grep -q -- '/build/tests/core/programs .*-lcmocka' commands
    check "build: no library is reported missing without pkg-config" grep -qx 'echo ""' commands
else
    skip "build: libraries are found without pkg-config" "their headers are not in /usr/include"
fi
expect_code "build: two missing libraries end make with an error" 2 "${make[@]}" CC="gcc -nostdinc" missing print-config
check "build: two missing libraries are named in one line" \
    grep -q '^cJSON is missing: .*CJSON_PREFIX=.*; cmocka is missing: .*CMOCKA_PREFIX=' output
check "build: a missing cJSON is named in one sentence" grep -q '^cJSON is missing: [^;]*$' output
expect_code "build: target missing succeeds with one library missing" 0 "${make[@]}" CC="gcc -nostdinc" CJSON_PREFIX=/far \
    missing
check "build: only the missing library is named" grep -q '^cmocka is missing: ' output

stand_in toolkit/bin/nvcc 'echo compute_80; echo compute_90'
ln -s "$PWD/toolkit/bin/nvcc" bin/nvcc
# The GPU's architecture is reported by nvidia-smi or, without it, by the toolkit.
stand_in bin/nvidia-smi 'exit 9'
stand_in toolkit/bin/__nvcc_device_query 'echo 90'
PATH=$PWD/bin:$PATH CUDA_HOME='' "${make[@]}" CUDA=1 CJSON_PREFIX=/far CMOCKA_PREFIX=/away -n \
    "$PWD/build/tests/core/test_core" "$PWD/build/tests/cuda/test_ptx" print-config >commands 2>&1
check "build: headers are taken from the given prefixes" grep -q -- '-I/far/include .*-I/away/include .*test_core.c' commands
check "build: libraries are taken from the given prefixes" grep -q -- \
    '/build/tests/core/programs .*-L/far/lib .*-L/away/lib .*-lcmocka' commands
check "build: nvcc gets the headers of the given prefixes" grep -q -- "toolkit/bin/nvcc .*-I/away/include .*test_ptx.cu" \
    commands
check "build: a toolkit is found through a symbolic link" grep -q -- "/build/tests/core/programs .*-L$PWD/toolkit/lib64 " \
    commands
check "build: the toolkit's headers are found through a symbolic link" grep -q -- \
    "-isystem $PWD/toolkit/include .*cuda/device.c" commands
check "build: kernels are compiled for this machine's GPU" grep -q 'code for sm_90a, PTX' commands

# Objects that several builds share are compiled again when a header changes, whichever build needs them: every build reads
# their lists of dependencies.
mkdir -p common/tests/model build/tests/cuda
touch common/tests/model/test_model.d build/tests/cuda/test_ops_cuda.d
"${make[@]}" CUDA=emu COMMON="$PWD/common" -pn >commands 2>/dev/null
check "build: an emulated build reads the dependencies of shared tests" \
    grep -q "^MAKEFILE_LIST := .*$PWD/common/tests/model/test_model.d" commands
check "build: an emulated build reads the dependencies of its own tests" \
    grep -q "^MAKEFILE_LIST := .*$PWD/build/tests/cuda/test_ops_cuda.d" commands
check "build: the lines of make help fit 80 columns" test -z "$("${make[@]}" help | awk 'length > 79')"
finish

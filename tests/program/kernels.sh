#!/usr/bin/env bash
# kernels.sh -- tests that nvcc's registers, stack and shared memory for the kernels are what their launches assume, that
# their machine code has no faults but known ones, and that the script that checks this finds planted faults.
. "$(dirname "$0")/lib.sh"

# shellcheck disable=SC2154 # lib.sh sets it
report=$here/../../scripts/sass_report.sh
build=$(dirname "$TRAIN")
# shellcheck source=scripts/cuda_lib.sh
. "$here/../../scripts/cuda_lib.sh"
# Reads the machine code of all kernels if one has changed in the last ten commits, and otherwise that of a third of the objects.
# Only every third commit has code for sm_90a.
checked=$build
if [ -n "${TEST_TURN:-}" ] && (cd "$here/../.." && kernels_unchanged_since HEAD~10); then
    checked=$PWD/checked
    mkdir -p "$checked/model/kernels/cuda"
    objects=("$build"/model/kernels/cuda/*.cu.o)
    for ((i = TEST_TURN / 3 % 3; i < ${#objects[@]}; i += 3)); do ln -s "${objects[i]}" "$checked/model/kernels/cuda/"; done
    ln -s "$build"/model/kernels/cuda/*.cu.o.log "$checked/model/kernels/cuda/"
fi
"$report" --check "$checked" >faults 2>&1
code=$?
unread=$(sed -n 's/^sass_report: \(.*machine code is not read.*\)/\1/p' faults)
if [ $code -eq 69 ]; then
    skip "kernels: registers, stack, shared memory and machine code are as expected" "$(cat faults)"
else
    check "kernels: registers, stack, shared memory and machine code are as expected" test $code -eq 0
    [ $code -eq 0 ] || sed 's/^/    | /' faults
    [ -z "$unread" ] || skip "kernels: the machine code has no faults but known ones" "$unread"
    expect_code "kernels: planted faults are found" 0 "$report" --offenders
    check "kernels: faults that ptxas reports are found" test "$(grep -c '^found: \(a spill\|products\|too few\)' output)" -eq 3
    if grep -q 'machine code is not read' output; then
        skip "kernels: faults of machine code are found" "$(grep 'machine code is not read' output)"
    else
        check "kernels: faults of machine code are found" test "$(grep -c '^found: ' output)" -eq 11
    fi
    check "kernels: doctor reports CUDA" bash -c "'$TRAIN' doctor | grep -Eq '^(ok|--) +cuda +(built in|cuda:)'"
    # The program starts without the libraries that come with a driver, a toolkit or a C++ compiler, so it must not link
    # them.
    check "kernels: the program links no library of CUDA or C++" bash \
        -c "! ldd '$TRAIN' | grep -Ei 'cuda|cublas|nccl|nvidia|stdc'"
fi

# Registers and spills differ between architectures. scripts/test.sh compiles for only one while no kernel has changed: with
# CI=true for ten commits.
all_wanted() { [ "${CI:-}" = true ] && ! (cd "$here/../.." && kernels_unchanged_since HEAD~10); }
compiled=$(sed -nE "s/.*Compiling entry function .* for '(sm_[0-9a-z]+)'$/\1/p" "$build"/model/kernels/cuda/*.cu.o.log 2>/dev/null | sort -u | xargs)
if [ $code -eq 69 ]; then
    skip "kernels: kernels are compiled for every architecture" "no nvcc"
else
    every=$(make -s -C "$here/../.." CUDA=1 BUILD="$PWD/every" print-config | sed -nE 's/^CUDA .*, code for (.*), PTX.*/\1/p' | xargs -n 1 | sort -u | xargs)
    if [ "$compiled" = "$every" ] || all_wanted; then
        check "kernels: kernels are compiled for every architecture: $every" test "$compiled" = "$every"
    else
        skip "kernels: kernels are compiled for every architecture: $every" \
            "only for $compiled: no kernel has changed since"
    fi
fi

# with_gpu CAPABILITY TARGET: runs make TARGET where a fake nvidia-smi reports one GPU of that capability
with_gpu() {
    mkdir -p driver
    printf '#!/bin/sh\necho %s\n' "$1" >driver/nvidia-smi
    chmod +x driver/nvidia-smi
    PATH=$PWD/driver:$PATH make -s -C "$here/../.." CUDA=1 BUILD="$PWD/gpu" "$2"
}
# compiled_for CAPABILITY NAME: succeeds if make compiles code named NAME for that GPU, and otherwise only PTX
compiled_for() { with_gpu "$1" print-config | grep -q "code for $2, PTX"; }
if [ $code -eq 69 ]; then
    skip "kernels: kernels are built for this machine's GPU" "no nvcc"
else
    check "kernels: code for a Hopper GPU is compiled as sm_90a" compiled_for 9.0 sm_90a
    check "kernels: nvcc compiles only for a Hopper GPU if there is one" with_gpu 9.0 "$PWD/gpu/model/kernels/cuda/load.cu.o"
    check "kernels: code for a GPU of capability 8.6 is compiled as sm_86" compiled_for 8.6 sm_86
fi

# commands ARCHITECTURES TARGET: prints what make would do
commands() { make -n -C "$here/../.." CUDA=1 ARCH="$1" BUILD="$PWD/none" "$2" 2>/dev/null; }
if [ $code -eq 69 ]; then
    skip "kernels: attention for Hopper is compiled for sm_90a alone" "no nvcc"
else
    check "kernels: attention for Hopper is compiled for sm_90a alone" test \
        "$(commands "80 90a" "$PWD/none/model/kernels/cuda/hopper_forward.cu.o" | grep -e '-c -o [^ ]*hopper_forward' | grep -o 'code=[^ ]*')" = code=sm_90a
    check "kernels: without sm_90a, attention for Hopper is left out" test \
        "$(commands 80 all | grep -oE 'hopper_[a-z_]+\.(cu\.)?o' | sort -u)" = hopper_absent.o
fi

# log STACK SPILLED SHARED [ARCH]: writes a log of nvcc for one kernel with these numbers
log() {
    mkdir -p made/model/kernels/cuda
    printf '%s\n' "ptxas info    : Compiling entry function '_Z5k_onev' for '${4:-sm_90a}'" "ptxas info    : Function properties for _Z5k_onev" \
        "    $1 bytes stack frame, $2 bytes spill stores, 0 bytes spill loads" \
        "ptxas info    : Used 32 registers, used 1 barriers, $3 bytes smem, 400 bytes cmem[0]" >made/model/kernels/cuda/k.cu.o.log
}
log 0 0 0 && expect_code "kernels: a sound kernel passes" 0 "$report" --logs made
log 16 0 0 && expect_code "kernels: a stack frame is found" 1 "$report" --logs made
log 0 12 0 && expect_code "kernels: spills are found" 1 "$report" --logs made
log 0 12 0 sm_100 && expect_code "kernels: spills are found for sm_100, too" 1 "$report" --logs made
log 0 12 0 sm_120 && expect_code "kernels: spills are accepted for sm_120, for which no kernel is tuned" 0 "$report" --logs made
# launch BLOCKS STATEMENT: writes a kernel with launch bounds of BLOCKS blocks, and a launch with the STATEMENT
launch() {
    mkdir -p sources
    printf '%s\n' "enum { RESIDENT = 4 };" "__global__ void __launch_bounds__(THREADS$1)" "k_one(void) {}" \
        "void launch(void) { int64_t x = 0;" "int64_t most =" "$2; }" >sources/k.cu
}
log 0 0 0
launch ", RESIDENT" "RESIDENT * cuda_device(dev)->multiprocessors"
expect_code "kernels: a launch that matches its launch bounds is accepted" 0 "$report" --logs made sources
launch "" "RESIDENT * cuda_device(dev)->multiprocessors"
expect_code "kernels: a launch without matching launch bounds is found" 1 "$report" --logs made sources
launch ", RESIDENT" "512 / THREADS * cuda_device(dev)->multiprocessors"
expect_code "kernels: another number of resident blocks is found" 1 "$report" --logs made sources
log 0 0 0
echo "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due to k" >>made/model/kernels/cuda/k.cu.o.log
expect_code "kernels: products that wait for each other are found" 1 "$report" --logs made
log 0 0 0
echo "ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored; unable to determine register count at entry." \
    >>made/model/kernels/cuda/k.cu.o.log
expect_code "kernels: an ignored change of registers is found" 1 "$report" --logs made
log 0 0 48 && expect_code "kernels: static shared memory is found" 1 "$report" --logs made
expect_code "kernels: the script exits with 69 if the folder has no built kernels" 69 "$report" --logs nowhere
finish

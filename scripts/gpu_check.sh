#!/usr/bin/env bash
# gpu_check.sh -- on a machine with one GPU: builds the program for it and checks whatever the CPU cannot vouch for.
#
#   scripts/gpu_check.sh               everything, in at most eight minutes
#   scripts/gpu_check.sh ITEM...       the build and these items only
#   scripts/gpu_check.sh --list        what the items are
#
# Needs gcc, g++, make, the CUDA toolkit, cJSON and cmocka; no network, OpenBLAS or MPI. One line per item; an item that
# fails does not stop the others; the last line is "N passed, N failed, N skipped". What each item said lies in
# build/gpu_check/NAME.log, probe answers in build/gpu_check/probe.md. Exit codes: 0 nothing failed, 1 something did,
# 69 no nvcc or no GPU.
# CHECK_TRAIN=PROGRAM CHECK_TESTS=FOLDER: checks that program and those tests instead of building (how the script itself is
# tested, with the emulated GPU).
set -u
cd "$(dirname "$0")/.." || exit 71

whole=470 # seconds for everything, so that eight minutes hold
logs=build/gpu_check
items=(
    "probe       cuBLASLt's epilogues and plans: which exist, their kernels' names and times"
    "ptx         every PTX wrapper: which thread holds which element, copies, arithmetic"
    "ops         every op, dtype and odd shape against the oracle"
    "bits        optimizers, initial weights and step decisions equal the CPU's bit for bit"
    "gradients   the whole model's gradients against the CPU, f32 and 16-bit types"
    "goldens     logits, gradients and 20 losses against PyTorch's"
    "runs        300 steps beside the CPU's curve; reruns, resumed runs and recompute bit for bit"
    "trainer     resume at every step bit for bit; host waits and allocations inside a step: none"
    "memcheck    compute-sanitizer memcheck over the ops"
    "racecheck   compute-sanitizer racecheck over the ops"
)

case ${1:-} in
--help | -h) sed -n '2,15s/^# \{0,1\}//p' "scripts/${0##*/}"; exit 0 ;;
--list) printf '%s\n' "${items[@]}"; exit 0 ;;
-*) echo "gpu_check: unknown option $1 (see --help)" >&2; exit 64 ;;
esac
wanted=("$@")
for word in "${wanted[@]}"; do
    printf '%s\n' "${items[@]}" | grep -q "^$word " || { echo "gpu_check: there is no item $word (see --list)" >&2; exit 64; }
done

has() { command -v "$1" >/dev/null 2>&1; }
no_gpu() {
    echo "gpu_check: $1; nothing was checked" >&2
    exit 69
}

if [ -z "${CHECK_TRAIN:-}" ]; then
    cuda=${CUDA_HOME:-/usr/local/cuda}
    has nvcc || has "$cuda/bin/nvcc" || no_gpu "there is no nvcc here (PATH, CUDA_HOME)"
    nvidia-smi -L >/dev/null 2>&1 || compgen -G '/dev/nvidia[0-9]*' >/dev/null || no_gpu "there is no GPU here"
fi
mkdir -p "$logs" || exit 73
rm -f "$logs"/*.log

passed=0 failed=0 skipped=0
# say WORD NAME SECONDS WHAT
say() { printf '%-5s %-10s %6s s  %s\n' "$@"; }

# item NAME LIMIT COMMAND...: runs it within its limit and what is left of the whole. Exit 69 of the command is a skip.
item() {
    local name=$1 limit=$2 code from=$SECONDS left=$((whole - SECONDS)) tests
    shift 2
    [ ${#wanted[@]} -eq 0 ] || [ "$name" = build ] || [[ " ${wanted[*]} " == *" $name "* ]] || return 0
    [ "$left" -ge "$limit" ] || limit=$left
    if [ "$limit" -lt 5 ]; then
        say skip "$name" 0 "the time was over"
        skipped=$((skipped + 1))
        return
    fi
    export limit
    export -f program script
    timeout -k 5 "$limit" bash -c '"$@"' item "$@" >"$logs/$name.log" 2>&1 </dev/null
    code=$?
    tests=$(($(grep -cE '^(ok |\[       OK \])' "$logs/$name.log")))
    case $code in
    0) say ok "$name" $((SECONDS - from)) "$([ $tests -eq 0 ] || echo "$tests tests")"; passed=$((passed + 1)) ;;
    69) say skip "$name" $((SECONDS - from)) "$(tail -n 1 "$logs/$name.log")"; skipped=$((skipped + 1)) ;;
    124 | 137) say FAIL "$name" $((SECONDS - from)) "stopped after $limit s; see $logs/$name.log"; failed=$((failed + 1)) ;;
    *)
        say FAIL "$name" $((SECONDS - from)) "exit $code; see $logs/$name.log; its first complaint:"
        grep -m 3 -E '^not ok|\[  ERROR|error\[|Error|ERROR|CHECK' "$logs/$name.log" | sed 's/^/      | /'
        failed=$((failed + 1))
        ;;
    esac
}

# program NAME...: test programs, all of them; fails if one did
program() {
    local bad=0 name
    for name in "$@"; do
        TEST_DEVICE=cuda "$CHECK_TESTS/$name" || bad=1
    done
    return $bad
}
script() { TRAIN=$CHECK_TRAIN STEPS=${STEPS:-300} BOUND=${BOUND:-2e-3} BOUND16=${BOUND16:-5e-2} "tests/run/$1"; }

# build: for this GPU only
build() { make -s -j "$(nproc)" CUDA=1 BUILD=build/gpu build/gpu/train test-programs; }

# sanitizer TOOL: the ops under compute-sanitizer; only the GPU's part of the test
sanitizer() {
    local tool
    tool=$(command -v compute-sanitizer || echo "${CUDA_HOME:-/usr/local/cuda}/bin/compute-sanitizer")
    command -v "$tool" >/dev/null || { echo "compute-sanitizer is not installed"; exit 69; }
    TEST_DEVICE=cuda "$tool" --tool "$1" --error-exitcode 1 "$CHECK_TESTS/test_ops"
}

# probes NAME...: the probe's programs of these names
probes() { scripts/gpu_probe.sh --out "$logs/$1.md" --only "$(IFS=,; echo "$*")"; }

if [ -z "${CHECK_TRAIN:-}" ]; then
    item build 240 build
    if [ $failed -ne 0 ]; then
        tail -n 20 "$logs/build.log"
        echo "$passed passed, $failed failed, $skipped skipped"
        exit 1
    fi
    export CHECK_TRAIN=$PWD/build/gpu/train CHECK_TESTS=$PWD/build/gpu/tests
fi
"$CHECK_TRAIN" doctor | grep '^ok .*cuda ' || no_gpu "$("$CHECK_TRAIN" doctor | sed -n 's/^.. *cuda *//p')"
export -f build sanitizer probes

item probe 75 probes cublaslt cublaslt_gelu cublaslt_bias_gradient cublaslt_splitk cublaslt_operands cublaslt_repeat
item ptx 20 program test_ptx test_ptx_memory
item ops 90 program test_ops test_ops_gelu
item bits 30 program test_ops_step test_ops_cuda test_ops_rounding
item gradients 60 program test_model_cuda test_recompute
item goldens 40 program test_golden
item trainer 60 program test_trainer test_device
item runs 150 script cuda.sh
item memcheck 90 sanitizer memcheck
item racecheck 90 sanitizer racecheck
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ]

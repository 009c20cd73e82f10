#!/usr/bin/env bash
# test.sh -- every test there is: packages, build, unit tests (release, ASan + UBSan, part of them under TSan; what computes,
# again on the CUDA backend with its kernels executed on the CPU), end-to-end tests, one program a core at a time. Its last
# line is "N passed, N failed, N skipped". About nine minutes on two cores.
set -u
cd "$(dirname "$0")/.." || exit 71
scripts/setup.sh || echo "test.sh: going on with what is there"

RESULTS=$(mktemp)
export RESULTS
trap 'rm -f "$RESULTS"' EXIT
bad=0

# Programs that use threads or signals: what ThreadSanitizer can say something about.
tsan_programs='test_(core|pool|loader|data|gemm|optim|trainer|metrics)$'
tsan_scripts=(tests/run/learns.sh tests/run/signals.sh)
asan_scripts=(tests/run/cli.sh tests/run/bad_config.sh tests/run/learns.sh tests/run/signals.sh tests/run/pipe.sh tests/run/device.sh
    tests/run/data.sh tests/run/folder.sh tests/run/numbers.sh)

# What computes on a device, whole models and resumed runs too: in emulation with threads forwards, then backwards without
# cuBLASLt or with streams that lag behind the host as far as they may, and under ASan.
emu_programs='test_(emu|emu_.*|ptx|ptx_.*|ops|ops_.*|golden|model_cuda|recompute|generate|device)$'
emu_reversed='test_(ops|ops_cuda.*|golden|model_cuda|recompute)$'
emu_deferred='test_(trainer|device|cuda_ahead)$'
emu_asan_programs='test_(emu|emu_.*|ptx|ptx_.*|ops|ops_cuda.*|golden|model_cuda|recompute|device)$'
emu_scripts=(tests/run/cuda.sh tests/run/device.sh)

# flavour NAME: its settings for make
flavour() {
    case $1 in
    emu) echo CUDA=emu FLAVOUR=release ;;
    emu_asan) echo CUDA=emu FLAVOUR=asan ;;
    *) echo "FLAVOUR=$1" ;;
    esac
}

# programs FLAVOUR: the test programs that it runs, of those that make knows
programs() {
    local pattern=.
    case $1 in
    tsan) pattern=$tsan_programs ;;
    emu) pattern="$emu_programs|$emu_reversed|$emu_deferred" ;;
    emu_asan) pattern=$emu_asan_programs ;;
    esac
    read -ra settings < <(flavour "$1")
    make -s "${settings[@]}" BUILD="build/$1" test-list | grep -E "$pattern"
}

# build FLAVOUR: the program and its tests; a build that fails is a test that fails
build() {
    echo "== build $1"
    read -ra settings < <(flavour "$1")
    mapfile -t targets < <(programs "$1")
    if make -s -j "$(nproc)" "${settings[@]}" BUILD="build/$1" "build/$1/train" "${targets[@]}" </dev/null; then return 0; fi
    echo "0 0 1 0 build_$1" >>"$RESULTS"
    bad=1
    return 1
}

# entries FLAVOUR: its test programs, with their settings before them
entries() {
    case $1 in
    emu)
        programs emu | grep -E "$emu_programs"
        programs emu | grep -E "$emu_reversed" | sed 's/^/EMU_ORDER=reverse EMU_LT=none TEST_SAMPLE=1 /'
        programs emu | grep -E "$emu_deferred" | sed 's/^/EMU_ORDER=reverse EMU_STREAMS=deferred /'
        ;;
    asan) # beside each other, so that both cores have work
        programs asan
        programs emu_asan | sed 's/^/TEST_DEVICE=cuda /'
        ;;
    *) programs "$1" ;;
    esac
}

# run FLAVOUR SCRIPT...: its test programs, and end-to-end tests with its ./train, one a core; the long ones first, so that
# no core waits for one in the end
run() {
    local flavour=$1 long='(test_(ops|golden|recompute|trainer)|(cuda|gpu_probe|kill|learns|resume|signals)\.sh)$'
    shift
    echo "== $flavour"
    mapfile -t all < <(entries "$flavour"; printf '%s\n' "$@")
    mapfile -t all < <(printf '%s\n' "${all[@]}" | grep -E "$long"; printf '%s\n' "${all[@]}" | grep -vE "$long|^$")
    TRAIN=$PWD/build/$flavour/train LABEL=$flavour: JOBS=$(nproc) scripts/run_tests.sh "${all[@]}" || bad=1
}

export OMP_NUM_THREADS=2
export ASAN_OPTIONS=detect_leaks=1 UBSAN_OPTIONS=print_stacktrace=1 TSAN_OPTIONS=halt_on_error=1

mapfile -t scripts < <(find tests/run -name '*.sh' ! -name lib.sh | sort)
build release && run release "${scripts[@]}"
build emu && TEST_DEVICE=cuda run emu "${emu_scripts[@]}"
export TEST_SAMPLE=1 # under sanitizers: what they see once they do not see better in a second run
build asan && build emu_asan && run asan "${asan_scripts[@]}"
build tsan && STEPS=40 run tsan "${tsan_scripts[@]}"

echo "== slowest"
sort -rn "$RESULTS" | head -n 10 | awk '{ printf "%8s s  %s\n", $1, $5 }'
awk '{ p += $2; f += $3; s += $4 } END { printf "%d passed, %d failed, %d skipped\n", p, f, s }' "$RESULTS"
exit $bad

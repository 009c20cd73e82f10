#!/usr/bin/env bash
# test.sh -- every test there is: packages, build, unit tests (release, ASan + UBSan, part of them under TSan; what computes,
# again on the CUDA backend with its kernels executed on the CPU), end-to-end tests. Its last line is "N passed, N failed,
# N skipped". About ten minutes on two cores.
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
asan_scripts=(tests/run/cli.sh tests/run/bad_config.sh tests/run/learns.sh tests/run/signals.sh tests/run/pipe.sh tests/run/device.sh)

# What computes on a device: in emulation with threads forwards, then backwards without cuBLASLt, then with streams that lag
# behind the host as far as they may, and under ASan.
emu_programs='test_(emu|emu_.*|ptx|ptx_.*|ops|ops_.*|golden|model_cuda|generate|device)$'
emu_scripts=(tests/run/cuda.sh tests/run/device.sh)

# flavour NAME: its settings for make
flavour() {
    case $1 in
    emu) echo CUDA=emu FLAVOUR=release ;;
    emu_asan) echo CUDA=emu FLAVOUR=asan ;;
    *) echo "FLAVOUR=$1" ;;
    esac
}

# targets FLAVOUR: its test programs, as make knows them
targets() {
    case $1 in
    emu*) find tests -maxdepth 1 -name 'test_*.c*' -printf '%f\n' | sed 's/\..*//' | grep -E "$emu_programs|test_trainer$" | sed "s|^|build/$1/tests/|" ;;
    *) echo test-programs ;;
    esac
}

# build FLAVOUR: the program and its tests; a build that fails is a test that fails
build() {
    echo "== build $1"
    read -ra settings < <(flavour "$1")
    mapfile -t targets < <(targets "$1")
    if make -s -j "$(nproc)" "${settings[@]}" BUILD="build/$1" "build/$1/train" "${targets[@]}" </dev/null; then return 0; fi
    echo "0 0 1 0 build_$1" >>"$RESULTS"
    bad=1
    return 1
}

# tests LABEL PROGRAM...
tests() {
    echo "== $1"
    local label=$1:
    shift
    [ $# -gt 0 ] || return 0
    LABEL=$label scripts/run_tests.sh "$@" || bad=1
}

# unit FLAVOUR [PATTERN]: the test programs of a flavour, those whose names match
unit() {
    mapfile -t programs < <(find "build/$1/tests" -maxdepth 1 -name 'test_*' -type f -perm -u+x | grep -E "${2:-.}" | sort)
    tests "$1" "${programs[@]}"
}

# run FLAVOUR SCRIPT...: end-to-end tests with that flavour's program
run() {
    TRAIN=$PWD/build/$1/train tests "$@"
}

export OMP_NUM_THREADS=2
export ASAN_OPTIONS=detect_leaks=1 UBSAN_OPTIONS=print_stacktrace=1 TSAN_OPTIONS=halt_on_error=1

mapfile -t scripts < <(find tests/run -name '*.sh' ! -name lib.sh | sort)
build release && { unit release; run release "${scripts[@]}"; }
build asan && { unit asan; STEPS=150 run asan "${asan_scripts[@]}"; }
export TEST_DEVICE=cuda
build emu && {
    unit emu "$emu_programs"
    run emu "${emu_scripts[@]}"
    EMU_ORDER=reverse EMU_LT=none unit emu 'test_(ops|ops_cuda|golden)$'
    EMU_STREAMS=deferred unit emu 'test_(trainer|device)$'
}
build emu_asan && unit emu_asan 'test_(emu|emu_.*|ptx|ptx_.*|ops|ops_cuda)$'
unset TEST_DEVICE
build tsan && { unit tsan "$tsan_programs"; STEPS=80 run tsan "${tsan_scripts[@]}"; }

echo "== slowest"
sort -rn "$RESULTS" | head -n 10 | awk '{ printf "%8s s  %s\n", $1, $5 }'
awk '{ p += $2; f += $3; s += $4 } END { printf "%d passed, %d failed, %d skipped\n", p, f, s }' "$RESULTS"
exit $bad

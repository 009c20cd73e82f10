#!/usr/bin/env bash
# test.sh -- every test there is: packages, build, test programs (release, ASan + UBSan, part of them under TSan; what computes,
# again on the CUDA backend with its kernels executed on the CPU), end-to-end tests. Its last line is "N passed, N failed, N
# skipped". About eleven minutes on two cores, less where
# ccache has most objects.
#
#   scripts/test.sh [--list] [quick] [ROOM|FOLDER|PROGRAM|SCRIPT...]
#
# quick: a first answer, two minutes on two cores after the build: the release program without the CUDA backend, most tests of
# every room, thinned. Names choose among the tests: parallel/zero (or tests/parallel/zero), model/test_golden, program/cli.sh
# (default: all). --list: prints what would run.
set -u
cd "$(dirname "$0")/.." || exit 71
only_list='' tier=rows wanted=()
for word; do
    case $word in
    --list) only_list=yes ;;
    quick) tier=quick_rows ;;
    -*) echo "test.sh: unknown option $word"; exit 64 ;;
    tests | tests/*) wanted+=("${word%/}") ;;
    *) wanted+=("tests/${word%/}") ;;
    esac
done
[ ${#wanted[@]} -gt 0 ] || wanted=(tests)

# ---- which tests run in which flavour --------------------------------------------------------------------------------
# row FLAVOUR SETTINGS TESTS...: these run in that flavour with these settings (NAME=VALUE...). A folder means all its tests. What
# an earlier row runs with the same settings does not run again; what begins with ! is left out. Rows run in this order: the long
# ones come first, so that no core waits for one of them in the end.
rows() {
    local device='TEST_DEVICE=cuda' reverse='TEST_DEVICE=cuda EMU_ORDER=reverse EMU_LT=none TEST_SAMPLE=1'
    # Half of their cases at each commit, the other half at the next.
    local halved='tests/equivalence/test_grid_equal tests/equivalence/test_grid_bits tests/parallel/verify/test_verify'
    halved+=' tests/equivalence/test_grid_checkpoints'
    local deferred='TEST_DEVICE=cuda EMU_ORDER=reverse EMU_STREAMS=deferred' sample='TEST_SAMPLE=1'

    row emu "$device" tests/program/cuda.sh
    row emu_asan "$device $sample TEST_EVERY=83" tests/model/test_recompute
    row emu_asan "$device $sample TEST_EVERY=4" tests/kernels/test_ops
    row emu "$deferred $sample" tests/parallel/trainer/test_trainer
    row emu "$deferred $sample" tests/parallel/zero/test_zero
    # What computes on a device, whole models and resumed runs too: in emulation with threads forwards, then backwards without
    # cuBLASLt or with streams that lag behind the host as far as they may, and under ASan.
    row emu "$device TEST_EVERY=2" tests/kernels/test_ops tests/cuda/test_nccl_grids
    row emu "$device" tests/kernels '!tests/kernels/test_ops' tests/model/test_golden tests/model/test_tensor_gradients
    row emu "$device TEST_EVERY=11" tests/model/test_recompute
    row emu "$reverse TEST_EVERY=2 TEST_LATER=1" tests/kernels/test_ops
    row emu "$reverse" tests/model/test_golden tests/model/test_recompute tests/cuda/test_ops_cuda \
        tests/cuda/test_ops_cuda_attention tests/cuda/test_ops_cuda_portions tests/cuda/test_ops_cuda_tables tests/cuda/test_model_cuda
    row emu_asan "$device $sample" tests/parallel/trainer/test_device tests/model/test_golden 'tests/cuda/test_[!n]*' tests/emu
    row emu "$deferred" tests/parallel/trainer/test_device tests/parallel/comm/test_exposed tests/cuda/test_cuda_ahead tests/parallel/comm/test_comm \
        tests/parallel/grid/test_region tests/model/test_tensor_gradients
    row emu 'TEST_DEVICE=cuda EMU_DEVICES=4 EMU_STREAMS=random' tests/parallel/comm/test_comm
    row emu "$device $sample EMU_STREAMS=random" tests/parallel/trainer/test_device tests/cuda/test_cuda_ranks
    row emu "$deferred $sample" tests/equivalence/test_grid_checkpoints
    row emu 'TEST_DEVICE=cuda EMU_DEVICES=4 EMU_STREAMS=random' tests/equivalence/test_grid_checkpoints
    row emu "$deferred EMU_DEVICES=4 TEST_EVERY=11 TEST_ONLY=test_overlap_changes_no_bit" tests/equivalence/test_grid_bits
    # Whichever turn it is, one row has every dtype, the other, in which streams lag, every schedule.
    row emu "$device TEST_EVERY=300 TEST_EACH=dtype" tests/equivalence/test_grid_equal
    row emu "$deferred TEST_EVERY=300 TEST_LATER=150 TEST_EACH=schedule" tests/equivalence/test_grid_equal
    row emu "$device" tests/parallel/trainer/test_device tests/model/test_generate tests/cuda '!tests/cuda/test_nccl_grids' tests/emu tests/program/device.sh tests/program/nccl.sh \
        tests/program/nccl_hosts.sh tests/program/nccl_bench.sh tests/program/nccl_faults.sh tests/program/reserve.sh tests/program/gpu_check_grids.sh
    # What uses threads or signals: what ThreadSanitizer can say something about.
    row tsan "$sample STEPS=16" tests/program/signals.sh
    row tsan "$sample STEPS=12" tests/program/ranks.sh
    row tsan "$sample STEPS=5" tests/program/grids.sh
    row tsan "$sample" tests/parallel/trainer/test_trainer tests/parallel/report/test_metrics tests/core tests/data/test_loader \
        tests/data/test_loader_validation tests/data/test_documents tests/data/test_prepare
    row tsan "$sample" tests/parallel/comm/test_comm tests/parallel/comm/test_comm_groups tests/parallel/comm/test_comm_random \
        tests/parallel/comm/test_comm_messages tests/parallel/comm/test_comm_leaves tests/parallel/trainer/test_faulty_grid tests/parallel/pipeline/test_pipeline \
        tests/parallel/zero/test_zero_grid tests/parallel/grid/test_control tests/parallel/grid/test_launch tests/parallel/run/test_run_ranks tests/parallel/checkpoint/test_checkpoint_ranks \
        tests/parallel/comm/test_nccl tests/parallel/comm/test_nccl_deadline tests/parallel/comm/test_nccl_ends tests/parallel/comm/test_nccl_errors tests/parallel/comm/test_nccl_waits \
        tests/parallel/grid/test_gpus tests/parallel/grid/test_region tests/model/test_tensor_gradients
    row tsan "$sample" tests/equivalence/test_grid_cube tests/equivalence/test_grid_training tests/equivalence/test_grid_checkpoints \
        tests/equivalence/test_grid_replicas
    row release '' tests/program tests/kernels
    # shellcheck disable=SC2086 # words
    row release TEST_EVERY=2 $halved
    # Distances that share no factor with the number of variants: each turn has both sides of every choice.
    row release TEST_EVERY=5 tests/model/test_recompute
    # Under sanitizers: what they see once they do not see better in a second run.
    row asan "$sample" tests/program/cli.sh tests/program/bad_config.sh tests/program/learns.sh tests/program/signals.sh tests/program/pipe.sh \
        tests/program/device.sh tests/program/data.sh tests/program/folder.sh tests/program/numbers.sh 'tests/[!e]*/test_*' \
        'tests/equivalence/test_grid_[cerst]*' '!tests/kernels/test_ops'
    row asan "$sample TEST_EVERY=2" tests/kernels/test_ops
    # shellcheck disable=SC2086 # words
    row release '' tests ${halved//tests/!tests} '!tests/model/test_recompute'
}

# Left out: what waits more than it computes, what checks the scripts for GPUs, and most grids, of which a few are of every kind.
quick_rows() {
    local name
    for name in resume cli worlds harness bench folder ranks grids learns bad_config layers lock opened origins output pipe \
        quickstart signals verify numbers data build links; do
        row cpu 'TEST_SAMPLE=1 STEPS=8' tests/program/$name.sh
    done
    row cpu TEST_SAMPLE=1 'tests/[!e]*/test_*' tests/equivalence
}

# For one architecture of GPUs is enough where no kernel has changed since the commit before and no GPU asks for its own; continuous
# integration (CI=true) compiles for all three. Headers that kernels share with the program count as kernels.
one_architecture() {
    [ "${CI:-}" != true ] && [ -z "${ARCH:-}" ] && [ -d model/kernels/cuda ] || return
    # shellcheck source=scripts/cuda_lib.sh
    . scripts/cuda_lib.sh
    ! has_gpu && git diff --quiet HEAD~1 -- Makefile '*.cu' '*.cuh' model/kernels/cuda 'model/kernels/*.h' 2>/dev/null
}
release_settings=FLAVOUR=release
! one_architecture || release_settings+=' ARCH=80'

# make_settings FLAVOUR: those of its build
make_settings() {
    case $1 in
    release) echo "$release_settings" ;;
    # What does not know of CUDA is compiled once, whether CUDA is built in or not.
    cpu) echo CUDA=0 FLAVOUR=release COMMON=build/release ;;
    emu) echo CUDA=emu FLAVOUR=release ;;
    emu_asan) echo CUDA=emu FLAVOUR=asan ;;
    *) echo "FLAVOUR=$1" ;;
    esac
}

# make_flavour FLAVOUR ARGUMENT...
make_flavour() {
    local flavour=$1 words
    read -ra words < <(make_settings "$flavour")
    make -s "${words[@]}" BUILD="build/$flavour" "${@:2}" </dev/null
}

# By flavour: the names of its tests, the programs to build; which entries there are; which wanted words fitted a test.
declare -A known=() programs=() listed=() found=()
flavours=() entries=()

# fits TEST SELECTION: whether the selection, which may be a pattern, is that test or a folder of it
fits() {
    # shellcheck disable=SC2053
    [[ $1 == $2 || $1 == $2/* || $1 == $2.sh ]]
}

# Tests of deadlines and of ends: most of their time they wait.
waiting=' tests/program/gpu_check.sh tests/program/nccl_faults.sh tests/program/kill.sh tests/parallel/trainer/test_faulty_grid'
waiting+=' tests/parallel/commands/test_hanging_ranks tests/parallel/comm/test_nccl_deadline tests/parallel/comm/test_nccl_waits tests/parallel/comm/test_comm_ends '

# add FLAVOUR SETTINGS TEST: its entry, "FLAVOUR SETTINGS PROGRAM", unless there is one
add() {
    local path=build/$1/$3 waits=''
    [[ $3 == *.sh ]] && path=$3
    [[ $waiting != *" $3 "* ]] || waits='WAITS=yes '
    [ -z "${listed[$1 $2 $3]:-}" ] || return
    listed[$1 $2 $3]=yes
    [[ " ${flavours[*]} " == *" $1 "* ]] || flavours+=("$1")
    entries+=("LABEL=$1: TRAIN=$PWD/build/$1/train $waits$2 $path")
    [[ $3 == *.sh ]] || programs[$1]+="$path "
}

# row FLAVOUR SETTINGS TESTS...: lists those that are wanted. A word that fits no test of the flavour is an error: a test that
# was moved or renamed would silently run no more.
row() {
    local flavour=$1 settings=$2 selection name want fitting out=''
    shift 2
    for selection; do
        [[ $selection != !* ]] || out+=" ${selection#!}"
    done
    if [ -z "${known[$flavour]:-}" ]; then
        known[$flavour]=$(make_flavour "$flavour" test-list | sed "s|^build/$flavour/||") || exit 70
        known[$flavour]+=" $(find tests/program -name '*.sh' ! -name lib.sh | sort)"
    fi
    for selection; do
        fitting=0
        for name in ${known[$flavour]}; do
            fits "$name" "${selection#!}" || continue
            fitting=$((fitting + 1))
            [[ " $out " != *" $name "* ]] || continue
            for want in "${wanted[@]}"; do
                if fits "$name" "$want"; then
                    found[$want]=yes
                    add "$flavour" "$settings" "$name"
                fi
            done
        done
        [ $fitting -gt 0 ] || { echo "test.sh: $flavour: no test is named $selection"; exit 70; }
    done
}

# First of all: on a bare machine there is no make yet, which knows the tests.
[ -n "$only_list" ] || scripts/setup.sh || echo "test.sh: going on with what is there"
set -f # patterns are tests', not files'
$tier
set +f
for name in $waiting; do
    [ -e "$name" ] || [ -e "$name.c" ] || { echo "test.sh: no test is named $name"; exit 70; }
done
for want in "${wanted[@]}"; do
    [ -n "${found[$want]:-}" ] || { echo "test.sh: no test is named $want"; exit 64; }
done
if [ -n "$only_list" ]; then
    printf '%s\n' "${entries[@]}" | sed -E 's|LABEL=([a-z_]*:) TRAIN=[^ ]*( WAITS=yes)?|\1|; s|build/[a-z_]*/||'
    exit 0
fi

# Where ccache is installed, a second run on this machine, in whichever folder, compiles what has changed and no more. The objects
# are copies: the Makefile renames the main() of tests in them.
use_cache() {
    command -v ccache >/dev/null || return
    export CCACHE_DIR=${CCACHE_DIR:-${XDG_CACHE_HOME:-${HOME:-}/.cache}/train.c-tests} CCACHE_MAXSIZE=${CCACHE_MAXSIZE:-1G}
    mkdir -p "$CCACHE_DIR" 2>/dev/null && [ -w "$CCACHE_DIR" ] || return
    export CCACHE=ccache CCACHE_NOHASHDIR=1 CCACHE_NOHARDLINK=1
}

# ---- build, then run -------------------------------------------------------------------------------------------------
RESULTS=$(mktemp)
export RESULTS
trap 'rm -f "$RESULTS"' EXIT
bad=0

use_cache

# All are built before any is run: a core that is done with one flavour's tests goes on with the next one's. A build that fails
# is a test that fails.
for flavour in "${flavours[@]}"; do
    echo "== build $flavour"
    read -ra targets <<<"build/$flavour/train ${programs[$flavour]:-}"
    make_flavour "$flavour" -j "$(nproc)" "${targets[@]}" && continue
    echo "0 0 0 1 0 build_$flavour" >>"$RESULTS"
    bad=1
    mapfile -t entries < <(printf '%s\n' "${entries[@]}" | grep -v "^LABEL=$flavour:")
done

# Thinned tests go through their cases by turns: the commit says which are tried, and the same commit always tries the same.
export TEST_TURN=${TEST_TURN:-$(git rev-list --count HEAD 2>/dev/null || echo 0)}
echo "== run, TEST_TURN=$TEST_TURN"
export OMP_NUM_THREADS=2
export ASAN_OPTIONS=detect_leaks=1 UBSAN_OPTIONS=print_stacktrace=1 TSAN_OPTIONS="halt_on_error=1 atexit_sleep_ms=0"
# One more than cores: some tests wait.
JOBS=$(($(nproc) + 1)) scripts/run_tests.sh "${entries[@]}" || bad=1

echo "== slowest"
sort -rn "$RESULTS" | head -n 10 | awk '{ printf "%8s s %8s s busy  %s\n", $1, $2, $6 }'
awk '{ busy += $2; p += $3; f += $4; s += $5 }
     END { printf "%.0f s busy in tests\n%d passed, %d failed, %d skipped\n", busy, p, f, s }' "$RESULTS"
exit $bad

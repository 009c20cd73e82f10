#!/usr/bin/env bash
# test.sh -- installs packages, builds everything and runs all tests: test programs in release, under ASan + UBSan and partly
# under TSan; tests of computations also on the CUDA backend, with its kernels executed on the CPU; and end-to-end tests. The
# last line is "N passed, N failed, N skipped". Takes about eleven minutes on two cores, less if ccache has most objects.
#
#   scripts/test.sh [--list] [quick] [ROOM|FOLDER|PROGRAM|SCRIPT...]
#
# quick: runs most tests of every folder, each with a part of its cases, on the release program without the CUDA backend. Takes
# two minutes on two cores after the build. Names select tests: parallel/zero (or tests/parallel/zero), model/test_golden,
# program/cli.sh (default: all). --list: only prints which tests would run.
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
# row FLAVOUR SETTINGS TESTS...: runs these tests in a build flavour with these settings (NAME=VALUE...). A folder stands for
# all its tests; a name with ! before it is left out. A test that an earlier row runs with the same settings does not run again.
# The rows run in this order. Long ones come first, so no core waits for one of them at the end.
rows() {
    local device='TEST_DEVICE=cuda' reverse='TEST_DEVICE=cuda EMU_ORDER=reverse EMU_LT=none TEST_SAMPLE=1'
    # Each commit runs a fifth of the cases of these tests, or a seventh; the next commits run the others.
    local by_turns='tests/equivalence/test_grid_equal tests/equivalence/test_grid_bits tests/parallel/verify/test_verify'
    by_turns+=' tests/equivalence/test_grid_checkpoints tests/kernels/test_ops tests/configs/test_config_runs'
    local deferred='TEST_DEVICE=cuda EMU_ORDER=reverse EMU_STREAMS=deferred' sample='TEST_SAMPLE=1'

    # Scripts that run emulated devices.
    local emulated
    emulated=$(printf ' !tests/program/%s.sh' nccl nccl_bench nccl_faults nccl_hosts nccl_joined nccl_processes reserve gpu_check_grids)

    row emu "$device" tests/program/cuda.sh
    row emu_asan "$device $sample TEST_EVERY=83" tests/model/test_recompute
    row emu_asan "$device $sample TEST_EVERY=8" tests/kernels/test_ops
    row emu_asan "$device $sample TEST_EVERY=3" tests/model/test_golden
    row emu "$deferred $sample TEST_EVERY=3" tests/parallel/trainer/test_trainer
    row emu "$deferred $sample TEST_EVERY=5" tests/parallel/zero/test_zero
    # Tests that compute on a device, including whole models and resumed runs. They run on the emulated device with its threads
    # in forward order; in reverse order without cuBLASLt, or with streams as far behind the host as possible; and under ASan.
    row emu "$device TEST_EVERY=5" tests/kernels/test_ops
    row emu "$device TEST_EVERY=6" tests/cuda/test_nccl_grids
    row emu "$device TEST_EVERY=2" tests/emu/device/test_emu_step
    row emu "$deferred TEST_EVERY=2" tests/cuda/test_nccl_replicas
    row emu 'TEST_DEVICE=cuda EMU_DEVICES=8 TEST_SAMPLE=1 TEST_EVERY=7' tests/parallel/memory/test_plan_grids
    row emu 'TEST_DEVICE=cuda EMU_DEVICES=8 TEST_EVERY=50' tests/parallel/trainer/test_grid_wire
    row emu "$device" tests/kernels '!tests/kernels/test_ops' tests/model/test_tensor_gradients
    row emu "$device $sample" tests/model/test_golden
    row emu "$device TEST_EVERY=23" tests/model/test_recompute
    row emu "$reverse TEST_EVERY=5 TEST_LATER=2" tests/kernels/test_ops
    row emu "$reverse TEST_EVERY=3 TEST_LATER=1" tests/model/test_golden
    row emu "TEST_DEVICE=cuda EMU_ORDER=shuffled EMU_ASYNC=early" tests/cuda/test_hopper_forward tests/cuda/test_hopper_backward
    row emu "$reverse" tests/model/test_recompute tests/cuda/test_ops_cuda tests/cuda/test_ops_cuda_updates \
        tests/cuda/test_ops_cuda_attention tests/cuda/test_ops_cuda_portions tests/cuda/test_ops_cuda_tables tests/cuda/test_model_cuda
    row emu_asan "$device $sample EMU_ORDER=reverse" tests/cuda/test_hopper_forward tests/cuda/test_hopper_backward
    row emu_asan "$device $sample" tests/parallel/trainer/test_device 'tests/cuda/test_[!n]*' tests/emu \
        '!tests/emu/device/test_emu_step' '!tests/cuda/test_hopper_forward' '!tests/cuda/test_hopper_backward'
    row emu "$deferred" tests/parallel/trainer/test_device tests/parallel/trainer/test_async_device tests/parallel/comm/test_exposed tests/parallel/flight/test_hangs tests/cuda/test_cuda_ahead tests/parallel/comm/test_comm \
        tests/parallel/grid/test_region tests/model/test_tensor_gradients
    row emu 'TEST_DEVICE=cuda EMU_DEVICES=4 EMU_STREAMS=random' tests/parallel/comm/test_comm
    row emu "$device $sample EMU_STREAMS=random" tests/parallel/trainer/test_device tests/parallel/trainer/test_async_device tests/cuda/test_cuda_ranks
    row emu "$deferred $sample" tests/equivalence/test_grid_checkpoints tests/parallel/trainer/test_offload
    row emu 'TEST_DEVICE=cuda EMU_DEVICES=4 EMU_STREAMS=random' tests/equivalence/test_grid_checkpoints
    row emu "$deferred EMU_DEVICES=4 TEST_EVERY=22 TEST_ONLY=test_overlap_changes_no_bit" tests/equivalence/test_grid_bits
    # At every commit, the first of these rows covers every dtype, and the second one, with lagging streams, one more schedule.
    row emu "$device TEST_EVERY=300 TEST_EACH=dtype" tests/equivalence/test_grid_equal
    row emu "$deferred TEST_EVERY=300 TEST_LATER=150 TEST_EACH=schedule" tests/equivalence/test_grid_equal
    row emu "$device $sample" tests/parallel/trainer/test_device tests/parallel/trainer/test_begin
    row emu "$deferred EMU_DEVICES=8" tests/parallel/trainer/test_flight_steps tests/parallel/flight/test_hangs
    row emu "$device" tests/model/test_generate tests/cuda '!tests/cuda/test_nccl_grids' '!tests/cuda/test_nccl_replicas' tests/emu '!tests/emu/device/test_emu_step' tests/program/device.sh tests/program/nccl.sh \
        tests/program/machines.sh tests/program/nccl_hosts.sh tests/program/nccl_joined.sh tests/program/nccl_processes.sh tests/program/nccl_bench.sh tests/program/nccl_faults.sh tests/program/reserve.sh tests/program/offload.sh tests/program/gpu_check_grids.sh
    # Tests that use threads or signals, which ThreadSanitizer can check.
    row tsan "$sample STEPS=16" tests/program/signals.sh
    row tsan "$sample STEPS=9" tests/program/ranks.sh
    row tsan "$sample" tests/program/flight.sh tests/parallel/flight/test_flight_dump tests/parallel/comm/test_socket_dumps
    row tsan "$sample" tests/program/async.sh
    row tsan "$sample STEPS=5" tests/program/grids.sh
    row tsan "$sample TEST_EVERY=3" tests/parallel/trainer/test_trainer
    row tsan "$sample" tests/parallel/report/test_metrics tests/core tests/data/test_loader \
        tests/data/test_loader_validation tests/data/test_documents tests/data/test_prepare
    row tsan "$sample" tests/parallel/comm/test_comm tests/parallel/comm/test_comm_groups tests/parallel/comm/test_comm_random \
        tests/parallel/comm/test_comm_messages tests/parallel/comm/test_comm_leaves tests/parallel/comm/test_flight_calls tests/parallel/trainer/test_flight_steps tests/parallel/trainer/test_faulty_grid tests/parallel/pipeline/test_pipeline \
        tests/parallel/zero/test_zero_grid tests/parallel/grid/test_control tests/parallel/grid/test_launch tests/parallel/run/test_run_ranks tests/parallel/checkpoint/test_checkpoint_ranks \
        tests/parallel/checkpoint/test_async_save tests/parallel/checkpoint/test_async_faults \
        tests/parallel/grid/test_machines tests/parallel/run/test_run_machines tests/parallel/checkpoint/test_checkpoint_machines \
        tests/parallel/comm/test_nccl tests/parallel/comm/test_nccl_deadline tests/parallel/comm/test_nccl_ends tests/parallel/comm/test_nccl_errors tests/parallel/comm/test_nccl_waits \
        tests/parallel/comm/test_guard tests/parallel/comm/test_frozen_rank tests/parallel/comm/test_blocked_console \
        tests/parallel/grid/test_gpus tests/parallel/grid/test_region tests/model/test_tensor_gradients
    row tsan "$sample TEST_RANKS=processes" tests/parallel/comm/test_comm_groups tests/parallel/comm/test_comm_leaves tests/parallel/comm/test_socket \
        tests/parallel/comm/test_socket_ends tests/parallel/comm/test_watched
    row tsan "$sample TEST_EVERY=5" tests/equivalence/test_grid_cube
    row tsan "$sample" tests/equivalence/test_grid_training tests/equivalence/test_grid_checkpoints \
        tests/equivalence/test_grid_replicas
    # shellcheck disable=SC2086 # words
    row release '' tests/program $emulated tests/kernels '!tests/kernels/test_ops'
    # shellcheck disable=SC2086 # words
    row release TEST_EVERY=5 $by_turns '!tests/equivalence/test_grid_equal'
    # Three of five cases are in f64, so a fifth of them might have no other dtype.
    row release TEST_EVERY=7 tests/equivalence/test_grid_equal
    # TEST_EVERY shares no factor with the number of variants, so every commit covers both sides of every choice.
    row release TEST_EVERY=11 tests/model/test_recompute
    # Under ASan + UBSan tests run with a part of their cases: more cases of the same code would reveal no more errors.
    row asan "$sample" tests/program/cli.sh tests/program/bad_config.sh tests/program/learns.sh tests/program/signals.sh tests/program/pipe.sh tests/program/joined.sh \
        tests/program/device.sh tests/program/data.sh tests/program/folder.sh tests/program/numbers.sh tests/program/export_files.sh 'tests/[!e]*/test_*' \
        'tests/equivalence/test_grid_[cerst]*' '!tests/kernels/test_ops'
    row asan "$sample TEST_EVERY=2 TEST_LATER=1" tests/kernels/test_ops
    row asan "$sample TEST_RANKS=processes" tests/parallel/comm/test_comm tests/parallel/comm/test_comm_random tests/parallel/comm/test_comm_messages
    row release "$sample TEST_RANKS=processes" tests/parallel/comm/test_flight_calls tests/parallel/comm/test_comm tests/parallel/comm/test_comm_ends tests/parallel/comm/test_comm_leaves \
        tests/parallel/memory/test_plan_grids tests/parallel/trainer/test_grid_wire tests/parallel/trainer/test_replicas
    # Over TCP, as between machines.
    row release "$sample TEST_RANKS=processes TEST_LINKS=tcp" tests/parallel/comm/test_comm tests/parallel/comm/test_comm_groups \
        tests/parallel/comm/test_comm_random tests/parallel/comm/test_comm_messages tests/parallel/comm/test_comm_leaves \
        tests/parallel/comm/test_comm_ends
    row release "$sample TEST_LINKS=tcp TEST_EVERY=20" tests/equivalence/test_grid_equal
    # Over a tree, as in groups of more than 65 ranks; so do control packets, as on more than 64 machines.
    row release "$sample TEST_RANKS=processes TEST_LINKS=tcp TEST_FAN_OUT=2 TEST_MACHINES=64" tests/parallel/comm/test_comm tests/parallel/comm/test_comm_groups \
        tests/parallel/comm/test_comm_random tests/parallel/comm/test_comm_messages tests/parallel/comm/test_comm_leaves
    row release "$sample TEST_RANKS=processes TEST_LINKS=tcp6" tests/parallel/comm/test_comm tests/parallel/comm/test_comm_random
    row tsan "$sample TEST_RANKS=processes TEST_LINKS=tcp" tests/parallel/comm/test_comm_groups tests/parallel/comm/test_comm_leaves \
        tests/parallel/comm/test_socket_joined tests/parallel/comm/test_socket_joined_ends tests/parallel/comm/test_socket_control \
        tests/parallel/comm/test_socket_control_faults
    # shellcheck disable=SC2086 # words
    row release '' tests ${by_turns//tests/!tests} '!tests/model/test_recompute' $emulated
}

# Leaves out tests that wait more than they compute, tests of the scripts for GPUs, and most grids, except for a few of each
# kind.
quick_rows() {
    local name
    for name in resume longer cli worlds harness bench folder ranks grids learns bad_config layers lock opened origins output pipe \
        quickstart signals verify numbers data build links report best length launchers joined slurm import export plan; do
        row cpu 'TEST_SAMPLE=1 STEPS=8' tests/program/$name.sh
    done
    row cpu TEST_SAMPLE=1 'tests/[!e]*/test_*' '!tests/parallel/meeting/test_meeting_fails' '!tests/parallel/meeting/test_meeting_strangers' \
        tests/equivalence
    row cpu 'TEST_SAMPLE=1 TEST_RANKS=processes' tests/parallel/comm/test_comm tests/parallel/comm/test_comm_groups tests/parallel/comm/test_comm_ends
}

# Tests that run only a part of their cases select it by the number of commits, so the same commit always tries the same cases.
export TEST_TURN=${TEST_TURN:-$(git rev-list --count HEAD 2>/dev/null || echo 0)}

# architecture: prints the settings of make that compile kernels for one GPU architecture, if one is enough: this machine has no
# GPU, and no kernel has changed since the previous commit. Continuous integration (CI=true) compiles for all three unless the last
# ten commits changed no kernel, and then for one of them by turns. The turn of sm_90a leaves out the PTX, which the other turns
# compile.
architecture() {
    [ -z "${ARCH:-}" ] && [ -d model/kernels/cuda ] || return
    # shellcheck source=scripts/cuda_lib.sh
    . scripts/cuda_lib.sh
    ! has_gpu || return
    if [ "${CI:-}" != true ]; then
        ! kernels_unchanged_since HEAD~1 || echo ARCH=80
        return
    fi
    local all
    kernels_unchanged_since HEAD~10 || return
    read -ra all < <(make -s CUDA=1 print-config 2>/dev/null | sed -nE 's/^CUDA .*, code for (.*), PTX.*/\1/p')
    [ ${#all[@]} -gt 0 ] || return
    local turn=${all[TEST_TURN % ${#all[@]}]#sm_}
    if [[ $turn == *a ]]; then echo "ARCH=$turn PTX="; else echo "ARCH=$turn"; fi
}
release_settings="FLAVOUR=release $(architecture)"

# make_settings FLAVOUR: prints the settings of make for this flavour
make_settings() {
    case $1 in
    release) echo "$release_settings" ;;
    # Shares the objects that do not depend on CUDA with the release build.
    cpu) echo CUDA=0 FLAVOUR=release COMMON=build/release ;;
    emu) echo CUDA=emu FLAVOUR=release ;;
    emu_asan) echo CUDA=emu FLAVOUR=asan ;;
    *) echo "FLAVOUR=$1" ;;
    esac
}

# make_flavour FLAVOUR ARGUMENT...: runs make for this flavour
make_flavour() {
    local flavour=$1 words
    read -ra words < <(make_settings "$flavour")
    make -s "${words[@]}" BUILD="build/$flavour" "${@:2}" </dev/null
}

# known, chosen and programs: for each flavour, the names of its tests, of those that its rows name, and the programs to build.
# listed: the entries added so far. found: the names on the command line that matched a test.
declare -A known=() chosen=() programs=() listed=() found=()
flavours=() entries=()

# fits TEST SELECTION: succeeds if the selection, which may be a pattern, matches the test or a folder that contains it
fits() {
    # shellcheck disable=SC2053
    [[ $1 == $2 || $1 == $2/* || $1 == $2.sh ]]
}

# Tests of deadlines and of runs that end, which wait most of the time.
waiting=' tests/program/gpu_check.sh tests/program/nccl_faults.sh tests/program/process_faults.sh tests/program/kill.sh tests/parallel/trainer/test_faulty_grid'
waiting+=' tests/parallel/commands/test_hanging_ranks tests/parallel/comm/test_nccl_deadline tests/parallel/comm/test_nccl_waits tests/parallel/comm/test_comm_ends tests/parallel/comm/test_socket_ends tests/parallel/comm/test_socket_silence tests/parallel/comm/test_socket_joined_ends tests/parallel/comm/test_socket_tree tests/parallel/comm/test_socket_control_ends tests/parallel/comm/test_socket_control_faults tests/parallel/comm/test_watched '
waiting+=' tests/parallel/flight/test_hangs tests/parallel/comm/test_frozen_rank tests/parallel/comm/test_blocked_console tests/parallel/comm/test_guard tests/parallel/grid/test_launcher tests/parallel/grid/test_launcher_signals tests/core/test_ends '
waiting+=' tests/program/flight.sh tests/parallel/flight/test_flight_dump tests/program/launchers.sh tests/parallel/meeting/test_meeting_fails tests/parallel/meeting/test_meeting_strangers tests/parallel/run/test_progress tests/parallel/grid/test_launch_processes '

# add FLAVOUR SETTINGS TEST: adds an entry for run_tests.sh, unless the same one exists
add() {
    local path=build/$1/$3 waits=''
    [[ $3 == *.sh ]] && path=$3
    [[ $waiting != *" $3 "* ]] || waits='WAITS=yes '
    [ -z "${listed[$1 $2 $3]:-}" ] || return
    listed[$1 $2 $3]=yes
    [[ " ${flavours[*]} " == *" $1 "* ]] || flavours+=("$1")
    entries+=("LABEL=$1: TRAIN=$PWD/build/$1/train $waits$2 $path")
    [[ $3 == *.sh ]] || programs[$1]+="$path "
    [ "$1 $3" != 'emu tests/program/device.sh' ] || programs[$1]+="build/$1/train_without_90a " # which device.sh starts, too
}

# row FLAVOUR SETTINGS TESTS...: adds the tests that are wanted. A name that matches no test of the flavour is an error:
# otherwise a test that was moved or renamed would silently no longer run.
row() {
    local flavour=$1 settings=$2 selection bare name want fitting out=''
    shift 2
    for selection; do
        [[ $selection != !* ]] || out+=" ${selection#!}"
    done
    if [ -z "${known[$flavour]:-}" ]; then
        known[$flavour]=$(make_flavour "$flavour" test-list | sed "s|^build/$flavour/||") || exit 70
        known[$flavour]+=" $(find tests/program -name '*.sh' ! -name lib.sh | sort)"
    fi
    for selection; do
        fitting=0 bare=${selection#!}
        for name in ${known[$flavour]}; do
            # shellcheck disable=SC2053 # as in fits(), whose calls would take most of the time here
            [[ $name == $bare || $name == $bare/* || $name == $bare.sh ]] || continue
            fitting=$((fitting + 1))
            [[ " $out " != *" $name "* ]] || continue
            chosen[$flavour]+=" ${name#tests/}"
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

# Packages are installed first, because make, which lists the tests, may be missing.
[ -n "$only_list" ] || scripts/setup.sh || echo "test.sh: going on with what is there"
set -f # patterns match names of tests, not files
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

# use_cache: compiles through ccache if it is installed, so a second run on this machine, in any folder, compiles only what has
# changed. Objects are copied from the cache, not linked, because the Makefile renames the main() of tests in them.
use_cache() {
    command -v ccache >/dev/null || return
    export CCACHE_DIR=${CCACHE_DIR:-${XDG_CACHE_HOME:-${HOME:-}/.cache}/train.c-tests} CCACHE_MAXSIZE=${CCACHE_MAXSIZE:-1G}
    mkdir -p "$CCACHE_DIR" 2>/dev/null && [ -w "$CCACHE_DIR" ] || return
    # The compiler's own list of headers takes the place of a run of the preprocessor, which saves a fifth of the time. It lacks
    # the headers of packages; the list of installed packages stands for them.
    export CCACHE=ccache CCACHE_NOHASHDIR=1 CCACHE_NOHARDLINK=1 CCACHE_DEPEND=1
    [ ! -r /var/lib/dpkg/status ] || export CCACHE_EXTRAFILES=/var/lib/dpkg/status
}

# ---- build, then run -------------------------------------------------------------------------------------------------
RESULTS=$(mktemp)
export RESULTS
trap 'rm -f "$RESULTS"' EXIT
bad=0

use_cache

# All flavours are built before any test runs, so a core that has finished the tests of one flavour continues with the next. A
# failed build counts as a failed test.
for flavour in "${flavours[@]}"; do
    echo "== build $flavour"
    read -ra targets <<<"build/$flavour/train ${programs[$flavour]:-}"
    make_flavour "$flavour" -j "$(nproc)" BUILD_TESTS="${chosen[$flavour]}" "${targets[@]}" && continue
    echo "0 0 0 1 0 build_$flavour" >>"$RESULTS"
    bad=1
    mapfile -t entries < <(printf '%s\n' "${entries[@]}" | grep -v "^LABEL=$flavour:")
done

echo "== run, TEST_TURN=$TEST_TURN"
export OMP_NUM_THREADS=2
export ASAN_OPTIONS=detect_leaks=1 UBSAN_OPTIONS=print_stacktrace=1 TSAN_OPTIONS="halt_on_error=1 atexit_sleep_ms=0"
# One job more than cores, because some tests wait now and then. Those that wait most of the time would take longer than all
# others together if they ran one at a time.
JOBS=$(($(nproc) + 1)) WAITING_JOBS=3 scripts/run_tests.sh "${entries[@]}" || bad=1

echo "== slowest"
sort -rn "$RESULTS" | head -n 10 | awk '{ printf "%8s s %8s s busy  %s\n", $1, $2, $6 }'
awk '{ busy += $2; p += $3; f += $4; s += $5 }
     END { printf "%.0f s busy in tests\n%d passed, %d failed, %d skipped\n", busy, p, f, s }' "$RESULTS"
exit $bad

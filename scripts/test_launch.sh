#!/usr/bin/env bash
# test_launch.sh -- tests the program under real launchers and on machines that are emulated here: mpirun, mpiexec, srun,
# torchrun's variables; two hosts, each a network of its own; a private SLURM with two nodes. The last line is "N passed, N
# failed, N skipped". What cannot start here is skipped, with a sentence. Takes at most four minutes on two cores after the build.
#
#   scripts/test_launch.sh [NAME...]        NAME: a script of tests/launch, such as slurm
#   LAUNCH=full scripts/test_launch.sh      also what takes longer: preemption, a node that is lost, an array of jobs
#   LAUNCH_TABLES=FOLDER                    keeps the tables of launchers, faults and strangers there
#
# Needs the packages of scripts/setup.sh --launch; namespaces and the private SLURM need root.
set -u
[ -z "${LAUNCH_TABLES:-}" ] || LAUNCH_TABLES=$(realpath -m -- "$LAUNCH_TABLES")
export LAUNCH_TABLES=${LAUNCH_TABLES:-}
cd "$(dirname "$0")/.." || exit 71
wanted=("$@")
[ ${#wanted[@]} -gt 0 ] || wanted=(slurm hosts faults strangers launchers gpus many)
for name in "${wanted[@]}"; do
    [ -e "tests/launch/$name.sh" ] || { echo "test_launch.sh: there is no tests/launch/$name.sh"; exit 64; }
done

# The flavours of scripts/test.sh, which shares their objects and its cache.
if command -v ccache >/dev/null; then
    export CCACHE_DIR=${CCACHE_DIR:-${XDG_CACHE_HOME:-${HOME:-}/.cache}/train.c-tests} CCACHE=ccache CCACHE_NOHASHDIR=1
    export CCACHE_NOHARDLINK=1 CCACHE_DEPEND=1
    [ ! -r /var/lib/dpkg/status ] || export CCACHE_EXTRAFILES=/var/lib/dpkg/status
fi
echo "== build"
bad=0
make -s CUDA=0 FLAVOUR=release COMMON=build/release BUILD=build/cpu -j "$(nproc)" build/cpu/train </dev/null || bad=1
if [[ " ${wanted[*]} " == *" gpus "* ]]; then
    make -s CUDA=emu FLAVOUR=release BUILD=build/emu -j "$(nproc)" build/emu/train </dev/null || bad=1
fi
if [ $bad -ne 0 ]; then
    echo "0 passed, 1 failed, 0 skipped"
    exit 1
fi

echo "== run"
entries=()
for name in "${wanted[@]}"; do
    flavour=cpu
    [ "$name" != gpus ] || flavour=emu
    entries+=("LABEL=$flavour: TRAIN=$PWD/build/$flavour/train tests/launch/$name.sh")
done
# Most of them wait most of the time.
limit=230
[ "${LAUNCH:-}" != full ] || limit=900
OMP_NUM_THREADS=1 LIMIT=${LIMIT:-$limit} JOBS=${JOBS:-3} scripts/run_tests.sh "${entries[@]}"

#!/usr/bin/env bash
# setup.sh -- installs the Debian packages that are missing. If none is missing, it does not use the network.
#
#   scripts/setup.sh           installs what building, the demo, the tests and `make check` need
#   scripts/setup.sh --run     installs what building and the demo need
#   scripts/setup.sh --launch  installs also the launchers that scripts/test_launch.sh tries: SLURM, Open MPI, MPICH
#   scripts/setup.sh --check   only prints what is missing and exits with 1 if something is (may be combined with the others); what
#                              only some tests need does not count
#
# For some tests it also installs Chromium, and from PyPI tbparse in ~/.cache/train.c-tbparse and, where there is an nvcc whose
# toolkit lacks them, nvdisasm and cuobjdump in ~/.cache/train.c-disassemblers. If that fails, only these tests are skipped.
#
# Must run as root or with a sudo that needs no password; otherwise prints the command to run as root and exits with 77.
# CJSON_PREFIX=/path names a cJSON that pkg-config does not know.
set -u

mode=all only_check=no launch=no
for word in "$@"; do
    case $word in
    --run) mode=run ;;
    --launch) launch=yes ;;
    --check) only_check=yes ;;
    --help | -h) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "setup.sh: unknown option $word (see --help)" >&2; exit 64 ;;
    esac
done

has() { command -v "$1" >/dev/null 2>&1; }
has_header() { [ -e "/usr/include/$1" ]; }
has_module() { has pkg-config && pkg-config --exists "$1"; }
has_library() { compgen -G "/usr/lib/*/$1" >/dev/null || compgen -G "/lib/*/$1" >/dev/null; }
has_cjson() { [ -n "${CJSON_PREFIX:-}" ] || has_module libcjson; }
has_disassembler() { [ -x "${1%/nvcc}/cuobjdump" ] && [ -x "${1%/nvcc}/nvdisasm" ]; }
has_openblas() { compgen -G '/usr/lib/*/openblas-pthread/libopenblas.so.0' >/dev/null || compgen -G '/usr/l*/*/libopenblas.so.0' >/dev/null; }

missing=()
# need PACKAGE TEST...: adds the package to the missing ones unless the test succeeds
need() {
    local package=$1
    shift
    "$@" || missing+=("$package")
}

need gcc has gcc
need libc6-dev has_header stdlib.h
need make has make
need pkg-config has pkg-config
need libcjson-dev has_cjson
need libopenblas0-pthread has_openblas
need bible-kjv has bible
if [ $mode = all ]; then
    need zlib1g has_library libz.so.1
    need libzstd1 has_library libzstd.so.1
    need libcmocka-dev has_module cmocka
    need g++ has g++
    need ccache has ccache
    need clang-format has clang-format
    need clang-tidy has clang-tidy
    need strace has strace
    need tmux has tmux
    need iproute2 has ip
    need python3 has python3
    need shellcheck has shellcheck
fi
# Without these some tests are skipped, so it is no error if they cannot be installed. tbparse and the disassemblers come from
# PyPI, each into a virtual environment.
# shellcheck source=scripts/cuda_lib.sh
. "$(dirname "$0")/cuda_lib.sh"
wanted=() tbparse=${XDG_CACHE_HOME:-${HOME:-}/.cache}/train.c-tbparse need_tbparse=''
disassemblers=$(disassemblers) need_disassemblers=''
if [ $mode = all ]; then
    has chromium-headless-shell || has chromium || wanted+=(chromium-headless-shell)
    [ -e "$tbparse/complete" ] || need_tbparse=tbparse
    nvcc=$(find_nvcc) && ! has_disassembler "$nvcc" && [ ! -e "$disassemblers/complete" ] && need_disassemblers='nvdisasm cuobjdump'
    [ -z "$need_tbparse$need_disassemblers" ] || python3 -c 'import ensurepip' 2>/dev/null || wanted+=(python3-venv)
fi
# Packages of launchers, each with a program or a file that it brings: srun --mpi=pmix loads libpmix.so by this name. Tests start
# private daemons; those of the packages are not needed.
launchers=() without_launcher=()
if [ $launch = yes ]; then
    launchers=(slurmd=slurmd slurmctld=slurmctld slurm-client=sbatch munge=munged openmpi-bin=mpirun.openmpi mpich=mpiexec.hydra
        iproute2=ip 'libpmix-dev=/usr/lib/*/libpmix.so')
fi
# look_for_launchers: stores the packages of launchers that are missing in without_launcher
look_for_launchers() {
    local pair
    without_launcher=()
    for pair in "${launchers[@]}"; do
        [[ $pair != */* ]] || { compgen -G "${pair#*=}" >/dev/null || without_launcher+=("${pair%=*}"); continue; }
        PATH=$PATH:/usr/sbin:/sbin has "${pair#*=}" || without_launcher+=("${pair%=*}")
    done
}
look_for_launchers
wanted+=("${without_launcher[@]}")
# shellcheck disable=SC2206 # words
optional=("${wanted[@]}" $need_tbparse $need_disassemblers)

if [ ${#missing[@]} -eq 0 ] && [ ${#optional[@]} -eq 0 ]; then
    echo "setup: nothing is missing"
    exit 0
fi
[ ${#missing[@]} -eq 0 ] || echo "setup: missing: ${missing[*]}"
[ ${#optional[@]} -eq 0 ] || echo "setup: missing, for some tests only: ${optional[*]}"
[ $only_check = yes ] && exit $((${#missing[@]} > 0))

as_root=()
apt() { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q "$@" </dev/null; }

# can_install: succeeds if packages can be installed; otherwise exits if one of them is needed
can_install() {
    if [ "$(id -u)" -ne 0 ]; then
        if has sudo && sudo -n true 2>/dev/null; then
            as_root=(sudo -n)
        elif [ ${#missing[@]} -gt 0 ]; then
            echo "setup: not root, and sudo would ask; have somebody run:" >&2
            echo "    apt-get update && apt-get install -y --no-install-recommends ${missing[*]}" >&2
            exit 77
        else
            return 1
        fi
    fi
    has apt-get && return
    [ ${#missing[@]} -eq 0 ] && return 1
    echo "setup: there is no apt-get here; install what these Debian packages hold by other means" >&2
    exit 69
}

if [ ${#missing[@]} -gt 0 ] || [ ${#wanted[@]} -gt 0 ] && can_install; then
    apt update
    if [ ${#missing[@]} -gt 0 ]; then
        apt install -y --no-install-recommends "${missing[@]}"
        code=$?
        [ $code -eq 0 ] || { echo "setup: apt-get failed; see its messages above" >&2; exit 75; }
    fi
    for package in "${wanted[@]}"; do apt install -y --no-install-recommends "$package"; done
fi
# --no-deps leaves out what only TensorBoard's web server needs.
if [ -n "$need_tbparse" ]; then
    python3 -m venv "$tbparse" &&
        "$tbparse/bin/python" -m pip install -q --disable-pip-version-check --no-compile --retries 1 --no-deps \
            tbparse==0.0.9 tensorboard==2.21.0 pandas==3.1.1 numpy==2.4.6 protobuf==7.36.2 python-dateutil==4.0.0 six==1.17.0 \
            packaging==26.3 absl-py==2.5.1 &&
        "$tbparse/bin/python" -c 'import tbparse' && touch "$tbparse/complete"
fi
# cuobjdump of a newer toolkit reads the code of older compilers.
if [ -n "$need_disassemblers" ]; then
    python3 -m venv "$disassemblers" &&
        "$disassemblers/bin/python" -m pip install -q --disable-pip-version-check --no-compile --retries 1 --no-deps --require-hashes \
            -r "$(dirname "$0")/sass/disassemblers.txt" &&
        chmod +x "$disassemblers"/lib/python3*/site-packages/nvidia/cu*/bin/* && touch "$disassemblers/complete"
fi
if [ $mode = all ]; then
    has chromium-headless-shell || has chromium || echo "setup: there is no Chromium; the test that needs it is skipped"
    [ -e "$tbparse/complete" ] || echo "setup: there is no tbparse; the test that needs it is skipped"
    [ -z "$need_disassemblers" ] || [ -e "$disassemblers/complete" ] ||
        echo "setup: there are no nvdisasm and cuobjdump; the tests that need them are skipped"
fi
look_for_launchers
[ ${#without_launcher[@]} -eq 0 ] || echo "setup: not installed: ${without_launcher[*]}; tests of these launchers are skipped"
exit 0

#!/usr/bin/env bash
# setup.sh -- installs the Debian packages that are missing. If none is missing, it does not use the network.
#
#   scripts/setup.sh           installs what building, the demo, the tests and `make check` need
#   scripts/setup.sh --run     installs what building and the demo need
#   scripts/setup.sh --check   only prints what is missing and exits with 1 if something is (may be combined with --run); what
#                              only some tests need does not count
#
# Must run as root or with a sudo that needs no password; otherwise prints the command to run as root and exits with 77.
# CJSON_PREFIX=/path names a cJSON that pkg-config does not know.
set -u

mode=all only_check=no
for word in "$@"; do
    case $word in
    --run) mode=run ;;
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
# Without these packages some tests are skipped, so it is no error if they cannot be installed.
wanted=()
if [ $mode = all ]; then
    has chromium-headless-shell || has chromium || wanted+=(chromium-headless-shell)
fi

if [ ${#missing[@]} -eq 0 ] && [ ${#wanted[@]} -eq 0 ]; then
    echo "setup: nothing is missing"
    exit 0
fi
[ ${#missing[@]} -eq 0 ] || echo "setup: missing: ${missing[*]}"
[ ${#wanted[@]} -eq 0 ] || echo "setup: missing, for some tests only: ${wanted[*]}"
[ $only_check = yes ] && exit $((${#missing[@]} > 0))

as_root=()
if [ "$(id -u)" -ne 0 ]; then
    if has sudo && sudo -n true 2>/dev/null; then
        as_root=(sudo -n)
    elif [ ${#missing[@]} -eq 0 ]; then
        echo "setup: not root, and sudo would ask; the tests that need these packages are skipped"
        exit 0
    else
        echo "setup: not root, and sudo would ask; have somebody run:" >&2
        echo "    apt-get update && apt-get install -y --no-install-recommends ${missing[*]}" >&2
        exit 77
    fi
fi
if ! has apt-get; then
    echo "setup: there is no apt-get here; install what these Debian packages hold by other means" >&2
    exit $((${#missing[@]} > 0 ? 69 : 0))
fi
apt() { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q "$@" </dev/null; }
apt update
if [ ${#missing[@]} -gt 0 ]; then
    apt install -y --no-install-recommends "${missing[@]}"
    code=$?
    [ $code -eq 0 ] || { echo "setup: apt-get failed; see its messages above" >&2; exit 75; }
fi
for package in "${wanted[@]}"; do
    apt install -y --no-install-recommends "$package" ||
        echo "setup: $package cannot be installed; the tests that need it are skipped"
done
exit 0

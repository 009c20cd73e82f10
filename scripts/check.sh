#!/usr/bin/env bash
# check.sh -- `make check`: checks format, layers, text rules, links, shell scripts, and runs clang-tidy. If a tool is not
# installed, prints its name and skips its check; with CI=true this is an error. Arguments: clang-tidy checks only these C
# files.
set -u
cd "$(dirname "$0")/.." || exit 71
bad=0

# part NAME COMMAND...: runs one check and prints whether it passed
part() {
    local name=$1 start=$SECONDS
    shift
    if "$@"; then echo "ok   $name ($((SECONDS - start)) s)"; else echo "FAIL $name"; bad=1; fi
}

# tool NAME: succeeds if the tool is installed
tool() {
    command -v "$1" >/dev/null && return 0
    echo "--   $1 is not installed"
    [ "${CI:-}" = true ] && bad=1
    return 1
}

mapfile -t sources < <(find . -path ./build -prune -o -path ./out -prune -o \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.cc' \) -print | sed 's|^\./||' | sort)
mapfile -t scripts < <(find scripts tests/program tests/launch .ci -name '*.sh' -o -path .ci/run | sort)
mapfile -t tidied < <(printf '%s\n' "${sources[@]}" | grep '\.c$')
[ $# -gt 0 ] && tidied=("$@")

check_tidy() { printf '%s\n' "${tidied[@]}" | xargs -P "$(nproc)" -n 3 scripts/tidy.sh; }

tool clang-format && part format clang-format --dry-run -Werror "${sources[@]}"
part layers scripts/check_layers.sh
part habits scripts/check_text.sh
part links scripts/check_links.sh
tool shellcheck && part shellcheck shellcheck --severity=warning "${scripts[@]}"
tool clang-tidy && part clang-tidy check_tidy
exit $bad

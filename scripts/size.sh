#!/usr/bin/env bash
# size.sh -- lines per room: all lines, and those that are neither blank nor comment.
set -u
cd "$(dirname "$0")/.." || exit 71

# count NAME FILE...
count() {
    local name=$1
    shift
    [ $# -gt 0 ] || return 0
    awk -v name="$name" -v files=$# '
        { all++ }
        inside { if (/\*\//) inside = 0; next }
        /^[ \t]*\/\*/ { if (!/\*\//) inside = 1; next }
        /^[ \t]*(\/\/.*)?$/ { next }
        { code++ }
        END { printf "%-28s %5d files %7d lines %7d code\n", name, files, all, code }' "$@"
}

mapfile -t rooms < <(git ls-files '*.c' '*.h' '*.cc' '*.cu' '*.cuh' | grep / | sed 's|/[^/]*$||' | sort -u)
shopt -s nullglob
count train.c train.c
for room in "${rooms[@]}"; do
    count "$room" "$room"/*.c "$room"/*.h "$room"/*.cc "$room"/*.cu "$room"/*.cuh
done
mapfile -t program < <(git ls-files train.c 'configs/*.[ch]' 'model/*.[ch]' 'model/*.cu' 'model/*.cuh' 'optim/*.[ch]' 'data/*.[ch]' 'parallel/*.[ch]')
mapfile -t tests < <(git ls-files 'tests/*.c' 'tests/*.h' 'tests/*.cc' 'tests/*.cu' 'tests/*.cuh')
count program "${program[@]}"
count tests "${tests[@]}"
count scripts scripts/*.sh scripts/*.py tests/run/*.sh

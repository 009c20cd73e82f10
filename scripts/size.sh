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
        END { printf "%-20s %5d files %7d lines %7d code\n", name, files, all, code }' "$@"
}

shopt -s nullglob
count train.c train.c
for room in configs data model model/core model/kernels model/kernels/cpu model/kernels/cuda optim parallel parallel/comm; do
    count $room $room/*.c $room/*.h $room/*.cu $room/*.cuh
done
count program train.c {configs,data,model,model/core,model/kernels,model/kernels/cpu,optim,parallel,parallel/comm}/*.[ch] model/kernels/cuda/*.{c,h,cu,cuh}
count tests tests/*.[ch] tests/*/*.{c,h,cc,cu}
count scripts scripts/*.sh scripts/*.py tests/run/*.sh

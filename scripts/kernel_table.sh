#!/usr/bin/env bash
# kernel_table.sh -- prints for each CUDA kernel its registers per thread, static shared memory, stack and spills, as reported
# in nvcc's logs next to the object files.
#
#   scripts/kernel_table.sh [BUILD [SOURCES]]     default build/release, model/kernels/cuda
#
# Exits with 1 if a kernel has static shared memory (which the emulated device could not poison) or, for sm_80, sm_90a and
# sm_100, a stack frame or spills. With __launch_bounds__(threads, blocks), nvcc limits each thread's registers so that this
# number of blocks fits on an SM (65,536 registers); values that do not fit are spilled. A launch whose grid is a multiple of
# the multiprocessors assumes that this many blocks are resident. So it must use a constant that its kernel's __launch_bounds__
# names; otherwise exits with 1. The emulated device checks that launches respect these bounds and the shared memory. Exits with
# 69 if nvcc built nothing.
set -u
folder=${1:-$(dirname "$0")/../build/release}/model/kernels/cuda
compgen -G "$folder/*.cu.o.log" >/dev/null || { echo "kernel_table: nvcc built nothing in $folder" >&2; exit 69; }
sources=${2:-$(dirname "$0")/../model/kernels/cuda}
cat "$folder"/*.cu.o.log | c++filt | awk '
    /Compiling entry function/ {
        arch = $NF
        gsub(/\047/, "", arch)
        name = $0
        sub(/^[^\047]*\047/, "", name)
        sub(/\047 for .*/, "", name)
        sub(/\(.*/, "", name)
        sub(/^void /, "", name)
    }
    /bytes stack frame/ { stack = $1; spill = $5 + $9 }
    /Used [0-9]+ registers/ {
        registers = shared = 0
        for (i = 1; i <= NF; i++) {
            if ($i == "Used") registers = $(i + 1)
            if ($i ~ /^smem/) shared = $(i - 2)
        }
        kernels++
        key = arch " " name
        printf "%-8s %4d registers %6d shared %4d stack %4d spilled  %s\n", arch, registers, shared, stack, spill, name
        if (shared > 0) { print "kernel_table: " key ": static shared memory"; bad = 1 }
        if (arch ~ /^sm_(80|90a|100)$/ && stack + spill > 0) { print "kernel_table: " key ": a stack frame or spills"; bad = 1 }
    }
    END {
        printf "%d kernels\n", kernels
        exit bad || kernels == 0
    }'
code=$?

# Checks that each statement that mentions the multiprocessors shares a constant with the number of blocks in a
# __launch_bounds__ of its file.
for source in "$sources"/*.cu; do
    sed 's|/\*.*\*/||' "$source" | tr '\n' ' ' | awk -v file="${source##*/}" '
        function names(text, into,    n, word, i) {
            n = split(text, word, /[^A-Za-z0-9_]+/)
            for (i = 1; i <= n; i++)
                if (word[i] ~ /^[A-Z][A-Z0-9_]+$/) into[word[i]] = 1
        }
        {
            for (rest = $0; match(rest, /__launch_bounds__\([^()]*\)/); rest = substr(rest, RSTART + RLENGTH)) {
                bounds = substr(rest, RSTART, RLENGTH)
                if (sub(/.*,/, "", bounds)) names(bounds, blocks)
            }
            n = split($0, statement, /[;{}]/)
            for (i = 1; i <= n; i++) {
                if (statement[i] !~ /multiprocessors/) continue
                split("", used)
                names(statement[i], used)
                held = 0
                for (name in used)
                    if (name in blocks) held = 1
                if (held) continue
                gsub(/^ +| +$/, "", statement[i])
                print "kernel_table: " file ": no __launch_bounds__ holds the kernel to \"" statement[i] "\""
                bad = 1
            }
        }
        END { exit bad }' || code=1
done
exit $code

#!/usr/bin/env bash
# kernel_table.sh -- what nvcc made of each kernel: registers a thread, static shared memory, stack, spills; from the logs
# beside the objects.
#
#   scripts/kernel_table.sh [BUILD]     default build/release
#
# Exit 1 if a kernel has what no launch reckons with: static shared memory (the emulated device could not poison it), or, for
# sm_80, sm_90a and sm_100, a stack frame or spills. Registers are held to an SM's 65,536 a block by nvcc itself, which knows each
# kernel's launch bounds; that launches keep to those bounds and to a device's shared memory, the emulated device sees.
# Exit 69 where nvcc built nothing.
set -u
folder=${1:-$(dirname "$0")/../build/release}/model/kernels/cuda
compgen -G "$folder/*.cu.o.log" >/dev/null || { echo "kernel_table: nvcc built nothing in $folder" >&2; exit 69; }
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

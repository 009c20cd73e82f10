#!/usr/bin/env bash
# sass_report.sh -- checks the CUDA kernels that make has built, and predicts their times from their machine code.
#
#   scripts/sass_report.sh [--logs|--check|--notes|--offenders|attention] [BUILD [SOURCES]]   default build/release, model/kernels/cuda
#
# Prints for each kernel its registers per thread, static shared memory, stack and spills. Then prints, for the kernels that
# scripts/sass/kernels.py describes, what the hot path consists of and how long a launch takes on an H100 and an H200 by the
# model of scripts/sass/machine.txt, and how long steps of three models take.
#
# --logs: reads only nvcc's logs and prints only the first of these. --check: prints only faults, and reads the machine code of
# one architecture. --notes: writes the predictions into model/kernels/cuda/NOTES.md, between its markers. --offenders: compiles
# kernels with one fault each, and prints for each whether the fault is found. attention: prints only what is about the kernels of
# attention on tensor cores, those for Hopper beside the portable ones, without the steps.
#
# Exits with 1 if
#   - a kernel has static shared memory (which the emulated device could not poison)
#   - a kernel has a stack frame or spills, on sm_80, sm_90a or sm_100
#   - ptxas says that products on tensor cores are serialized
#   - a launch whose grid is a multiple of the multiprocessors uses no constant that its kernel's __launch_bounds__ names: with
#     __launch_bounds__(threads, blocks), nvcc limits each thread's registers so that this number of blocks fits on an SM
#     (65,536 registers). The emulated device checks that launches respect these bounds and the shared memory.
#   - fewer blocks fit on an SM than scripts/sass/kernels.py demands
#   - the machine code after a setmaxnreg uses more registers than that gives (ptxas' log tells only how many a thread starts with)
#   - of the exponentials in a loop with products by warpgroups, less than half run while such products are under way
#   - a packed variant of a kernel stores packs in parts, an elementwise kernel calls a function, or an innermost loop of copies
#     has a wide multiply or a conversion, unless scripts/sass/known.txt lists it.
# Only what the last three points name, and the predictions, need a disassembler: nvdisasm and cuobjdump of the CUDA toolkit or those
# that scripts/setup.sh installs. Without them it is left out, and a line says so. Exits with 69 if nvcc built nothing.
set -u
here=$(dirname "$0")
mode=all
case ${1:-} in
--logs | --check | --notes | --offenders) mode=${1#--}; shift ;;
attention) mode=$1; shift ;;
-*) echo "sass_report: unknown option $1" >&2; exit 64 ;;
esac
folder=${1:-$here/../build/release}/model/kernels/cuda sources=${2:-$here/../model/kernels/cuda}
notes=$here/../model/kernels/cuda/NOTES.md
# shellcheck source=scripts/cuda_lib.sh
. "$here/cuda_lib.sh"

# check_logs: prints what ptxas says about each kernel; fails if it finds a fault
check_logs() {
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
        /C75[0-9][0-9][^\047]*serialized|C7508/ { # the name of a function follows in quotes
            sub(/^ptxas info *: */, "")
            print "sass_report: " $0
            bad = 1
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
            if (shared > 0) { print "sass_report: " key ": static shared memory"; bad = 1 }
            if (arch ~ /^sm_(80|90a|100)$/ && stack + spill > 0) { print "sass_report: " key ": a stack frame or spills"; bad = 1 }
        }
        END {
            printf "%d kernels\n", kernels
            exit bad || kernels == 0
        }'
}

# check_launches: checks that each statement that mentions the multiprocessors shares a constant with the number of blocks in a
# __launch_bounds__ of its file
check_launches() {
    local source bad=0
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
                    print "sass_report: " file ": no __launch_bounds__ holds the kernel to \"" statement[i] "\""
                    bad = 1
                }
            }
            END { exit bad }' || bad=1
    done
    return $bad
}

disassembler=''
# find_disassembler: prints the path of a cuobjdump that has nvdisasm next to it: $disassembler if it is set
find_disassembler() {
    local nvcc path
    [ -z "$disassembler" ] || { echo "$disassembler"; return; }
    nvcc=$(find_nvcc)
    for path in "${nvcc%/nvcc}/cuobjdump" "$(command -v cuobjdump 2>/dev/null)" \
        "$(disassemblers)"/lib/python3*/site-packages/nvidia/cu*/bin/cuobjdump; do
        [ -x "$path" ] && [ -x "${path%/*}/nvdisasm" ] || continue
        echo "$path"
        return
    done
    return 1
}

# report MODE ARCHITECTURE...: runs report.py with the machine code of those of these that the kernels were compiled for
report() {
    local tool arch archs=() mode=$1
    shift
    for arch; do
        grep -qsh "Compiling entry function .* for '$arch'" "$folder"/*.cu.o.log && archs+=("$arch")
    done
    if [ ${#archs[@]} -eq 0 ] || { [ "$mode" != check ] && [[ " ${archs[*]} " != *" sm_90a "* ]]; }; then
        tool=-
        echo "sass_report: the kernels were not compiled for sm_90a, so their machine code is not read"
    elif ! tool=$(find_disassembler); then
        tool=-
        echo "sass_report: there are no nvdisasm and cuobjdump, so machine code is not read; scripts/setup.sh installs them"
    fi
    PATH=${tool%/*}:$PATH python3 -B "$here/sass/report.py" "$mode" "$folder" "$tool" "${archs[@]}"
}

# write_notes: replaces the text between the markers of NOTES.md by the predictions
write_notes() {
    local tables
    tables=$(report tables sm_80 sm_90a sm_100) && grep -q '^| kernel' <<<"$tables" || { echo "$tables"; return 1; }
    TABLES=$tables awk '
        /^<!-- sass:end -->$/ { inside = 0; ends++ }
        !inside { print }
        /^<!-- sass:begin -->$/ { inside = 1; begins++; print ENVIRON["TABLES"] }
        END { exit begins != 1 || ends != 1 }' "$notes" >"$notes.new" && mv "$notes.new" "$notes" && return
    rm -f "$notes.new"
    echo "sass_report: $notes has not the two marker lines" >&2
    return 1
}

# lowered: from now on report reads a disassembly in which setmaxnreg gives half of the 24 registers
lowered() {
    local tool
    tool=$(find_disassembler) || return 0
    mkdir "$temporary/tools"
    ln -s "${tool%/*}/nvdisasm" "$temporary/tools/"
    printf '%s\n' '#!/bin/bash' "set -o pipefail" "'$tool' \"\$@\" | sed 's/\(USETMAXREG.DEALLOC.*\) 0x18 /\1 0xc /'" >"$temporary/tools/cuobjdump"
    chmod +x "$temporary/tools/cuobjdump"
    disassembler=$temporary/tools/cuobjdump
}

# offenders: compiles kernels with planted faults and prints whether each fault is found; fails if one is not
offenders() {
    local nvcc temporary found bad=0
    nvcc=$(find_nvcc) || { echo "sass_report: there is no nvcc" >&2; return 69; }
    temporary=$(mktemp -d) || return 71
    folder=$temporary
    cp "$here/sass/offenders.cu" "$temporary/elementwise.cu"
    if "$nvcc" -std=c++17 -O3 -gencode arch=compute_90a,code=sm_90a -Xptxas=-v -c -o "$temporary/elementwise.cu.o" \
        "$temporary/elementwise.cu" >"$temporary/elementwise.cu.o.log" 2>&1; then
        found=$(check_logs; report check sm_90a)
        # finds FAULT TEXT: prints the message that contains the text
        finds() {
            grep -m 1 -F "$2" <<<"$found" | sed "s/^sass_report: /found: $1: /" | grep . || { echo "NOT FOUND: $1"; bad=1; }
        }
        finds "a spill" "spilling_kernel: a stack frame or spills"
        finds "products that wait for each other" "serialized due to"
        finds "too few resident blocks" "activation_forward_kernel<bf16,8,0>: 3 blocks fit"
        if find_disassembler >/dev/null; then
            finds "a split store" " splitting_kernel<4>: split store"
            finds "a split store beside a whole one" "partly_splitting_kernel<4>: split store"
            finds "a call in an elementwise kernel" "dividing_kernel: call"
            finds "a wide multiply in a loop of copies" "multiplying_kernel: wide multiply"
            finds "a conversion in a loop of copies" "converting_kernel: wide multiply"
            finds "exponentials that no product hides" "lonely_kernel: exponentials alone"
            finds "a known fault that is gone" "no call any more in"
            ! grep '^sass_report:.*sharing_kernel' <<<"$found" || bad=1
            lowered
            found=$(report check sm_90a)
            finds "more registers than setmaxnreg gives" "sharing_kernel: registers"
        else
            grep 'machine code is not read' <<<"$found"
        fi
        # A kernel without a fault must not be named.
        ! grep '^sass_report:.*sound_kernel' <<<"$found" || bad=1
    else
        cat "$temporary/elementwise.cu.o.log"
        bad=1
    fi
    rm -rf "$temporary"
    return $bad
}

[ $mode != offenders ] || { offenders; exit; }
compgen -G "$folder/*.cu.o.log" >/dev/null || { echo "sass_report: nvcc built nothing in $folder" >&2; exit 69; }
[ $mode != notes ] || { write_notes; exit; }
code=0
if [ $mode = check ]; then
    found=$(check_logs) || { grep '^sass_report:' <<<"$found"; code=1; }
elif [ $mode = attention ]; then
    found=$(check_logs) || code=1
    grep -E '^sass_report:| (flash|hopper)_' <<<"$found"
else
    check_logs || code=1
fi
check_launches || code=1
case $mode in
check) report check sm_90a || code=1 ;;
all) report tables sm_80 sm_90a sm_100 || code=1 ;;
attention) report attention sm_80 sm_90a sm_100 || code=1 ;;
esac
exit $code

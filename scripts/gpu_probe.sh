#!/usr/bin/env bash
# gpu_probe.sh -- measures how a GPU behaves: builds and runs tests/probe/*.cu and writes the results to a Markdown file.
#
#   scripts/gpu_probe.sh              writes the results to build/probe/probe.md
#   scripts/gpu_probe.sh --out FILE   writes the results to FILE
#   scripts/gpu_probe.sh --notes      also writes them between the markers in model/kernels/cuda/NOTES.md
#   scripts/gpu_probe.sh --only A,B   builds and runs only these probes
#   scripts/gpu_probe.sh --match A,B  fails unless the probes print all these verdicts, and each is "match"
#   scripts/gpu_probe.sh --build      only compiles the probes, into build/probe
#
# Building needs only nvcc (PATH or CUDA_HOME, default /usr/local/cuda). Running needs an H100 or H200 and at most six minutes.
# The probe nccl is built only if there is an nccl.h; pytorch_step.py runs only if python3 has torch. Exit codes: 0 all probes
# succeeded or were skipped, 1 a probe failed or does not compile, or a verdict of --match does not hold, 69 no nvcc or (found
# after compiling) no Hopper GPU.
# PROBE_BIN=FOLDER runs the programs in that folder instead of building; PROBE_SHARE sets the time limit of each probe in
# seconds. The script passes each probe its limit in the variable PROBE_SHARE.
set -u
here=$PWD
cd "$(dirname "$0")/.." || exit 71
. scripts/cuda_lib.sh

out=build/probe/probe.md only='' match='' to_notes=no build_only=no notes=model/kernels/cuda/NOTES.md
while [ $# -gt 0 ]; do
    case $1 in
    --out)
        [ $# -ge 2 ] || { echo "gpu_probe: --out wants a file" >&2; exit 64; }
        out=$(realpath -m -- "$here/$2")
        [ "${2#/}" = "$2" ] || out=$2
        shift
        ;;
    --notes) to_notes=yes ;;
    --build) build_only=yes ;;
    --only)
        [ $# -ge 2 ] || { echo "gpu_probe: --only wants names" >&2; exit 64; }
        only=,$2,
        shift
        ;;
    --match)
        [ $# -ge 2 ] || { echo "gpu_probe: --match wants names" >&2; exit 64; }
        match=$2
        shift
        ;;
    --help | -h) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "scripts/${0##*/}"; exit 0 ;;
    *) echo "gpu_probe: unknown option $1 (see --help)" >&2; exit 64 ;;
    esac
    shift
done

whole=345 # seconds for all probes; with killing hanging ones and writing the file it stays within six minutes
nvcc=$(find_nvcc) || nvcc=''
cuda=${nvcc%/bin/nvcc}
folder=${PROBE_BIN:-build/probe}
known=(bits bits_contracted functions fragments fragments_matrix fragments_tma fragments_wgmma fragments_wgmma_registers ring_tma ceilings cublaslt
    cublaslt_gelu cublaslt_bias_gradient cublaslt_splitk cublaslt_operands cublaslt_repeat host_states nccl)
results=build/probe/results
mkdir -p "$results" "$(dirname "$out")" || exit 73
rm -f "$results"/*

has() { command -v "$1" >/dev/null 2>&1; }

# share NAME: prints the time limit of a probe in seconds
share() {
    [ -z "${PROBE_SHARE:-}" ] || { echo "$PROBE_SHARE"; return; }
    case $1 in
    bits | functions) echo 20 ;;
    bits_contracted) echo 10 ;;
    fragments*) echo 10 ;;
    ceilings) echo 40 ;;
    host_states) echo 30 ;;
    cublaslt) echo 100 ;;
    cublaslt_*) echo 15 ;;
    nccl) echo 61 ;;
    pytorch_step) echo 110 ;;
    *) echo 20 ;;
    esac
}

# chosen NAME: succeeds if the probe is to run
chosen() { [ -z "$only" ] || [[ $only == *",$1,"* ]]; }

# nccl_folder: prints the folder of nccl.h, or nothing if there is none. PyTorch's wheel has it; the toolkit may not.
nccl_folder() {
    local folder
    for folder in "$(python3 -c 'import nvidia.nccl as n; print(list(n.__path__)[0] + "/include")' 2>/dev/null)" \
        "$cuda/include" /usr/local/include /usr/include; do
        if [ -f "$folder/nccl.h" ]; then echo "$folder"; return; fi
    done
}

# sources: prints the source files of the probes to build, each followed by a NUL
sources() {
    local file name
    for file in tests/probe/*.cu; do
        name=$(basename "$file" .cu)
        [ "$name" != nccl ] || [ -n "$nccl_include" ] || continue
        if chosen "$name"; then printf '%s\0' "$file"; fi
    done
}

# build_one FILE: compiles a probe into build/probe and stores nvcc's output next to it
build_one() {
    local name options=()
    name=$(basename "$1" .cu)
    case $name in
    bits) options=(-fmad=false) ;; # the flag that the backend compiles the same code with
    nccl) options=(-I"$nccl_include") ;;
    esac
    rm -f "build/probe/$name" # an old program must not be run instead
    # Compiles through ccache if CCACHE is set, as the Makefile does. Links in a separate command, because ccache cannot cache
    # linking.
    # shellcheck disable=SC2086 # no word or one
    { CCACHE_DEPEND=1 ${CCACHE:-} "$nvcc" -std=c++17 -O2 -I. -gencode arch=compute_90a,code=sm_90a "${options[@]}" \
        -Xcompiler -Wall,-Wextra,-Wno-missing-field-initializers -MMD -MF "build/probe/$name.d" -c -o "build/probe/$name.o" "$1" &&
        "$nvcc" -o "build/probe/$name" "build/probe/$name.o" -ldl -lpthread; } >"build/probe/$name.log" 2>&1 ||
        { echo "gpu_probe: $1 does not compile:"; cat "build/probe/$name.log"; exit 1; }
}

# build_all: compiles all probes, one nvcc per core
build_all() {
    if [ -z "$nvcc" ]; then
        echo "gpu_probe: there is no nvcc here (PATH, CUDA_HOME), so no probe can be built" >&2
        exit 69
    fi
    export nvcc nccl_include
    export -f build_one
    # shellcheck disable=SC2016 # $1 is the inner shell's
    sources | xargs -0 -n 1 -P "$(nproc)" bash -c 'build_one "$1"' build_one >&2 || exit 1
}

# cuda_program NAME: runs a probe and passes it its time limit
cuda_program() { LD_LIBRARY_PATH=$libraries PROBE_SHARE=$limit exec timeout -k 5 "$limit" "$folder/$1"; }

answered=0 failed=0 skipped=0 first=yes ran=()
# skip NAME WHY: reports the probe as skipped
skip() {
    skipped=$((skipped + 1))
    ran+=("$1")
    echo "skipped: $2" >"$results/$1.end"
    echo "gpu_probe: $1 skipped: $2"
}

# run NAME COMMAND...: runs a probe within its limit and the remaining total time; stores its output, its time and its exit
# status
run() {
    local name=$1 code from=$SECONDS limit left=$((whole - SECONDS))
    shift
    limit=$(share "$name")
    [ "$left" -ge "$limit" ] || limit=$left
    if [ "$left" -lt 5 ]; then skip "$name" "the time was over"; return; fi
    ran+=("$name")
    printf 'gpu_probe: %s (at most %s s)\n' "$name" "$limit"
    ("$@") >"$results/$name.out" 2>"$results/$name.err" </dev/null
    code=$?
    if [ $code -eq 69 ] && [ $first = yes ]; then
        echo "gpu_probe: ${#programs[@]} probes are built, but $(tail -n 1 "$results/$name.err")" >&2
        exit 69
    fi
    first=no
    case $code in
    0) answered=$((answered + 1)); echo "answered in $((SECONDS - from)) s" ;;
    69) skipped=$((skipped + 1)); echo "skipped: $(tail -n 1 "$results/$name.err")" ;;
    124 | 137) failed=$((failed + 1)); echo "failed: stopped after its $limit s; what it had said by then stands below" ;;
    *) failed=$((failed + 1)); echo "failed: exit $code after $((SECONDS - from)) s" ;;
    esac >"$results/$name.end"
    sed "s/^/gpu_probe: $name /" "$results/$name.end"
}

# answer NAME: prints the value that a probe printed under this name, or a dash
answer() {
    local value
    value=$(cat "$results"/*.out 2>/dev/null | sed -n "s/^$1 = //p" | head -n 1)
    echo "${value:--}"
}

# all_match: succeeds if each verdict of --match was printed and is always "match"; otherwise names the first that is not
all_match() {
    cat "$results"/*.out 2>/dev/null | awk -v wanted="$match" -v file="$out" '
        {
            at = index($0, " = ")
            name = substr($0, 1, at - 1)
            if (!(name in said) || said[name] == "match") said[name] = substr($0, at + 3)
        }
        END {
            n = split(wanted, names, ",")
            for (i = n; i > 0; i--) {
                if (said[names[i]] == "match") continue
                words = names[i] (said[names[i]] == "" ? " is missing" : " = " said[names[i]])
                bad++
            }
            if (bad) printf "gpu_probe: ERROR: %s (%d of %d verdicts do not match; see %s)\n", words, bad, n, file
            exit bad > 0
        }'
}

# driver: prints the version of the NVIDIA driver
driver() {
    local found
    found=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1)
    [ -n "$found" ] || found=$(sed -n 's/^NVRM version:.*  \([0-9][0-9.]*\)  .*/\1/p' /proc/driver/nvidia/version 2>/dev/null)
    echo "${found:--}"
}

# table FILE: prints the `name = value unit` lines as a table, and all other lines (also `map.` lines) in a collapsed block
table() {
    awk '
        /^[a-zA-Z0-9_.+\/-]+ = / && !/^map\./ {
            at = index($0, " = ")
            name = substr($0, 1, at - 1)
            value = substr($0, at + 3)
            unit = ""
            if (match(value, /^[-+]?([0-9][0-9.]*(e[-+]?[0-9]+)?|inf|nan) /)) {
                unit = substr(value, RLENGTH + 1)
                value = substr(value, 1, RLENGTH - 1)
            }
            gsub(/\|/, "\\|", value)
            gsub(/\|/, "\\|", unit)
            if (!rows++) print "| name | value | unit |\n|---|---|---|"
            print "| " name " | " value " | " unit " |"
            next
        }
        NF { lines[++n] = $0 }
        END {
            if (rows) print ""
            if (!n) exit
            print "<details><summary>" n " lines of maps</summary>\n\n```"
            for (i = 1; i <= n; i++) print lines[i]
            print "```\n\n</details>\n"
        }' "$1"
}

# body: prints the file without its title
body() {
    local name
    echo "| | |"
    echo "|---|---|"
    echo "| date | $(date -u +%Y-%m-%d) |"
    echo "| device | $(answer device.name) |"
    echo "| driver | $(driver) |"
    echo "| CUDA driver / runtime | $(answer device.cuda.driver) / $(answer device.cuda.runtime) |"
    echo "| cuBLASLt | $(answer cublaslt.version) |"
    echo "| NCCL | $(answer nccl.version) |"
    echo "| PyTorch / cuDNN | $(answer torch.version) / $(answer cudnn.version) |"
    echo "| probes | $answered answered, $failed failed, $skipped skipped |"
    echo
    for name in "${ran[@]}"; do
        printf '## %s\n\n%s.\n\n' "$name" "$(cat "$results/$name.end")"
        [ ! -s "$results/$name.out" ] || table "$results/$name.out"
        if [ -s "$results/$name.err" ] && grep -q '^failed' "$results/$name.end"; then
            # shellcheck disable=SC2016 # these are Markdown's quotes
            printf 'Its last words:\n\n```\n%s\n```\n\n' "$(tail -n 8 "$results/$name.err")"
        fi
    done
}

# write_notes: replaces the text between the markers by the results, with lower-level headings
write_notes() {
    if ! { grep -q '^<!-- probe:begin -->$' "$notes" && grep -q '^<!-- probe:end -->$' "$notes"; } 2>/dev/null; then
        echo "gpu_probe: $notes has not the two marker lines" >&2
        exit 73
    fi
    body | sed 's/^## /#### /' >"$results/body.md"
    awk -v body="$results/body.md" '
        /^<!-- probe:end -->$/ { within = 0 }
        !within { print }
        /^<!-- probe:begin -->$/ { within = 1; while ((getline line <body) > 0) print line }
    ' "$notes" >"$results/notes.md" && cp "$results/notes.md" "$notes"
}

nccl_include=$(nccl_folder)
[ -n "${PROBE_BIN:-}" ] || build_all
[ $build_only = no ] || exit 0
libraries=$(cuda_library_path "${cuda:-/usr/local/cuda}")
programs=()
if [ -n "${PROBE_BIN:-}" ]; then
    for file in "$folder"/*; do
        chosen "${file##*/}" && [ -x "$file" ] && [ -f "$file" ] && programs+=("${file##*/}")
    done
else
    while IFS= read -r -d '' file; do
        programs+=("$(basename "$file" .cu)")
    done < <(sources)
fi
for name in "${known[@]}"; do
    [[ " ${programs[*]} " != *" $name "* ]] || run "$name" cuda_program "$name"
done
for name in "${programs[@]}"; do
    [[ " ${known[*]} " == *" $name "* ]] || run "$name" cuda_program "$name"
done
if [ -z "${PROBE_BIN:-}" ] && [ -z "$nccl_include" ] && chosen nccl; then
    skip nccl "there is no nccl.h here, in the toolkit or in a python package"
fi
# pytorch: runs the PyTorch step, which stops by itself 8 seconds before its limit, because compiling may overrun
pytorch() { exec timeout -k 5 "$limit" python3 tests/probe/pytorch_step.py --seconds "$((limit - 8))"; }
if has python3 && chosen pytorch_step; then run pytorch_step pytorch; fi

{ echo "# What the GPU answered"; echo; body; } >"$out" || exit 73
[ $to_notes = no ] || write_notes
lines=$(cat "$results"/*.out | grep -c ' = ')
echo "gpu_probe: $lines lines are in $out"
echo "$answered answered, $failed failed, $skipped skipped"
all_match && [ "$failed" -eq 0 ]

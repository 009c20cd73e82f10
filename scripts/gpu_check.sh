#!/usr/bin/env bash
# gpu_check.sh -- builds the program on a machine with one or more GPUs and checks everything that cannot be checked on the CPU.
#
#   scripts/gpu_check.sh               runs all items, in at most eight minutes
#   scripts/gpu_check.sh ITEM...       only builds and runs these items; nccl: all items that begin with "nccl."
#   scripts/gpu_check.sh --list        lists the items and their time limits in seconds
#   scripts/gpu_check.sh --out DIR ... keeps the results in DIR: gpu_check.md, and all logs in gpu_check.tar.gz; both are written
#                                      anew after each item, so a check that is stopped from outside keeps what it has found
#
# Needs gcc, g++, make, the CUDA toolkit, cJSON and cmocka, but no network, OpenBLAS, MPI or data. Prints one line per item. If
# an item fails, the others still run; the last line is "N passed, N failed, N skipped". The output of an item is stored in
# build/gpu_check/NAME.log, and the results to keep (for model/kernels/cuda/NOTES.md) in build/gpu_check/results.md.
# Exit codes: 0 nothing failed, 1 an item failed or the GPU cannot be used, 69 there is no GPU, or a tool or library is missing.
# CHECK_WHOLE: the limit of all items together in seconds; the rest is skipped.
# CHECK_TRAIN=PROGRAM CHECK_TESTS=FOLDER: checks that program and those tests instead of building; CHECK_LIMIT: the time limit
# of every item in seconds (these are for tests of this script).
set -u
# Runs are started one by one, also within a job: the program must not take its launcher's variables for theirs.
unset "${!SLURM_@}" "${!OMPI_@}" "${!PMI_@}" "${!PMIX_@}" RANK WORLD_SIZE MASTER_ADDR
here=$PWD
cd "$(dirname "$0")/.." || exit 71
. scripts/cuda_lib.sh

# shellcheck source=scripts/gpu_items.sh
. scripts/gpu_items.sh
whole=${CHECK_WHOLE:-470} # so that eight minutes hold
logs=build/gpu_check
build_limit=150
complaints='^========= .*(Invalid|Misaligned|out of bounds|Race reported)' # compute-sanitizer's
test_names=$(printf '%s\n' "${items[@]}" | grep -oE '[a-z]+(/[a-z]+)?/test_[a-z_]+' | sort -u)

keep_in='' wanted=()
while [ $# -gt 0 ]; do
    case $1 in
    --help | -h) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "scripts/${0##*/}"; exit 0 ;;
    --list) printf '%s\n' "${items[@]}" | awk -F '|' '{ printf "%-18s %4d s  %s\n", $1, $2, $4 }'; exit 0 ;;
    --out)
        [ $# -ge 2 ] || { echo "gpu_check: --out needs a folder" >&2; exit 64; }
        keep_in=$(cd "$here" && realpath -m -- "$2")
        shift
        ;;
    -*) echo "gpu_check: unknown option $1 (see --help)" >&2; exit 64 ;;
    *) wanted+=("$1") ;;
    esac
    shift
done
for word in "${wanted[@]}"; do
    printf '%s\n' "${items[@]}" | grep -q "^${word}[|.]" || { echo "gpu_check: there is no item $word (see --list)" >&2; exit 64; }
done

# asked NAME: succeeds if the item was requested; without arguments all items are
asked() {
    local word
    [ ${#wanted[@]} -gt 0 ] || return 0
    for word in "${wanted[@]}"; do
        if [[ $1 == "$word" || $1 == "$word".* ]]; then return 0; fi
    done
    return 1
}

has() { command -v "$1" >/dev/null 2>&1; }
no_gpu() {
    echo "gpu_check: $1; nothing was checked" >&2
    exit 69
}

if [ -z "${CHECK_TRAIN:-}" ]; then
    nvcc=$(find_nvcc) || no_gpu "there is no nvcc here (PATH, CUDA_HOME)"
    has_gpu || no_gpu "there is no GPU here"
    for tool in make gcc g++; do has $tool || no_gpu "there is no $tool here"; done
    export CUDA_HOME=${nvcc%/bin/nvcc}
    missing=$(make -s CUDA=1 missing)
    [ -z "$missing" ] || no_gpu "$missing"
fi
mkdir -p "$logs" ${keep_in:+"$keep_in"} || exit 73
rm -rf "$logs"/*.log "$logs"/*.md "$logs/grids"

passed=0 failed=0 skipped=0 emulated=''
# say WORD NAME SECONDS WHAT: prints the line of an item
say() { printf '%-5s %-18s %6s s  %s\n' "$@" | tee -a "$logs/lines.log"; }

# item NAME LIMIT COMMAND...: runs the command within its limit and the remaining total time. If the command exits with 69, the
# item is skipped. If its output has a line "found: WORDS", the item's line shows WORDS instead of the number of tests.
item() {
    local name=$1 limit=$2 code from=$SECONDS left=$((whole - SECONDS)) tests found
    shift 2
    [ "$left" -ge "$limit" ] || limit=$left
    if [ "$limit" -lt 5 ]; then
        say skip "$name" 0 "the $whole s for everything were over"
        skipped=$((skipped + 1))
        return
    fi
    export limit
    timeout -k 5 "$limit" bash -c '"$@"' item "$@" >"$logs/$name.log" 2>&1 </dev/null
    code=$?
    [ "$name$code" != doctor69 ] || no_gpu "$(tail -n 1 "$logs/$name.log")"
    found=$(sed -n 's/^found: //p' "$logs/$name.log" | tail -n 1)
    tests=$(($(grep -cE '^(ok |\[       OK \])' "$logs/$name.log")))
    [ -n "$found" ] || [ $tests -eq 0 ] || found="$tests tests"
    case $code in
    0) say ok "$name" $((SECONDS - from)) "$found$emulated"; passed=$((passed + 1)) ;;
    69) say skip "$name" $((SECONDS - from)) "$(tail -n 1 "$logs/$name.log")"; skipped=$((skipped + 1)) ;;
    124 | 137) say FAIL "$name" $((SECONDS - from)) "stopped after $limit s; see $logs/$name.log"; failed=$((failed + 1)) ;;
    *)
        say FAIL "$name" $((SECONDS - from)) "exit $code; see $logs/$name.log; its first complaint:"
        grep -m 3 -E "^not ok|\[  ERROR|error\[|Error|ERROR|CHECK|$complaints" "$logs/$name.log" | sed 's/^/      | /' | tee -a "$logs/lines.log"
        failed=$((failed + 1))
        ;;
    esac
}

# build: builds the program and the tests for this GPU only (for Hopper if its type is unknown, as all three would take too
# long). At the same time builds the probes; if that fails, only their own items fail
build() {
    local code targets arch=()
    mapfile -t targets <<<"$test_names"
    [ -n "$(gpu_capabilities "$CUDA_HOME")" ] || arch=(ARCH=90a)
    scripts/gpu_probe.sh --build --only "cublaslt,$small_probes,$maps" &
    make -s -j "$(nproc)" CUDA=1 "${arch[@]}" BUILD=build/gpu build/gpu/train "${targets[@]/#/build/gpu/tests/}"
    code=$?
    wait $!
    return $code
}

# doctor: prints how the program describes its device; exits with 69 if it finds none
doctor() {
    local line words
    "$CHECK_TRAIN" doctor >"$logs/doctor.txt"
    line=$(grep -m 1 -E '^(ok|--|!!) +cuda ' "$logs/doctor.txt")
    # shellcheck disable=SC2001 # the pattern needs sed
    words=$(sed 's/^.. *cuda *//' <<<"$line")
    case $line in
    ok*) echo "found: $words" ;;
    --*"no device"*) echo "$words"; exit 69 ;;
    *) echo "ERROR: ${words:-the program does not say what it has of CUDA}"; return 1 ;;
    esac
}

# programs NAME...: runs all these test programs. Fails if one fails, or if one skips a test that needs the GPU. Exits with 69
# if none fails but one is missing from CHECK_TESTS
programs() {
    local bad=0 missing='' name out allowed='only the emulated device'
    [ -n "${HOPPER_SWEEP:-}" ] || allowed+='|HOPPER_SWEEP'
    out=$(mktemp)
    for name in "$@"; do
        if [ -n "$given" ] && [ ! -x "$CHECK_TESTS/$name" ]; then
            missing=${missing:-$name}
            continue
        fi
        TEST_DEVICE=cuda "$CHECK_TESTS/$name" >"$out" 2>&1 || bad=1
        cat "$out"
        # Two skips are allowed: counts of launches, which only the emulated device has, and sweeps that were not asked for.
        if grep -E '^skipped: ' "$out" | grep -qvE "$allowed" || { grep -q '^\[  SKIPPED \]' "$out" && ! grep -q '^skipped: ' "$out"; }; then
            echo "ERROR: $name did not use the GPU for all of its tests"
            bad=1
        fi
    done
    rm -f "$out"
    if [ $bad -eq 0 ] && [ -n "$missing" ]; then
        echo "$CHECK_TESTS/$missing is not built: make CUDA=emu test-programs"
        exit 69
    fi
    return $bad
}

# losses FILE: prints the losses of the steps in a run's metrics.jsonl, one per line
losses() { sed -nE 's/.*"event": "train".*"loss": ([0-9.e+-]+).*/\1/p' "$1"; }

# short NAME OPTION...: trains the tests' small model for six steps on GPUs in $logs/grids/NAME; its output goes to NAME.txt
# there
short() {
    local name=$1
    shift
    mkdir -p "$logs/grids"
    rm -rf "$logs/grids/$name"
    [ -f "$logs/grids/text.txt" ] || seq 1 12000 >"$logs/grids/text.txt"
    "$CHECK_TRAIN" tests/program/tiny.json --set device=cuda --set "data.text=$logs/grids/text.txt" --set "data.cache=$logs/grids/cache" \
        --set train_batch_size=8 --set train_micro_batch_size_per_gpu=2 --set gradient_accumulation_steps=null --set train_steps=6 \
        --set eval.interval=0 --set eval.steps=1 --set eval.sample_interval=0 --set eval.sample_tokens=2 \
        --set checkpoint.save_interval=0 "$@" --out "$logs/grids/$name" \
        >"$logs/grids/$name.txt" 2>&1 || { tail -n 20 "$logs/grids/$name.txt"; return 1; }
}

# each GPUS COMMAND...: runs the command with only the first GPUS visible GPUs; exits with 69 if there are fewer
each() {
    local gpus=$1 there
    local -a first
    shift
    there=$(sed -nE 's/^ok +gpus +([0-9]+):.*/\1/p' "$logs/doctor.txt")
    [ "${there:-1}" -ge "$gpus" ] || { echo "for ranks with a GPU each it takes $gpus GPUs, and there are ${there:-1}"; exit 69; }
    IFS=, read -ra first <<<"${visible:-$(seq -s , 0 $((gpus - 1)))}"
    CUDA_VISIBLE_DEVICES=$(IFS=, && echo "${first[*]:0:gpus}") EMU_DEVICES=$gpus "$@"
}

# grid GPUS RANKS KEY...: trains with these ranks on these GPUs: one GPU per rank, or a single GPU for all, or "hosts". Checks
# that the ranks communicate by NCCL or share the GPU, as expected, and that their losses equal those of one rank. The losses
# are f32, and ranks add in another order. On emulated devices that changes them by some 1e-9; a GPU may also choose other
# kernels for the smaller products of a rank.
grid() { if [ "$1" = hosts ]; then hosts "$@"; else each "$1" losses_of_one "$@"; fi; }
losses_of_one() {
    local gpus=$1 ranks=$2 name key means way off
    local -a sets=() processes=()
    shift 2
    for key in "$@"; do sets+=(--set "$key"); done
    [ -f "$logs/grids/one/metrics.jsonl" ] || short one || return 1
    name=$gpus-$ranks-$(IFS=_ && echo "$*")
    case $gpus in
    hosts) means='processes, NCCL [0-9.]+' processes=(--processes --set parallel.timeout=20) ;;
    1) means='ranks share the GPU' ;;
    *) means='NCCL [0-9.]+' ;;
    esac
    short "$name" --ranks "$ranks" "${processes[@]}" "${sets[@]}" || return 1
    way=$(grep -m 1 -oE "$means" "$logs/grids/$name.txt") || { echo "ERROR: the run does not say: $means"; return 1; }
    off=$(paste <(losses "$logs/grids/one/metrics.jsonl") <(losses "$logs/grids/$name/metrics.jsonl") | awk '
        { d = $1 > $2 ? ($1 - $2) / $1 : ($2 - $1) / $1 }
        NF != 2 || d > 1e-5 || d != d { bad = 1 }
        d > most { most = d }
        END { printf "%.1e", most; exit bad || NR != 6 }') ||
        { echo "ERROR: in 6 steps losses are off one rank's by $off"; return 1; }
    echo "found: 6 steps' losses within $off of one rank's; $way"
}

# hosts hosts RANKS KEY...: does this with ranks that are processes with the same GPU. Each has another NCCL_HOSTID, so NCCL
# takes them for ranks on different machines and connects them through sockets. The other settings leave NCCL no choice but a
# ring over the loopback: nothing that needs memory of a peer, or hardware that a host lacks for another host, and few CTAs,
# because all processes take turns on the GPU. They are those of the probe nccl (tests/probe/nccl_api.h). If two of these
# grids hang, the others are skipped, because each would take as long.
hosts() {
    local hang=$logs/grids/hang code
    mkdir -p "$logs/grids"
    touch "$hang"
    [ "$(wc -l <"$hang")" -lt 2 ] || { echo "not tried, because $(paste -sd , "$hang") hang"; exit 69; }
    export NCCL_HOSTID=each NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1 NCCL_NET=Socket NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1 \
        NCCL_MNNVL_ENABLE=0 NCCL_NVLS_ENABLE=0 NCCL_CUMEM_ENABLE=0 NCCL_CUMEM_HOST_ENABLE=0 NCCL_ALGO=Ring NCCL_PROTO=Simple \
        NCCL_MAX_CTAS=2 NCCL_DEBUG="${NCCL_DEBUG:-WARN}"
    echo "$2 ranks${3:+ with ${*:3}}" >>"$hang" # stays there if the item is stopped
    losses_of_one "$@"
    code=$?
    grep -q '^error\[86\]' "$logs/grids/hosts-$2-$(IFS=_ && echo "${*:3}").txt" || sed -i '$d' "$hang"
    return $code
}

runs() { TRAIN=$CHECK_TRAIN STEPS=300 RERUNS="again third" tests/program/cuda.sh; }

# probes NAMES [VERDICTS]: runs the probe programs of these names, which share the item's time; the results go to
# probes_FIRST.md. Fails unless all these verdicts are "match"
probes() {
    local names name code bad=0
    IFS=, read -ra names <<<"$1"
    for name in "${names[@]}"; do
        [ -x "build/probe/$name" ] || { echo "ERROR: $name was not built: see $logs/build.log"; bad=1; }
    done
    PROBE_BIN=build/probe PROBE_SHARE=$(((limit - 3) / ${#names[@]})) \
        scripts/gpu_probe.sh --out "$logs/probes_${names[0]}.md" --only "$1" ${2:+--match "$2"}
    code=$?
    [ $bad -eq 0 ] || code=1
    [ $code -ne 0 ] || [ -z "${2:-}" ] || echo "found: $(tr , '\n' <<<"$2" | wc -l) verdicts match"
    return $code
}

# sweep PROGRAM...: programs with all cases of attention for Hopper; HOPPER_SWEEP= leaves them out
sweep() {
    if [ -n "${HOPPER_SWEEP-1}" ]; then HOPPER_SWEEP=1 programs "$@"; else (unset HOPPER_SWEEP; programs "$@"); fi
}
# hopper COMMAND...: runs it if the program has the attention kernels for Hopper and the GPU can execute them; else exits with 69
hopper() {
    local words
    words=$(sed -nE 's/^ok +attention +//p' "$logs/doctor.txt")
    [[ $words == *'portable and hopper'* ]] || { echo "no attention for Hopper: ${words:-doctor says nothing about it}"; exit 69; }
    "$@"
}

# speed: times attention by both kinds of kernels, as `bench ops` does, and PyTorch's where it is installed. The item's line has
# the times of GPT-2's heads; results.md has everything.
speed() {
    local out=$logs/attention.txt
    "$CHECK_TRAIN" bench ops --device cuda --dtype bf16 --tokens "${CHECK_TOKENS:-65536}" --only attention >"$out" || return 1
    "${PYTHON:-python3}" tests/probe/pytorch_step.py --attention --seconds $((limit / 2)) >>"$out" || [ $? -eq 69 ] || return 1
    cat "$out"
    awk '/^attention_(forward|backward) .* D64 off0, (portable|hopper) / {
            match($0, /, (portable|hopper) +[0-9.]+/)
            split(substr($0, RSTART + 2, RLENGTH - 2), word, / +/)
            name = $1
            sub("attention_", "", name)
            last[name " " word[1]] = word[2]
        }
        END {
            for (part in last) n++
            if (n != 4) exit 1
            printf "found: ms, hopper and portable: forward %s, %s; backward %s, %s\n", last["forward hopper"],
                last["forward portable"], last["backward hopper"], last["backward portable"]
        }' "$out" || { echo "ERROR: bench ops has not the rows of both kinds of kernels"; return 1; }
}

# sanitizer TOOL OPTION...: runs the GPU part of the test of ops under compute-sanitizer: first a few cases of every op, then
# more if time is left. Exits with 69 if the time was too short for the first few.
sanitizer() {
    local program out=$logs/$1.out code tool=$1 every share='' left until=$((SECONDS + limit - 4))
    shift
    program=$(command -v compute-sanitizer || echo "$CUDA_HOME/bin/compute-sanitizer")
    command -v "$program" >/dev/null || { echo "compute-sanitizer is not installed"; exit 69; }
    for every in 24 8 3; do
        left=$((until - SECONDS))
        if [ $left -lt 1 ]; then # the first round is tried in any case
            [ -z "$share" ] || break
            left=1
        fi
        TEST_DEVICE=cuda TEST_EVERY=$every timeout -k 2 $left "$program" --tool "$tool" "$@" --error-exitcode 1 \
            "$CHECK_TESTS/kernels/test_ops" >"$out" 2>&1
        code=$?
        cat "$out"
        case $code in
        0) share="no complaint over one case in $every of every op" ;;
        124 | 137)
            ! grep -qE "$complaints" "$out" || return 1
            share="${share:+$share; }no complaint over one case in $every of the first $(grep -c 'OK \]' "$out") ops, then the time was over"
            [ $every -lt 24 ] || { echo "$share"; exit 69; }
            break
            ;;
        *) return $code ;;
        esac
    done
    echo "found: $share"
}

# results: prints all results to keep as one Markdown file
results() {
    echo "# What scripts/gpu_check.sh found"
    echo
    echo "$(date -u +%Y-%m-%d), commit $(commit)."
    sed -n 's/^found: //p' "$logs/doctor.log" 2>/dev/null
    nvidia-smi --query-gpu=name,driver_version,clocks.max.sm,power.limit --format=csv,noheader 2>/dev/null
    printf '\n```\n%s\n```\n' "$(cat "$logs/lines.log")"
    printf '\nThe 300-step runs:\n\n```\n%s\n```\n' "$(grep -s 'losses follow\|moves from' "$logs/runs.log")"
    printf '\nSanitizers:\n\n```\n%s\n```\n\n' "$(grep -hs 'SUMMARY\|no complaint over' "$logs"/memcheck.log "$logs"/racecheck.log)"
    [ ! -f "$logs/attention.txt" ] || printf 'Attention:\n\n```\n%s\n```\n\n' "$(cat "$logs/attention.txt")"
    cat "$logs"/probes_*.md 2>/dev/null
}

# keep: writes the results file and, with --out, copies it and all logs to that folder
keep() {
    results >"$logs/results.md"
    [ -n "$keep_in" ] || return 0
    cp "$logs/results.md" "$keep_in/gpu_check.md" &&
        (cd "$logs" && find . -name '*.log' -o -name '*.txt' ! -name text.txt -o -name '*.md' -o -name metrics.jsonl) |
        tar -C "$logs" -czf "$keep_in/gpu_check.tar.gz" -T - && return
    echo "gpu_check: the results cannot be kept in $keep_in" >&2
    exit 73
}

# close: prints the last line, keeps the results, and exits
close() {
    echo "$passed passed, $failed failed, $skipped skipped" | tee -a "$logs/lines.log"
    keep
    exit $((failed > 0))
}

export logs test_names small_probes maps complaints CUDA_HOME=${CUDA_HOME:-/usr/local/cuda}
export -f gpu_capabilities build doctor programs sweep losses short each grid losses_of_one hosts runs probes hopper speed sanitizer
export given=${CHECK_TRAIN:-} # if empty, this script builds the program that it checks
if [ -z "$given" ]; then
    item build $build_limit build
    if [ $failed -ne 0 ]; then
        tail -n 20 "$logs/build.log"
        close
    fi
    export CHECK_TRAIN=$PWD/build/gpu/train CHECK_TESTS=$PWD/build/gpu/tests
fi
LD_LIBRARY_PATH=$(cuda_library_path "$CUDA_HOME")
export LD_LIBRARY_PATH
item doctor "${CHECK_LIMIT:-20}" doctor
[ $failed -eq 0 ] || close # without a device no other item can run

! grep -q '^ok  *cuda .*emulated' "$logs/doctor.txt" || emulated="; an emulated device: no GPU has run this"
# All items see one GPU, except those that need several.
export visible=${CUDA_VISIBLE_DEVICES:-} CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES:-0}
export CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES%%,*} EMU_DEVICES=1

for line in "${items[@]}"; do
    IFS='|' read -r name limit command _ <<<"$line"
    asked "$name" || continue
    read -ra words <<<"$command"
    item "$name" "${CHECK_LIMIT:-$limit}" "${words[@]}"
    [ -z "$keep_in" ] || keep
done
close

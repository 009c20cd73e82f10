#!/usr/bin/env bash
# run_tests.sh -- runs test programs and test scripts, each with a time limit, and adds up their results.
#
#   scripts/run_tests.sh ['NAME=VALUE... ']PROGRAM|SCRIPT...
#
# LIMIT: the time limit of each program in seconds (default 300). JOBS: the number of programs that run at a time (default 1).
# RESULTS: a file that gets a line "SECONDS PROCESSOR_SECONDS PASSED FAILED SKIPPED NAME" per program; with it the total is not
# printed, because the caller computes it. LABEL: a prefix of the printed names. The settings before a program are environment
# variables for it; their values are appended to its name. WAITS=yes marks a program that waits much more than it computes;
# WAITING_JOBS (default 1) such programs run at a time, in addition to the JOBS others. A test program uses cmocka, whose counts
# are read from its output.
# For each skipped test it prints "skipped: why"; a skip without a reason is a failure. A test script prints a line "ok NAME",
# "not ok NAME" or "ok NAME # SKIP why" per test.
set -u
[ $# -gt 0 ] || { echo "run_tests.sh: no test is named"; exit 64; }

# Tests start runs by themselves, also within a job: the program must not take its launcher's variables for the run's.
unset "${!SLURM_@}" "${!OMPI_@}" "${!PMI_@}" "${!PMIX_@}" RANK WORLD_SIZE MASTER_ADDR MASTER_PORT LOCAL_RANK TRAIN_SECRET

folder=$(mktemp -d) || exit 71
trap 'rm -rf "$folder"' EXIT
limit=${LIMIT:-300} label=${LABEL:-} results=${RESULTS:-$folder/results}

# The python3 of a version manager is a script that looks for the interpreter at each call, which takes several times as long as to
# start it. Tests call python3 often, so they get a script that knows the interpreter.
python=$(python3 -c 'import sys; print(sys.executable)' 2>/dev/null)
if [ -n "$python" ] && head -c 2 "$(command -v python3)" | grep -q '^#!'; then
    mkdir "$folder/bin"
    printf '#!/bin/sh\nexec "%s" "$@"\n' "$python" >"$folder/bin/python3"
    chmod +x "$folder/bin/python3"
    PATH=$folder/bin:$PATH
fi

# Each program costs these functions a few processes at most, because there are more than seven hundred programs.
# count LOG SCRIPT|PROGRAM: prints the numbers of passed, failed and skipped tests, and of reasons for skips
count() {
    awk -v kind="$2" '
        kind == "program" && /^\[  PASSED  \] [0-9]+ test/ { p += $4 }
        kind == "program" && /^\[  FAILED  \] [0-9]+ test/ { f += $4 }
        kind == "program" && /^\[  SKIPPED \] [0-9]+ test/ { s += $4 }
        kind == "program" && /^skipped: / { why++ }
        kind == "script" && /^ok / { if (/# SKIP/) { s++; why++ } else p++ }
        kind == "script" && /^not ok / { f++ }
        END { print p + 0, f + 0, s + 0, why + 0 }' "$1"
}

# reasons LOG: prints the reasons of skipped tests, each with the number of tests
reasons() {
    grep -E '^ok .*# SKIP' "$1"
    grep -E '^skipped: ' "$1" | sort | uniq -c | sed -E 's/^ *([0-9]+) (.*)/\2 (\1)/'
}

# what_failed LOG CODE: prints a line for the program and one for each failed test
what_failed() {
    if [ "$2" -eq 124 ]; then
        echo "stopped after $limit seconds$(sed -n 's/^\[ RUN      \] /, last begun: /p' "$1" | tail -n 1)"
    fi
    echo "exit code $2"
    grep -E '^not ok |^\[  FAILED  \] [^0-9]|^\[   LINE   \] |^(\[  ERROR   \] --- )?ERROR: ' "$1" | sort -u | head -n 20
}

# tell LOG CODE SECONDS PROCESSOR_SECONDS NAME PROGRAM: prints the program's result and, if it failed, the end of its output
tell() {
    local log=$1 code=$2 seconds=$3 busy=$4 name=$5 word=ok kind=program passed failed skipped why
    [[ $6 != *.sh ]] || kind=script
    read -r passed failed skipped why < <(count "$log" $kind)
    # A crash, a time-out or a sanitizer's report counts as one failed test.
    if [ "$code" -ne 0 ] && [ "$failed" -eq 0 ]; then failed=1; fi
    if [ "$code" -eq 0 ] && [ $((passed + failed + skipped)) -eq 0 ]; then failed=1; echo "no test was run" >>"$log"; fi
    if [ "$skipped" -gt "$why" ]; then
        failed=$((failed + 1))
        echo "tests are skipped without a line \"skipped: why\"" >>"$log"
    fi
    [ "$failed" -eq 0 ] || word=FAIL
    printf '%-4s %-34s %4d passed %3d failed %3d skipped %7s s %7s s busy\n' $word "$name" "$passed" "$failed" "$skipped" "$seconds" "$busy"
    [ "$why" -eq 0 ] || reasons "$log" | sed 's/^/     /'
    if [ "$failed" -ne 0 ]; then
        what_failed "$log" "$code" >"$log.failed"
        sed 's/^/     /' "$log.failed"
        sed "s|^|$name: |" "$log.failed" >>"$folder/failed"
        echo "     its last lines:"
        grep -vE '^\[ RUN      \]|^\[       OK \]' "$log" | tail -n 60 | sed 's/^/     | /'
    fi
    echo "$seconds $busy $passed $failed $skipped $name" >>"$results"
    [ "$failed" -eq 0 ]
}

# tenths SECONDS...: stores the sum of numbers like 12.345 in tenths of a second, such as 12.3, in the variable `sum`
tenths() {
    local number thousandths=50
    for number; do thousandths=$((thousandths + 10#${number/./})); done
    sum=$((thousandths / 1000)).$((thousandths % 1000 / 100))
}

# within_limit: runs $program with its settings and its time limit; its output goes to $log
within_limit() {
    (
        [ ${#settings[@]} -eq 0 ] || export "${settings[@]}"
        exec timeout --kill-after=10 "$limit" "$program" >"$log" 2>&1 </dev/null
    )
}

# run_one ENTRY: runs one program; ENTRY is its settings and its path
run_one() {
    local words name values='' log code seconds busy user system sum text setting times TIMEFORMAT='%3R %3U %3S'
    read -ra words <<<"$1"
    local program=${words[-1]} settings=("${words[@]:0:${#words[@]}-1}")
    name=$label
    for setting in "${settings[@]}"; do
        case $setting in
        LABEL=*) name=${setting#*=} ;;
        TRAIN=* | WAITS=*) ;;
        *) values+=,${setting#*=} ;;
        esac
    done
    name+=${program##*/}$values
    [[ $program == */* ]] || program=./$program
    log=$folder/$BASHPID
    {
        time within_limit
        code=$?
    } 2>"$log.times"
    mapfile -t times <"$log.times"
    read -r seconds user system <<<"${times[-1]}"
    tenths "$seconds" && seconds=$sum
    tenths "$user" "$system" && busy=$sum
    tell "$log" $code "$seconds" "$busy" "$name" "$program" >"$log.text"
    code=$?
    IFS= read -r -d '' text <"$log.text"
    printf '%s' "$text" # a single write, because other jobs print at the same time
    return $code
}

# run_all JOBS ENTRY...: runs the programs, JOBS at a time
run_all() {
    local jobs=$1 running=0 bad=0 entry
    shift
    for entry; do
        if [ $running -eq "$jobs" ]; then
            wait -n || bad=1
            running=$((running - 1))
        fi
        run_one "$entry" &
        running=$((running + 1))
    done
    for (( ; running > 0; running--)); do wait -n || bad=1; done
    return $bad
}

bad=0 computing=() waiting=()
for entry; do
    if [[ " $entry" == *" WAITS=yes "* ]]; then waiting+=("$entry"); else computing+=("$entry"); fi
done
run_all "${WAITING_JOBS:-1}" "${waiting[@]}" &
waiters=$!
run_all "${JOBS:-1}" "${computing[@]}" &
wait $! || bad=1
wait $waiters || bad=1

# Once more, because the results of later programs may be all that is left of a long log.
if [ -s "$folder/failed" ]; then echo "== failed" && cat "$folder/failed"; fi
[ -n "${RESULTS:-}" ] || awk '{ p += $3; f += $4; s += $5 } END { printf "%d passed, %d failed, %d skipped\n", p, f, s }' "$results"
exit $bad

#!/usr/bin/env bash
# run_tests.sh -- runs test programs and scripts, each under a time limit, and adds up their results.
#
#   scripts/run_tests.sh PROGRAM|SCRIPT...
#
# LIMIT: seconds for each (default 300). RESULTS: a file that gets "SECONDS PASSED FAILED SKIPPED NAME" per program; with it
# no closing line is printed, because somebody else adds up. LABEL: put before the names. A program is a cmocka program, whose
# own counts are read; a script prints "ok NAME", "not ok NAME" or "ok NAME # SKIP why" lines, one per test.
set -u

limit=${LIMIT:-300} label=${LABEL:-}
own_results=$(mktemp)
log=$(mktemp)
trap 'rm -f "$own_results" "$log"' EXIT
results=${RESULTS:-$own_results}

# sum PATTERN: of the numbers captured by the first group, over the lines of the log
sum() { sed -nE "s/$1/\1/p" "$log" | awk '{ s += $1 } END { print s + 0 }'; }

count_program() {
    passed=$(sum '^\[  PASSED  \] ([0-9]+) test.*')
    failed=$(sum '^\[  FAILED  \] ([0-9]+) test.*')
    skipped=$(sum '^\[  SKIPPED \] ([0-9]+) test.*')
}

count_script() {
    skipped=$(grep -cE '^ok .*# SKIP' "$log")
    passed=$(($(grep -c '^ok ' "$log") - skipped))
    failed=$(grep -c '^not ok ' "$log")
}

bad=0
for program in "$@"; do
    name=$label$(basename "$program")
    [[ $program == */* ]] || program=./$program
    start=$(date +%s.%N)
    timeout --kill-after=10 "$limit" "$program" >"$log" 2>&1 </dev/null
    code=$?
    seconds=$(awk -v a="$start" -v b="$(date +%s.%N)" 'BEGIN { printf "%.1f", b - a }')
    if [[ $program == *.sh ]]; then count_script; else count_program; fi
    # A crash, a time-out or a sanitizer's report counts as a failure of its own.
    if [ $code -ne 0 ] && [ "$failed" -eq 0 ]; then failed=1; fi
    if [ $code -eq 0 ] && [ $((passed + failed + skipped)) -eq 0 ]; then failed=1; echo "no test was run" >>"$log"; fi
    word=ok
    [ "$failed" -eq 0 ] || { word=FAIL; bad=1; }
    printf '%-4s %-34s %4d passed %3d failed %3d skipped %7s s\n' $word "$name" "$passed" "$failed" "$skipped" "$seconds"
    grep -E '^ok .*# SKIP' "$log" | sed 's/^/     /'
    if [ "$failed" -ne 0 ]; then
        [ $code -eq 124 ] && echo "     stopped after $limit seconds"
        echo "     exit code $code; its last lines:"
        grep -vE '^\[ RUN      \]|^\[       OK \]' "$log" | tail -n 60 | sed 's/^/     | /'
    fi
    echo "$seconds $passed $failed $skipped $name" >>"$results"
done

[ -n "${RESULTS:-}" ] || awk '{ p += $2; f += $3; s += $4 } END { printf "%d passed, %d failed, %d skipped\n", p, f, s }' "$results"
exit $bad

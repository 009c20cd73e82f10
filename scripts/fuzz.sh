#!/usr/bin/env bash
# fuzz.sh -- runs each libFuzzer program for a given time and prints a line about it. `make fuzz` builds the programs and calls
# this.
#
#   scripts/fuzz.sh SECONDS build/fuzz/fuzz_NAME...
#
# The inputs are in tests/fuzz/corpus/NAME and in build/fuzz/corpus/NAME, to which each run adds. An input that crashes a
# program, leaks memory, or takes longer than 25 s is stored as build/fuzz/findings/NAME-*, and the exit code is 1. After the
# bug is fixed, add the input to tests/fuzz/corpus/NAME, which the ordinary tests replay.
set -u
cd "$(dirname "$0")/.." || exit 71

seconds=${1:?fuzz.sh SECONDS PROGRAM...}
shift
grown=build/fuzz/corpus findings=build/fuzz/findings
mkdir -p $findings
bad=0
for program in "$@"; do
    name=${program##*/fuzz_}
    kept=tests/fuzz/corpus/$name log=build/fuzz/$name.log
    folders=("$grown/$name")
    mkdir -p "$grown/$name"
    [ -d "$kept" ] && folders+=("$kept")
    before=$(find $findings -name "$name-*" | wc -l)
    UBSAN_OPTIONS=print_stacktrace=1 "$program" -max_total_time="$seconds" -timeout=25 -rss_limit_mb=4096 \
        -print_final_stats=1 -artifact_prefix="$findings/$name-" "${folders[@]}" >"$log" 2>&1 </dev/null
    code=$?
    runs=$(sed -nE 's/^stat::number_of_executed_units: *([0-9]+)/\1/p' "$log")
    coverage=$(sed -nE 's/^#[0-9]+.* cov: ([0-9]+) .*/\1/p' "$log" | tail -n 1)
    printf '%-14s %10s executions, coverage %6s, ' "$name" "${runs:-no}" "${coverage:-none}"
    if [ $code -eq 0 ] && [ "${runs:-0}" -gt 0 ]; then
        echo "no finding"
        continue
    fi
    bad=1
    echo "FINDING (exit code $code); the end of $log:"
    grep -vE '^(stat::|#[0-9]+\s|0x|\\x|Base64|artifact_prefix)' "$log" | grep -E 'ERROR|SUMMARY|runtime error|bug\[|error\[|    #[0-9]' | head -n 12 | sed 's/^/    | /'
    [ "$(find $findings -name "$name-*" | wc -l)" -gt "$before" ] || continue
    # shellcheck disable=SC2012 # names are libFuzzer's
    echo "    again: $program $(ls -t $findings/"$name"-* | head -n 1)"
done
exit $bad

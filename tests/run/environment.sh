#!/usr/bin/env bash
# environment.sh -- what a caller may have taken away: standard streams that are closed, and address space.
. "$(dirname "$0")/lib.sh"
make_text
short=(--set train_steps=6 --set eval.interval=0 --set eval.sample_interval=0 --set steps_per_print=1)

# ---- closed streams: their numbers must not go to the run's own files, into which the console would then print
# closed NAME STREAM...: a run without these streams
closed() {
    local name=$1 fd code
    shift
    (
        for fd; do
            case $fd in 0) exec <&- ;; 1) exec >&- ;; 2) exec 2>&- ;; esac
        done
        exec "$TRAIN" "$TINY" "${short[@]}" --out "$name"
    ) >console 2>err </dev/null
    code=$?
    check "environment: $name: exit code $code" test $code -eq 0
    check "environment: $name: metrics.jsonl holds events alone" \
        test "$(grep -cE '^\{"event": .*\}$' "$name/metrics.jsonl")" = "$(wc -l <"$name/metrics.jsonl")"
    check "environment: $name: of every step" test "$(losses "$name/metrics.jsonl" | wc -l)" -eq 6
    check "environment: $name: the lock holds its record" grep -qxE 'attempt 0, process [0-9]+ on .*' "$name/lock"
    check "environment: $name: and nothing else" test "$(wc -c <"$name/lock")" -eq 160
}
closed stdin 0
check "environment: stdin: the console speaks" grep -q '^done' console
closed stdout 1
closed stderr 2
check "environment: stderr: the console speaks" grep -q '^done' console
closed all 0 1 2
for name in stdout stderr all; do same_run "environment: $name: the bits of the others" stdin $name; done
"$TRAIN" "$TINY" --set train_steps=0 >&- 2>err
check "environment: stdout closed: errors are said with their code" test $? -eq 78 -a -s err
"$TRAIN" - <&- >console 2>&1
check "environment: stdin closed: a config from there is empty, not another file" test $? -eq 78
finish

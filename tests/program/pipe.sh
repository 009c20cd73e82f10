#!/usr/bin/env bash
# pipe.sh -- tests that a run prints plain lines into a pipe, one live line on a terminal, and JSON lines with --json.
. "$(dirname "$0")/lib.sh"
make_text
cr=$'\r' esc=$'\033'
small=(--set data.seq_length=8 --set train_micro_batch_size_per_gpu=2)

"$TRAIN" "$TINY" "${small[@]}" --out plain </dev/null 2>err | cat >console
check "pipe: output to a pipe has no carriage return" test -z "$(grep -F "$cr" console)"
check "pipe: output to a pipe has no escape code" test -z "$(grep -F "$esc" console)"
check "pipe: output to a pipe has a row per printed step" test "$(grep -cE '^ +[0-9]+ +[0-9,]+ ' console)" -eq 40
check "pipe: stderr is empty" test ! -s err
check "pipe: metrics.jsonl has no escape code" test -z "$(grep -F "$esc" plain/metrics.jsonl)"

"$TRAIN" - "${small[@]}" --set train_steps=5 --out standard <"$TINY" >console 2>&1
check "pipe: a config is read from standard input" test $? -eq 0 -a -f standard/result.json
check "pipe: an unreadable standard input is reported" grep -q 'cannot be read: Is a directory' <("$TRAIN" - <. 2>&1)

"$TRAIN" "$TINY" --json "${small[@]}" --out json </dev/null 2>err | cat >lines
check "pipe: --json prints only objects" test -z "$(grep -vE '^\{"event": "[a-z]+", "step": [0-9]+, .*\}$' lines)"
for event in start train speed val sample ckpt end; do check "pipe: --json has $event" grep -q "\"event\": \"$event\"" lines; done
# steps FILE: parses every line as JSON and prints the steps of the training lines
steps() {
    python3 -c 'import json, sys
print(*(e["step"] for e in map(json.loads, open(sys.argv[1], encoding="utf-8")) if e["event"] == "train"))' "$1"
}
check "pipe: --json prints every step as valid JSON" test "$(steps lines)" = "$(echo {1..40})"
"$TRAIN" json </dev/null >console 2>&1
check "pipe: --json holds for one start: the run's next start prints its result as text" grep -q '^done    40 steps' console
check "pipe: metrics.jsonl has every step as valid JSON" test "$(steps plain/metrics.jsonl)" = "$(echo {1..40})"

if command -v script >/dev/null; then
    terminal() { TERM=xterm script -qec "$*" /dev/null </dev/null >console 2>&1; }
    terminal "$TRAIN" "$TINY" "${small[@]}" --set steps_per_print=20 --out terminal
    check "pipe: a terminal gets a progress line" grep -qF "$cr" console
    check "pipe: a terminal gets a bold header" grep -qF "${esc}[1m" console
    NO_COLOR=1 terminal "$TRAIN" "$TINY" "${small[@]}" --set steps_per_print=20 --out terminal2
    check "pipe: a terminal with NO_COLOR gets a progress line" grep -qF "$cr" console
    check "pipe: a terminal with NO_COLOR gets no bold header" test -z "$(grep -F "${esc}[1m" console)"
else
    skip "pipe: output to a terminal" "there is no program script"
fi
finish

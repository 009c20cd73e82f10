#!/usr/bin/env bash
# screens.sh -- shows the program in terminals of 80 and 140 columns (in tmux): how a run prepares, evaluates, stops at Ctrl-C and
# resumes, the check of a foreign config, verify, errors. No line may be wider than the terminal, and the expected words must be on the
# screen, folded or not. Screens whose texts are alike on every machine are compared with tests/golden/screens.txt.
#
# After a change of these texts: SCREENS=write tests/program/screens.sh writes the golden file anew.
# shellcheck disable=SC2154 # lib.sh sets here and work
. "$(dirname "$0")/lib.sh"
if ! command -v tmux >/dev/null; then
    skip "screens: the program in a terminal" "tmux is not installed"
    finish
fi
golden=$(realpath "$here/../golden")/screens.txt
mux() { tmux -S "$work/socket" -f /dev/null "$@"; }
trap 'mux kill-server 2>/dev/null; clean_up' EXIT
# Otherwise the server ends with its last session, and a session that is made meanwhile is lost.
mux start-server \; set-option -g exit-empty off
export TERM=xterm LC_ALL=C.UTF-8
unset NO_COLOR COLUMNS TMUX
make_text
cp "$TINY" tiny.json
cp "$here/../golden/config_monitors.json" foreign.json

# begin NAME ARGUMENT...: starts the program with these arguments in a new terminal of $columns columns
begin() {
    name=$1 label="screens: $1, $columns columns"
    shift
    printf '%q ' "$TRAIN" "$@" >"command.$name"
    mux new-session -d -x "$columns" -y 50 -s "$name" \
        "trap : INT; . ./command.$name; echo \"ended with \$?\"; tmux -S $work/socket wait-for -S $name; exec sleep 100"
}

# end CODE: waits until the program ends, leaves the text of the terminal in the file "screen", and checks what holds for every
# screen. A line that was wider than the terminal takes several rows, which capture-pane -J joins.
end() {
    timeout 60 tmux -S "$work/socket" wait-for "$name"
    mux capture-pane -t "$name" -p -J -S - | sed -E 's/ +$//' | awk 'NF { last = NR } { line[NR] = $0 } END { for (i = 1; i <= last; i++) print line[i] }' >screen
    mux capture-pane -t "$name" -p -e -S - >coloured
    mux kill-session -t "$name"
    check "$label: it ends with $1" test "$(tail -n 1 screen)" = "ended with $1"
    check "$label: no line is wider" test -z "$(awk -v most="$columns" 'length > most' screen)"
}

# shows WORDS...: expects the words on the screen, folded or not
shows() {
    local words
    for words; do check "$label: it shows: $words" grep -qF -- "$words" <(tr -s ' \n' ' ' <screen); done
}

# keep [WORDS]: adds the screen, from the line with these words on, to the screens that are compared. Numbers become N, and
# rows of steps are left out.
keep() {
    echo "---- ${label#screens: }" >>screens
    sed -n "/${1:-.}/,\$p" screen | sed -E 's/[0-9]+([.,:e+-][0-9]+)*/N/g; /^ +N +N +N/d' >>screens
}

# interrupt RUN EVENT STEPS: presses Ctrl-C when the run's metrics have so many lines with this event
interrupt() {
    local lines=0
    for _ in {1..600}; do
        lines=$(grep -cs "\"event\": \"$2\"" "$1/metrics.jsonl")
        [ "${lines:-0}" -lt "$3" ] || break
        sleep 0.05
    done
    mux send-keys -t "$name" C-c
}

for columns in 80 140; do
    run=run$columns stop=stop$columns
    begin prepare tiny.json --out "$run" --set train_steps=10 --set steps_per_print=5
    end 0
    shows "config tiny.json" "10 steps = 5,120 tokens = 0.14 passes over 36,347 tokens" "learning rate up to 0.01, " \
        "step tokens loss lr gnorm tok/s FLOP/s eta" "done 10 steps, 5,120 tokens" \
        "next ./train generate $run --prompt \"the king\" ./train tiny.json --set data.text=my.txt # your own text"

    begin evaluate eval "$run"
    end 0
    shows "val loss " " bits per byte over 3433 bytes"
    keep 'val loss'

    long=(tiny.json --out "$stop" --set train_steps=1000000 --set eval.interval=0 --set eval.sample_interval=0
        --set checkpoint.save_interval=1000000)
    begin stop "${long[@]}"
    interrupt "$stop" train 3
    end 85
    shows "finishing this step, then saving; Ctrl-C again quits at once" "saved step "
    keep 'finishing this step'

    begin resume "${long[@]}"
    interrupt "$stop" resume 1
    end 85
    shows "resume step " " from $stop/checkpoints/step_" "saved step "

    begin longer tiny.json --out "$run"
    end 78
    shows "--allow-config-change goes on from step 10"
    keep '^error'

    begin check config check foreign.json
    end 78
    shows "foreign.json:8:30: fp16.type: "

    begin explain config explain eval.steps tensorboard
    end 0
    shows "eval.steps micro-batches of every evaluation, "

    begin verify verify tiny.json --ranks 2 --set parallel.pipeline=2 --set zero_optimization.stage=1
    end 0
    shows "grid 2 ranks = pp 2 (threads), ZeRO 1, 1f1b" "equal to a single rank; worst deviation " " (bound 1e-12): " ", step "

    begin error generate "$run" --tokens --prompt
    end 64
    shows "error[64] --tokens: its value is missing, an option follows: --prompt (--tokens=--prompt if that is the value)"
    keep
    check "$label: \"error\" is coloured" grep -qE $'^\033\\[[0-9;]*m.*error\\[64\\]' coloured
done
[ "${SCREENS:-}" != write ] || cp screens "$golden"
check "screens: they are those of tests/golden/screens.txt (SCREENS=write tests/program/screens.sh)" diff -u "$golden" screens
finish

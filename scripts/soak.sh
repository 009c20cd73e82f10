#!/usr/bin/env bash
# soak.sh -- trains a small model while something fails every ten seconds, and checks that nothing is lost.
#
#   scripts/soak.sh [--seconds N] [--ranks N] [--seed N] [-- OPTION...]    default: 1800 seconds, 2 ranks, seed 1
#
# Faults, drawn at random: a rank or the whole run is killed; a rank is stopped for three seconds; the disk is full for four
# seconds (the run folder lies on a tmpfs, which needs root); the newest checkpoint is damaged and the run killed; the run is
# asked to stop. After each end the same command goes on. A second run without any fault trains the same model meanwhile.
# Afterwards the losses of all steps must be the same bits, each step must be in metrics.jsonl once, and in no process may memory or
# the number of open files have grown between its fifth second and its end. The exit code is 1 if one of these fails.
# OPTION...: further options of both runs, such as --set checkpoint.async=false.
set -u
cd "$(dirname "$0")/.." || exit 71
seconds=1800 ranks=2 seed=1
while [ $# -gt 1 ]; do
    case $1 in
    --seconds) seconds=$2 ;;
    --ranks) ranks=$2 ;;
    --seed) seed=$2 ;;
    *) break ;;
    esac
    shift 2
done
[ "${1:-}" = -- ] && shift || [ $# -eq 0 ] || { echo "soak.sh: unknown option $1"; exit 64; }
train=$(realpath "${TRAIN:-./train}") || exit 66
config=$PWD/tests/program/tiny.json
RANDOM=$seed
work=$(mktemp -d) || exit 71
mounted=no soaked='' steady=''
clean_up() {
    # shellcheck disable=SC2046,SC2086 # words
    [ -z "$soaked$steady" ] || kill -KILL $(tree $soaked $steady) 2>/dev/null
    wait 2>/dev/null
    [ "$mounted" = no ] || umount "$work/disk"
    rm -rf "$work"
}
trap clean_up EXIT
cd "$work" || exit 71
mkdir disk
mount -t tmpfs -o size=256m tmpfs disk 2>/dev/null && mounted=yes
awk 'BEGIN { srand(3); for (i = 0; i < 20000; i++) printf "%s%s", substr("the king of words and days said unto them all ", int(rand() * 40) + 1, 5), i % 12 ? " " : "\n" }' >text.txt
options=(--ranks "$ranks" --processes --set train_steps=1000000 --set scheduler.type=Constant --set checkpoint.save_interval=20
    --set checkpoint.keep=2 --set eval.interval=200 --set eval.sample_interval=0 --set cpu.threads=1 --set parallel.timeout=60
    --set train_micro_batch_size_per_gpu=16 --set gradient_accumulation_steps=2 --set steps_per_print=100000000 "$@")

# tree PID...: prints these processes and all that they have started
tree() {
    local pid
    for pid in "$@"; do echo "$pid"; tree $(pgrep -P "$pid"); done
}
# use PID: prints kilobytes of memory and open files of a process
# Prints nothing if the process has ended.
use() { [ -r "/proc/$1/status" ] && echo "$(awk '/^VmRSS/ { print $2 }' "/proc/$1/status" 2>/dev/null) $(find "/proc/$1/fd" -mindepth 1 2>/dev/null | wc -l)"; }
# draw_rank: sets $rank to the process of some rank
draw_rank() {
    local all
    mapfile -t all <<<"$(tree "$soaked")"
    rank=${all[RANDOM % ${#all[@]}]}
}
# shellcheck disable=SC2046 # words
kill_tree() { kill -KILL $(tree "$soaked"); }
newest() { find disk/run/checkpoints -maxdepth 1 -name 'step_????????' 2>/dev/null | sort | tail -n 1; }

"$train" "$config" "${options[@]}" --out steady >steady.log 2>&1 </dev/null &
steady=$!
declare -A count=() codes=()
end=$((SECONDS + seconds)) grown=0 watched=0
start() {
    "$train" "$config" "${options[@]}" --out disk/run >>soak.log 2>&1 </dev/null &
    soaked=$!
    declare -gA memory=() files=()
    sleep 1 # a signal that comes before the program itself runs would end this script
}
# note: remembers what each process uses at its fifth second, and compares it with what it uses now
note() {
    local pid kb n
    for pid in $(tree "$soaked"); do
        read -r kb n <<<"$(use "$pid")"
        [ -n "${n:-}" ] && [ "$n" -gt 0 ] || continue
        if [ -z "${memory[$pid]:-}" ]; then
            memory[$pid]=$kb files[$pid]=$n
        elif ((kb > memory[$pid] + memory[$pid] / 20 + 2048 || n > files[$pid] + 2)); then
            echo "process $pid grew from ${memory[$pid]} kB and ${files[$pid]} files to $kb kB and $n files"
            grown=$((grown + 1))
        fi
        watched=$((watched + 1))
    done
}
start
while ((SECONDS < end)); do
    sleep 5
    note # the first time in a process: what it uses after its start
    sleep 5
    note
    if ! kill -0 "$soaked" 2>/dev/null; then fault=none; else
        faults=(kill_rank kill_all stop_rank damage ask)
        [ $mounted = yes ] && faults+=(full)
        fault=${faults[RANDOM % ${#faults[@]}]}
    fi
    count[$fault]=$((${count[$fault]:-0} + 1))
    draw_rank
    case $fault in
    kill_rank) kill -KILL "$rank" ;;
    kill_all) kill_tree ;;
    stop_rank) kill -STOP "$rank"; sleep 3; kill -CONT "$rank"; continue ;;
    ask) kill -TERM "$soaked" ;;
    full) head -c 512M /dev/zero >disk/filler 2>/dev/null; sleep 4; rm disk/filler; continue ;;
    damage)
        file=$(newest)/model.safetensors
        [ -f "$file" ] && printf x | dd of="$file" bs=1 seek=$((RANDOM % $(stat -c %s "$file"))) conv=notrunc status=none
        kill_tree ;;
    esac
    pids=$(tree "$soaked")
    wait "$soaked" 2>/dev/null # without the shell's line about the signal
    code=$?
    # Another start would find the folder held by a rank that has not ended yet.
    # shellcheck disable=SC2086 # words
    while kill -0 $pids 2>/dev/null; do sleep 0.1; done
    codes[$code]=$((${codes[$code]:-0} + 1))
    start
done
kill -TERM "$soaked"
wait "$soaked"
echo "last end: $?"
soaked=''
last=$(newest)
steps=$((10#${last##*_}))
# The run without faults may need a little longer to get as far.
while kill -0 $steady 2>/dev/null && ! grep -q "\"event\": \"train\", \"step\": $steps," steady/metrics.jsonl; do sleep 1; done
kill -TERM $steady
wait $steady
steady=''
losses() { sed -nE 's/.*"event": "train", "step": ([0-9]+),.*"loss": ([^,]*),.*/\1 \2/p' "$1" | awk -v n="$steps" '$1 <= n'; }
for fault in "${!count[@]}"; do echo "fault $fault: ${count[$fault]}"; done
for code in "${!codes[@]}"; do echo "exit code $code: ${codes[$code]}"; done
grep -aoE '^(error|warning)[^:]*: [^:]{0,60}' soak.log | sed -E 's/[0-9]+/N/g' | sort | uniq -c | sort -rn | head -20
bad=0
losses disk/run/metrics.jsonl >soaked.losses
losses steady/metrics.jsonl >steady.losses
[ "$(cut -d' ' -f1 soaked.losses)" = "$(seq "$steps")" ] || { echo "not ok: a step is missing or doubled in metrics.jsonl"; bad=1; }
cmp soaked.losses steady.losses || { echo "not ok: the losses differ"; bad=1; }
((grown == 0)) || { echo "not ok: $grown times memory or open files had grown"; bad=1; }
"$train" ckpt verify disk/run || bad=1
echo "$steps steps; $watched looks at processes; result: $([ $bad = 0 ] && echo nothing lost || echo failed)"
exit $bad

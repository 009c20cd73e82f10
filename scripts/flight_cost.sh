#!/usr/bin/env bash
# flight_cost.sh -- counts by callgrind which part of the instructions of training steps the flight recorder takes. Trains
# CONFIG for some steps and adds up, within trainer_step, the instructions of all functions of the recorder with what they call
# (functions of it that call each other count twice, so this is an upper bound). Prints the sums and the part in percent; ends
# with 1 if it is more than 0.1 %. Needs valgrind, and minutes: a step takes about 100 times as long under it. Data that no run has
# prepared yet take much longer: ./train CONFIG --dry-run prepares them before.
#
#   scripts/flight_cost.sh [CONFIG [--set key=value]...]     default: configs/demo.json, one thread
#
# TRAIN: the program (default ./train). STEPS: how many steps (default 2).
set -u
cd "$(dirname "$0")/.." || exit 71
train=${TRAIN:-./train} steps=${STEPS:-2}
[ $# -gt 0 ] || set -- configs/demo.json
command -v valgrind >/dev/null || { echo "flight_cost: valgrind is not installed"; exit 77; }
folder=$(mktemp -d) || exit 71
trap 'rm -rf "$folder"' EXIT
valgrind --tool=callgrind --callgrind-out-file="$folder/out" --toggle-collect=trainer_step \
    "$train" "$@" --set train_steps="$steps" --set cpu.threads=1 --set eval.steps=1 --set eval.sample_tokens=1 --out "$folder/run" \
    >"$folder/log" 2>&1 || { grep -v '^==' "$folder/log" | tail -5; exit 1; }
callgrind_annotate --auto=no --inclusive=yes --threshold=100 "$folder/out" 2>/dev/null | awk -v steps="$steps" '
    { gsub(/,/, "", $1) }
    /PROGRAM TOTALS/ { all = $1 }
    /:flight_[a-z_]+ / { flight += $1 }
    END {
        if (all == 0 || flight == 0) { print "flight_cost: callgrind has counted nothing"; exit 1 }
        part = 100 * flight / all
        printf "%.0f instructions a step, at most %.0f of them in the flight recorder: %.4f %%\n", all / steps, flight / steps, part
        exit part > 0.1
    }'

#!/usr/bin/env bash
# worlds.sh -- tests that a run saved by some ranks can be resumed on others, with any number of ranks, ZeRO stage and
# number of checkpoint writers: it has the losses of an uninterrupted run, and each step exactly once.
# shellcheck source-path=SCRIPTDIR
source "$(dirname "$0")/lib.sh"

# In f64, so that losses on different ranks differ only by the order of sums.
common=(--set fp64.enabled=true --set train_batch_size=48 --set gradient_accumulation_steps=null --set train_steps=30
    --set eval.interval=0 --set eval.sample_interval=0 --set checkpoint.keep=0)
make_text
# on RANKS STAGE WRITERS MICRO: prints the options of a world
on() { echo --ranks "$1" --set "zero_optimization.stage=$2" --set "checkpoint.writers=$3" --set "train_micro_batch_size_per_gpu=$4"; }
worlds=("1 0 1 8" "2 1 1 12" "3 2 2 4" "2 3 2 6")

# same_losses FOLDER FOLDER: succeeds if both runs have 30 steps with losses that differ by at most 1e-11, relative
same_losses() {
    awk -F'"loss": ' '/"event": "train"/ { split($2, x, ","); n[FILENAME]++; split($1, s, /"step": |,/); loss[FILENAME, s[3] + 0] = x[1] }
        END { for (i = 1; i <= 30; i++) { a = loss[ARGV[1], i]; b = loss[ARGV[2], i]; d = a / b - 1
                  if (a == "" || b == "" || d > 1e-11 || d < -1e-11) { print "step " i ": " a " and " b; bad = 1 } }
              exit bad || n[ARGV[1]] != 30 || n[ARGV[2]] != 30 }' "$1/metrics.jsonl" "$2/metrics.jsonl"
}

# Each world resumes from a checkpoint of another.
for i in "${!worlds[@]}"; do
    from=${worlds[i]} to=${worlds[(i + 1) % ${#worlds[@]}]}
    read -ra world <<<"$from"
    read -ra options < <(on "${world[@]}")
    whole=whole-${from// /-} cut=cut-$i
    expect_code "worlds: a run on $from succeeds" 0 "$TRAIN" "$TINY" "${common[@]}" "${options[@]}" --out "$whole"
    [ "$i" -eq 0 ] || check "worlds: bug 45: a run on several ranks ($from) has the same losses as on one rank" same_losses \
        whole-1-0-1-8 "$whole"
    mkdir -p "$cut/checkpoints"
    cp "$whole"/{config.json,tokenizer.json} "$cut"
    awk '/"step": 11,/ { exit } { print }' "$whole/metrics.jsonl" >"$cut/metrics.jsonl"
    cp -r "$whole/checkpoints/step_00000010" "$cut/checkpoints"
    read -ra world <<<"$to"
    read -ra options < <(on "${world[@]}")
    expect_code "worlds: a run on $from resumes on $to" 0 "$TRAIN" "$TINY" "${common[@]}" "${options[@]}" --out "$cut"
    check "worlds: bug 45: a run of $from resumed on $to has the same losses" same_losses "$whole" "$cut"
done
"$TRAIN" ckpt inspect whole-3-2-2-4 >output
check "worlds: ckpt inspect prints which ranks saved" grep -qx 'world       3 ranks = dp 3, ZeRO 2, 2 writers' output
expect_code "worlds: ckpt verify finds all tensors" 0 "$TRAIN" ckpt verify whole-3-2-2-4

# No file may be longer than 60 KiB: every save fails on some rank, all ranks continue, and rank 0 reports each failure
# once.
full() {
    trap '' XFSZ
    ulimit -f 60
    "$TRAIN" "$TINY" "${common[@]}" --ranks 3 --set zero_optimization.stage=1 --set checkpoint.writers=3 --out full
}
expect_code "worlds: a run whose saves all fail exits with code 74" 74 full
check "worlds: a failed save is reported once" test "$(grep -c 'step 10 is not saved: .*safetensors: File too large' output)" \
    -eq 1
check "worlds: failed saves leave no checkpoint" test -z "$(ls full/checkpoints)"
check "worlds: failed saves do not stop the training" test "$(grep -c '"event": "train"' full/metrics.jsonl)" -eq 30
finish

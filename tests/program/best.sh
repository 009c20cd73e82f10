#!/usr/bin/env bash
# best.sh -- tests that the checkpoint with the lowest validation loss is kept, also across kills, damage and grids, and that
# generate and eval open it.
# shellcheck source-path=SCRIPTDIR
source "$(dirname "$0")/lib.sh"

# Random letters can only be learned by heart, so the validation loss soon rises.
awk 'BEGIN { seed = 7
             for (i = 1; i <= 3000; i++) {
                 seed = (seed * 16807) % 2147483647
                 printf "%c%s", 97 + int(seed / 2147483647 * 26), i % 60 ? "" : "\n"
             } }' >all.txt
head -n 35 all.txt >letters.txt
tail -n 15 all.txt >held_out.txt
cat >letters.json <<'END'
{
  "model": { "num_layers": 2, "hidden_size": 64, "num_attention_heads": 4 },
  "data": { "text": "letters.txt", "val_text": "held_out.txt", "tokenizer_vocab_size": 300, "seq_length": 32 },
  "seed": 7, "device": "cpu", "cpu": { "threads": 1, "blas": "builtin" },
  "train_batch_size": 8, "train_micro_batch_size_per_gpu": 2, "train_steps": 40, "steps_per_print": 20,
  "optimizer": { "type": "AdamW", "params": { "lr": 1e-2 } },
  "eval": { "interval": 5, "sample_tokens": 4 },
  "checkpoint": { "save_interval": 20, "keep": 1 }
}
END

# best RUN: prints step and loss of its best checkpoint
best() { sed -nE 's/^\{"step": ([0-9]+), "val_loss": ([0-9.]+), .*/\1 \2/p' "$1/checkpoints/best.json"; }
# lowest RUN FIRST: prints the step of its lowest validation loss from step FIRST on
lowest() { figures "$1" | awk -v first="$2" '$1 == "val" && $2 >= first && (!best || $3 < best) { best = $3; step = $2 } END { print step }'; }

expect_code "best: a run that overfits succeeds" 0 "$TRAIN" letters.json --out run
check "best: the plan counts the best checkpoint" grep -q '^disk .* a checkpoint, 1 kept and the best$' output
low=$(lowest run 4)
check "best: the validation loss has risen since" test "$low" -lt 40
risen="best    validation was best at step $low ($(best run | awk '{ printf "%.4f", $2 }')) and has risen since"
check "best: the end of the run names the best step" grep -qxF "$risen" output
expect_code "best: a finished run shows its result again" 0 "$TRAIN" letters.json --out run
check "best: a finished run names the best step again" grep -qxF "$risen" output
expect_code "best: a run with a large save interval succeeds" 0 "$TRAIN" letters.json --set checkpoint.save_interval=100 --out rarely
near=$(best rarely | awk '{ printf "step %d (%.4f)", $1, $2 }')
check "best: a best step that was not saved is distinguished from the best checkpoint" test "$(sed -n '/^best /,/^next /p' output | sed '$d' | tr -s ' \n' ' ')" = "$(tr -s ' ' <<<"$risen"); the best checkpoint is that of $near "
check "best: the best checkpoint is that of the lowest loss" test "$(best run | cut -d' ' -f1)" = "$low"
check "best: nothing else is kept besides the newest" test "$(checkpoint_steps run | tr '\n' ' ')" = "$low 40 "
val=$(best run | awk '{ printf "%.4f", $2 }')
expect_code "best: ckpt list succeeds" 0 "$TRAIN" ckpt list run
check "best: ckpt list marks the best" test "$(awk '/ best$/ { print $1, $3 }' output)" = "$(printf 'step_%08d %s' "$low" "$val")"
listed=$(awk '/^step_/ { print $2 }' output | tr '\n' ' ')
check "best: ckpt list has the loss of each step" test "$listed" = "$(for step in 40 "$low"; do
    figures run | awk -v s="$step" '$1 == "train" && $2 == s { printf "%.4f ", $3 }'
done)"
check "best: ckpt list has the validation loss of each step" test "$(awk '/^step_00000040/ { print $3 }' output)" = \
    "$(figures run | awk '$1 == "val" && $2 == 40 { printf "%.4f", $3 }')"
check "best: ckpt list says when and by which ranks a step was saved" grep -qE "B  $(date -u +%Y-%m-%d) [0-9:]{5}  1 rank$" output
touch -d 2001-02-03 run/checkpoints/step_00000040/manifest.json
expect_code "best: ckpt list of a copied folder succeeds" 0 "$TRAIN" ckpt list run
check "best: ckpt list takes the time of a save from the metrics" bash -c '! grep -q 2001-02-03 output'
expect_code "best: ckpt list of one checkpoint succeeds" 0 "$TRAIN" ckpt list run/checkpoints/step_00000040
check "best: ckpt list of one checkpoint has its loss" test "$(awk '/^step_/ { print $2 " " }' output)" = "${listed%% *} "
expect_code "best: eval opens the best" 0 "$TRAIN" eval run
check "best: eval prints the step and loss of the best checkpoint" grep -qx "best: step $low, val $val" output
check "best: eval computes the recorded loss" test "$(sed -nE 's/.* val loss ([0-9.]+) .*/\1/p' output | xargs printf %.4f)" = "$val"
expect_code "best: generate opens the best" 0 "$TRAIN" generate run --tokens 2 --ranks 2
check "best: generate names the best checkpoint once on two ranks" test "$(grep -cx "best: step $low, val $val" output)" -eq 1
expect_code "best: --newest opens the newest" 0 "$TRAIN" eval run --newest --ranks 2
check "best: eval says once on two ranks that it is the newest" test "$(grep -cx 'newest: step 40' output)" -eq 1
expect_code "best: --best and --newest together are refused" 64 "$TRAIN" eval run --best --newest
expect_code "best: --best with one checkpoint is refused" 64 "$TRAIN" eval run/checkpoints/step_00000040 --best

expect_code "best: a run without keep_best succeeds" 0 "$TRAIN" letters.json --set checkpoint.keep_best=false --out plain
expect_code "best: --best is refused where none is kept" 66 "$TRAIN" eval plain --best
check "best: without keep_best there is no record" test ! -e plain/checkpoints/best.json

# spoil RUN STEP: damages the last byte of the weights of a checkpoint
spoil() {
    local file bytes
    file=$1/checkpoints/step_$(printf %08d "$2")/model.safetensors
    bytes=$(stat -c %s "$file")
    printf x | dd of="$file" bs=1 seek=$((bytes - 1)) conv=notrunc status=none
}
cp -r run damaged
spoil damaged "$low"
expect_code "best: if the best checkpoint is damaged, the newest one is opened" 0 "$TRAIN" eval damaged
check "best: the damage and the use of the newest checkpoint are reported" \
    test "$(grep -c -e 'is damaged.*the newest checkpoint is opened' -e '^newest: step 40$' output)" -eq 2
expect_code "best: --best refuses a damaged one" 65 "$TRAIN" eval damaged --best

# A run that was killed leaves its checkpoints and no result. Whatever is lost, and on every grid, it goes on to the same best
# checkpoint.
expect_code "best: a run that keeps all checkpoints succeeds" 0 "$TRAIN" letters.json --set checkpoint.keep=0 \
    --set checkpoint.save_interval=5 --out all
# killed_at STEP: makes the folder of a run that was killed after it had saved this step
killed_at() {
    local later
    rm -rf killed
    cp -r all killed
    rm killed/result.json
    for later in $(checkpoint_steps killed); do
        [ "$later" -le "$1" ] || rm -r "killed/checkpoints/step_$(printf %08d "$later")"
    done
}
# resumed NAME STEP OPTION...: goes on from this step of the run, and checks the result; `prepare` has changed the folder
resumed() {
    local name=$1 step=$2
    shift 2
    killed_at "$step"
    prepare
    expect_code "best: a killed run resumes ($name)" 0 "$TRAIN" letters.json --set checkpoint.keep=1 --out killed "$@"
    check "best: the checkpoint of the lowest loss is kept ($name)" \
        test "$(best killed | cut -d' ' -f1) $(checkpoint_steps killed | tr '\n' ' ')" = "$(lowest killed 4) $low 40 "
    expect_code "best: the best checkpoint is valid ($name)" 0 "$TRAIN" eval killed --best
}
prepare() { :; }
resumed "after the best" $((low + 5))
resumed "before the best" 10
prepare() { rm killed/checkpoints/best.json; }
resumed "between the best checkpoint and its record" "$low"
prepare() { spoil killed $((low + 5)); }
resumed "the newest checkpoint is damaged" $((low + 5))
prepare() { spoil killed "$low" && spoil killed $((low + 5)); }
resumed "the best and the newest checkpoint are damaged" $((low + 5))
prepare() { echo '{' >killed/checkpoints/best.json; }
resumed "the record is damaged" "$low"
killed_at $((low + 5))
rm killed/checkpoints/best.json
mkdir killed/checkpoints/best.json
expect_code "best: a run whose record of the best checkpoint is a folder continues" 0 "$TRAIN" letters.json --set checkpoint.keep=1 --out killed
check "best: the folder in place of the record is named" grep -q 'killed/checkpoints/best.json' output
check "best: if the record cannot be read or removed, no checkpoint is removed" test -d \
    "killed/checkpoints/step_$(printf %08d "$low")" -a -d killed/checkpoints/best.json
prepare() { :; }

# With so few descriptors, the start fails at one file after another, and at last at the best checkpoint.
killed_at 40
cp killed/checkpoints/best.json record
refusals=0
for descriptors in {10..40}; do
    (ulimit -n "$descriptors" && exec "$TRAIN" killed) >output 2>&1 </dev/null && break
    ! grep -q '^error.71. the best checkpoint may be whole.*Too many open files; raise ulimit -n$' output || refusals=$((refusals + 1))
    cmp -s record killed/checkpoints/best.json || refusals=-100
done
check "best: if no file descriptor is left, the start fails and the record is kept" test "$refusals" -gt 0

resumed "2 data-parallel ranks" 10 --ranks 2
resumed "2 tensor-parallel ranks" "$low" --ranks 2 --set parallel.tensor=2
resumed "2 stages" 10 --ranks 2 --set parallel.pipeline=2
resumed "4 ranks, ZeRO 1" 10 --ranks 4 --set parallel.tensor=2 --set zero_optimization.stage=1 --set train_micro_batch_size_per_gpu=1

# ---- patience ------------------------------------------------------------------------------------------------------------

# The loss of the evaluations 3 and 4 is above that of the second one.
patient=(--set eval.patience=2)
# ended NAME: expects that the run has ended after step 20 with a result
ended() {
    check "best: patience ends a run after step 20 ($1)" grep -q '^done    20 steps, ' output
    check "best: the end says why ($1)" \
        test "$(sed -n '/^ended /,/^next /p' output | sed '$d' | tr -s ' \n' ' ')" = \
        "ended before step 40: 2 evaluations in a row gained nothing (eval.patience) "
}
expect_code "best: a run with patience succeeds" 0 "$TRAIN" letters.json "${patient[@]}" --out patient
ended "at once"
check "best: the last step is evaluated once" test "$(figures patient | grep -c '^val 20 ')" -eq 1
check "best: result.json says that patience ended the run" grep -q '"patience":	2' patient/result.json
expect_code "best: a run that patience ended is finished" 0 "$TRAIN" letters.json "${patient[@]}" --out patient
ended "shown again"
check "best: a run that patience ended says how to train further" grep -qx '        ./train patient --set eval.patience=0 goes on' output
# The best checkpoint is that of step 5, and save_interval keeps the next ones apart, except for the last step.
expect_code "best: a run with patience and save_interval=0 succeeds" 0 "$TRAIN" letters.json --set eval.patience=1 \
    --set checkpoint.save_interval=0 --set train_steps=45 --out last
check "best: the last step is the best checkpoint if its loss is lower" test "$(best last | cut -d' ' -f1)" = 15
for step in 10 15 20; do
    killed_at $step
    expect_code "best: a run with patience resumes from step $step" 0 "$TRAIN" letters.json "${patient[@]}" --out killed
    ended "resumed at step $step"
done
for on in "2" "2 --set parallel.tensor=2" "2 --set parallel.pipeline=2" "4 --set parallel.tensor=2 --set train_micro_batch_size_per_gpu=1"; do
    read -ra options <<<"--ranks $on"
    expect_code "best: a run with patience succeeds (--ranks $on)" 0 "$TRAIN" letters.json "${patient[@]}" "${options[@]}" --out "patient-${on// /}"
    ended "--ranks $on"
done
expect_code "best: without patience the run trains further" 0 "$TRAIN" letters.json --out patient
same_run "best: the resumed run equals one that never stopped" run patient

# Other validation data: the old best loss is not compared with losses of the new data.
tac held_out.txt | rev >other.txt
killed_at 40
expect_code "best: a run resumes with other validation data" 0 "$TRAIN" letters.json --set data.val_text=other.txt \
    --set checkpoint.keep=1 --set train_steps=60 --allow-config-change --out killed
check "best: the best checkpoint is chosen again" test "$(best killed | cut -d' ' -f1)" -gt 40
check "best: the previous best checkpoint is removed" test "$(checkpoint_steps killed | tr '\n' ' ')" = "$(best killed | cut -d' ' -f1) 60 "
finish

#!/usr/bin/env bash
# scores.sh -- tests `eval --multiple-choice` on a run, on several grids of ranks, and what it refuses.
# shellcheck source-path=SCRIPTDIR
source "$(dirname "$0")/lib.sh"

make_text
check "scores: the multiple-choice file is made" python3 "$here/../golden/make_hf.py" hf
expect_code "scores: a run in fp64 succeeds" 0 "$TRAIN" "$TINY" --set fp64.enabled=true --set train_steps=10 \
    --set eval.sample_interval=0 --out run

# ---- multiple choice -------------------------------------------------------------------------------------------------
choose=(eval run --multiple-choice hf/choices.bin)
expect_code "scores: eval --multiple-choice succeeds" 0 "$TRAIN" "${choose[@]}"
check "scores: it prints both accuracies, and how many rows there were" grep -qE "^step 10   accuracy 0\.[0-9]{4} \+- 0\.[0-9]{4} \
by loss per token, 0\.[0-9]{4} \+- 0\.[0-9]{4} by summed loss; 12 examples with 48 completions; right ones [0-9.]+ nats a token$" output
"$TRAIN" "${choose[@]}" --json >one.json 2>err
for how in "--ranks 3" "--ranks 2 --processes --set zero_optimization.stage=3" "--ranks 2 --set parallel.pipeline=2" \
    "--ranks 4 --set parallel.tensor=2 --set parallel.pipeline=2" "--ranks 2 --set parallel.tensor=2 --set parallel.sequence_parallel=true" \
    "--set train_micro_batch_size_per_gpu=5 --set train_batch_size=null"; do
    read -ra options <<<"$how"
    "$TRAIN" "${choose[@]}" --json "${options[@]}" >other.json 2>err
    check "scores: eval --multiple-choice $how gives the score of one rank" python3 -c '
import json
one, other = json.load(open("one.json")), json.load(open("other.json"))
assert abs(one["right_loss"] - other["right_loss"]) < 1e-12 * one["right_loss"], (one, other)
del one["right_loss"], other["right_loss"]
assert one == other and one["examples"] == 12 and one["completions"] == 48 and one["cut"] == 0, other'
done
expect_code "scores: a sequence shorter than a context cuts it" 0 "$TRAIN" "${choose[@]}" --set data.seq_length=12
check "scores: contexts that are cut are counted" grep -qE \
    '^warning: hf/choices.bin: the first tokens of the context are left out for [0-9]+ completions, because the model reads 12 tokens$' output
# refused CODE NAME SENTENCE FILE [OPTION...]
refused() {
    expect_code "scores: $2 ends with $1" "$1" "$TRAIN" eval run --multiple-choice "${@:4}"
    check "scores: $2 is named" grep -qF "$3" output
}
refused 78 "a completion that is too long" "hf/choices.bin: the completion at byte 1084 has 10 tokens, and the model reads 8" \
    hf/choices.bin --set data.seq_length=8
refused 66 "a file that is missing" "none cannot be opened" none
refused 65 "a file of another kind" "text.txt is not a multiple-choice file" text.txt
head -c 2000 hf/choices.bin >cut.bin
refused 65 "a file that is cut" "cut.bin is damaged: example 11 at byte 1958" cut.bin
{ head -c 1036 hf/choices.bin && printf '\054\001' && tail -c +1039 hf/choices.bin; } >foreign.bin
refused 65 "an id beyond the vocabulary" "foreign.bin: token 300 at byte 1036, but the model has 300 ids" foreign.bin
refused 65 "an id beyond the vocabulary on three ranks" "foreign.bin: token 300 at byte 1036" foreign.bin --ranks 3
check "scores: three ranks print it once" test "$(grep -c foreign output)" -eq 1

# ---- the validation data as JSON -------------------------------------------------------------------------------------
expect_code "scores: eval succeeds" 0 "$TRAIN" eval run
cp output told
"$TRAIN" eval run --json --ranks 2 >one.json 2>err
check "scores: eval --json has the figures of eval" python3 -c '
import json, re
one, text = json.load(open("one.json")), open("told").read()
loss, targets, bits, size = re.search(r"val loss ([\d.]+) nats a token over (\d+) targets   ([\d.]+) bits per byte over (\d+)", text).groups()
assert one["step"] == 10 and one["targets"] == int(targets) and one["bytes"] == int(size), one
assert "%.6f" % one["val_loss"] == loss and "%.6f" % one["bits_per_byte"] == bits, one'
finish

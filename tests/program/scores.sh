#!/usr/bin/env bash
# scores.sh -- tests `eval --multiple-choice` on a run, on several grids of ranks, and what it refuses; and eval.sets, the
# validation sets by name.
# shellcheck source-path=SCRIPTDIR
source "$(dirname "$0")/lib.sh"

make_text
check "scores: the multiple-choice file is made" python3 "$here/../golden/make_hf.py" hf
expect_code "scores: a run in fp64 succeeds" 0 "$TRAIN" "$TINY" --set fp64.enabled=true --set train_steps=10 \
    --set eval.sample_interval=0 --out run

# ---- multiple choice -------------------------------------------------------------------------------------------------
choose=(eval run --multiple-choice hf/choices.bin)
expect_code "scores: eval --multiple-choice succeeds" 0 "$TRAIN" "${choose[@]}"
check "scores: both accuracies and the number of rows are printed" grep -qE "^step 10   accuracy 0\.[0-9]{4} \+- 0\.[0-9]{4} \
by loss per token, 0\.[0-9]{4} \+- 0\.[0-9]{4} by summed loss; 12 examples with 48 completions; right ones [0-9.]+ nats a token$" output
"$TRAIN" "${choose[@]}" --json >one.json 2>err
for how in "--ranks 3" "--ranks 2 --processes --set zero_optimization.stage=3" "--ranks 2 --set parallel.pipeline=2" \
    "--ranks 4 --set parallel.tensor=2 --set parallel.pipeline=2" "--ranks 2 --set parallel.tensor=2 --set parallel.sequence_parallel=true" \
    "--set train_micro_batch_size_per_gpu=5 --set train_batch_size=null"; do
    read -ra options <<<"$how"
    "$TRAIN" "${choose[@]}" --json "${options[@]}" >other.json 2>err
    check "scores: eval --multiple-choice $how gives the same score as on one rank" python3 -c '
import json
one, other = json.load(open("one.json")), json.load(open("other.json"))
assert abs(one["right_loss"] - other["right_loss"]) < 1e-12 * one["right_loss"], (one, other)
del one["right_loss"], other["right_loss"]
assert one == other and one["examples"] == 12 and one["completions"] == 48 and one["cut"] == 0, other'
done
# The losses are those of their rows: three files with a third of the examples each, last ones first, have the same score together.
python3 - hf/choices.bin <<'END'
import struct, sys
data = open(sys.argv[1], "rb").read()
words, at, examples = struct.unpack(f"<{(len(data) - 1024) // 2}H", data[1024:]), 0, []
while at < len(words):
    examples.append(words[at : at + words[at + 1] // 2])
    at += words[at + 1] // 2
for part in range(3):
    chosen = examples[::-1][part::3]
    with open(f"part{part}.bin", "wb") as file:
        file.write(struct.pack("<256i", 20240522, 1, len(chosen), 2 * max(map(len, chosen)), *[0] * 252))
        for number, example in enumerate(chosen):
            file.write(struct.pack(f"<{len(example)}H", *example[:2], number, *example[3:]))
    tokens = 0
    for example in chosen:
        at = 6 + example[5]
        for _ in range(example[3]):
            at += 1 + example[at]
        tokens += example[at]
    open(f"part{part}.tokens", "w").write(str(tokens))
END
for part in 0 1 2; do
    "$TRAIN" eval run --multiple-choice part$part.bin --json >part$part.json 2>err
done
check "scores: parts of the file have the score of the whole" python3 -c '
import json
one, part = json.load(open("one.json")), [json.load(open(f"part{i}.json")) for i in range(3)]
tokens = [int(open(f"part{i}.tokens").read()) for i in range(3)]
assert one["right"] == sum(p["right"] for p in part) and one["right_by_sum"] == sum(p["right_by_sum"] for p in part), part
loss = sum(n * p["right_loss"] for n, p in zip(tokens, part)) / sum(tokens)
assert abs(one["right_loss"] - loss) < 1e-12 * loss, (one, part)'
expect_code "scores: a sequence shorter than a context cuts it" 0 "$TRAIN" "${choose[@]}" --set data.seq_length=12
check "scores: contexts that are cut are counted" grep -qE \
    '^warning: hf/choices.bin: the first tokens of the context are left out for [0-9]+ completions, because the model reads 12 tokens$' output
# refused CODE NAME SENTENCE FILE [OPTION...]
refused() {
    expect_code "scores: $2 exits with code $1" "$1" "$TRAIN" eval run --multiple-choice "${@:4}"
    check "scores: $2 is named" grep -qF "$3" output
}
refused 78 "a completion that is too long" "hf/choices.bin: the completion at byte 1084 has 10 tokens, and the model reads 8" \
    hf/choices.bin --set data.seq_length=8
refused 66 "a file that is missing" "none cannot be opened" none
refused 65 "a file of another kind" "text.txt is not a multiple-choice file" text.txt
head -c 2000 hf/choices.bin >cut.bin
refused 65 "a file that is cut" "cut.bin is damaged: example 11 at byte 1958" cut.bin
{ head -c 1036 hf/choices.bin && printf '\054\001' && tail -c +1039 hf/choices.bin; } >foreign.bin
refused 65 "an id beyond the vocabulary" "foreign.bin: token 300 at byte 1036, but the vocabulary has 300 ids" foreign.bin
refused 65 "an id beyond the vocabulary on three ranks" "foreign.bin: token 300 at byte 1036" foreign.bin --ranks 3
check "scores: three ranks print the refusal once" test "$(grep -c foreign output)" -eq 1
# A model may have more rows than its tokenizer has ids.
expect_code "scores: a run with further rows in its token table succeeds" 0 "$TRAIN" "$TINY" --set train_steps=5 \
    --set model.vocab_size=320 --set data.tokenizer=run/tokenizer.json --set eval.sample_interval=0 --out rows
expect_code "scores: an id of such a row is refused" 65 "$TRAIN" eval rows --multiple-choice foreign.bin
check "scores: the refusal names file, position and id" grep -qF "foreign.bin: token 300 at byte 1036, but the vocabulary has 300 ids" output
expect_code "scores: a file that has only ids of the tokenizer is scored" 0 "$TRAIN" eval rows --multiple-choice hf/choices.bin

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

# ---- validation sets by name -----------------------------------------------------------------------------------------
# The set "same" has the text of the main validation data, so it must have its figures.
size=$(wc -c <text.txt)
head -c $((size / 2)) text.txt >train.txt
tail -c $((size / 4)) text.txt >val.txt
head -n 200 text.txt >other.txt
base=(--set fp64.enabled=true --set train_steps=12 --set eval.interval=4 --set eval.sample_interval=6 --set data.text=train.txt
    --set data.val_text=val.txt --set tensorboard.enabled=true)
sets='eval.sets={"same": {"text": "val.txt"}, "other": {"shards": "shards/*.bin"}, "third": {"text": ["other.txt"]}}'
expect_code "scores: a run without sets succeeds" 0 "$TRAIN" "$TINY" "${base[@]}" --out plain
"$TRAIN" data tokenize --tokenizer plain/tokenizer.json --out shards other.txt >output 2>&1
expect_code "scores: a run with sets succeeds" 0 "$TRAIN" "$TINY" "${base[@]}" --set "$sets" --out sets
cp output console
check "scores: the start of a run lists its sets" grep -qE '^sets    same: [0-9,]+ tokens, [0-9]+ of [0-9]+ micro-batches   \(cached\)$' console
check "scores: the console has a row of each set" test "$(grep -cE '^ +(4|8|12) +(same|other|third) +[0-9.]+   [0-9.]+ bits per byte   [0-9,]+ targets' console)" -eq 9
same_run "scores: a run with sets has the same bits as the run without" plain sets
check "scores: the best checkpoint is the same as without sets" test "$(cut -d, -f1,2 plain/checkpoints/best.json)" = \
    "$(cut -d, -f1,2 sets/checkpoints/best.json)"
cat >figures.py <<'END'
import json, sys
def figures(run):
    """step -> name -> figures, as metrics.jsonl has them; the main data are called val"""
    steps = {}
    for line in open(run + "/metrics.jsonl"):
        e = json.loads(line)
        if e["event"] in ("val", "val_set"):
            assert (e["event"] == "val_set") == ("set" in e), e
            keys = ("loss", "bits_per_byte", "targets", "bytes")
            steps.setdefault(e["step"], {})[e.get("set", "val")] = {k: e[k] for k in keys if k in e}
    return steps
def near(a, b):
    return abs(a - b) <= 1e-12 * abs(b)
END
check "scores: metrics.jsonl has the figures of each set, and those of the main text for the same text" python3 - <<'END'
from figures import *
plain, sets = figures("plain"), figures("sets")
assert sorted(sets) == sorted(plain) == [4, 8, 12], sets
for step, names in sets.items():
    assert sorted(names) == ["other", "same", "third", "val"], names
    assert names["val"] == plain[step]["val"] == names["same"], names
    # Shards of a tokenizer, without one beside them, have the bytes of the run's tokenizer.
    assert names["third"]["targets"] == names["other"]["targets"] and near(names["third"]["loss"], names["other"]["loss"]), names
    assert names["third"]["bytes"] == names["other"]["bytes"] < names["val"]["bytes"], names
END
check "scores: result.json has the figures of each set" python3 - <<'END'
from figures import *
last, result = figures("sets")[12], json.load(open("sets/result.json"))
assert list(result["sets"]) == ["same", "other", "third"], result
for name, figure in result["sets"].items():
    assert list(figure) == ["loss", "bits_per_byte", "targets"], figure
    assert all(near(figure[key], last[name][key]) for key in figure), (figure, last)
assert "sets" not in json.load(open("plain/result.json"))
END
"$TRAIN" sets >output 2>&1
check "scores: a finished run prints the figures of each set" \
    test "$(grep -cE '^        (same|other|third): loss [0-9.]+ nats a token, [0-9.]+ bits per byte$' output)" -eq 3
check "scores: TensorBoard has the curves of each set" python3 "$here/../support/files/check_events.py" sets/tensorboard/DeepSpeedJobName sets/metrics.jsonl
expect_code "scores: report --csv succeeds" 0 "$TRAIN" report plain sets --csv
cp output table.csv
check "scores: the table has columns of each set" python3 - <<'END'
import csv
from figures import *
rows = [r for r in csv.DictReader(open("table.csv", newline="")) if r["val_loss"]]
assert len(rows) == 6, rows
for row in rows:
    for name in "same", "other", "third":
        cell, names = row["val_loss_" + name], figures(row["run"])[int(row["step"])]
        assert cell == "" if row["run"] == "plain" else float(cell) == names[name]["loss"], row
END
"$TRAIN" report sets >page.html 2>err
check "scores: the page has a plot of each set" test "$(grep -cE '>Validation loss, (same|other|third) ' page.html)" -eq 3
for how in "" "--ranks 3" "--ranks 2 --processes" "--ranks 4 --set parallel.tensor=2 --set parallel.pipeline=2"; do
    read -ra options <<<"$how"
    "$TRAIN" eval sets --newest --json "${options[@]}" >sets.json 2>err
    check "scores: eval $how has the figures of the last evaluation" python3 - <<'END'
from figures import *
last, now = figures("sets")[12], json.load(open("sets.json"))
assert now["step"] == 12 and near(now["val_loss"], last["val"]["loss"]) and list(now["sets"]) == ["same", "other", "third"], now
for name, figure in now["sets"].items():
    assert figure["targets"] == last[name]["targets"] and figure["bytes"] == last[name]["bytes"], now
    assert near(figure["loss"], last[name]["loss"]) and near(figure["bits_per_byte"], last[name]["bits_per_byte"]), now
END
done
expect_code "scores: eval with other sets opens the run" 0 "$TRAIN" eval plain --set 'eval.sets={"new": {"text": "other.txt"}}'
check "scores: eval prints a line for each set" test "$(grep -cE '^step 12   (val|new) loss [0-9.]+ nats a token over [0-9]+ targets   [0-9.]+ bits per byte over [0-9]+ bytes$' output)" -eq 2

# Other sets change nothing of the training: a run goes on with them, on another grid as well.
expect_code "scores: a run stops in the middle" 85 "$TRAIN" "$TINY" "${base[@]}" --set max_time=1e-9 --set checkpoint.save_interval=5 --out goes-on
while [ ! -e goes-on/result.json ]; do
    "$TRAIN" "$TINY" "${base[@]}" --set max_time=1e-9 --set checkpoint.save_interval=5 --set "$sets" --out goes-on >output 2>&1
    code=$?
    if [ $code -ne 85 ] && [ $code -ne 0 ]; then break; fi
done
check "scores: a run resumed with sets ends" test -e goes-on/result.json
same_run "scores: a run resumed with sets has the same bits as the run without" plain goes-on
check "scores: a run resumed with sets has their figures" python3 - <<'END'
from figures import *
assert figures("goes-on")[12] == figures("sets")[12], figures("goes-on")
END
expect_code "scores: a run with sets on four ranks succeeds" 0 "$TRAIN" "$TINY" "${base[@]}" --set "$sets" --ranks 4 \
    --set parallel.tensor=2 --set train_batch_size=16 --set gradient_accumulation_steps=null --out four
check "scores: sets on four ranks have the same figures as on one rank" python3 - <<'END'
from figures import *
one, four = figures("sets")[4], figures("four")[4]
for name in one:
    assert one[name]["targets"] == four[name]["targets"] and abs(one[name]["loss"] / four[name]["loss"] - 1) < 1e-9, (one, four)
END
expect_code "scores: a set whose text is missing exits with code 66" 66 "$TRAIN" "$TINY" --set 'eval.sets={"x": {"text": "none.txt"}}' --out none
check "scores: that set is named" grep -qx 'error\[66\] eval.sets.x: no file matches none.txt' output
# The files of a set are not needed to evaluate the rest.
mv other.txt away.txt
expect_code "scores: eval of a run whose set has lost its text exits with code 66" 66 "$TRAIN" eval sets
check "scores: the message says how to evaluate without the sets" grep -qx \
    'error\[66\] eval.sets.third: no file matches other.txt; --set eval.sets=null leaves the sets out' output
expect_code "scores: eval without the sets succeeds" 0 "$TRAIN" eval sets --set eval.sets=null
expect_code "scores: eval with a set whose text is missing exits with code 66" 66 "$TRAIN" eval sets --set 'eval.sets={"x": {"text": "none.txt"}}'
check "scores: the message says that no file matches" grep -qx 'error\[66\] eval.sets.x: no file matches none.txt' output
mv away.txt other.txt
expect_code "scores: config check finds a set whose text is missing" 66 "$TRAIN" config check "$TINY" --set 'eval.sets={"x": {"text": "none.txt"}}'
finish

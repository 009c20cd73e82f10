#!/usr/bin/env bash
# init_from.sh -- tests that a run begins with the weights that checkpoint.init_from names: on any grid, from a run or one of
# its checkpoints; that it does not need them once it has saved; and what is said about weights that cannot be used.
# shellcheck source-path=SCRIPTDIR
source "$(dirname "$0")/lib.sh"
make_text

# begin RUN OPTION...: starts a run of a few steps with the weights of the run "src"
steps=6
begin() {
    local run=$1
    shift
    "$TRAIN" "$TINY" --out "$run" --set checkpoint.init_from=src --set train_steps=$steps --set seed=11 --set eval.interval=3 "$@"
}
said() { tr -s ' \n' ' ' <output | grep -qF -- "$1"; }

"$TRAIN" "$TINY" --out src --set model.max_position_embeddings=48 --set model.position=learned >src.log 2>&1 || not_ok "init_from: the source ends: $(tail -n 1 src.log)"
learned=(--set model.position=learned)
best=$(sed -nE 's/^\{"step": ([0-9]+), .*/\1/p' src/checkpoints/best.json)
val=$(sed -nE 's/.*"val_loss": ([0-9.]+),.*/\1/p' src/checkpoints/best.json | xargs printf %.4f)
path=src/checkpoints/step_$(printf %08d "$best")

# ---- where the weights come from ----
expect_code "init_from: a run starts with the weights of another run" 0 begin from "${learned[@]}"
check "init_from: the start names the checkpoint" said "weights $path: best checkpoint, step $best, val $val; this run begins at step 0"
check "init_from: the start says which positions are left out" said "position.weight: the first 32 of 48 positions are taken"
check "init_from: the first loss is close to that of the source" awk -v val="$val" '$1 == "train" { exit !($3 < 1.2 * val) }' <(figures from)
check "init_from: the run folder records the source" grep -qE "^\{\"init_from\": \"src\", \"kind\": \"best checkpoint\", \"path\": \"$path\", \"step\": $best, \"val_loss\": [0-9.]+, \"same_ids\": true\}$" from/init_from.json
check "init_from: the metrics record the source" grep -q "\"event\": \"weights\", \"step\": 0,.*\"text\": \"$path: best" from/metrics.jsonl
check "init_from: the data order starts again at sample 0" test "$(grep -o '"samples": [0-9]*' from/metrics.jsonl | grep -v ' 0$' | head -n 1)" = '"samples": 16'
expect_code "init_from: a run starts with the weights of a checkpoint" 0 begin one "${learned[@]}" --set checkpoint.init_from="$path"
check "init_from: the start names the best checkpoint and its loss" said "weights $path: checkpoint, step $best, val $val;"
same_run "init_from: the checkpoint gives the same bits as the run" from one
rm src/checkpoints/best.json
expect_code "init_from: without a best checkpoint, the newest one is used" 0 begin newest "${learned[@]}"
check "init_from: the start names the newest checkpoint" said "weights src/checkpoints/step_00000040: newest checkpoint, step 40"

# ---- grids ----
options=("${learned[@]}" --set fp64.enabled=true)
expect_code "init_from: f64 from f32" 0 begin f64 "${options[@]}"
for grid in "dp 2:--ranks 2 --set train_micro_batch_size_per_gpu=4" "tp 2:--ranks 2 --set parallel.tensor=2" \
    "pp 2:--ranks 2 --set parallel.pipeline=2" \
    "ZeRO 3 on processes:--ranks 2 --processes --set train_micro_batch_size_per_gpu=4 --set zero_optimization={\"stage\":3,\"stage3_param_persistence_threshold\":0}"; do
    rm -rf grid
    read -ra extra <<<"${grid#*:}"
    expect_code "init_from: ${grid%%:*}" 0 begin grid "${options[@]}" "${extra[@]}"
    check "init_from: ${grid%%:*} says once where the weights come from" test "$(grep -c '^weights ' output)" -eq 1
    alike "init_from: ${grid%%:*} equals one rank" f64 grid
done
expect_code "init_from: bf16 from f32" 0 begin bf16 "${learned[@]}" --set bf16.enabled=true
check "init_from: masters in bf16 training are the f32 weights" awk -v a="$(figures from | head -n 1)" -v b="$(figures bf16 | head -n 1)" \
    'BEGIN { split(a, x, " "); split(b, y, " "); d = x[3] - y[3]; exit !(d * d < 1e-3) }'

# ---- master copies ----
# A rate of 0 leaves the first weights as they are.
expect_code "init_from: a run in f32 starts with the weights of one in bf16" 0 "$TRAIN" "$TINY" "${learned[@]}" --out still \
    --set checkpoint.init_from=bf16/checkpoints/step_00000006 --set train_steps=1 --set scheduler=null --set optimizer.params.lr=0
check "init_from: they equal its master weights bit for bit" python3 - <<'END'
import json
def tensors(path):
    """name -> dtype and bytes of a safetensors file"""
    data = open(path, "rb").read()
    begin = 8 + int.from_bytes(data[:8], "little")
    return {k: (v["dtype"], data[begin + v["data_offsets"][0]:begin + v["data_offsets"][1]])
            for k, v in json.loads(data[8:begin]).items() if k != "__metadata__"}
first, slots = tensors("still/checkpoints/step_00000001/model.safetensors"), tensors("bf16/checkpoints/step_00000006/optimizer.safetensors")
rounded = tensors("bf16/checkpoints/step_00000006/model.safetensors")
assert set(first) == set(rounded) and {d for d, _ in first.values()} == {"F32"}, first.keys()
masters = [k for k in first if k + ".master" in slots]
assert "BF16" in {d for d, _ in rounded.values()} and len(masters) > 10, slots.keys()
for k in masters:
    assert first[k] == slots[k + ".master"], k
END

# ---- going on ----
mv src elsewhere
expect_code "init_from: a run with a checkpoint resumes without the source" 0 "$TRAIN" from --set train_steps=8 --allow-config-change
check "init_from: a run resumes from its own checkpoint" said "resume step 6 from from/checkpoints/step_00000006"
rm -r one/checkpoints one/result.json
expect_code "init_from: a run without a checkpoint needs the source" 66 "$TRAIN" one
check "init_from: the message says where the source was expected" said "error[66] one/config.json:"
check "init_from: the message names checkpoint.init_from" said "checkpoint.init_from: $path: no weights are there"
mv elsewhere src
expect_code "init_from: with the source the run starts again" 0 "$TRAIN" one
same_run "init_from: the run started again has the same bits" newest one || true

# ---- which run is meant ----
expect_code "init_from: the same command finds its run" 0 begin newest "${learned[@]}"
check "init_from: the found run is finished" said "finished"
expect_code "init_from: a start with other weights is another run" 78 begin newest "${learned[@]}" --set checkpoint.init_from="$path"
check "init_from: the message about other weights names the key" said "checkpoint.init_from was \"src\", is \"$path\" (changes the run)"
mkdir -p out && cp -r src out/tiny
expect_code "init_from: without --out a new run starts" 0 "$TRAIN" "$TINY" "${learned[@]}" --set checkpoint.init_from=out/tiny --set train_steps="$steps"
check "init_from: the new run gets the next free folder" said "run out/tiny-2"
expect_code "init_from: --resume together with init_from is refused" 64 begin both "${learned[@]}" --resume src
check "init_from: the message about --resume names the choice" said "leave one of the two out"
check "init_from: the refused start leaves no folder" test ! -e both

# ---- weights that cannot be used ----
refused() { # refused NAME CODE TEXT OPTION...
    local name=$1 code=$2 text=$3
    shift 3
    expect_code "init_from: $name" "$code" begin refused "$@"
    check "init_from: $name: the message" said "$text"
    check "init_from: $name: nothing is written" test ! -e refused
}
refused "a folder that is not there" 66 "--set: checkpoint.init_from: nowhere: no weights are there; give the folder of a checkpoint" --set checkpoint.init_from=nowhere
refused "a folder without weights" 66 "no weights are there" --set checkpoint.init_from=.
refused "another width" 78 "token.weight is [300, 32] there and [300, 64] here" "${learned[@]}" --set model.hidden_size=64
refused "another depth" 78 "block.2.attn.norm.weight is not there and [32] here" "${learned[@]}" --set model.num_layers=3
refused "too few positions" 78 "position.weight is [48, 32] there and [64, 32] here (model.max_position_embeddings can be 48 at most)" \
    "${learned[@]}" --set model.max_position_embeddings=64
refused "another kind of positions" 78 "position.weight is [48, 32] there and not here"
tr 'a-m' 'b-n' <text.txt >other.txt
refused "another tokenizer" 78 "these weights belong to another tokenizer than that of the data" "${learned[@]}" --set data.text=other.txt
check "init_from: another tokenizer: what to write" said 'write data.tokenizer "src/tokenizer.json", or, if you mean it, checkpoint.init_from_tokenizer "any"'
expect_code "init_from: the source's tokenizer may be given" 0 begin given "${learned[@]}" --set data.text=other.txt --set data.tokenizer=src/tokenizer.json
expect_code "init_from: another tokenizer is used if the config names it" 0 begin any "${learned[@]}" --set data.text=other.txt --set checkpoint.init_from_tokenizer=any
expect_code "init_from: a dry run checks the weights, too" 78 begin dry --set model.num_layers=3 --dry-run
expect_code "init_from: a dry run with weights that fit succeeds" 0 begin dry "${learned[@]}" --dry-run
check "init_from: a dry run writes nothing" test ! -e dry
expect_code "init_from: a notice names keys that change the arithmetic" 0 begin theta "${learned[@]}" --set model.norm_epsilon=0.001
check "init_from: the notice names the key and both values" said "model.norm_epsilon was 1e-05 where the weights of src/checkpoints/step_00000040 were trained, and is 0.001 here"

# ---- Hugging Face's folders and imported runs ----
python3 "$here/../golden/make_hf.py" hf >/dev/null || not_ok "init_from: make_hf.py fails"
"$TRAIN" import hf hf --out imported >import.log 2>&1 || not_ok "init_from: the import ends: $(tail -n 1 import.log)"
short=(--set data.text=text.txt --set data.seq_length=16 --set train_steps="$steps" --set train_batch_size=4 --set train_micro_batch_size_per_gpu=2
    --set optimizer.params.lr=0.01 --set scheduler=null --set eval.interval=3 --set checkpoint.keep=1 --set cpu.threads=1 --set eval.steps=0)
start() { # start RUN OPTION...: trains a copy of the imported run
    local run=$1
    shift
    rm -rf "$run"
    cp -r imported "$run" && "$TRAIN" "$run" "${short[@]}" "$@"
}
expect_code "init_from: an imported run needs data" 78 "$TRAIN" imported
check "init_from: the message says which data key to add" said "imported/config.json:1:1: data: this run names nothing to train on yet; add --set data.text=my.txt"
expect_code "init_from: an imported run is trained" 0 start trained
check "init_from: its start says where the weights come from" said "weights trained/checkpoints/step_00000000: weights alone; this run begins at step 0"
check "init_from: its metrics say where the weights come from" grep -q '"event": "weights", "step": 0,.*"text": "trained/checkpoints/step_00000000: weights alone"' trained/metrics.jsonl
check "init_from: an imported run keeps its tokenizer" cmp -s imported/tokenizer.json trained/tokenizer.json
check "init_from: an imported run keeps its imported weights" test "$(checkpoint_steps trained | tr '\n' ' ')" = "0 6 "
expect_code "init_from: its first weights still generate" 0 "$TRAIN" generate trained/checkpoints/step_00000000 --prompt "the" --tokens 2
expect_code "init_from: a run starts with the weights of a Hugging Face folder" 0 "$TRAIN" imported/config.json "${short[@]}" --set checkpoint.init_from=hf --out from_hf
check "init_from: the start names the Hugging Face folder" said "weights hf: Hugging Face folder; this run begins at step 0"
same_run "init_from: it gives the same bits as the imported run" trained from_hf
expect_code "init_from: an imported run in f64" 0 start f64 --set fp64.enabled=true
for grid in "dp 2:--set train_micro_batch_size_per_gpu=1" "tp 2:--set parallel.tensor=2" "pp 2:--set parallel.pipeline=2" \
    "ZeRO 3:--set train_micro_batch_size_per_gpu=1 --set zero_optimization.stage=3"; do
    read -ra extra <<<"${grid#*:}"
    expect_code "init_from: an imported run on ${grid%%:*}" 0 start grid --set fp64.enabled=true --ranks 2 "${extra[@]}"
    alike "init_from: an imported run on ${grid%%:*} equals one rank" f64 grid
done
expect_code "init_from: an imported run in bf16" 0 start bf16 --set bf16.enabled=true
expect_code "init_from: an imported run that was stopped" 85 start stopped --set max_time=0.001
"$TRAIN" stopped --set max_time=0 >/dev/null 2>&1
same_run "init_from: the resumed imported run has the same bits as an uninterrupted one" trained stopped
mv trained moved
mv imported elsewhere # its config names imported/tokenizer.json
expect_code "init_from: a moved run resumes with its own tokenizer" 0 "$TRAIN" moved --set train_steps=8 --allow-config-change
mv elsewhere imported
check "init_from: a moved run resumes from its own checkpoint" said "resume step 6 from moved/checkpoints/step_00000006"
cp -r imported elsewhere
cp src/tokenizer.json imported/ # another tokenizer where the config of the copy says
expect_code "init_from: a moved import is trained with its own tokenizer" 0 "$TRAIN" elsewhere "${short[@]}"
same_run "init_from: training a moved import gives the same bits" stopped elsewhere
cp elsewhere/tokenizer.json imported/
rm -r elsewhere
expect_code "init_from: a tokenizer that --set names and that is missing is an error" 66 start other --set data.tokenizer=nowhere.json
expect_code "init_from: the tokenizer of an imported run is fixed" 78 start other --set data.tokenizer=src/tokenizer.json
expect_code "init_from: the shapes of an imported run are fixed" 78 start other --set model.num_layers=1
check "init_from: each tensor that does not fit is named" said "block.1.attn.norm.weight is [48] there and not here"
expect_code "init_from: fewer positions are cut" 0 start other --set model.max_position_embeddings=32
expect_code "init_from: a Hugging Face folder of another tokenizer" 78 begin refused --set checkpoint.init_from=hf
check "init_from: names the file of its tokenizer" said 'write data.tokenizer "hf/tokenizer.json"'
cp -r hf merges
printf '#version: 0.2\nt h\nth e\n' >merges/merges.txt
rm merges/tokenizer.json
expect_code "init_from: a Hugging Face folder with a merges.txt of another tokenizer" 78 begin refused --set checkpoint.init_from=merges
check "init_from: names the folder of its tokenizer" said 'write data.tokenizer "merges"'
cp -r hf linked
mv linked/tokenizer.json linked.json
ln -s ../linked.json linked/tokenizer.json
expect_code "init_from: a tokenizer whose link leaves the folder is not read" 78 begin refused --set checkpoint.init_from=linked
check "init_from: the message says that the tokenizer is a symbolic link" said "is not known: linked/tokenizer.json is a symbolic link that leads out of the folder"

# Each token of a model with a sliding window sees no more tokens than the window has.
python3 "$here/../golden/make_hf.py" window --kind mistral >/dev/null || not_ok "init_from: make_hf.py fails"
sed -i 's/"sliding_window": null/"sliding_window": 32/' window/config.json
expect_code "init_from: a sliding window is refused" 78 "$TRAIN" imported/config.json "${short[@]}" --set checkpoint.init_from=window --set data.tokenizer=window/tokenizer.json \
    --set model.vocab_size=275 --out windowed
check "init_from: the message says for which sequences a sliding window is accepted" said "each token of this model sees 32 tokens, and a sequence has up to 64; for sequences that the window sees whole add --set model.max_position_embeddings=32"
check "init_from: a sliding window: nothing is written" test ! -e windowed
expect_code "init_from: sequences that the window sees whole are trained" 0 "$TRAIN" imported/config.json "${short[@]}" --set checkpoint.init_from=window --set data.tokenizer=window/tokenizer.json \
    --set model.vocab_size=275 --set model.max_position_embeddings=32 --out windowed

# Qwen's token tables have more rows than their tokenizers have ids.
python3 "$here/../golden/make_hf.py" qwen --kind qwen2 >/dev/null || not_ok "init_from: make_hf.py fails"
rm -r imported
"$TRAIN" import hf qwen --out imported >import.log 2>&1 || not_ok "init_from: the import ends: $(tail -n 1 import.log)"
expect_code "init_from: an imported run keeps rows that belong to no token" 0 start padded
check "init_from: its model has these rows" said "vocabulary 288 (padded"
expect_code "init_from: the run resumes with these rows" 0 "$TRAIN" padded --set train_steps=8 --allow-config-change
expect_code "init_from: a model with fewer rows leaves these rows out" 0 "$TRAIN" imported/config.json "${short[@]}" --set checkpoint.init_from=qwen \
    --set model.vocab_size=275 --out cut --ranks 2 --set parallel.tensor=2
check "init_from: the start says how many token ids are used" said "token.weight: the first 275 of 288 token ids are taken"

file=src/checkpoints/step_00000040/model.safetensors
printf '\377' | dd of="$file" bs=1 seek=$(($(tensors "$file") + 40)) conv=notrunc 2>/dev/null
expect_code "init_from: damaged weights end the start" 65 begin damaged "${learned[@]}"
check "init_from: the message about damaged weights names file and tensor" said "model.safetensors is damaged: tensor"
finish

#!/usr/bin/env bash
# import.sh -- tests that weights in Hugging Face's folders become runs: every kind, type and number of files; what is refused,
# with its sentence and exit code; and that an import that fails leaves nothing.
# shellcheck source-path=SCRIPTDIR
source "$(dirname "$0")/lib.sh"

make=$here/../golden/make_hf.py
# weights RUN: prints the weights of its only checkpoint, without the header, which has the id of the save
weights() { tail -c +$(($(tensors "$1/checkpoints/step_00000000/model.safetensors") + 1)) "$1/checkpoints/step_00000000/model.safetensors"; }
# same_weights NAME A B
same_weights() { check "$1" cmp -s <(weights "$2") <(weights "$3"); }
# make_hf DIR ARGUMENTS...
make_hf() { python3 "$make" "$@" || not_ok "import: make_hf.py $*"; }
# refused NAME CODE SENTENCE ARGUMENTS...: an import to "made" ends with this code and sentence, and leaves nothing
refused() {
    local name=$1 code=$2 sentence=$3
    shift 3
    expect_code "$name is refused" "$code" "$TRAIN" import "$@" --out made
    check "$name: the message says why" grep -qF -- "$sentence" output
    check "$name: no files are left" test -z "$(find . -maxdepth 1 -name 'made*')"
}
# write_gpt2_files TOKENIZER_JSON DIR NAME: writes the two files of GPT-2's tokenizer of which one is NAME; tokenizer.json: that alone
write_gpt2_files() {
    python3 - "$@" <<'END' || not_ok "import: $3 cannot be written"
import json, shutil, sys
source, folder, name = sys.argv[1:]
pairs = {"merges.txt": "vocab.json", "vocab.bpe": "encoder.json"}
model = json.load(open(source, encoding="utf-8"))["model"]
for merges, vocab in pairs.items():
    if name in (merges, vocab):
        with open(f"{folder}/{merges}", "w", encoding="utf-8") as file:
            file.write("#version: 0.2\n" + "".join(" ".join(pair) + "\n" for pair in model["merges"]))
        json.dump(model["vocab"], open(f"{folder}/{vocab}", "w", encoding="utf-8"))
if name == "tokenizer.json":
    shutil.copy(source, folder)
END
}

for kind in llama gpt2; do
    make_hf $kind --kind $kind
    expect_code "import: $kind succeeds" 0 "$TRAIN" import hf $kind --out run_$kind
    check "import: $kind has its tokenizer" cmp -s $kind/tokenizer.json run_$kind/tokenizer.json
    check "import: $kind has its licence" cmp -s $kind/LICENSE run_$kind/LICENSE
    expect_code "import: $kind is whole" 0 "$TRAIN" ckpt verify run_$kind
    expect_code "import: $kind is listed" 0 "$TRAIN" ckpt list run_$kind
    expect_code "import: $kind generates" 0 "$TRAIN" generate run_$kind --prompt "the hand" --tokens 8
    make_hf sharded --kind $kind --shards 4 --spelling old
    expect_code "import: $kind in four files with the old keys succeeds" 0 "$TRAIN" import hf sharded --out sharded_$kind
    same_weights "import: $kind is the same from four files" run_$kind sharded_$kind
    rm -rf sharded
done
for dtype in f16 bf16; do
    make_hf $dtype --dtype $dtype
    expect_code "import: $dtype succeeds" 0 "$TRAIN" import hf $dtype --out run_$dtype
    check "import: $dtype stays $dtype" grep -q "mlp 80, vocabulary 273, $dtype\$" output
done
expect_code "import: f32 as bf16 succeeds" 0 "$TRAIN" import hf llama --dtype bf16 --out as_bf16
same_weights "import: f32 as bf16 is rounded as the file in bf16" run_bf16 as_bf16

# Every kind, with its tokenizer, computes what transformers 5.24 computes from the same folder in f64 (with RMSNorm, RoPE and
# softmax in f64, too): the mean loss of the first 64 tokens of its licence.
while read -r kind loss; do
    make_hf kind --kind "$kind"
    expect_code "import: $kind in f64 succeeds" 0 "$TRAIN" import hf kind --dtype f64 --out "f64_$kind"
    expect_code "import: $kind evaluates a text without a text to train on" 0 "$TRAIN" eval "f64_$kind" --set data.val_text=kind/LICENSE
    check "import: $kind has the same loss as transformers" grep -q "val loss $loss nats a token over 64 targets" output
    rm -r kind
done <<END
llama 6.194398
gpt2 5.942222
llama3 5.984031
qwen2 6.059211
qwen3 6.049960
mistral 6.078095
smollm 5.970653
END
expect_code "import: eval without any text exits with code 66" 66 "$TRAIN" eval f64_llama
check "import: eval without any text says what to add" grep -qF "f64_llama has no validation data; write --set data.val_text=FILE" output
expect_code "import: a model without its tokenizer is imported" 0 "$TRAIN" import hf llama --without-tokenizer --out bare
expect_code "import: weights alone cannot read text" 66 "$TRAIN" eval bare --set data.val_text=llama/LICENSE
check "import: the message says why weights alone cannot read text" grep -qF "no tokenizer to read the text of data.val_text with; give data.tokenizer" output

# set_weights DIR VALUE COUNT: overwrites the last f32 numbers of DIR/model.safetensors, which are those of the head
set_weights() {
    python3 - "$@" <<'END' || not_ok "import: $1 cannot be changed"
import struct, sys
with open(sys.argv[1] + "/model.safetensors", "r+b") as file:
    file.seek(-4 * int(sys.argv[3]), 2)
    file.write(struct.pack("<f", float(sys.argv[2])) * int(sys.argv[3]))
END
}
cp -r llama big
set_weights big 1e20 1
refused "import: a weight beyond the range of the type" 78 "big: 1 weight is beyond the range of f16, the first in head.weight; import the weights with --dtype f32" hf big --dtype f16
set_weights big -1e20 3
refused "import: weights beyond the range of the type" 78 "big: 3 weights are beyond the range of f16, the first in" hf big --dtype f16
expect_code "import: weights beyond another type's range are imported in their own type" 0 "$TRAIN" import hf big --out big_f32
check "import: importing them in their own type prints no warning" test "$(grep -c warning output)" -eq 0
set_weights big nan 2
expect_code "import: weights that are NaN are imported" 0 "$TRAIN" import hf big --dtype bf16 --out big_nan
check "import: a warning counts the NaN weights" grep -qF "2 weights of big are NaN or infinite there" output

# An imported run trains from step 0; the rows that no token has stay in its table.
make_text
expect_code "import: an imported run trains" 0 "$TRAIN" f64_qwen2 --set data.text=text.txt --set train_steps=3 --set checkpoint.save_interval=1 --set checkpoint.keep=1
check "import: rows without a token are counted" grep -qF "the other 13 rows of the token table stand for no token" output
check "import: training starts at step 0 with the imported weights" grep -qF "weights alone" output
check "import: the imported weights are kept with checkpoint.keep=1" test "$(checkpoint_steps f64_qwen2 | tr '\n' ' ')" = "0 3 "

# What is refused.
mkdir empty pickle
refused "import: a folder without config.json" 66 "cannot open empty/config.json" hf empty
refused "import: a missing folder" 66 "cannot open nowhere/config.json" hf nowhere
cp llama/config.json pickle/
: >pickle/pytorch_model.bin
refused "import: a pickle file" 66 "pytorch_model.bin is a pickle file, which could run any code" hf pickle
cp -r llama other
sed -i 's/"llama"/"mixtral"/' other/config.json
refused "import: a model with experts" 78 'model_type "mixtral" has experts, which are not built' hf other
cp llama/config.json other/
sed -i 's/"rope_type": "default"/"rope_type": "yarn"/' other/config.json
refused "import: RoPE scaling of type yarn" 78 'rope scaling of type "yarn" is not built; "llama3" is' hf other
sed 's/"initializer_range": 0.02/"initializer_range": 5000/' llama/config.json >other/config.json
refused "import: a value out of range in config.json" 78 "other/config.json: model.initializer_range: 5000 does not fit; write a number above 0 to 10" hf other
sed 's/"llama"/"llama", "num_experts": 4/; s/"silu"/"gelu"/' llama/config.json >other/config.json
refused "import: a model with experts and GELU" 78 ': num_experts: experts are not built; other/config.json:' hf other
check "import: the second refused feature is reported, too" grep -qE '; other/config.json:[0-9]+:[0-9]+: hidden_act "gelu" is not built' output
check "import: no line feed is printed as an escape" test "$(grep -cF '\x0a' output)" -eq 0
sed 's/"llama"/"mistral", "sliding_window": 32/' llama/config.json >other/config.json
refused "import: a sliding window shorter than a sequence" 78 "each token of this model sees 32 tokens, and a sequence has up to 64; for sequences that the window sees whole add --set model.max_position_embeddings=32 --set data.seq_length=32" hf other
expect_code "import: a model with a sliding window is imported for sequences within it" 0 "$TRAIN" import hf other --out window \
    --set model.max_position_embeddings=32 --set data.seq_length=32
sed 's/"intermediate_size": 80/"intermediate_size": 84/' llama/config.json >other/config.json
refused "import: a model with other tensor shapes" 65 "other: 6 tensors, named above, do not fit the model of its config" hf other
check "import: a tensor that does not fit is named with both shapes" \
    grep -qFx "block.0.mlp.up.weight is [80, 48] there and [84, 48] here" output
sed 's/"num_hidden_layers": 2/"num_hidden_layers": 3/' llama/config.json >other/config.json
refused "import: a model with a missing block" 65 "block.2.attn.q.weight is not there and [48, 48] here" hf other
sed 's/"vocab_size": 273/"vocab_size": 272/' llama/config.json >other/config.json
refused "import: a tokenizer with more ids than rows" 78 "the tokenizer has 273 ids and the token table 272 rows" hf other
cp llama/config.json other/
head -c 5000 llama/model.safetensors >other/model.safetensors
refused "import: a truncated weight file" 65 "other/model.safetensors: its header is damaged: " hf other
make_hf sharded --shards 2
cp -r sharded elsewhere
sed -i 's#"model-00001#"../elsewhere/model-00001#' sharded/model.safetensors.index.json
refused "import: an index that names a file outside the folder" 65 'is to be in "../elsewhere/model-00001-of-00002.safetensors": only plain names' hf sharded
cp elsewhere/model.safetensors.index.json sharded/
ln -sf ../elsewhere/model-00001-of-00002.safetensors sharded/
refused "import: a link to a file outside the folder" 65 "is a symbolic link that leads out of the folder" hf sharded
for name in tokenizer.json merges.txt vocab.json vocab.bpe encoder.json; do
    rm -rf linked
    cp -r gpt2 linked
    mv linked/tokenizer.json elsewhere/
    # merges.txt and vocab.json, or vocab.bpe and encoder.json, of the same tokenizer
    write_gpt2_files elsewhere/tokenizer.json linked "$name"
    mv "linked/$name" elsewhere/
    ln -s "../elsewhere/$name" linked/
    refused "import: a tokenizer with a link that leaves the folder, $name" 65 "linked/$name is a symbolic link that leads out of the folder" hf linked
done
rm -rf linked
cp -r llama linked
rm linked/tokenizer.json
echo >linked/tokenizer.model
refused "import: a tokenizer in an unsupported format" 65 "linked has tokenizer.model alone, which is not read" hf linked
refused "import: an unknown dtype" 64 "--dtype i32: write f32, f16 or bf16" hf llama --dtype i32
refused "import: an unknown config key" 78 "unknown key" hf llama --set model.num_layer=3
mkdir made && : >made/file
expect_code "import: a folder with something in it is not replaced" 73 "$TRAIN" import hf llama --out made
check "import: the folder that is not empty is named" grep -qF "made exists already; choose a new folder" output
rm -r made
mkdir made
expect_code "import: an empty folder is used" 0 "$TRAIN" import hf llama --out made
rm -r made
expect_code "import: a full disk exits with code 74" 74 bash -c 'ulimit -f 100; exec "$@"' - "$TRAIN" import hf llama --out made
check "import: a full disk leaves no files" test -z "$(find . -maxdepth 1 -name 'made*')"

# A signal leaves nothing. After SIGKILL, nothing is called by the name: at most the folder beside it is there. The head is made so
# large, of zeros that take no room, that the import takes a while; a kill that comes too late is tried again.
expect_code "import: a signal ends the import" 74 with_signal "$TRAIN" import hf llama --out made
check "import: a signal leaves no files" test -z "$(find . -maxdepth 1 -name 'made*')"
python3 - llama large 400000 <<'END' || not_ok "import: large cannot be written"
import json, os, shutil, struct, sys
source, folder, rows = sys.argv[1], sys.argv[2], int(sys.argv[3])
shutil.copytree(source, folder)
config = json.load(open(folder + "/config.json"))
json.dump({**config, "vocab_size": rows}, open(folder + "/config.json", "w"))
with open(folder + "/model.safetensors", "rb") as file:
    header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
at = 0
for name in (name for name in header if name != "__metadata__"):
    shape = header[name]["shape"]
    if "embed_tokens" in name or "lm_head" in name:
        shape[0] = rows
    size = 4
    for dim in shape:
        size *= dim
    header[name]["data_offsets"] = [at, at + size]
    at += size
text = json.dumps(header).encode()
text += b" " * (-len(text) % 8)
with open(folder + "/model.safetensors", "wb") as file:
    file.write(struct.pack("<Q", len(text)) + text)
    file.truncate(8 + len(text) + at)
END
killed=0
for _ in 1 2 3 4 5; do
    rm -rf made*
    "$TRAIN" import hf large --out made >output 2>&1 &
    pid=$!
    while kill -0 $pid 2>/dev/null && [ -z "$(compgen -G 'made.tmp-*/checkpoints')" ]; do :; done
    kill -KILL $pid 2>/dev/null
    wait $pid 2>/dev/null
    [ $? -eq 137 ] && killed=1 && break
done
check "import: the import is killed while it writes" test $killed -eq 1
check "import: SIGKILL leaves no folder with the run's name" test ! -e made
check "import: SIGKILL leaves a temporary folder" test -d "$(compgen -G 'made.tmp-*')"
expect_code "import: an import to the same name then succeeds" 0 "$TRAIN" import hf llama --out made
check "import: the temporary folder is removed with a message" grep -qE '^notice: \./made\.tmp-[0-9]+-0, which a killed process had left, is removed$' output
check "import: only the run is left in the folder" test "$(compgen -G 'made*')" = made

finish

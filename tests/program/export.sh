#!/usr/bin/env bash
# export.sh -- tests that runs are written for Hugging Face's libraries: every tensor as in the folder it came from, in one file
# or several; ours -> hf -> ours bit for bit; which checkpoint is taken; what is refused, and that nothing half remains.
# shellcheck source-path=SCRIPTDIR
source "$(dirname "$0")/lib.sh"

make=$here/../golden/make_hf.py
# weights RUN STEP: prints the weights of a checkpoint, without the header, which has the id of the save
weights() {
    local file
    file=$(printf '%s/checkpoints/step_%08d/model.safetensors' "$1" "$2")
    tail -c +$(($(tensors "$file") + 1)) "$file"
}
# same_tensors A B: succeeds if both folders' files have the same tensors, except for causal masks
same_tensors() {
    python3 - "$1" "$2" <<'END'
import glob, json, struct, sys
def tensors(folder):
    out = {}
    for path in glob.glob(folder + "/*.safetensors"):
        data = open(path, "rb").read()
        size = struct.unpack("<Q", data[:8])[0]
        for name, e in json.loads(data[8 : 8 + size]).items():
            if name == "__metadata__":
                assert e == {"format": "pt"}, e
            elif not name.endswith(".attn.bias"):
                begin, end = e["data_offsets"]
                name = name.removeprefix("transformer.")
                assert name not in out, name
                out[name] = (e["dtype"], e["shape"], data[8 + size + begin : 8 + size + end])
    return out
a, b = tensors(sys.argv[1]), tensors(sys.argv[2])
sys.exit("different names" if a.keys() != b.keys() else "".join(f"{k} differs\n" for k in a if a[k] != b[k]) or len(a) < 15)
END
}

for case in llama:f32:60000 gpt2:bf16:9999999 llama3:f16:9999999 qwen2:bf16:30000 qwen3:f32:1; do
    IFS=: read -r kind dtype shard <<<"$case"
    python3 "$make" "$kind" --kind "$kind" --dtype "$dtype"
    "$TRAIN" import hf "$kind" --without-tokenizer --out "run_$kind" >output 2>&1 || not_ok "export: $kind is not imported"
    expect_code "export: $kind succeeds" 0 "$TRAIN" export hf "run_$kind" --out "hf_$kind" --shard-bytes "$shard"
    check "export: $kind has the tensors of the folder it came from" same_tensors "$kind" "hf_$kind"
    check "export: $kind has its licence" cmp -s "$kind/LICENSE" "hf_$kind/LICENSE"
    expect_code "export: $kind is read again" 0 "$TRAIN" import hf "hf_$kind" --without-tokenizer --out "again_$kind"
    check "export: $kind has the same weights" cmp -s <(weights "run_$kind" 0) <(weights "again_$kind" 0)
    check "export: $kind has the same config" cmp -s "run_$kind/config.json" "again_$kind/config.json"
done
check "export: a file size limit puts one tensor in each file" test "$(find hf_qwen3 -name '*.safetensors' | wc -l)" -eq 24
check "export: the index counts all bytes" grep -q '"total_size": 177696}' hf_qwen3/model.safetensors.index.json
check "export: no index for one file" test ! -e hf_gpt2/model.safetensors.index.json
"$TRAIN" ckpt inspect run_gpt2 >output
check "export: inspect prints Hugging Face's names" grep -qE \
    '^  block.1.attn.k.weight +bf16 .* transformer.h.1.attn.c_attn.weight, the second third, transposed$' output
expect_code "export: a run is exported in another dtype" 0 "$TRAIN" export hf run_llama --dtype bf16 --out llama_bf16
python3 "$make" bf16 --dtype bf16
check "export: f32 as bf16 is rounded as the folder in bf16" same_tensors bf16 llama_bf16
check "export: a notice says that there is no tokenizer" grep -q "^warning: the run has no tokenizer" output
expect_code "export: a folder name with quotes is accepted" 0 "$TRAIN" export hf run_llama --out "a/we\"ird 'name'"
check "export: the suggested command quotes the folder name" grep -qxF "next    AutoModelForCausalLM.from_pretrained(\"a/we\\\"ird 'name'\")" output

# The tokens that begin and end a text.
"$TRAIN" import hf llama3 --out run_tokens >output 2>&1 || not_ok "export: llama3 is not imported with its tokenizer"
expect_code "export: a run with a tokenizer is exported" 0 "$TRAIN" export hf run_tokens --out hf_tokens
check "export: no warning about the tokenizer" test "$(grep -c "no tokenizer" output)" -eq 0
check "export: the tokens that begin and end a text have their ids and names" python3 - hf_tokens <<'END'
import json, sys
read = lambda name: json.load(open(sys.argv[1] + "/" + name, encoding="utf-8"))
ids = {token["content"]: token["id"] for token in read("tokenizer.json")["added_tokens"]}
names = {"bos": "<|begin_of_text|>", "eos": "<|end_of_text|>"}
for end, name in names.items():
    assert read("tokenizer_config.json")[end + "_token"] == name, end
    for file in "config.json", "generation_config.json":
        assert read(file)[end + "_token_id"] == ids[name], (file, end)
END

# What an import has kept comes out again, as long as the tokenizer is the same.
python3 - llama3 <<'END' || not_ok "export: the files beside the tokenizer cannot be written"
import json, sys
def write(name, value):
    json.dump(value, open(f"{sys.argv[1]}/{name}", "w", encoding="utf-8"), indent=3)
begin, end = 272, 273
write("tokenizer_config.json", {"bos_token": "<|begin_of_text|>", "chat_template": "{{ messages }}", "model_max_length": 64})
write("generation_config.json", {"eos_token_id": [end, 7], "temperature": 0.6})
write("chat_template.json", {"chat_template": "{{ messages }}"})
open(sys.argv[1] + "/chat_template.jinja", "w").write("{{ messages }}\n")
path = sys.argv[1] + "/tokenizer.json"
tokenizer = json.load(open(path, encoding="utf-8"))
tokenizer["post_processor"] = {"type": "Sequence", "processors": [tokenizer["post_processor"], {
    "type": "TemplateProcessing", "pair": [],
    "single": [{"SpecialToken": {"id": "<|begin_of_text|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "special_tokens": {"<|begin_of_text|>": {"id": "<|begin_of_text|>", "ids": [begin], "tokens": ["<|begin_of_text|>"]}}}]}
json.dump(tokenizer, open(path, "w", encoding="utf-8"))
END
expect_code "export: a model with files beside its tokenizer is imported" 0 "$TRAIN" import hf llama3 --out run_kept
check "export: a notice says which files are kept" test "$(grep -c '^kept    run_kept/' output)" -eq 4
expect_code "export: a model with files beside its tokenizer is written" 0 "$TRAIN" export hf run_kept --out hf_kept
for file in tokenizer_config.json generation_config.json chat_template.json chat_template.jinja; do
    check "export: $file is exported as it was imported" cmp -s llama3/$file hf_kept/$file
done
expect_code "export: the exported folder can be imported again" 0 "$TRAIN" import hf hf_kept --out again_kept
expect_code "export: the imported folder can be exported again" 0 "$TRAIN" export hf again_kept --out hf_kept2
check "export: the folder of the second export is the same" diff -r hf_kept hf_kept2
expect_code "export: generate adds the BOS token" 0 "$TRAIN" generate run_kept --prompt "the" --tokens 1
check "export: the BOS token is part of the prompt" grep -q "after a prompt of 3 tokens" output
"$TRAIN" generate run_tokens --prompt "the" --tokens 1 >output 2>&1
check "export: no BOS token is added if the tokenizer does not ask for it" grep -q "after a prompt of 2 tokens" output
sed -i 's/"ignore_merges": true/"ignore_merges": false/' run_kept/tokenizer.json
expect_code "export: a run with another tokenizer is exported" 0 "$TRAIN" export hf run_kept --out hf_other
check "export: with another tokenizer the kept files are not exported" test ! -e hf_other/chat_template.jinja
check "export: with another tokenizer there is one EOS token" grep -q '"eos_token_id": 273$' hf_other/generation_config.json
printf '{"auto_map": {"AutoTokenizer": ["x.py", null]}}' >llama3/tokenizer_config.json
expect_code "export: a model whose tokenizer has its own code is imported" 0 "$TRAIN" import hf llama3 --out run_code
check "export: a notice says that the file of a tokenizer with its own code is not kept" grep -qF \
    "notice: llama3/tokenizer_config.json names code of its own (auto_map), and is not kept" output
check "export: the file of a tokenizer with its own code is not kept" test ! -e run_code/tokenizer_config.json
printf '[1]' >llama3/tokenizer_config.json
expect_code "export: a file that is not JSON is refused" 65 "$TRAIN" import hf llama3 --out run_damaged
check "export: the file that is not JSON is named" grep -qF "llama3/tokenizer_config.json is damaged: it is not a JSON object" output

# A run of ours: its best checkpoint, its newest, and one that is named.
make_text
expect_code "export: a run succeeds" 0 "$TRAIN" "$TINY" --set data.val_fraction=0.2 --set eval.interval=10 --set checkpoint.keep=0 \
    --set eval.sample_interval=0 --out run
for choice in best newest; do
    expect_code "export: --$choice succeeds" 0 "$TRAIN" export hf run --out "hf_$choice" --$choice
    check "export: the output names the checkpoint of --$choice" grep -qE "^$choice: step [0-9]+" output
    step=$(sed -nE "s/^$choice: step ([0-9]+).*/\1/p" output)
    expect_code "export: --$choice is read again" 0 "$TRAIN" import hf "hf_$choice" --out "of_$choice"
    check "export: --$choice has the weights of step $step" cmp -s <(weights run "$step") <(weights "of_$choice" 0)
done
expect_code "export: the best checkpoint is exported if one is kept" 0 "$TRAIN" export hf run --out hf_default
check "export: the output says that it is the best checkpoint" grep -qE "^best: step [0-9]+, val [0-9.]+$" output
expect_code "export: a checkpoint given by its path is exported" 0 "$TRAIN" export hf run/checkpoints/step_00000010 --out hf_10
check "export: the output names the checkpoint given by its path" grep -qx "step 10" output
"$TRAIN" eval run --newest >ours 2>/dev/null
expect_code "export: the exported model can be evaluated" 0 bash -c '"$@" 2>err' - "$TRAIN" eval of_newest --set data.text=text.txt \
    --set data.val_fraction=0.2 --set data.seq_length=32
check "export: the loss equals that of the run" test "$(sed 's/step [0-9]*//' ours)" = "$(sed 's/step [0-9]*//' output)"
for file in tokenizer.json tokenizer_config.json generation_config.json config.json; do
    check "export: $file is JSON" python3 -m json.tool hf_newest/$file /dev/null
done

# In f32 a run in bf16 gives its master copies.
expect_code "export: a run in bf16 succeeds" 0 "$TRAIN" "$TINY" --set bf16.enabled=true --set train_steps=5 --set eval.interval=0 \
    --set eval.sample_interval=0 --out run_bf16
expect_code "export: a run in bf16 is exported in f32" 0 "$TRAIN" export hf run_bf16 --dtype f32 --out hf_masters
check "export: the output says that these are the master weights" grep -q "from the master copies of its 16-bit weights" output
"$TRAIN" import hf hf_masters --out of_masters >output 2>&1
read_file=$here/../support/files/read_safetensors.py
python3 "$read_file" run_bf16/checkpoints/step_00000005/optimizer.safetensors | sed -n 's/^\([^ ]*\).master /\1 /p' | sort >masters
python3 "$read_file" of_masters/checkpoints/step_00000000/model.safetensors | sort >imported
check "export: the f32 weights equal the master weights of the checkpoint" cmp masters imported
check "export: every exported weight has a master weight" test "$(wc -l <masters)" -eq "$(wc -l <imported)" -a -s masters
expect_code "export: a run in bf16 is exported in bf16" 0 "$TRAIN" export hf run_bf16 --out hf_bf16
check "export: an export in bf16 does not mention master weights" test "$(grep -c master output)" -eq 0
"$TRAIN" import hf hf_bf16 --out of_bf16 >output 2>&1
check "export: the bf16 weights equal those of the run" cmp -s <(weights run_bf16 5) <(weights of_bf16 0)

# What is refused.
# refused NAME CODE SENTENCE ARGUMENTS...: an export to "made" ends with this code and sentence, and leaves nothing
refused() {
    local name=$1 code=$2 sentence=$3
    shift 3
    expect_code "$name is refused" "$code" "$TRAIN" export "$@" --out made
    check "$name: the message says why" grep -qF -- "$sentence" output
    check "$name: no files are left" test -z "$(find . -maxdepth 1 -name 'made*')"
}
refused "export: a folder that is not a run" 66 "nowhere is not the folder of a run: it has no config.json" hf nowhere
refused "export: an unknown dtype" 64 "--dtype u8: write f32, f16 or bf16" hf run --dtype u8
refused "export: --best together with --newest" 64 "--best and --newest contradict each other" hf run --best --newest
refused "export: --best with a single checkpoint" 64 "is one checkpoint; --best chooses one of a run" hf run/checkpoints/step_00000010 --best
refused "export: --best for a run without a best checkpoint" 66 "run_llama keeps no best checkpoint; leave --best out" hf run_llama --best
cp -r run_llama damaged
printf x | dd of=damaged/checkpoints/step_00000000/model.safetensors bs=1 seek=200000 conv=notrunc 2>/dev/null
refused "export: a run with damaged weights" 65 "does not have the checksum that was saved" hf damaged
expect_code "export: a run with squared ReLU succeeds" 0 "$TRAIN" "$TINY" --set model.activation=relu2 --set train_steps=5 \
    --set eval.interval=0 --set eval.sample_interval=0 --out relu2
refused "export: an activation that Hugging Face's architectures lack" 78 'model.activation is relu2 and would have to be "swiglu"' hf relu2
check "export: inspect names the activation that cannot be exported" grep -q 'names .*model.activation is relu2' <("$TRAIN" ckpt inspect relu2)
mkdir made && : >made/.hidden
expect_code "export: a folder with something in it is not replaced" 73 "$TRAIN" export hf run --out made
rm -r made
expect_code "export: a full disk exits with code 74" 74 bash -c 'ulimit -f 100; exec "$@"' - "$TRAIN" export hf run_llama --out made
check "export: a full disk leaves no files" test -z "$(find . -maxdepth 1 -name 'made*')"
expect_code "export: the name of the folder does not choose the exit code" 74 \
    bash -c 'ulimit -f 100; exec "$@"' - "$TRAIN" export hf run_llama --out "made is damaged"

# A signal leaves nothing half written.
expect_code "export: a signal ends the export" 74 with_signal "$TRAIN" export hf run_llama --out made
check "export: the output names the signal" grep -q "a signal has ended this" output
check "export: a signal leaves no files" test -z "$(find . -maxdepth 1 -name 'made*')"

# A disk that is too small is refused before the weights are read.
if small 64 true 2>/dev/null; then
    expect_code "export: a small disk exits with code 74" 74 small 100 "'$TRAIN' export hf run_llama --out small/made"
    check "export: the message says how much space is needed" grep -qE "small/made takes .*, and its disk has room for 100" output
else
    skip "export: a small disk" "this system mounts no tmpfs for us"
fi

finish

#!/usr/bin/env bash
# llmc.sh -- tests that model files of llm.c become runs: the same run as Hugging Face's folder with the same weights, in both
# types, from a run's folder of llm.c, on several ranks; and what is refused.
# shellcheck source-path=SCRIPTDIR
source "$(dirname "$0")/lib.sh"

golden=$here/../golden
# weights RUN: prints the weights of its only checkpoint, without the header, which has the id of the save
weights() { tail -c +$(($(tensors "$1/checkpoints/step_00000000/model.safetensors") + 1)) "$1/checkpoints/step_00000000/model.safetensors"; }
# refused NAME CODE SENTENCE ARGUMENTS...: an import to "new" ends with this code and sentence, and leaves nothing
refused() {
    local name=$1 code=$2 sentence=$3
    shift 3
    expect_code "$name is refused" "$code" "$TRAIN" import llmc "$@" --out new
    check "$name: the message says why" grep -qF -- "$sentence" output
    check "$name: no files are left" test -z "$(find . -maxdepth 1 -name 'new*')"
}

for dtype in f32 bf16; do
    python3 "$golden/make_hf.py" hf_$dtype --kind gpt2 --dtype $dtype && python3 "$golden/hf_to_llmc.py" hf_$dtype $dtype.bin ||
        not_ok "llmc: the files of $dtype are made"
    expect_code "llmc: $dtype succeeds" 0 "$TRAIN" import llmc $dtype.bin --tokenizer hf_$dtype/tokenizer.json --out run_$dtype
    check "llmc: $dtype stays $dtype" grep -q "mlp 128, vocabulary 273, $dtype\$" output
    expect_code "llmc: $dtype is whole" 0 "$TRAIN" ckpt verify run_$dtype
    expect_code "llmc: $dtype comes from Hugging Face's folder, too" 0 "$TRAIN" import hf hf_$dtype --out from_hf_$dtype
    check "llmc: $dtype has the weights of Hugging Face's folder" cmp -s <(weights run_$dtype) <(weights from_hf_$dtype)
    for run in run from_hf; do
        expect_code "llmc: $run of $dtype generates" 0 "$TRAIN" generate ${run}_$dtype --prompt "the hand" --tokens 8 --seed 1
        without_speed output | grep -av '^newest' >${run}_text
    done
    check "llmc: $dtype generates what Hugging Face's folder does" cmp -s run_text from_hf_text
done

# A run's folder of llm.c, without a tokenizer.
mkdir llmc_run
cp f32.bin llmc_run/model_00000007.bin
head -c 3000 f32.bin >llmc_run/model_00000009.bin
: >llmc_run/DONE_00000007
expect_code "llmc: the folder of an llm.c run is imported" 0 "$TRAIN" import llmc llmc_run --out of_folder
check "llmc: the newest complete model is read and named" grep -q "^import  llmc_run/model_00000007.bin: gpt2" output
check "llmc: a notice says that there is no tokenizer" grep -q "no tokenizer: text can be" output
check "llmc: the model of the folder has the same weights" cmp -s <(weights run_f32) <(weights of_folder)

# It is a run like any other: on several ranks, and as the start of a training.
make_text
for ranks in 1 2 4; do
    expect_code "llmc: $ranks ranks evaluate" 0 "$TRAIN" eval run_f32 --ranks $ranks --set data.text=text.txt --set data.seq_length=32 \
        --set parallel.tensor=$((ranks > 1 ? 2 : 1))
    grep -o 'loss [0-9.]*' output >loss_$ranks
done
check "llmc: the loss of two and four ranks is that of one" cmp -s <(cat loss_1 loss_1) <(cat loss_2 loss_4)
# trained NAME ARGUMENTS...: trains a copy of the run from step 0
trained() {
    local name=$1
    shift
    cp -r run_f32 "$name"
    expect_code "llmc: an imported model is trained from step 0 ($name)" 0 "$TRAIN" "$name" --set data.text=text.txt --set data.seq_length=32 \
        --set train_steps=4 --set train_batch_size=8 "$@"
}
trained one_rank
trained tensor_and_pipeline --ranks 4 --set parallel.tensor=2 --set parallel.pipeline=2
trained zero_3 --ranks 2 --set zero_optimization.stage=3
near_f32 "llmc: four ranks train as one" one_rank tensor_and_pipeline
near_f32 "llmc: two ranks of ZeRO 3 train as one" one_rank zero_3

# What is refused.
refused "llmc: a missing file" 66 "cannot open nowhere.bin" nowhere.bin
refused "llmc: a folder of another program" 66 "is not the folder of a run of llm.c" hf_f32
refused "llmc: a file of another format" 65 "does not begin with llm.c's magic number" text.txt
head -c 4000 f32.bin >cut.bin
refused "llmc: a truncated file" 65 "cut.bin is damaged: it has 4000 bytes, its header describes" cut.bin
printf '\xc8\xd7\x34\x01' | cat - <(tail -c +5 f32.bin) >tokenizer.bin
refused "llmc: a tokenizer file of llm.c in place of a model" 65 "is a tokenizer of llm.c; give the model" tokenizer.bin
"$TRAIN" data train-bpe text.txt --vocab 300 --out big.json >output 2>&1 ||
    not_ok "llmc: a larger tokenizer is made"
refused "llmc: a tokenizer with more ids than rows" 78 "the tokenizer has 300 ids and the token table 273 rows; leave --tokenizer out" \
    f32.bin --tokenizer big.json
refused "llmc: a missing tokenizer" 66 "vocab.bpe" f32.bin --tokenizer vocab.bpe

# A signal leaves nothing half written.
expect_code "llmc: a signal ends the import" 74 with_signal "$TRAIN" import llmc f32.bin --out new
check "llmc: a signal leaves no files" test -z "$(find . -maxdepth 1 -name 'new*')"

# A disk that is too small is refused before the weights are read.
if small 64 true 2>/dev/null; then
    expect_code "llmc: a small disk exits with code 74" 74 small 100 "'$TRAIN' import llmc f32.bin --out small/new"
    check "llmc: the message says how much space is needed" grep -qE "small/new takes .*, and its disk has room for 100" output
else
    skip "llmc: a small disk" "this system mounts no tmpfs for us"
fi

finish

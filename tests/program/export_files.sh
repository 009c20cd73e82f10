#!/usr/bin/env bash
# export_files.sh -- tests that runs are written as model files of llm.c and as GGUF files: every tensor as in the folder that was
# imported; ours -> llmc -> ours bit for bit; what is refused, and that nothing half remains.
# shellcheck source-path=SCRIPTDIR
source "$(dirname "$0")/lib.sh"

golden=$here/../golden
# weights RUN STEP: prints the weights of a checkpoint with a single file, without the header, which has the id of the save
weights() {
    local file
    file=$(printf '%s/checkpoints/step_%08d/model.safetensors' "$1" "$2")
    tail -c +$(($(tensors "$file") + 1)) "$file"
}
# refused NAME CODE SENTENCE ARGUMENTS...: an export to "made" ends with this code and sentence, and leaves nothing
refused() {
    local name=$1 code=$2 sentence=$3
    shift 3
    expect_code "$name" "$code" "$TRAIN" export "$@" --out made
    check "$name: it says why" grep -qF -- "$sentence" output
    check "$name: nothing is left" test -z "$(find . -maxdepth 1 -name 'made*')"
}

# The file of llm.c that was imported is written again, byte for byte.
for dtype in f32 bf16; do
    python3 "$golden/make_hf.py" hf_$dtype --kind gpt2 --dtype $dtype && python3 "$golden/hf_to_llmc.py" hf_$dtype $dtype.bin ||
        not_ok "export llmc: the files of $dtype are made"
    "$TRAIN" import llmc $dtype.bin --out run_$dtype >output 2>&1 || not_ok "export llmc: $dtype is not imported"
    expect_code "export llmc: $dtype succeeds" 0 "$TRAIN" export llmc run_$dtype --out again_$dtype.bin
    check "export llmc: which checkpoint is said" grep -qx "newest: step 0" output
    check "export llmc: $dtype has the bytes of the file that was imported" cmp -s $dtype.bin again_$dtype.bin
done
expect_code "export llmc: f32 as bf16" 0 "$TRAIN" export llmc run_f32 --dtype bf16 --out rounded.bin
check "export llmc: f32 as bf16 is rounded as the file in bf16" cmp -s bf16.bin rounded.bin

# A run of ours of GPT-2's shape, saved by two writers: ours -> llmc -> ours.
make_text
gpt2=(--set model.norm=layernorm --set model.position=learned --set model.activation=gelu --set model.bias=true
      --set model.num_key_value_heads=4 --set model.intermediate_size=128)
short=(--set train_steps=10 --set eval.interval=0 --set eval.sample_interval=0)
expect_code "export llmc: a run of two writers" 0 "$TRAIN" "$TINY" "${gpt2[@]}" "${short[@]}" --ranks 2 --set checkpoint.writers=2 --out run
expect_code "export llmc: it is written" 0 "$TRAIN" export llmc run --out run.bin
expect_code "export llmc: it is read again" 0 "$TRAIN" import llmc run.bin --tokenizer run/tokenizer.json --out again
expect_code "export llmc: it is written again" 0 "$TRAIN" export llmc again --out run2.bin
check "export llmc: ours -> llmc -> ours -> llmc has the same bytes" cmp -s run.bin run2.bin
"$TRAIN" eval run 2>/dev/null | sed 's/step [0-9]*//' >ours
"$TRAIN" eval again --set data.text=text.txt --set data.seq_length=32 2>/dev/null | sed 's/step [0-9]*//' >theirs
check "export llmc: the loss is that of the run" cmp -s ours theirs
check "export llmc: there is a loss" grep -q "loss [0-9]" ours
expect_code "export llmc: a run in bf16" 0 "$TRAIN" "$TINY" "${gpt2[@]}" "${short[@]}" --set bf16.enabled=true --out run16
expect_code "export llmc: it is written in bf16" 0 "$TRAIN" export llmc run16 --out run16.bin
expect_code "export llmc: it is read again in bf16" 0 "$TRAIN" import llmc run16.bin --out again16
check "export llmc: ours -> llmc -> ours has the same weights in bf16" cmp -s <(weights run16 10) <(weights again16 0)

# GGUF files of every architecture, read by another program.
for kind in llama gpt2 llama3 qwen2 qwen3; do
    python3 "$golden/make_hf.py" $kind --kind $kind && "$TRAIN" import hf $kind --out of_$kind >output 2>&1 ||
        not_ok "export gguf: $kind is not imported"
    expect_code "export gguf: $kind succeeds" 0 "$TRAIN" export gguf of_$kind --out $kind.gguf
    check "export gguf: $kind has the tensors and tokens of the folder" python3 "$here/../support/files/read_gguf.py" $kind.gguf $kind
done
expect_code "export gguf: a run of ours in bf16" 0 "$TRAIN" export gguf run16 --out run16.gguf
expect_code "export gguf: to a folder that is not there" 0 "$TRAIN" export gguf run16 --out a/new/run16.gguf
check "export gguf: it is the same file" cmp -s run16.gguf a/new/run16.gguf
expect_code "export gguf: in f16" 0 "$TRAIN" export gguf run16 --dtype f16 --out run16_f16.gguf
check "export gguf: the types say what they are" grep -q "a gpt2 in f16" output
expect_code "export gguf: a run without a tokenizer" 0 "$TRAIN" export gguf run_f32 --out plain.gguf
check "export gguf: that there is no tokenizer is said" grep -q "^warning: the run has no tokenizer" output

# The lines that say how to go on are quoted for a shell.
expect_code "export gguf: a name with a space" 0 "$TRAIN" export gguf run_f32 --out "a b.gguf"
check "export gguf: the next line quotes it" grep -qxF 'next    llama-cli -m "a b.gguf"' output
expect_code "export llmc: a name with a space" 0 "$TRAIN" export llmc run_f32 --out "a b.bin"
check "export llmc: the next line quotes it" grep -qxF 'next    train_gpt2cu -e "a b.bin"' output

# What is refused.
refused "export llmc: a Llama" 78 'model.norm, model.position and model.activation are those of llama; llm.c has GPT-2' llmc of_llama
refused "export llmc: f16" 78 "the weights are f16; llm.c has f32 and bf16" llmc run --dtype f16
refused "export llmc: no run" 66 "nowhere is not the folder of a run" llmc nowhere
refused "export gguf: both choices" 64 "--best and --newest contradict each other" gguf run --best --newest
refused "export gguf: f64" 78 "the weights are f64" gguf run --dtype f64
: >made
for format in llmc gguf; do
    expect_code "export $format: a file that exists is not replaced" 73 "$TRAIN" export $format run --out made
    check "export $format: it is untouched" test ! -s made
done
rm made
cp -r run_f32 damaged
printf x | dd of=damaged/checkpoints/step_00000000/model.safetensors bs=1 seek=100000 conv=notrunc 2>/dev/null
for format in llmc gguf; do
    refused "export $format: damaged weights" 65 "does not have the checksum that was saved" $format damaged
    expect_code "export $format: a full disk ends with 74" 74 bash -c 'ulimit -f 100; exec "$@"' - "$TRAIN" export $format run_f32 --out made
    check "export $format: a full disk leaves nothing" test -z "$(find . -maxdepth 1 -name 'made*')"
    expect_code "export $format: a signal ends it" 74 with_signal "$TRAIN" export $format run_f32 --out made
    check "export $format: a signal leaves nothing" test -z "$(find . -maxdepth 1 -name 'made*')"
    : >made.tmp-123456-0
    mkdir made.tmp-123456-1
    (flock 9 && exec "$TRAIN" export $format run_f32 --out made) 9>made.tmp-123456-2 >output 2>&1 </dev/null
    check "export $format: what killed processes have left is removed, what is held is not" \
        test "$(compgen -G 'made*' | sort | tr '\n' ' ')" = "made made.tmp-123456-2 "
    rm -r made*
    expect_code "export $format: the name of the file does not choose the exit code" 74 \
        bash -c 'ulimit -f 100; exec "$@"' - "$TRAIN" export $format run_f32 --out "made is damaged"
done

finish

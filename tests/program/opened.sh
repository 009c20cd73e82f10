#!/usr/bin/env bash
# opened.sh -- generate and eval open any run on one rank, and with --ranks on many: the same text, the same loss.
# shellcheck source-path=SCRIPTDIR
source "$(dirname "$0")/lib.sh"

make_text
expect_code "opened: a run" 0 "$TRAIN" "$TINY" --set eval.interval=0 --set eval.sample_interval=0 --set data.val_fraction=0.2 --out run
for stage in 0 1 3; do
    for ranks in 1 2 3; do
        on=(--ranks "$ranks" --set "zero_optimization.stage=$stage")
        expect_code "opened: text on $ranks ranks, ZeRO $stage" 0 "$TRAIN" generate run --tokens 40 "${on[@]}"
        cp output "text.$ranks.$stage"
        check "opened: ... is that of one rank" cmp -s text.1.0 "text.$ranks.$stage"
        expect_code "opened: loss on $ranks ranks, ZeRO $stage" 0 "$TRAIN" eval run/checkpoints/step_00000040 "${on[@]}"
        cp output "loss.$ranks.$stage"
        # Sums over ranks differ in the last bits; six digits are shown.
        check "opened: ... is that of one rank" awk '{ x[NR] = $5; n[NR] = $10 }
            END { d = x[1] - x[2]; exit !(NR == 2 && n[1] == n[2] && n[1] > 1000 && d <= 2e-6 && d >= -2e-6) }' loss.1.0 "loss.$ranks.$stage"
    done
done
check "opened: the text is printed once" test "$(wc -l <text.3.1)" -eq "$(wc -l <text.1.0)"

# The batch of a run that is only looked at is nobody's: neither its own ranks' nor those that look.
expect_code "opened: a run of three ranks" 0 "$TRAIN" "$TINY" --ranks 3 --set train_batch_size=null --set train_steps=5 --set eval.interval=0 --set eval.sample_interval=0 \
    --set data.val_fraction=0.2 --out three
for batch in "train_batch_size=7" "train_batch_size=1" "train_batch_size=1 --set train_micro_batch_size_per_gpu=null"; do
    read -ra sets <<<"--set $batch --set gradient_accumulation_steps=null"
    expect_code "opened: with $batch on two ranks" 0 "$TRAIN" eval three --ranks 2 "${sets[@]}"
done
expect_code "opened: another model on two ranks" 78 "$TRAIN" eval run --ranks 2 --set model.num_layers=3
check "opened: ... is printed once" test "$(grep -c 'num_layers=3: ' output)" -eq 1
check "opened: ... by all, of no rank's place" grep -q '^error\[78\] --set model.num_layers=3: ' output
# Validation data go with what the run was trained on: what is advised is taken.
"$TRAIN" data train-bpe --vocab 300 --out tok.json text.txt >output 2>&1
"$TRAIN" data tokenize --tokenizer tok.json --out shards text.txt >output 2>&1
short=(--set train_steps=6 --set eval.interval=0 --set eval.sample_interval=0 --set data.val_fraction=0)
for source in text.txt:text=text.txt:val_text shards/train_000000.bin:train=shards/train_000000.bin:val; do
    IFS=: read -r file set key <<<"$source"
    expect_code "opened: a run without validation data, data.${set%=*}" 0 "$TRAIN" "$TINY" "${short[@]}" --set "data.$set" --out "no-$key"
    expect_code "opened: ... has no loss" 66 "$TRAIN" eval "no-$key"
    check "opened: ... and hears what it could have" grep -qx "error\[66\] no-$key has no validation data; write --set data.$key=FILE" output
    expect_code "opened: ... and has with it" 0 "$TRAIN" eval "no-$key" --ranks 2 --set "data.$key=$file"
done
# Bare token files: a run of theirs has no tokenizer, and its text has no bytes.
mkdir bare
cp shards/train_000000.bin bare/
bare=("${short[@]}" --set data.text=null --set data.train=bare/train_000000.bin)
expect_code "opened: token files without a tokenizer, and no vocabulary" 78 "$TRAIN" "$TINY" "${bare[@]}" --out bare-run
check "opened: ... ask for it" grep -q 'model.vocab_size is not known: these token files name no tokenizer; set it' output
bare+=(--set model.vocab_size=300)
expect_code "opened: ... with one" 0 "$TRAIN" "$TINY" "${bare[@]}" --out bare-run
check "opened: ... advise another text alone" test "$(sed -nE 's/^next +//p' output | cut -d' ' -f1,3-)" = "./train --set data.text=my.txt   # your own text"
expect_code "opened: ... write no text" 66 "$TRAIN" generate bare-run
check "opened: ... and say why" grep -qx 'error.66. bare-run has no tokenizer: its data were bare token files' output
expect_code "opened: ... evaluated while they train" 0 "$TRAIN" "$TINY" "${bare[@]}" --set data.val=bare/train_000000.bin --out bare-val
check "opened: ... in nats alone" bash -c "grep -Eq '^ +6 +val +[0-9.]+   [(]' output && ! grep -q 'bits per byte   ' output"
check "opened: ... advise eval" grep -qx 'next    ./train eval bare-val' output
expect_code "opened: ... which prints nats alone" 0 "$TRAIN" eval bare-val
check "opened: ... and no bytes" grep -qxE 'step 6   val loss [0-9.]+ nats a token over [0-9]+ targets' output
"$TRAIN" data train-bpe --vocab 310 --out other.json text.txt >output 2>&1
"$TRAIN" data tokenize --tokenizer other.json --out others text.txt >output 2>&1
expect_code "opened: validation data of another tokenizer" 78 "$TRAIN" eval no-val --set data.train=others/train_000000.bin \
    --set data.val=others/train_000000.bin
check "opened: ... which is named" grep -qx 'error.78. others/tokenizer.json is not the tokenizer that no-val was trained with' output
if command -v bible >/dev/null; then
    expect_code "opened: a run of a corpus without validation data" 0 "$TRAIN" "$TINY" "${short[@]}" --set data.text=null \
        --set data.corpus=bible-kjv --set data.tokenizer_vocab_size=260 --out corpus
    expect_code "opened: ... has no loss" 66 "$TRAIN" eval corpus
    check "opened: ... but a share of it would" grep -qx 'error.66. corpus has no validation data; write --set data.val_fraction=0.05' output
else
    skip "opened: a run of a corpus without validation data" "there is no program bible"
fi
mkdir begun
cp run/config.json run/tokenizer.json begun/
for command in generate eval; do
    expect_code "opened: $command before the first checkpoint" 66 "$TRAIN" $command begun
    check "opened: ... says that there is none" grep -qx 'error.66. begun has no checkpoint yet' output
done
for file in run/checkpoints/*/model.safetensors; do printf x | dd of="$file" bs=1 seek=20000 conv=notrunc status=none; done
expect_code "opened: damaged, on three ranks" 65 "$TRAIN" generate run --ranks 3
check "opened: ... names the tensor" grep -q 'is damaged: tensor' output
check "opened: ... and no rank: all have found it out" grep -q '^error\[65\] none of the ' output
finish

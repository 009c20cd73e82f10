#!/usr/bin/env bash
# opened.sh -- tests that generate and eval open any run on one rank, and with --ranks on several, with the same text and
# loss.
# shellcheck source-path=SCRIPTDIR
source "$(dirname "$0")/lib.sh"

make_text
expect_code "opened: a run on one rank succeeds" 0 "$TRAIN" "$TINY" --set eval.interval=0 --set eval.sample_interval=0 \
    --set data.val_fraction=0.2 --out run
for stage in 0 1 3; do
    for ranks in 1 2 3; do
        on=(--ranks "$ranks" --set "zero_optimization.stage=$stage")
        expect_code "opened: generate on $ranks ranks at ZeRO $stage succeeds" 0 "$TRAIN" generate run --tokens 40 "${on[@]}"
        without_speed output >"text.$ranks.$stage"
        check "opened: the text on $ranks ranks at ZeRO $stage is the same as on one rank" cmp -s text.1.0 "text.$ranks.$stage"
        expect_code "opened: eval on $ranks ranks at ZeRO $stage succeeds" 0 "$TRAIN" eval run/checkpoints/step_00000040 \
            "${on[@]}"
        cp output "loss.$ranks.$stage"
        # Sums over ranks differ in the last bits; the output shows six digits.
        check "opened: the loss on $ranks ranks at ZeRO $stage is the same as on one rank" awk '{ x[NR] = $5; n[NR] = $10 }
            END { d = x[1] - x[2]; exit !(NR == 2 && n[1] == n[2] && n[1] > 1000 && d <= 2e-6 && d >= -2e-6) }' loss.1.0 "loss.$ranks.$stage"
    done
done
check "opened: three ranks print the text once" test "$(wc -l <text.3.1)" -eq "$(wc -l <text.1.0)"

# Several samples at once, on any grid: each is the text that its seed gives alone.
for seed in 7 8 9; do
    echo "--- sample $((seed - 6)) of 3, seed $seed"
    "$TRAIN" generate run --tokens 30 --seed "$seed" --prompt "the king" --stop and --stop "."
done >alone 2>/dev/null
for grid in 1:1:1 2:2:1 2:1:2 3:1:1; do
    IFS=: read -r ranks tensor pipeline <<<"$grid"
    expect_code "opened: three samples on $ranks ranks, tp $tensor, pp $pipeline" 0 bash -c '"$@" 2>err' - "$TRAIN" generate run \
        --tokens 30 --seed 7 --samples 3 --prompt "the king" --stop and --stop "." --ranks "$ranks" \
        --set "parallel.tensor=$tensor" --set "parallel.pipeline=$pipeline"
    check "opened: each is the text of its seed alone (ranks $ranks, tp $tensor, pp $pipeline)" cmp alone output
done
check "opened: a text ends before its stop text" test "$(grep -vc ^--- alone)" -ge 3 -a "$(grep -v ^--- alone | grep -cE 'and|[.]')" -eq 0

# A prompt from a file, or from standard input, without its last line feed.
printf 'the king\nand the servant\n' >prompt
"$TRAIN" generate run --tokens 9 --prompt "$(cat prompt)" >told 2>err
expect_code "opened: a prompt is read from a file" 0 bash -c '"$@" 2>err' - "$TRAIN" generate run --tokens 9 --prompt-file prompt
check "opened: a prompt from a file is that of --prompt" cmp told output
"$TRAIN" generate run --tokens 9 --prompt-file - --ranks 2 --processes <prompt >output 2>err
check "opened: a prompt from standard input reaches the ranks that are processes" cmp told output
expect_code "opened: two prompts are refused" 64 "$TRAIN" generate run --prompt-file prompt --prompt x
expect_code "opened: a prompt file that is missing exits with code 66" 66 "$TRAIN" generate run --prompt-file none
printf 'a\0b' >zero
expect_code "opened: a prompt with a zero byte exits with code 65" 65 "$TRAIN" generate run --prompt-file zero
check "opened: the zero byte is named" grep -q 'zero: byte 1 of the prompt is zero' output
yes "the king went unto the city" | head -n 60 >long
expect_code "opened: a prompt longer than the context is read" 0 "$TRAIN" generate run --tokens 2 --prompt-file long
check "opened: a prompt longer than the context is cut with a warning" grep -qE 'the prompt has [0-9,]+ tokens; the model reads the last 32' output

# When generate or eval opens a run, its batch size is ignored: it need not fit the ranks of the run or of the command.
expect_code "opened: a run on three ranks succeeds" 0 "$TRAIN" "$TINY" --ranks 3 --set train_batch_size=null \
    --set train_steps=5 --set eval.interval=0 --set eval.sample_interval=0 \
    --set data.val_fraction=0.2 --out three
for batch in "train_batch_size=7" "train_batch_size=1" "train_batch_size=1 --set train_micro_batch_size_per_gpu=null"; do
    read -ra sets <<<"--set $batch --set gradient_accumulation_steps=null"
    expect_code "opened: eval with $batch opens the run on two ranks" 0 "$TRAIN" eval three --ranks 2 "${sets[@]}"
done
expect_code "opened: eval with another model is refused on two ranks" 78 "$TRAIN" eval run --ranks 2 --set model.num_layers=3
check "opened: two ranks print a refused --set once" test "$(grep -c 'num_layers=3: ' output)" -eq 1
check "opened: a refused --set is reported without a rank" grep -q '^error\[78\] --set model.num_layers=3: ' output
# Where validation data are missing, the error message's advice must work for the kind of data that the run was trained on.
"$TRAIN" data train-bpe --vocab 300 --out tok.json text.txt >output 2>&1
"$TRAIN" data tokenize --tokenizer tok.json --out shards text.txt >output 2>&1
short=(--set train_steps=6 --set eval.interval=0 --set eval.sample_interval=0 --set data.val_fraction=0)
for source in text.txt:text=text.txt:val_text shards/train_000000.bin:train=shards/train_000000.bin:val; do
    IFS=: read -r file set key <<<"$source"
    expect_code "opened: a run without validation data (data.${set%=*}) succeeds" 0 "$TRAIN" "$TINY" "${short[@]}" \
        --set "data.$set" --out "no-$key"
    expect_code "opened: eval of a run without validation data exits with code 66 ($key)" 66 "$TRAIN" eval "no-$key"
    check "opened: eval of a run without validation data says what to write ($key)" \
        grep -qx "error\[66\] no-$key has no validation data; write --set data.$key=FILE" output
    expect_code "opened: eval with data.$key succeeds" 0 "$TRAIN" eval "no-$key" --ranks 2 --set "data.$key=$file"
done
# A run of bare token files has no tokenizer, so the bytes of its text are not known.
mkdir bare
cp shards/train_000000.bin bare/
bare=("${short[@]}" --set data.text=null --set data.train=bare/train_000000.bin)
expect_code "opened: token files without a tokenizer need model.vocab_size" 78 "$TRAIN" "$TINY" "${bare[@]}" --out bare-run
check "opened: a missing model.vocab_size is reported" \
    grep -q 'model.vocab_size is not known: these token files name no tokenizer; set it' output
bare+=(--set model.vocab_size=300)
expect_code "opened: token files with model.vocab_size train" 0 "$TRAIN" "$TINY" "${bare[@]}" --out bare-run
check "opened: a run of token files only suggests training on a text" \
    test "$(sed -nE 's/^next +//p' output | cut -d' ' -f1,3-)" = "./train --set data.text=my.txt   # your own text"
expect_code "opened: generate needs a tokenizer" 66 "$TRAIN" generate bare-run
check "opened: generate says that the run has no tokenizer" \
    grep -qx 'error.66. bare-run has no tokenizer: its data were bare token files' output
expect_code "opened: a run of token files evaluates" 0 "$TRAIN" "$TINY" "${bare[@]}" --set data.val=bare/train_000000.bin \
    --out bare-val
check "opened: evaluations of token files print nats and no bits per byte" bash \
    -c "grep -Eq '^ +6 +val +[0-9.]+   [(]' output && ! grep -q 'bits per byte   ' output"
check "opened: the final loss of token files is printed without bits per byte" \
    grep -qxE 'val     loss [0-9.]+ nats a token(, on [0-9]+ of [0-9,]+ micro-batches)?' output
check "opened: result.json of token files has a validation loss and no bits per byte" \
    bash -c "grep -q '\"val_loss\":' bare-val/result.json && ! grep -q bits bare-val/result.json"
check "opened: a run of token files suggests eval" grep -qx 'next    ./train eval bare-val' output
expect_code "opened: eval of a run of token files succeeds" 0 "$TRAIN" eval bare-val
check "opened: eval of a run of token files prints nats and no bits per byte" \
    grep -qxE 'step 6   val loss [0-9.]+ nats a token over [0-9]+ targets' output
"$TRAIN" data train-bpe --vocab 310 --out other.json text.txt >output 2>&1
"$TRAIN" data tokenize --tokenizer other.json --out others text.txt >output 2>&1
expect_code "opened: eval refuses validation data of another tokenizer" 78 "$TRAIN" eval \
    no-val --set data.train=others/train_000000.bin \
    --set data.val=others/train_000000.bin
check "opened: eval names the other tokenizer" \
    grep -qx 'error.78. others/tokenizer.json is not the tokenizer that no-val was trained with' output
if command -v bible >/dev/null; then
    expect_code "opened: a run of a corpus without validation data succeeds" 0 "$TRAIN" "$TINY" "${short[@]}" \
        --set data.text=null \
        --set data.corpus=bible-kjv --set data.tokenizer_vocab_size=260 --out corpus
    expect_code "opened: eval of a corpus without validation data exits with code 66" 66 "$TRAIN" eval corpus
    check "opened: eval suggests to hold out a share of the corpus" \
        grep -qx 'error.66. corpus has no validation data; write --set data.val_fraction=0.05' output
else
    skip "opened: a run of a corpus without validation data" "there is no program bible"
fi
mkdir begun
cp run/config.json run/tokenizer.json begun/
for command in generate eval; do
    expect_code "opened: $command before the first checkpoint exits with code 66" 66 "$TRAIN" $command begun
    check "opened: $command says that there is no checkpoint yet" grep -qx 'error.66. begun has no checkpoint yet' output
done
for file in run/checkpoints/*/model.safetensors; do printf x | dd of="$file" bs=1 seek=20000 conv=notrunc status=none; done
expect_code "opened: a damaged checkpoint ends three ranks with exit code 65" 65 "$TRAIN" generate run --ranks 3
check "opened: the damaged tensor is named" grep -q 'is damaged: tensor' output
check "opened: damage that all ranks find is reported without a rank" grep -q '^error\[65\] none of the ' output
finish

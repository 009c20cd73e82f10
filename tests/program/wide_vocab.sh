#!/usr/bin/env bash
# wide_vocab.sh -- tests a vocabulary of more than 65,536 ids from text to a trained model: shards of 32 bits, their loader, and
# a run that learns, resumes and generates.
. "$(dirname "$0")/lib.sh"

# Words of seven letters, almost all different, so that there are pairs for many merges; a few words that recur, to be learnt.
awk 'BEGIN {
    srand(5)
    for (i = 0; i < 40000; i++) {
        word = ""
        for (k = 0; k < 7; k++) word = word sprintf("%c", 97 + int(26 * rand()))
        printf "%s%s", word, i % 8 == 7 ? "\n" : " "
    }
}' >words.txt
expect_code "wide: a vocabulary of 70,000 ids is trained" 0 "$TRAIN" data train-bpe --vocab 70000 --split llama3 --out tok.json \
    words.txt
expect_code "wide: text becomes shards" 0 "$TRAIN" data tokenize --tokenizer tok.json --out shards --val-fraction 0.1 words.txt
expect_code "wide: the shards are inspected" 0 "$TRAIN" data inspect --tokenizer tok.json --verify shards
check "wide: ids have 32 bits" grep -qE 'train_000000.bin: [0-9]+ tokens of 32 bits, ids from [0-9]+ to 6[6-9][0-9]{3}, as meta.json says$' output
"$TRAIN" data decode shards/train_000000.bin shards/val_000000.bin | sed 's/<|endoftext|>//' | cmp -s - words.txt
check "wide: the shards decode to the text" test "${PIPESTATUS[2]}" -eq 0
expect_code "wide: an id beyond a vocabulary is refused" 65 "$TRAIN" data inspect --vocab 65536 shards/train_000000.bin
check "wide: the refusal names file, position and id" \
    grep -qE 'shards/train_000000.bin: token id 6[5-9][0-9]{3} at byte [0-9]+ \(token [0-9]+\) is not in a vocabulary of 65536' output

run=("$TRAIN" "$TINY" --json --set "data.train=shards/train_*.bin" --set "data.val=shards/val_*.bin" --set data.text=null
    --set model.num_layers=1 --set model.hidden_size=8 --set train_micro_batch_size_per_gpu=2 --set gradient_accumulation_steps=1
    --set eval.sample_interval=0 --set train_steps=12 --set checkpoint.save_interval=6 --out run)
"${run[@]}" >lines 2>err </dev/null
check "wide: a run trains on the shards" test $? -eq 0
check "wide: the model has a row for every id" grep -q '"vocab_size": *70000' run/config.json
check "wide: its first loss is that of 70,000 equal ids" awk -F'"loss":' '/"event":"train"/ {
    split($2, x, ","); exit !(x[1] > 11.05 && x[1] < 11.3) }' run/metrics.jsonl
expect_code "wide: the run generates text" 0 "$TRAIN" generate run --prompt "abc" --tokens 4
expect_code "wide: the run resumes" 0 "$TRAIN" run --set train_steps=14 --allow-config-change
# A config may ask for as many.
expect_code "wide: a run trains its own vocabulary of 70,000 ids" 0 "$TRAIN" "$TINY" --set data.text=words.txt \
    --set data.tokenizer_vocab_size=70000 --set model.num_layers=1 --set model.hidden_size=8 --set train_micro_batch_size_per_gpu=2 \
    --set eval.sample_interval=0 --set train_steps=5 --out own
finish

#!/usr/bin/env bash
# data.sh -- data that change under a run, paths that are no files, and what prepared files look like.
. "$(dirname "$0")/lib.sh"
make_text
"$TRAIN" data train-bpe --vocab 300 --out tok.json text.txt >output 2>&1
expect_code "data: shards are made" 0 "$TRAIN" data tokenize --tokenizer tok.json --out shards --val-fraction 0.1 text.txt
check "data: ... of the whole text, each byte in one split" \
    test "$(awk '/^(train|val) /{bytes += $2} END {print bytes}' output)" -eq "$(wc -c <text.txt)"
cp shards/train_000000.bin whole.bin

# A shard that is cut while it is trained on.
mkfifo lines
run=("$TRAIN" "$TINY" --json --set "data.train=shards/train_*.bin" --set data.text=null --set train_steps=100000 --set eval.interval=0
    --set eval.sample_interval=0 --set checkpoint.save_interval=5 --out run)
"${run[@]}" >lines 2>err </dev/null &
child=$!
children+=("$child")
exec 3<lines
until_step 12 <&3
truncate -s 2000 shards/train_000000.bin
cat <&3 >/dev/null &
drain=$!
wait $child
code=$?
exec 3<&-
wait $drain
check "data: a shard that is cut ends the run with 65" test $code -eq 65
check "data: ... and is named" grep -q 'shards/train_000000.bin has been cut since it was opened' err
check "data: ... and the last checkpoint stays" test "$(checkpoint_steps run | tail -n 1)" -ge 10
cp whole.bin shards/train_000000.bin
expect_code "data: ... from which the run goes on" 0 "${run[@]}" --allow-config-change --set train_steps="$(($(checkpoint_steps run | tail -n 1) + 1))"

# A byte that has changed is seen with --verify alone, which needs meta.json.
expect_code "data: shards as they were written" 0 "$TRAIN" data inspect --verify shards/train_000000.bin
check "data: ... which is said" grep -q ', as meta.json says$' output
expect_code "data: ... without --verify" 0 "$TRAIN" data inspect shards/train_000000.bin
check "data: ... is not said" grep -qE ' bits, ids from [0-9]+ to [0-9]+$' output
cp -r shards spoilt
printf '\041\000' | dd of=spoilt/train_000000.bin bs=1 seek=2000 conv=notrunc status=none
expect_code "data: a byte that has changed" 65 "$TRAIN" data inspect --verify spoilt/train_000000.bin
rm spoilt/meta.json
expect_code "data: nothing to compare with" 66 "$TRAIN" data inspect --verify spoilt/train_000000.bin
expect_code "data: ... and ids that are all known" 0 "$TRAIN" data inspect --tokenizer tok.json spoilt/train_000000.bin
expect_code "data: no tokenizer beside the shards" 66 "$TRAIN" data decode whole.bin
echo '{}' >tokenizer.json
expect_code "data: a tokenizer beside them that is damaged" 65 "$TRAIN" data decode whole.bin

# Paths that are no files: a sentence, and no wait.
mkfifo pipe
expect_code "data: a pipe that nobody writes to is no config" 78 timeout 20 "$TRAIN" pipe
expect_code "data: a pipe is no text" 66 timeout 20 "$TRAIN" "$TINY" --set data.text=pipe
check "data: ... and is called one" grep -q 'pipe cannot be opened: it is a pipe' output
expect_code "data: a pipe is no tokenizer" 66 timeout 20 "$TRAIN" "$TINY" --set data.tokenizer=pipe
expect_code "data: a pipe is no shard" 65 timeout 20 "$TRAIN" data inspect pipe
expect_code "data: a config comes out of a shell's pipe" 0 "$TRAIN" config check <(cat "$TINY")
finish

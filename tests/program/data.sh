#!/usr/bin/env bash
# data.sh -- tests data files that change during a run, paths that are not regular files, and the files that tokenization
# writes.
. "$(dirname "$0")/lib.sh"
make_text
"$TRAIN" data train-bpe --vocab 300 --out tok.json text.txt >output 2>&1
expect_code "data: the folder of a tokenizer is made" 0 "$TRAIN" data train-bpe --vocab 300 --out a/new/tok.json text.txt
check "data: the folder contains the tokenizer" cmp tok.json a/new/tok.json
echo >blocked
expect_code "data: a folder that cannot be made exits with code 73" 73 "$TRAIN" data train-bpe --vocab 300 --out blocked/tok.json text.txt
check "data: the folder that cannot be created is named" grep -q blocked output
expect_code "data: a text is made into shards" 0 "$TRAIN" data tokenize --tokenizer tok.json --out shards --val-fraction 0.1 \
    text.txt
check "data: the two splits contain each byte of the text once" \
    test "$(awk '/^(train|val) /{bytes += $2} END {print bytes}' output)" -eq "$(wc -c <text.txt)"
cp shards/train_000000.bin whole.bin

# A shard is truncated while a run trains on it.
mkfifo lines
run=("$TRAIN" "$TINY" --json --set "data.train=shards/train_*.bin" --set data.text=null --set train_steps=100000 --set eval.interval=0 --set checkpoint.async=false
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
check "data: a shard truncated during a run ends it with exit code 65" test $code -eq 65
check "data: a truncated shard is named" grep -q 'shards/train_000000.bin has been cut since it was opened' err
check "data: a truncated shard leaves the last checkpoint in place" test "$(checkpoint_steps run | tail -n 1)" -ge 10
cp whole.bin shards/train_000000.bin
expect_code "data: the run resumes after its truncated shard is restored" 0 "${run[@]}" \
    --allow-config-change --set train_steps="$(($(checkpoint_steps run | tail -n 1) + 1))"

# Only --verify notices a changed byte, and it needs meta.json.
expect_code "data: inspect --verify accepts unchanged shards" 0 "$TRAIN" data inspect --verify shards/train_000000.bin
check "data: inspect --verify reports that shards match meta.json" grep -q ', as meta.json says$' output
expect_code "data: inspect runs without --verify" 0 "$TRAIN" data inspect shards/train_000000.bin
check "data: inspect without --verify reports no comparison" grep -qE ' bits, ids from [0-9]+ to [0-9]+$' output
expect_code "data: inspect takes a folder of shards" 0 "$TRAIN" data inspect --verify shards
check "data: inspect reads each shard of the folder" test "$(grep -c ", as meta.json says$" output)" -eq "$(find shards -name "*.bin" | wc -l)"
mkdir nothing
expect_code "data: a folder without shards is reported with 66" 66 "$TRAIN" data inspect nothing
cp -r shards spoilt
printf '\041\000' | dd of=spoilt/train_000000.bin bs=1 seek=2000 conv=notrunc status=none
expect_code "data: inspect --verify reports a changed byte with 65" 65 "$TRAIN" data inspect --verify spoilt/train_000000.bin
rm spoilt/meta.json
expect_code "data: inspect --verify without a meta.json exits with code 66" 66 "$TRAIN" data inspect --verify spoilt/train_000000.bin
expect_code "data: inspect accepts a changed byte if all ids are known" 0 "$TRAIN" data inspect --tokenizer tok.json \
    spoilt/train_000000.bin
expect_code "data: decode without a tokenizer exits with code 66" 66 "$TRAIN" data decode whole.bin
echo '{}' >tokenizer.json
expect_code "data: decode with a damaged tokenizer exits with code 65" 65 "$TRAIN" data decode whole.bin

# A preset trains on a text of the user's: its vocabulary is a limit for the tokenizer that is trained on it.
own=("$here/../../configs/gpt2_124m.json" --set data.text=text.txt --set train_batch_size=16 --set train_micro_batch_size_per_gpu=1
    --set data.seq_length=64 --set model.num_layers=1 --set model.hidden_size=48 --set device=cpu --out own)
expect_code "data: a preset trains on a text" 0 "$TRAIN" "${own[@]}" --set train_steps=2
check "data: a run on a text of the user's suggests its report" grep -q '^ *./train report own > report.html ' output
check "data: a smaller vocabulary than the preset's is reported" grep -qE '^ +vocabulary of [0-9]+ ids, not 50,257:' output
check "data: the config of the run has the vocabulary of the text" \
    test "$(grep -cE '"(tokenizer_)?vocab_size": [0-9]{3},' own/config.json)" -eq 2
expect_code "data: the run on a text resumes on another grid" 0 "$TRAIN" "${own[@]}" --set train_steps=3 --allow-config-change \
    --ranks 2 --set parallel.tensor=2
check "data: the vocabulary does not count as a change when the run resumes" test "$(grep -c 'vocab_size' output)" -eq 0
expect_code "data: the run on a text is evaluated" 0 "$TRAIN" eval own
expect_code "data: the run on a text generates" 0 "$TRAIN" generate own --tokens 4
expect_code "data: a tokenizer that is given must have the preset's vocabulary" 78 "$TRAIN" "${own[@]}" --set data.tokenizer=tok.json
check "data: the other vocabulary is named" grep -q 'model.vocab_size: 50257, but .* has 300 tokens; write 300' output

# A text may come packed, in a folder, or through standard input; what is changed in it is reported.
mkdir -p texts/more
gzip -c text.txt >texts/one.txt.gz
sed 's/$/\r/' text.txt >texts/more/two.txt
awk '{printf "{\"id\": %d, \"body\": \"%s\"}\n", NR, $0} NR % 500 == 0 {print "{"}' text.txt >lines.jsonl
dry=("$TRAIN" "$TINY" --dry-run)
expect_code "data: a folder with a compressed text is read" 0 "${dry[@]}" --set data.text=texts --set model.vocab_size=400
check "data: a tokenizer with fewer ids than the model is reported" \
    grep -qE '^ +vocabulary of 300 ids, not 400: data.tokenizer_vocab_size says so$' output
check "data: changed line ends are reported" grep -q 'CR LF became LF at 1,500 line ends' output
check "data: both texts of the folder are read" grep -qF "$(awk '{n += 2 * (length($0) + 1)} END {printf "%.2f MB text", n / 1e6}' text.txt)" output
if gzip -c text.txt | "${dry[@]}" --set data.text=- >output 2>&1; then ok "data: a compressed text is read from standard input"
else not_ok "data: a compressed text is read from standard input"; fi
check "data: standard input is named" grep -q '^data    standard input$' output
expect_code "data: a missing data.text_key exits with code 65" 65 "${dry[@]}" --set data.text=lines.jsonl
check "data: the key of the text is suggested" \
    grep -q 'lines.jsonl:1 has no string called "text"; it has "id", "body": write --set data.text_key=body' output
body=(--set data.text=lines.jsonl --set data.text_key=body)
expect_code "data: a bad line exits with code 65" 65 "${dry[@]}" "${body[@]}"
check "data: the remedy for a bad line is printed" grep -q 'lines.jsonl:501 is .*write --set data.skip_bad_lines=true' output
expect_code "data: bad lines are skipped" 0 "${dry[@]}" "${body[@]}" --set data.skip_bad_lines=true
check "data: skipped lines are counted" grep -q ' 3 of 1,503 lines skipped; ' output
expect_code "data: tokenize has its own option for the key" 65 "$TRAIN" data tokenize --tokenizer tok.json --out new lines.jsonl
check "data: tokenize names its option" grep -q 'write --text-key body' output
expect_code "data: tokenize skips bad lines" 0 "$TRAIN" data tokenize --tokenizer tok.json --out new --text-key body --skip-bad-lines \
    lines.jsonl
check "data: tokenize counts skipped lines" grep -q '^3 of 1,503 lines skipped' output

# An evaluation tokenizes the validation text alone, and not again what the training has tokenized. Every prepared text is listed.
cache=(--set data.cache=cache)
expect_code "data: a run prepares its text" 0 "$TRAIN" "$TINY" "${cache[@]}" --set train_steps=10 --out trained
expect_code "data: the run is evaluated" 0 "$TRAIN" eval trained
check "data: an evaluation uses the tokens of the training" test "$(find cache -name '*.bin' | wc -l)" -eq 2
head -n 200 text.txt | sed 's/$/\r/' >other.txt
evaluate=("$TRAIN" eval trained --set data.val_text=other.txt)
expect_code "data: the run is evaluated on another text" 0 "${evaluate[@]}"
check "data: an evaluation reports changed line ends" grep -qx 'data    CR LF became LF at 200 line ends' output
expect_code "data: the run is evaluated on it again" 0 "${evaluate[@]}"
check "data: only the validation tokens of the other text are kept" test "$(find cache -path '*/other-*' -name '*.bin')" = \
    "$(echo cache/other-*/val_000000.bin)"
expect_code "data: prepared texts are listed" 0 "$TRAIN" data corpora --cache cache
check "data: the list has both texts and their size" \
    test "$(grep -cE '^cache/(text|other)-[0-9a-f]{16}$|^2 prepared texts in cache, .* KiB; ' output)" -eq 3
check "data: the list has the day of each text" test "$(grep -cE '^  made 20[0-9]{2}-[01][0-9]-[0-3][0-9], [1-9]' output)" -eq 2
expect_code "data: one prepared text is removed" 0 "$TRAIN" data corpora --cache cache --clear "$(basename cache/other-*)"
check "data: the other prepared text remains" test "$(echo cache/*)" = "$(echo cache/text-*)"
expect_code "data: a prepared text that does not exist exits with code 66" 66 "$TRAIN" data corpora --cache cache --clear none
expect_code "data: a path of a prepared text is refused" 64 "$TRAIN" data corpora --cache cache --clear "/other/$(basename cache/text-*)"
# A damaged folder, two of killed runs, one of them new, and one that its maker has locked.
hash=0123456789abcdef
mkdir -p cache/{mine,bad-$hash,old-$hash.tmp-4194305-0,runs-$hash.tmp-$$-0,new-$hash.tmp-4194305-0,mine.tmp-1-0}
echo '{' | tee cache/bad-$hash/meta.json >cache/mine/meta.json
touch -d '2 hours ago' cache/{old,runs}-*
exec 9<cache/runs-$hash.tmp-$$-0 && flock 9
expect_code "data: all folders of prepared texts are listed" 0 "$TRAIN" data corpora --cache cache
check "data: the list has what is wrong with folders" \
    test "$(grep -E '^  damaged: |^  unfinished: |^5 prepared' output | cut -d ' ' -f 1-5 | sort | uniq -c | tr -s ' \n' ' ')" = \
    " 1 damaged: its meta.json 1 unfinished: a run 2 unfinished: the run 1 5 prepared texts in cache, "
expect_code "data: all prepared texts are removed" 0 "$TRAIN" data corpora --cache cache --clear
check "data: a folder of the user's remains" test "$(cd cache && echo *)" = \
    "mine mine.tmp-1-0 runs-$hash.tmp-$$-0"
exec 9<&-

# A path that is not a regular file gives an error message at once; the program does not wait for a writer.
mkfifo pipe
expect_code "data: a pipe without a writer is refused as a config" 78 timeout 20 "$TRAIN" pipe
expect_code "data: a pipe is refused as a text" 66 timeout 20 "$TRAIN" "$TINY" --set data.text=pipe
check "data: a refused pipe is called a pipe" grep -q 'pipe cannot be opened: it is a pipe' output
expect_code "data: a pipe is refused as a tokenizer" 66 timeout 20 "$TRAIN" "$TINY" --set data.tokenizer=pipe
expect_code "data: a pipe is refused as a shard" 65 timeout 20 "$TRAIN" data inspect pipe
expect_code "data: a config can be read from a process substitution" 0 "$TRAIN" config check <(cat "$TINY")
finish

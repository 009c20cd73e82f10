#!/usr/bin/env bash
# bad_config.sh -- each mistake in a config or its inputs gives a sentence that names the place, and the right exit code.
. "$(dirname "$0")/lib.sh"
make_text

# bad NAME CODE PATTERN ARGUMENT...: exit code and a line on stderr that matches
bad() {
    local name=$1 code=$2 pattern=$3 got
    shift 3
    "$TRAIN" "$@" >stdout 2>err </dev/null
    got=$?
    if [ $got -ne "$code" ]; then not_ok "bad_config: $name: exit code $got, not $code"; head -n 3 err | sed 's/^/    | /'; return; fi
    if ! grep -qE "$pattern" err; then not_ok "bad_config: $name: no line like /$pattern/"; head -n 3 err | sed 's/^/    | /'; return; fi
    ok "bad_config: $name"
}
# json NAME CODE PATTERN TEXT: the same for a config with this text
json() {
    printf '%s\n' "$4" >bad.json
    bad "$1" "$2" "$3" bad.json
}

bad "no such file" 66 'nothing\.json' nothing.json
bad "no such file below a folder" 66 'no/thing' no/thing.json
for command in "config check" "config show" "bench step"; do
    read -ra words <<<"$command"
    bad "$command: no such file" 66 'nothing\.json: cannot be read: No such file' "${words[@]}" nothing.json
done
bad "an unknown key names the nearest" 78 'optimizer\.params\.lrr.*"?lr"?' "$TINY" --set optimizer.params.lrr=1
check "bad_config: ... in one sentence" test "$(cat stdout err | wc -l)" -eq 1
bad "a word where a number is due" 78 'hidden_size' "$TINY" --set model.hidden_size=wide
bad "a fraction where a count is due" 78 'num_layers' "$TINY" --set model.num_layers=1.5
bad "out of range" 78 'num_layers' "$TINY" --set model.num_layers=0
bad "heads that do not divide" 78 'num_key_value_heads' "$TINY" --set model.num_key_value_heads=3
bad "an unknown activation" 78 'activation' "$TINY" --set model.activation=gleu
bad "batch arithmetic" 78 'train_batch_size' "$TINY" --set train_batch_size=17
batch=(--set train_batch_size=8 --set train_micro_batch_size_per_gpu=2 --set gradient_accumulation_steps=null)
bad "a batch that the ranks do not share" 78 'is not a multiple of micro 2 x dp 3 = 6; write train_batch_size 6 or 12, or train on 2 or 4 ranks' \
    config check "$TINY" --world 3 "${batch[@]}"
bad "a batch for one rank" 78 'is less than micro 2 x dp 3 = 6; write train_batch_size 6, or train on 1 rank$' \
    config check "$TINY" --world 3 "${batch[@]}" --set train_batch_size=2
bad "fewer sequences than ranks" 78 'train_batch_size: 16 is fewer than the 32 data-parallel ranks; write train_batch_size 32, or train on 16 ranks' \
    config check "$TINY" --world 32 "${batch[@]}" --set train_batch_size=16 --set train_micro_batch_size_per_gpu=null
bad "a size that the ranks do not make" 78 'parallel.data: 2, but there is 1 rank; write --ranks 2, or 1 here, or leave the key out' \
    "$TINY" --set parallel.data=2
bad "no ranks" 64 '[-]-ranks 0: give a whole number from 1 to 64' "$TINY" --ranks 0
bad "too many ranks" 64 '[-]-ranks 65: give a whole number from 1 to 64' "$TINY" --ranks 65
bad "ranks of a config that is looked at" 64 'did you mean "--world"[?]' config check "$TINY" --ranks 3
bad "too many ranks to look at a config for" 64 '[-]-world 65: give a whole number from 1 to 64' config check "$TINY" --world 65
bad "ranks in words" 64 '[-]-ranks two' "$TINY" --ranks two
for words in "--world 4: on 4 ranks" ": on one rank; --world N looks whether its batch fits N of them" \
    "--set parallel.data=2: on 2 ranks, as its batch or parallel.data says" \
    "--set parallel.data=65 --set train_batch_size=130: on 65 ranks, as its batch or parallel.data says; a run has no more than 64 yet"; do
    read -ra options <<<"${words%%:*}"
    expect_code "bad_config: config check ${words%%:*}" 0 "$TRAIN" config check "$TINY" "${batch[@]}" "${options[@]}"
    check "bad_config: ... says for which ranks" grep -qF "good ${words#*: }" output
done
# Whether ZeRO 3's limit has room for the model's units only an opened model knows.
live=(--set zero_optimization.stage=3 --set zero_optimization.stage3_max_live_parameters=1000
    --set zero_optimization.stage3_param_persistence_threshold=0)
expect_code "bad_config: config check with a limit of stage 3" 0 "$TRAIN" config check "$TINY" --world 2 "${live[@]}"
check "bad_config: ... leaves it to a dry run" grep -qF "on 2 ranks; --dry-run says whether stage3_max_live_parameters" output
bad "a limit of stage 3 below two units" 78 'stage3_max_live_parameters is 1000, and the largest two' "$TINY" --ranks 2 --dry-run \
    "${live[@]}"
expect_code "bad_config: config check of stage 2" 0 "$TRAIN" config check "$TINY" --world 2 --set zero_optimization.stage=2
check "bad_config: ... has none" grep -q "good on 2 ranks$" output
expect_code "bad_config: config check of stage 3 on one rank" 0 "$TRAIN" config check "$TINY" --world 1 "${live[@]}"
check "bad_config: ... has none, either" test "$(grep -c 'dry-run says' output)" -eq 0
bad "fp16 and bf16 together" 78 'fp16' "$TINY" --set fp16.enabled=true --set bf16.enabled=true
bad "known but not built" 78 'zero_optimization' "$TINY" --set zero_optimization.offload_optimizer.device=cpu
bad "a --set without =" 64 '[-]-set train_steps: this is not key=value' "$TINY" --set train_steps
bad "missing text" 66 'absent\.txt' "$TINY" --set data.text=absent.txt
bad "an unknown corpus" 66 'atlantis' "$TINY" --set data.text=null --set data.corpus=atlantis
: >empty.txt
bad "empty text" 65 'empty\.txt' "$TINY" --set data.text=empty.txt
json "a syntax error has its place" 78 'bad\.json:2:[0-9]+' '{ "seed": 1,
  "model": ] }'
json "a duplicate key" 78 'seed' '{ "seed": 1, "seed": 2 }'
json "an integer that is too large" 78 'seed' '{ "seed": 99999999999999999999999 }'
json "all errors at once: the first" 78 'bad\.json:1:.*train_steps' '{ "train_steps": -1, "sead": 2 }'
check "bad_config: ... and the second" grep -q 'sead.*seed' err
check "bad_config: nothing was written" test ! -e out/tiny -a ! -e out/bad

expect_code "bad_config: comments and trailing commas are read" 0 "$TRAIN" "$TINY" --dry-run
check "bad_config: a dry run writes no run" test ! -e out/tiny
expect_code "bad_config: a dry run without data ends with 66" 66 "$TRAIN" "$TINY" --dry-run --set data.text=absent.txt
check "bad_config: ... having shown the plan" grep -q '^memory  plan ' output
check "bad_config: ... and made a step" grep -q '^dry run: one micro-batch of random tokens' output
check "bad_config: ... and says why last" bash -c "tail -n 1 output | grep -q 'error.66. .*missing'"
expect_code "bad_config: a dry run over empty text ends with 65" 65 "$TRAIN" "$TINY" --dry-run --set data.text=empty.txt
expect_code "bad_config: ... over a shard that is none with 65" 65 "$TRAIN" "$TINY" --dry-run --set data.train=text.txt
mkdir -p bin
expect_code "bad_config: ... without a corpus's program with 66" 66 env PATH="$PWD/bin" "$TRAIN" "$TINY" --dry-run --set data.corpus=bible-kjv
check "bad_config: ... in the vocabulary that would have been trained" grep -q 'vocabulary 300 ' output
bad "config check: no such text" 66 'tiny\.json: the config is good, its data are not: no file matches absent\.txt' \
    config check "$TINY" --set data.text=absent.txt
bad "config check: text to validate on" 66 'absent\.txt' config check "$TINY" --set 'data.val_text=absent.txt'
bad "config check: empty text" 65 'empty\.txt is empty' config check "$TINY" --set data.text=empty.txt
bad "config check: a shard that is none" 65 'text\.txt' config check "$TINY" --set data.train=text.txt
bad "config check: a tokenizer that is missing" 66 'absent\.json' config check "$TINY" --set data.tokenizer=absent.json
bad "config check: a tokenizer that is none" 65 'text\.txt' config check "$TINY" --set data.tokenizer=text.txt
bad "config check: an unknown corpus" 66 'atlantis' config check "$TINY" --set data.corpus=atlantis
own=(--set data.text=null --set data.corpus=bible-kjv --set data.cache=cache)
expect_code "bad_config: config check: a corpus without its program" 66 env PATH="$PWD/bin" "$TRAIN" config check "$TINY" "${own[@]}"
check "bad_config: ... and how to get it" grep -q 'apt-get install bible-kjv' output
printf '#!/bin/sh\n' >bin/bible
chmod +x bin/bible
expect_code "bad_config: config check: a corpus with its program" 0 env PATH="$PWD/bin" "$TRAIN" config check "$TINY" "${own[@]}"
expect_code "bad_config: config check: data that are there" 0 "$TRAIN" config check "$TINY" --set data.cache=cache
check "bad_config: ... and prepares nothing" test ! -e cache
expect_code "bad_config: an output that cannot be made" 73 "$TRAIN" "$TINY" --out text.txt/run
expect_code "bad_config: more memory than there is" 90 "$TRAIN" "$TINY" --dry-run --set model.num_layers=3000 \
    --set model.hidden_size=8192 --set model.head_dim=64 --set model.num_attention_heads=128
# Too little text is not damage, and what to write is printed literally.
for set in data.tokenizer_vocab_size=60000 data.val_fraction=1e-9; do
    bad "too little text for $set" 78 "error.78. text\.txt: .*write --set ${set%=*}=[0-9.]+," "$TINY" --set "$set" --out little
    remedy=$(sed -nE "s/.*write --set (${set%=*}=[0-9.]+),.*/\\1/p" err)
    expect_code "bad_config: ... and for $remedy there is enough" 0 "$TRAIN" "$TINY" --dry-run --set "$remedy"
done
head -c 300 text.txt >few.txt
bad "a text shorter than a window" 78 'few\.txt: the training text has .* fewer than the 301 of one window' "$TINY" \
    --set data.text=few.txt --set data.tokenizer_vocab_size=258 --set data.seq_length=300 --set data.val_fraction=0

# A --set that asks for another model than the weights are of is not damage of theirs.
short=(--set train_steps=6 --set eval.interval=0 --set eval.sample_interval=0)
expect_code "bad_config: a run to look at" 0 "$TRAIN" "$TINY" "${short[@]}" --out good
for set in model.num_layers=3 model.hidden_size=48 model.bias=true bf16.enabled=true; do
    bad "generate with another ${set%%=*}" 78 "error.78. --set $set: good/checkpoints/step_00000006 was trained with .*leave this --set out" \
        generate good --prompt "the king" --tokens 2 --set "$set"
done
bad "eval with another model" 78 '[-]-set model\.num_layers=3: ' eval good/checkpoints/step_00000006 --set model.num_layers=3 --set seed=5
expect_code "bad_config: a --set that does not concern the weights is accepted" 0 "$TRAIN" generate good --prompt "the king" --tokens 2 --set cpu.threads=1
sed -i 's/"num_layers": [0-9]*/"num_layers": 3/' good/config.json
bad "a config beside a checkpoint of another model is damage" 65 'has no tensor block' generate good --prompt "the king" --set cpu.threads=1
finish

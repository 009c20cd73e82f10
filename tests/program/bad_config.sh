#!/usr/bin/env bash
# bad_config.sh -- tests that each mistake in a config or its inputs gives an error message with its place, and the right
# exit code.
. "$(dirname "$0")/lib.sh"
make_text

# bad NAME CODE PATTERN ARGUMENT...: expects this exit code and a line on stderr that matches the pattern
bad() {
    local name=$1 code=$2 pattern=$3 got
    shift 3
    "$TRAIN" "$@" >stdout 2>err </dev/null
    got=$?
    if [ $got -ne "$code" ]; then not_ok "bad_config: $name: exit code $got, not $code"; head -n 3 err | sed 's/^/    | /'; return; fi
    if ! grep -qE "$pattern" err; then not_ok "bad_config: $name: no line like /$pattern/"; head -n 3 err | sed 's/^/    | /'; return; fi
    ok "bad_config: $name"
}
# json NAME CODE PATTERN TEXT: expects the same of a config file with this text
json() {
    printf '%s\n' "$4" >bad.json
    bad "$1" "$2" "$3" bad.json
}

bad "a missing config is refused" 66 'nothing\.json' nothing.json
bad "a missing config in a missing folder is refused" 66 'no/thing' no/thing.json
for command in "config check" "config show" "bench step"; do
    read -ra words <<<"$command"
    bad "$command refuses a missing config" 66 'nothing\.json: cannot be read: No such file' "${words[@]}" nothing.json
done
bad "an unknown key is answered with a similar one" 78 'optimizer\.params\.lrr.*"?lr"?' "$TINY" --set optimizer.params.lrr=1
check "bad_config: an unknown key is reported in one sentence" test "$(cat stdout err | wc -l)" -eq 1
bad "a word instead of a number is refused" 78 'hidden_size' "$TINY" --set model.hidden_size=wide
bad "a fraction instead of an integer is refused" 78 'num_layers' "$TINY" --set model.num_layers=1.5
bad "a number out of range is refused" 78 'num_layers' "$TINY" --set model.num_layers=0
bad "kv heads that do not divide the heads are refused" 78 'num_key_value_heads' "$TINY" --set model.num_key_value_heads=3
bad "an unknown activation is refused" 78 'activation' "$TINY" --set model.activation=gleu
bad "a train_batch_size that contradicts the other batch keys is refused" 78 'train_batch_size' "$TINY" \
    --set train_batch_size=17
batch=(--set train_batch_size=8 --set train_micro_batch_size_per_gpu=2 --set gradient_accumulation_steps=null)
bad "a batch that the ranks cannot share is refused with advice" 78 \
    'is not a multiple of micro 2 x dp 3 = 6; write train_batch_size 6 or 12, or train on 2 or 4 ranks' \
    config check "$TINY" --world 3 "${batch[@]}"
bad "a batch that fits only one rank is refused with advice" 78 \
    'is less than micro 2 x dp 3 = 6; write train_batch_size 6, or train on 1 rank$' \
    config check "$TINY" --world 3 "${batch[@]}" --set train_batch_size=2
bad "a batch of fewer sequences than ranks is refused with advice" 78 \
    'train_batch_size: 16 is fewer than the 32 data-parallel ranks; write train_batch_size 32, or train on 16 ranks' \
    config check "$TINY" --world 32 "${batch[@]}" --set train_batch_size=16 --set train_micro_batch_size_per_gpu=null
bad "parallel.data that contradicts --ranks is refused with advice" 78 \
    'parallel.data: 2, but there is 1 rank; write --ranks 2, or 1 here, or leave the key out' \
    "$TINY" --set parallel.data=2
bad "zero ranks are refused" 64 '[-]-ranks 0: give a whole number from 1 to 64' "$TINY" --ranks 0
bad "too many ranks are refused" 64 '[-]-ranks 65: give a whole number from 1 to 64; more ranks need a launcher, such as srun' \
    "$TINY" --ranks 65
# Commands that only read a config call it --world, commands that run call it --ranks; all accept both names.
for option in --ranks --world; do
    expect_code "bad_config: config check accepts $option" 0 "$TRAIN" config check "$TINY" --set train_batch_size=48 $option 3
    check "bad_config: config check looks at the batch of $option" grep -q 'on 3 ranks' output
    expect_code "bad_config: a dry run accepts $option" 0 "$TRAIN" "$TINY" --dry-run --set train_batch_size=48 $option 3
    check "bad_config: a dry run has the ranks of $option" grep -q '^ranks *3 = dp 3' output
done
for words in "bench parallel" "bench comm"; do
    # shellcheck disable=SC2086 # words
    bad "$words accepts --world for --ranks" 64 '[-]-ranks 65: give a whole number from 2 to 64; more ranks need a launcher' $words --world 65
done
bad "config check refuses too many ranks" 64 '[-]-world 65537: give a whole number from 1 to 65536' config check "$TINY" --world 65537
bad "a number of ranks in words is refused" 64 '[-]-ranks two' "$TINY" --ranks two
for words in "--world 4: on 4 ranks" ": on one rank; --world N looks whether its batch fits N of them" \
    "--set parallel.data=2: on 2 ranks, as its batch or parallel.data says" \
    "--world 64 --set train_batch_size=128: on 64 ranks" \
    "--world 65 --set train_batch_size=130: on 65 ranks; more than 64 need a launcher, such as srun" \
    "--world 65536 --set train_batch_size=131072: on 65536 ranks; more than 64 need a launcher, such as srun" \
    "--set parallel.data=65 --set train_batch_size=130: on 65 ranks, as its batch or parallel.data says; more than 64 need a launcher, such as srun" \
    "--set parallel.data=65537 --set train_batch_size=131074: on 65537 ranks, as its batch or parallel.data says; a run has no more than 65536"; do
    read -ra options <<<"${words%%:*}"
    expect_code "bad_config: config check accepts a good config with ${words%%:*}" 0 "$TRAIN" config check "$TINY" \
        "${batch[@]}" "${options[@]}"
    check "bad_config: config check with ${words%%:*} prints the ranks that it checked" grep -qF "good ${words#*: }" output
done
# Whether ZeRO 3's limit of live parameters is large enough is known only after the model has been opened.
live=(--set zero_optimization.stage=3 --set zero_optimization.stage3_max_live_parameters=1000
    --set zero_optimization.stage3_param_persistence_threshold=0)
expect_code "bad_config: config check accepts a limit of ZeRO stage 3" 0 "$TRAIN" config check "$TINY" --world 2 "${live[@]}"
check "bad_config: config check refers to --dry-run for a limit of ZeRO stage 3" \
    grep -qF "on 2 ranks; --dry-run says whether stage3_max_live_parameters" output
bad "a stage3_max_live_parameters below the two largest units is refused" 78 \
    'stage3_max_live_parameters is 1000, and the largest two' "$TINY" --ranks 2 --dry-run \
    "${live[@]}"
expect_code "bad_config: config check accepts stage 2, which ignores that limit" 0 "$TRAIN" config check "$TINY" --world 2 \
    --set zero_optimization.stage=2
check "bad_config: config check does not refer to --dry-run at stage 2" grep -q "good on 2 ranks$" output
expect_code "bad_config: config check accepts stage 3 on one rank" 0 "$TRAIN" config check "$TINY" --world 1 "${live[@]}"
check "bad_config: config check does not refer to --dry-run on one rank" test "$(grep -c 'dry-run says' output)" -eq 0
bad "fp16 with bf16 is refused" 78 'fp16' "$TINY" --set fp16.enabled=true --set bf16.enabled=true
bad "a DeepSpeed feature that is not built is refused" 78 'zero_optimization' "$TINY" \
    --set zero_optimization.zero_quantized_gradients=true
# The command that config check prints is pasted, with the path of the program that is tested.
printf '{"zero_optimization": {"stage": 2, "overlap_com": true}, "fp16": {"enabled": true, "opt_level": "O2"}}\n' >ds.json
small=(--set data.text=text.txt --set model.num_layers=1 --set model.hidden_size=32 --set model.num_attention_heads=2
    --set data.seq_length=32 --set data.tokenizer_vocab_size=300)
expect_code "bad_config: config check of a file that can be mended exits with code 78" 78 "$TRAIN" config check ds.json "${small[@]}"
check "bad_config: config check prints the command that trains" grep -qE \
    '^\./train ds\.json .*--set zero_optimization\.overlap_comm=true --set fp16\.opt_level=null --set train_steps=1000$' output
pasted=$(grep '^./train ' output)
expect_code "bad_config: the printed command is accepted" 0 bash -c "${pasted/.\/train/\"$TRAIN\"} --dry-run"
bad "config check prints no command where the user must choose" 78 'optimizer\.type: "Lamb" is known' config check ds.json \
    "${small[@]}" --set optimizer.type=Lamb
check "bad_config: config check prints no command then" test "$(grep -c '^./train ' stdout)" -eq 0
bad "a --set without = is refused" 64 '[-]-set train_steps: this is not key=value' "$TINY" --set train_steps
bad "a missing text is refused" 66 'absent\.txt' "$TINY" --set data.text=absent.txt
bad "an unknown corpus is refused" 66 'atlantis' "$TINY" --set data.text=null --set data.corpus=atlantis
: >empty.txt
bad "an empty text is refused" 65 'empty\.txt' "$TINY" --set data.text=empty.txt
json "a syntax error is reported with line and column" 78 'bad\.json:2:[0-9]+' '{ "seed": 1,
  "model": ] }'
json "a duplicate key is refused" 78 'seed' '{ "seed": 1, "seed": 2 }'
json "an integer that is too large is refused" 78 'seed' '{ "seed": 99999999999999999999999 }'
json "the first of two errors is reported with its line" 78 'bad\.json:1:.*train_steps' '{ "train_steps": -1, "sead": 2 }'
check "bad_config: the second of two errors is also reported" grep -q 'sead.*seed' err
check "bad_config: refused configs leave no run folder" test ! -e out/tiny -a ! -e out/bad

expect_code "bad_config: comments and trailing commas are accepted" 0 "$TRAIN" "$TINY" --dry-run
check "bad_config: a dry run leaves no run folder" test ! -e out/tiny
expect_code "bad_config: a dry run without its data file exits with code 66" 66 "$TRAIN" "$TINY" --dry-run --set data.text=absent.txt
check "bad_config: a dry run without its data file prints the memory plan" grep -q '^memory  plan ' output
check "bad_config: a dry run without its data file times a step" grep -q '^dry run: one micro-batch of random tokens' output
check "bad_config: a dry run without its data file ends with that error" bash \
    -c "tail -n 1 output | grep -q 'error.66. .*missing'"
expect_code "bad_config: a dry run with an empty text exits with code 65" 65 "$TRAIN" "$TINY" --dry-run --set data.text=empty.txt
expect_code "bad_config: a dry run with a shard that is not one exits with code 65" 65 "$TRAIN" "$TINY" \
    --dry-run --set data.train=text.txt
mkdir -p bin
expect_code "bad_config: a dry run without the corpus's program exits with code 66" 66 env PATH="$PWD/bin" "$TRAIN" "$TINY" \
    --dry-run --set data.corpus=bible-kjv
check "bad_config: a dry run without the corpus's program assumes the configured vocabulary size" grep -q 'vocabulary 300 ' \
    output
bad "config check reports a missing text" 66 'tiny\.json: the config is good, its data are not: no file matches absent\.txt' \
    config check "$TINY" --set data.text=absent.txt
bad "config check reports a missing validation text" 66 'absent\.txt' config check "$TINY" --set 'data.val_text=absent.txt'
bad "config check reports an empty text" 65 'empty\.txt is empty' config check "$TINY" --set data.text=empty.txt
bad "config check reports a shard that is not one" 65 'text\.txt' config check "$TINY" --set data.train=text.txt
bad "config check reports a missing tokenizer" 66 'absent\.json' config check "$TINY" --set data.tokenizer=absent.json
bad "config check reports a tokenizer that is not one" 65 'text\.txt' config check "$TINY" --set data.tokenizer=text.txt
bad "config check reports an unknown corpus" 66 'atlantis' config check "$TINY" --set data.corpus=atlantis
own=(--set data.text=null --set data.corpus=bible-kjv --set data.cache=cache)
expect_code "bad_config: config check exits with code 66 if the corpus's program is missing" 66 env PATH="$PWD/bin" "$TRAIN" config \
    check "$TINY" "${own[@]}"
check "bad_config: config check prints how to install the corpus's program" grep -q 'apt-get install bible-kjv' output
printf '#!/bin/sh\n' >bin/bible
chmod +x bin/bible
expect_code "bad_config: config check accepts a corpus whose program is installed" 0 env PATH="$PWD/bin" "$TRAIN" config check \
    "$TINY" "${own[@]}"
expect_code "bad_config: config check accepts a config whose data exist" 0 "$TRAIN" config check "$TINY" --set data.cache=cache
check "bad_config: config check prepares no data" test ! -e cache
expect_code "bad_config: an output folder that cannot be created exits with code 73" 73 "$TRAIN" "$TINY" --out text.txt/run
expect_code "bad_config: a model larger than the memory exits with code 90" 90 "$TRAIN" "$TINY" \
    --dry-run --set model.num_layers=3000 \
    --set model.hidden_size=8192 --set model.head_dim=64 --set model.num_attention_heads=128
# Too little text is not reported as damage, and the message prints the exact --set that helps.
for set in data.tokenizer_vocab_size=60000 data.val_fraction=1e-9; do
    bad "a text too small for $set is refused with advice" 78 "error.78. text\.txt: .*write --set ${set%=*}=[0-9.]+," "$TINY" \
        --set "$set" --out little
    remedy=$(sed -nE "s/.*write --set (${set%=*}=[0-9.]+),.*/\\1/p" err)
    expect_code "bad_config: the suggested $remedy is accepted" 0 "$TRAIN" "$TINY" --dry-run --set "$remedy"
done
head -c 300 text.txt >few.txt
bad "a text shorter than a window is refused" 78 'few\.txt: the training text has .* fewer than the 301 of one window' "$TINY" \
    --set data.text=few.txt --set data.tokenizer_vocab_size=258 --set data.seq_length=300 --set data.val_fraction=0

# A --set that asks for a model that does not fit the checkpoint's weights must not be reported as damage of the checkpoint.
short=(--set train_steps=6 --set eval.interval=0 --set eval.sample_interval=0)
expect_code "bad_config: a short run succeeds" 0 "$TRAIN" "$TINY" "${short[@]}" --out good
for set in model.num_layers=3 model.hidden_size=48 model.bias=true bf16.enabled=true; do
    bad "generate refuses another ${set%%=*}" 78 \
        "error.78. --set $set: good/checkpoints/step_00000006 was trained with .*leave this --set out" \
        generate good --prompt "the king" --tokens 2 --set "$set"
done
bad "eval refuses another model" 78 '[-]-set model\.num_layers=3: ' eval good/checkpoints/step_00000006 \
    --set model.num_layers=3 --set seed=5
expect_code "bad_config: generate accepts a --set that does not concern the weights" 0 "$TRAIN" generate good \
    --prompt "the king" --tokens 2 --set cpu.threads=1
sed -i 's/"num_layers": [0-9]*/"num_layers": 3/' good/config.json
bad "a config that contradicts its checkpoint is reported as damage" 65 'has no tensor block' generate good \
    --prompt "the king" --set cpu.threads=1
finish

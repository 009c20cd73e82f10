#!/usr/bin/env bash
# cli.sh -- tests the command line: help on every level is printed on stdout and exits with 0; unknown arguments give an
# error message on stderr and exit code 64.
. "$(dirname "$0")/lib.sh"

# help NAME ARGUMENT...: expects exit code 0, text on stdout and nothing on stderr
help() {
    local name=$1 code
    shift
    "$TRAIN" "$@" >out 2>err </dev/null
    code=$?
    if [ $code -eq 0 ] && [ -s out ] && ! [ -s err ]; then ok "cli: $name"; else not_ok "cli: $name: exit code $code, $(wc -c <out) bytes on stdout, $(wc -c <err) on stderr"; fi
}

# helps COMMAND ARGUMENT...: expects the same, and that the text is the usage of this command
helps() {
    local command=$1
    shift
    help "$* prints help" "$@"
    check "cli: $*: the help fits 80 columns" test -z "$(awk 'length > 79' out)"
    check "cli: $*: the help shows the usage" grep -qE "^(usage:)? +\./train $command( |\$)" out
}

# misuse NAME ARGUMENT...: expects exit code 64, text on stderr and nothing on stdout
misuse() {
    local name=$1 code
    shift
    "$TRAIN" "$@" >out 2>err </dev/null
    code=$?
    if [ $code -eq 64 ] && [ -s err ] && ! [ -s out ]; then ok "cli: $name"; else not_ok "cli: $name: exit code $code, $(wc -c <out) bytes on stdout, $(wc -c <err) on stderr"; fi
}

# said NAME WORDS ARGUMENT...: expects a usage error, with WORDS in the line that begins with error[64]
said() {
    local name=$1 words=$2
    shift 2
    misuse "$name" "$@"
    check "cli: $name (exit code 64 and message)" test "$(grep -F -- "$words" err | cut -c 1-10)" = "error[64] "
}

helps CONFIG.json --help
helps CONFIG.json -h
helps CONFIG.json
for command in CONFIG.json eval generate verify; do
    "$TRAIN" "$command" --help >out
    check "cli: $command: the help of --ranks says where a single rank runs" \
        grep -q 'a single one runs in the process that you start' <(tr -s ' \n' ' ' <out)
done
for command in config data generate eval ckpt report bench plan doctor; do
    helps "$command" $command --help
    helps "$command" --help $command
done

# Lists every command that the program's own help names: the commands of a group, or the group's name where it has none;
# `train` stands for starting a run. All of them follow the same grammar.
every=(train)
for command in $("$TRAIN" --help | sed -nE 's/^  ([a-z]+) +[a-z].*/\1/p'); do
    mapfile -t actions < <("$TRAIN" "$command" --help | sed -nE "s|^  \\./train $command ([a-z-]+).*|$command \1|p")
    if [ ${#actions[@]} -gt 0 ]; then every+=("${actions[@]}"); else every+=("$command"); fi
done
check "cli: the help lists every command" test ${#every[@]} -ge 16

# refused_next ARGUMENT...: succeeds if an unknown option after these arguments is the first error that the program reports
refused_next() { "$TRAIN" "$@" --nope 2>&1 >/dev/null </dev/null | grep -q '^error\[64\] --nope: .* has no such option'; }

# both_forms OPTION COMMAND...: checks that the option accepts the same values after a blank and after an equals sign
both_forms() {
    local option=$1 value apart='' joined=''
    shift
    for value in 1 3 300 key=value f32 fp64 cpu gpt2; do
        refused_next "$@" "$option" $value && apart+=" $value"
        refused_next "$@" "$option=$value" && joined+=" $value"
    done
    check "cli: ${*:-train} $option: the value may follow a space or an equals sign" test "$joined" = "${apart:-none}"
}

# All commands share one parser of options. Under a sanitizer, whose programs start slowly, testing one option is enough, of
# every fourth command by turns.
number=${TEST_TURN:-0}
for command in "${every[@]}"; do
    number=$((number + 1))
    [ -z "${TEST_SAMPLE:-}" ] || [ "$command" = train ] || [ $((number % 4)) -eq 0 ] || continue
    read -ra words <<<"$command"
    if [ "$command" = train ]; then
        words=()
        helps CONFIG.json --help train
        check "cli: the help of a run says what ends it, and with which code" \
            test "$(tr '\n' ' ' <out | grep -cE 'creating RUN/STOP, ends .* with a checkpoint and exit code 85;')" -eq 1
    else
        for form in --help -h; do helps "$command" "${words[@]}" $form; done
    fi
    sed -nE 's/^  (--[a-z-]+)( [^ ]+)?  .*/\1 \2/p' out | sort -u -k 1,1 >options
    check "cli: $command: the help explains every option of its usage" \
        test -z "$(sed '/^$/q' out | grep -oE -- '--[a-z-]+' | grep -vxFf <(cut -d ' ' -f 1 options))"
    if sed '/^$/q' out | grep -q 'CONFIG'; then check "cli: $command takes --set" grep -q -- '^--set ' options; fi
    while read -r option value <&9; do
        [ "$option" = --set ] || [ -z "${TEST_SAMPLE:-}" ] || continue
        if [ -n "$value" ]; then both_forms "$option" "${words[@]}"
        else said "$command $option=1 is refused" "$option takes no value" "${words[@]}" "$option=1"; fi
    done 9<options
    help "$command prints help if --help follows a word" "${words[@]}" x.json --help
    help "$command prints help if -h follows an unknown option" "${words[@]}" --nope -h
    said "$command: a misspelt --help is answered with a suggestion" 'did you mean "--help"?' "${words[@]}" --hlep
    said "$command: an unknown option is refused" "has no such option; see ./train" "${words[@]}" --unheard --
    check "cli: $command: words after -- are not read as options" \
        test -z "$("$TRAIN" "${words[@]}" -- --nope --nope 2>&1 </dev/null | grep -- 'no such option')"
done

help "--help exit-codes prints the exit codes" --help exit-codes
rooms=()
for room in configs data model optim parallel; do rooms+=("$here/../../$room"); done
# used NAME: succeeds if some source file uses this exit code; comments and the code's row in the table do not count
used() { grep -rwh "$1" --include='*.[ch]' --include='*.cu' --include='*.cuh' "${rooms[@]}" "$here/../../train.c" | grep -vqE '^ *(/?\*|X\()'; }
rows=0
while read -r code_name code; do
    rows=$((rows + 1))
    check "cli: exit code $code is explained" grep -qE "^ *$code  [a-z]" out
    marked=0
    grep -qE "^ *$code  .* \(comes with " out && marked=1
    if used "$code_name"; then check "cli: exit code $code is not marked as unused" test $marked -eq 0
    else check "cli: exit code $code is marked as unused" test $marked -eq 1; fi
done < <(sed -nE 's/^ *X\((EXIT_[A-Z_]+), ([0-9]+), .*/\1 \2/p' "$here/../../model/core/exit_codes.h")
check "cli: all exit codes are checked" test $rows -eq "$(wc -l <out)"
help "--version prints the version" --version
check "cli: --version prints the commit" grep -q commit out
help "doctor prints its findings" doctor
mkdir broken && echo >broken/libz.so.1
check "cli: doctor says which text files cannot be read" test "$(LD_LIBRARY_PATH=$PWD/broken "$TRAIN" doctor | sed -nE 's/^(..)  (zlib|libzstd) .*/\1 \2/p')" = \
    "-- zlib
ok libzstd"
check "cli: every line of doctor begins with a mark" test -z "$(grep -vE '^(ok|--|!!) ' out)"
for words in "config defaults" "config explain"; do
    read -ra index <<<"$words"
    help "$words prints an index" "${index[@]}"
    check "cli: the index of $words fits 80 columns" test -z "$(awk 'length > 80' out)"
    check "cli: the index of $words has a line for a section" grep -qE '^optimizer +[0-9]+ keys  type, .* \.\.\.$' out
    check "cli: the index of $words has all keys without a section" \
        test "$(sed -nE '/^\(no section\)/,/^[a-z]/p' out | grep -cE '(device|gradient_predivide_factor)')" -eq 2
done
"$TRAIN" config defaults --all >defaults.json
check "cli: the index counts the keys of config defaults --all" \
    test "$(awk '$2 ~ /^[0-9]+$/ { n += $2 } $3 ~ /^[0-9]+$/ { n += $3 } END { print n }' out)" -eq \
    "$(grep -cE '^ +(// )?"[^"]+": .*, +//' defaults.json)"
expect_code "cli: config defaults --all prints a config that loads" 0 "$TRAIN" config check defaults.json --set data.text="$TINY"
"$TRAIN" config explain optimizer.params.lr >out 2>&1
check "cli: config explain explains a key" grep -q lr out
"$TRAIN" config explain activation_checkpointing.policy >out 2>&1
check "cli: config explain lists the effect of a change on a resume" grep -q 'resume   may change when a run is resumed$' out

check "cli: bug 52: the source files are found" test "$(grep -rl 'CHECK(' --include='*.[ch]' "${rooms[@]}" | wc -l)" -gt 20
check "cli: bug 52: no check is an assert, which NDEBUG would remove" \
    test -z "$(grep -rlE 'assert\.h|\<assert *\(' --include='*.[ch]' "${rooms[@]}")"

misuse "an unknown command is refused" trian
misuse "an unknown option is refused" "$TINY" --sett a=1
misuse "a missing value is refused" "$TINY" --set
misuse "two configs are refused" "$TINY" "$TINY"
misuse "an unknown help topic is refused" --help nonsense
for command in config data ckpt bench doctor; do misuse "$command nonsense is refused" $command nonsense; done
for command in config data ckpt report bench plan generate eval; do misuse "$command without arguments is refused" $command; done

said "a misspelt command is answered with a suggestion" 'did you mean "generate"?' genrate out/demo --prompt x
said "a misspelt command after an option is answered with a suggestion" 'did you mean "generate"?' --dry-run genrate
said "a path to no file is refused" 'is neither a command nor a config file' configs/nothing
said "train as a command is refused" './train CONFIG.json trains' train "$TINY"
said "a folder without a run is refused" '. is a folder without config.json, so it is no run: give' .
said "a misspelt help topic is answered with a suggestion" 'did you mean "doctor"?' --help dcotor
said "an unknown help topic is answered with the list of topics" 'topics are train, exit-codes and the commands' --help zebra
said "a misspelt config command is answered with a suggestion" 'did you mean "show"?' config shwo "$TINY"
said "a misspelt data command is answered with a suggestion" 'did you mean "tokenize"?' data tokenise x
said "a misspelt ckpt command is answered with a suggestion" 'did you mean "verify"?' ckpt verfiy x
said "a misspelt bench mode is answered with a suggestion" 'did you mean "gemm"?' bench gem
said "a misspelt option of train is answered with a suggestion" 'did you mean "--allow-config-change"?' "$TINY" \
    --alow-config-change
said "a misspelt value of --resume is answered with never" 'did you mean "never"?' "$TINY" --resume nevr
said "a misspelt value of --resume is answered with auto" 'did you mean "auto"?' "$TINY" --resume=atuo
said "a misspelt option of config is answered with a suggestion" 'did you mean "--verbose"?' config check --vebose "$TINY"
said "a misspelt option of data is answered with a suggestion" 'did you mean "--from"?' data decode --form=3 x
said "a misspelt option of generate is answered with a suggestion" 'did you mean "--prompt"?' generate x --promt y
said "a misspelt option of eval is answered with a suggestion" 'did you mean "--set"?' eval x --sett a=1
said "a misspelt option of bench step is answered with a suggestion" 'did you mean "--steps"?' bench step "$TINY" --step 3
said "a misspelt option of bench comm is answered with a suggestion" 'did you mean "--ranks"?' bench comm --rank 3
said "a misspelt option of bench ops is answered with a suggestion" 'did you mean "--tokens"?' bench ops --token 3
said "a misspelt option of report is answered with a suggestion" 'did you mean "--csv"?' report x --cvs
said "a misspelt option of plan is answered with a suggestion" 'did you mean "--machine"?' plan "$TINY" --machin h100
said "an option that ckpt does not have is refused" 'see ./train ckpt list --help' ckpt list --json x
said "an option that doctor does not have is refused" 'see ./train doctor --help' doctor --json
said "a prompt without quotes is refused" 'give one' generate run the king
for line in "$TINY --out" "config check --set" "data tokenize --out" "generate x --prompt" "eval x --set" "bench step x --steps" \
    "bench gemm --dtype" "plan x --machine"; do
    read -ra words <<<"$line"
    said "${words[0]##*/} ${words[-1]} without a value is refused" 'its value is missing; see ./train' "${words[@]}"
    said "${words[0]##*/} ${words[-1]} followed by an option is refused" 'its value is missing, an option follows: --json' \
        "${words[@]}" --json
done
check "cli: no folder is named like an option" test -z "$(find . -name '*--*')"
for line in "$TINY" "config check x" "generate x" "eval x" "bench step x" "plan x"; do
    read -ra words <<<"$line"
    said "${words[0]##*/} --set without = is refused" '--set seed: this is not key=value' "${words[@]}" --set seed
done
said "a value for an option that takes none is refused" '--dry-run takes no value' "$TINY" --dry-run=yes
said "config diff of one config without --set is refused" 'compared with what?' config diff "$TINY"
said "a picture in JSON is refused" '--json prints the keys' config show "$TINY" --json --schedule
help "-h after a config prints help" "$TINY" -h

# The commands that a run prints are executed exactly as printed; --name VALUE and --name=VALUE mean the same.
make_text
rm -r out
ln -s "$TRAIN" train
few=(--set=train_steps=6 --set eval.interval=0 --set=eval.sample_interval=0 --set eval.sample_tokens=2)
# pasted LABEL: runs the command that follows this label in the file "output" in a shell; writes its output to the file
# "pasted"
pasted() {
    local line
    line=$(sed -nE "s/^$1(\\.\\/train .*)/\\1/p" output)
    test -n "$line" && bash -c "$line" >pasted 2>err </dev/null
}
expect_code "cli: --name=value is accepted" 0 "$TRAIN" "$TINY" "${few[@]}" --out=equal
check "cli: every --set=value has its effect" test "$(losses equal/metrics.jsonl | wc -l)" -eq 6
check "cli: the suggested next command runs" pasted 'next    '
check "cli: the suggested next command continues the prompt" grep -q '^the king' pasted
expect_code "cli: config diff of a run folder and its config exits with code 0" 0 "$TRAIN" config diff equal "$TINY" "${few[@]}"
expect_code "cli: config diff of different configs exits with code 1" 1 "$TRAIN" config diff equal "$TINY" "${few[@]}" --set seed=8
check "cli: config diff applies --set to the second config only" grep -qx 'seed  *7 -> 8  (changes the numbers)' output
check "cli: config diff prints the number of differences" grep -qx '1 difference' output
expect_code "cli: config diff compares a config with itself changed by --set" 1 "$TRAIN" config diff "$TINY" --set seed=8
check "cli: config diff of one config prints the changed key" grep -qx 'seed  *7 -> 8  (changes the numbers)' output
expect_code "cli: config diff of a folder that is not a run exits with code 66" 66 "$TRAIN" config diff . "$TINY"
check "cli: config diff names the folder that is no run" grep -q '^error.66. \. is not the folder of a run' output
"$TRAIN" config show "$TINY" --json >plain.json
expect_code "cli: config show --json prints JSON that other programs read" 0 python3 -m json.tool plain.json
expect_code "cli: config show --json prints the whole config" 0 "$TRAIN" config diff "$TINY" plain.json
expect_code "cli: starting a finished run again exits with code 0" 0 "$TRAIN" "$TINY" "${few[@]}" --out equal
check "cli: a finished run with --out suggests another --out" grep -q 'is finished; another --out starts another' output
expect_code "cli: a run in out/ succeeds" 0 "$TRAIN" "$TINY" "${few[@]}"
expect_code "cli: starting a finished run in out/ again exits with code 0" 0 "$TRAIN" "$TINY" "${few[@]}"
check "cli: a finished run in out/ suggests --resume never" grep -q 'is finished; --resume never starts another' output
expect_code "cli: --resume=never starts another run" 0 "$TRAIN" "$TINY" "${few[@]}" --resume=never
check "cli: --resume=never gives the new run a folder of its own" test -s out/tiny-2/result.json
# shellcheck disable=SC2016 # nothing is to be expanded
prompts=('say "$HOME" `id` \\ !' "it's" $'two\nlines "$5"' '--the king')
cp "$TINY" "a config's.json"
tr 'a-m' 'n-z' <text.txt >my.txt
for i in "${!prompts[@]}"; do
    folder="a b'\$i \"$i\"" prompt=${prompts[i]}
    expect_code "cli: a run with prompt $i succeeds" 0 "$TRAIN" "a config's.json" "${few[@]}" --out "$folder" \
        --set "eval.sample_prompt=$prompt"
    check "cli: the suggested command with prompt $i runs" pasted 'next    '
    check "cli: the suggested command has prompt $i unchanged" test "$(head -c ${#prompt} pasted)" = "$prompt"
done
sed -i 's/--set/--set train_steps=5 --set/' output # five steps instead of 40
check "cli: the second suggested command runs" pasted '        '
check "cli: the second suggested command trains on the other text" grep -q '^data    my.txt' pasted

# A file that was written for DeepSpeed: `config check` prints the command that starts it.
printf '%s\n' '{"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}, "my_own_key": 1,' \
    '"sparse_attention": {"mode": "fixed"}, "wandb": {"enabled": true}}' >foreign.json
expect_code "cli: config check refuses a foreign file" 78 "$TRAIN" config check foreign.json --set gradient_clipping=2
check "cli: config check counts the keys without effect" grep -qx '2 keys have no effect here; --verbose lists them' output
check "cli: config check lists what is taken" grep -qE '^scheduler.type  +Constant \(' output
check "cli: config check does not list what is given" test -z "$(grep -E '^(optimizer.params.lr|gradient_clipping) ' output)"
check "cli: config check prints one command" test "$(grep -c '^\./train ' output)" -eq 1
sed -i 's/layers=12/layers=1/; s/size=768/size=16/; s/heads=12/heads=1/; s/steps=1000/steps=1/; s/$/ --set data.seq_length=16/' output
check "cli: the command starts a run" pasted ''
check "cli: the run of a foreign file ends" test -s out/foreign/result.json
# A batch for 256 ranks, which a run cannot have, is accumulated on one.
printf '%s\n' '{"train_batch_size": 512, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 1}' >wide.json
expect_code "cli: config check refuses a file without data" 78 "$TRAIN" config check wide.json
check "cli: config check prints a command for one rank" \
    grep -qE '^\./train wide.json --set data.text=my.txt --set gradient_accumulation_steps=null --set model' output
# A grid without a batch for it needs its ranks on the command line.
for grid in '"tensor_parallel": {"autotp_size": 2}' '"pipeline": {"stages": 2}'; do
    printf '%s\n' "{$grid, \"train_micro_batch_size_per_gpu\": 2, \"fp16\": {\"enabled\": true}, \"bf16\": {\"enabled\": true}}" >grid.json
    expect_code "cli: config check refuses two precisions: $grid" 78 "$TRAIN" config check grid.json
    check "cli: the command for a grid has its ranks: $grid" grep -qE '^\./train grid.json .* --ranks 2' output
    printf '%s\n' "{$grid, \"train_micro_batch_size_per_gpu\": 2, \"data\": {\"text\": \"none.txt\"}, \"fp16\": {\"enabled\": false}}" >grid.json
    "$TRAIN" config check grid.json >output 2>&1
    check "cli: the command with a text has its ranks: $grid" grep -qE '^\./train grid.json --ranks 2' output
done
"$TRAIN" config check "$TINY" --set parallel.tensor=64 --set parallel.pipeline=64 --set model.num_layers=64 \
    --set model.num_attention_heads=64 --set model.hidden_size=128 --set train_batch_size=null >output 2>&1
check "cli: config check says that a grid of 4096 ranks needs a launcher" \
    grep -q 'on 4096 ranks; more than 64 need a launcher' output
"$TRAIN" config check "$TINY" --set parallel.tensor=512 --set parallel.pipeline=256 --set model.num_layers=256 \
    --set model.num_attention_heads=512 --set model.hidden_size=1024 --set model.intermediate_size=4096 \
    --set train_batch_size=null >output 2>&1
check "cli: config check says that a run has no more than 65536 ranks" \
    grep -q 'on 131072 ranks; a run has no more than 65536' output
cp "$here/../golden/config_monitors.json" .
expect_code "cli: config check refuses a file with a key of GPT-NeoX" 78 "$TRAIN" config check config_monitors.json
if diff "$here/../golden/config_monitors.txt" output; then ok "cli: the screen of config check is the golden one"
else not_ok "cli: the screen of config check differs from tests/golden/config_monitors.txt"; fi

# ---- names with line feeds: a message stays one line
for command in "" "generate " "eval " "ckpt list "; do
    # shellcheck disable=SC2086 # words
    "$TRAIN" $command$'no\nname' >output 2>&1
    check "cli: ./train ${command}NAME escapes a line feed in the name" grep -qE '^error.6[46]. .*no\\x0aname' output
done

# ---- the pages: the config and the options of each command that starts a run or verify must be accepted. A preset without a
# text ends with 66, because its token files are not there.
root=$here/../.. commands=0
while read -r line; do
    read -ra words <<<"$line"
    commands=$((commands + 1))
    [[ $line == configs/demo* || $line == *data.text* ]] && expected=0 || expected=66
    expect_code "cli: the pages' command is accepted: $line" $expected "$TRAIN" config check "$root/${words[0]}" "${words[@]:1}"
done < <(sed -nE 's/ *#.*//; s/ --(out [^ ]+|dry-run)//g; s/^ +\.\/train (verify )?(configs\/[a-z0-9_]+\.json.*)/\2/p' "$root"/README.md \
    "$root"/parallel/README.md "$root"/configs/README.md)
check "cli: the pages show commands ($commands)" test "$commands" -ge 10
finish

#!/usr/bin/env bash
# cli.sh -- help on every level goes to stdout and ends with 0; what the command line does not know ends with 64 on stderr.
. "$(dirname "$0")/lib.sh"

# help NAME ARGUMENT...: exit code 0, text on stdout, nothing on stderr
help() {
    local name=$1 code
    shift
    "$TRAIN" "$@" >out 2>err </dev/null
    code=$?
    if [ $code -eq 0 ] && [ -s out ] && ! [ -s err ]; then ok "cli: $name"; else not_ok "cli: $name: exit code $code, $(wc -c <out) bytes on stdout, $(wc -c <err) on stderr"; fi
}

# misuse NAME ARGUMENT...: exit code 64, text on stderr, nothing on stdout
misuse() {
    local name=$1 code
    shift
    "$TRAIN" "$@" >out 2>err </dev/null
    code=$?
    if [ $code -eq 64 ] && [ -s err ] && ! [ -s out ]; then ok "cli: $name"; else not_ok "cli: $name: exit code $code, $(wc -c <out) bytes on stdout, $(wc -c <err) on stderr"; fi
}

help "--help" --help
help "-h" -h
help "no argument" 
for command in config data generate eval ckpt bench doctor; do
    help "$command --help" $command --help
    help "--help $command" --help $command
done
for action in check show explain defaults; do help "config $action --help" config $action --help; done
for action in train-bpe tokenize inspect decode; do help "data $action --help" data $action --help; done
for action in list inspect verify; do help "ckpt $action --help" ckpt $action --help; done
for action in gemm ops step; do help "bench $action --help" bench $action --help; done
help "--help exit-codes" --help exit-codes
for code in 0 64 65 66 73 74 78 85 88 90; do check "cli: exit code $code is explained" grep -qE "^ *$code " out; done
help "--version" --version
check "cli: --version names the commit" grep -q commit out
help "doctor" doctor
check "cli: every finding of doctor has its mark" test -z "$(grep -vE '^(ok|--|!!) ' out)"
help "config defaults" config defaults
cp out defaults.json
"$TRAIN" config explain optimizer.params.lr >out 2>&1
check "cli: config explain" grep -q lr out

rooms=()
for room in configs data model optim parallel; do rooms+=("$here/../../$room"); done
check "cli: bug 52: no check is an assert, which NDEBUG would take away" \
    test -z "$(grep -rlE 'assert\.h|\<assert *\(' --include='*.[ch]' "${rooms[@]}")"

misuse "an unknown command" trian
misuse "an unknown option" "$TINY" --sett a=1
misuse "a missing value" "$TINY" --set
misuse "two configs" "$TINY" "$TINY"
misuse "an unknown help topic" --help nonsense
for command in config data ckpt bench doctor; do misuse "$command nonsense" $command nonsense; done
for command in config data ckpt bench generate eval; do misuse "$command without arguments" $command; done
finish

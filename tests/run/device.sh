#!/usr/bin/env bash
# device.sh -- what is said where the config asks for a GPU: a sentence and exit code 69 when there is none or CUDA is not
# built in; "auto" goes on with what there is, and doctor says which.
. "$(dirname "$0")/lib.sh"

make_text
"$TRAIN" doctor >doctor 2>&1
case $(grep -E '^(ok|--|!!)  cuda ' doctor) in
"ok"*) state=present ;;
*"not built into this program"*) state=absent sentence='device "cuda" is not built into this program' ;;
*"built in; no device"*"the CPU path is ready"*) state=idle sentence='NVIDIA' ;;
*) state=unknown sentence='?' ;;
esac
check "device: doctor says whether CUDA is built in and has a device" test $state != unknown

if [ $state = present ]; then
    skip "device: a GPU that is not there" "there is one"
else
    expect_code "device: cuda where there is none" 69 "$TRAIN" "$TINY" --set device=cuda --out missing
    check "device: a sentence" grep -qF "$sentence" output
fi
expect_code "device: auto" 0 "$TRAIN" "$TINY" --set device=auto --set train_steps=6 --set eval.interval=0 --out auto
finish

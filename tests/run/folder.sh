#!/usr/bin/env bash
# folder.sh -- a run folder that somebody else has a hand in: names that are no UTF-8, checkpoints that cannot be listed or
# read, a disk that is too small, links and folders where files are needed, a lock that is removed.
. "$(dirname "$0")/lib.sh"
make_text
common=(--set train_steps=20 --set eval.interval=0 --set eval.sample_interval=0 --set cpu.threads=1)

# ---- names ----
n=0
for name in $'d\xe9' $'a\nb' 'q"\\uot'; do
    n=$((n + 1))
    mkdir "$name"
    cp "$TINY" "$name/$name.json"
    expect_code "folder: name $n: a run" 0 "$TRAIN" "$name/$name.json" "${common[@]}" --out odd-$n
    expect_code "folder: name $n: its checkpoints verify" 0 "$TRAIN" ckpt verify odd-$n
    rm -r odd-$n/result.json odd-$n/checkpoints/step_00000020
    expect_code "folder: name $n: it goes on" 0 "$TRAIN" "$name/$name.json" "${common[@]}" --out odd-$n
    check "folder: name $n: ... from step 10" grep -q 'resume  step 10' output
    check "folder: name $n: metrics are UTF-8" iconv -f UTF-8 -t UTF-8 -o /dev/null odd-$n/metrics.jsonl
    if command -v python3 >/dev/null; then
        check "folder: name $n: ... and JSON" python3 -c 'import json,sys; [json.loads(l) for l in open(sys.argv[1], encoding="utf-8")]' odd-$n/metrics.jsonl
    else
        skip "folder: name $n: ... and JSON" "there is no python3"
    fi
done
finish

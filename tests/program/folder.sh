#!/usr/bin/env bash
# folder.sh -- tests run folders that something else has changed: names that are not UTF-8, checkpoints that cannot be
# listed or read, a disk that is too small, links and folders in place of files, and a removed lock.
. "$(dirname "$0")/lib.sh"
make_text
child='' code=''
# What a batch contains does not matter here, so batches are small.
common=(--set train_steps=20 --set eval.interval=0 --set eval.sample_interval=0 --set cpu.threads=1
    --set data.seq_length=8 --set train_micro_batch_size_per_gpu=2)

# ---- names ----
n=0
for name in $'d\xe9' $'a\nb' 'q"\\uot'; do
    n=$((n + 1))
    mkdir "$name"
    cp "$TINY" "$name/$name.json"
    expect_code "folder: name $n: a run succeeds" 0 "$TRAIN" "$name/$name.json" "${common[@]}" --out odd-$n
    expect_code "folder: name $n: ckpt verify accepts its checkpoints" 0 "$TRAIN" ckpt verify odd-$n
    rm -r odd-$n/result.json odd-$n/checkpoints/step_00000020
    expect_code "folder: name $n: the run resumes" 0 "$TRAIN" "$name/$name.json" "${common[@]}" --out odd-$n
    check "folder: name $n: the run resumes from step 10" grep -q 'resume  step 10' output
    check "folder: name $n: the metrics are valid UTF-8" iconv -f UTF-8 -t UTF-8 -o /dev/null odd-$n/metrics.jsonl
    check "folder: name $n: the metrics are valid JSON" python3 \
        -c 'import json,sys; [json.loads(l) for l in open(sys.argv[1], encoding="utf-8")]' odd-$n/metrics.jsonl
done
# ---- checkpoints that cannot be listed, and a run without checkpoints ----
expect_code "folder: a run for the following checks succeeds" 0 "$TRAIN" "$TINY" "${common[@]}" --out run
rm -r run/result.json run/checkpoints/step_00000020
mv run/checkpoints elsewhere
ln -s /nowhere/checkpoints run/checkpoints
sha256sum run/metrics.jsonl run/config.json run/machine.json >sum
expect_code "folder: a dangling link instead of the folder checkpoints exits with code 66" 66 "$TRAIN" "$TINY" "${common[@]}" \
    --out run --set checkpoint.keep=9
check "folder: a dangling link instead of the folder checkpoints is named" grep -q 'run/checkpoints is a symbolic link' output
check "folder: a dangling link instead of the folder checkpoints leaves all files as they are" sha256sum --quiet -c sum
expect_code "folder: generate refuses a dangling link instead of the folder checkpoints" 66 "$TRAIN" generate run --tokens 3
rm run/checkpoints
expect_code "folder: a run with metrics and no checkpoint starts again" 0 "$TRAIN" "$TINY" "${common[@]}" --out run
check "folder: a run that starts again says that it has no checkpoint" grep -q 'has no checkpoint and starts at step 0' output
check "folder: a run that starts again keeps its old metrics" test "$(losses run/metrics.before-attempt-*.jsonl | wc -l)" -eq 20
check "folder: a run that starts again writes new metrics" test "$(losses run/metrics.jsonl | wc -l)" -eq 20
mv elsewhere/step_00000010 run/checkpoints/step_00000030
rm run/result.json
expect_code "folder: a run resumes although a checkpoint has another step than its name" 0 "$TRAIN" "$TINY" "${common[@]}" \
    --out run
check "folder: a checkpoint with another step than its name is skipped with a message" grep -q 'step_00000030 holds step 10' \
    output

# ---- links ----
mkdir linked
echo precious >precious
ln -s ../precious linked/lock
expect_code "folder: a lock file that is a symbolic link is refused" 73 "$TRAIN" "$TINY" "${common[@]}" --out linked
rm linked/lock
ln -s ../precious linked/samples.txt
cp run/config.json linked/
expect_code "folder: samples.txt as a symbolic link exits with code 74" 74 "$TRAIN" "$TINY" "${common[@]}" --out linked
check "folder: samples.txt as a symbolic link is named" grep -q 'linked/samples.txt is a symbolic link' output
check "folder: samples.txt as a symbolic link is not followed" test "$(cat precious)" = precious

# ---- files and folders in the way ----
in_the_way() { # in_the_way NAME CODE WORDS OPTION...: expects CODE and WORDS from a run resumed in NAME
    local name=$1 code=$2 words=$3
    shift 3
    expect_code "folder: $name in the way exits with code $code" "$code" "$TRAIN" "$TINY" "${common[@]}" "$@" --out "$name"
    check "folder: $name in the way is named in the error message" grep -qE "^error.$code. $words" output
}
for name in description result logs; do
    cp -r run "way-$name"
    rm -r "way-$name/result.json" "way-$name/checkpoints/step_00000020"
done
rm -f way-description/machine.attempt-*
for attempt in {1..9}; do mkdir "way-description/machine.attempt-$attempt.json"; done
mkdir way-result/result.json
touch way-logs/logs
in_the_way way-description 74 'cannot .*way-description/machine.attempt-'
in_the_way way-result 74 'the run reached its goal, but its result is not written: '
in_the_way way-logs 73 '.*way-logs/logs' --log-ranks
mkdir hollow
expect_code "folder: ckpt list of a folder without checkpoints exits with code 66" 66 "$TRAIN" ckpt list hollow
check "folder: ckpt list says that a folder has no checkpoint" grep -qx 'error.66. hollow holds no checkpoint' output
expect_code "folder: ckpt list of a missing folder exits with code 66" 66 "$TRAIN" ckpt list nowhere
check "folder: ckpt list says that a folder does not exist" grep -qx 'error.66. there is no folder nowhere' output

# ---- failed saves: the messages must say what the run does next ----
cp -r run before
rm -r before/result.json before/checkpoints before/metrics*
mkdir before/checkpoints
cp -r run/checkpoints/step_00000020 before/checkpoints/
limited() { (ulimit -f 300; exec "$TRAIN" "$TINY" "${common[@]}" "$@"); }
# Training goes on while a thread writes: on a busy machine it may end before it hears of the first failure.
expect_code "folder: a run without any successful save exits with code 74" 74 limited --out full --set checkpoint.async=false
check "folder: a failed save at an interval announces the next try at the next interval" \
    grep -q 'step 10 is not saved: .*; trying again at the next interval' output
check "folder: a failed save at the last interval announces a last try at the end" \
    grep -q 'step 20 is not saved: .*; trying again before the run ends' output
check "folder: a failed last save announces no further try" grep -qE 'step 20 is not saved: .*File too large$' output
check "folder: a run without a checkpoint says that it will start again" grep -q 'begins anew' output
for interval in 0 20; do
    expect_code "folder: a run that saves only at its end and cannot save exits with code 74" 74 limited --out end \
        --set checkpoint.save_interval=$interval
    check "folder: a run that saves only at its end and cannot save ends before its first step" grep -qE \
        '^error\[74\] this run saves only at its end, and a trial at its start failed: cannot write .*: File too large$' output
    check "folder: a failed trial leaves no checkpoint" test -z "$(checkpoint_steps end)"
done
expect_code "folder: a run that saves only at its end and can save succeeds" 0 "$TRAIN" "$TINY" "${common[@]}" --out end \
    --set checkpoint.save_interval=0
check "folder: a trial leaves nothing" test "$(find end/checkpoints -mindepth 1 -maxdepth 1 -name "*step_*")" = end/checkpoints/step_00000020
expect_code "folder: a run whose later saves fail exits with code 74" 74 limited --out before --set train_steps=25 \
    --allow-config-change
check "folder: a run whose later saves fail names the checkpoint from which it resumes" \
    grep -q 'goes on from the checkpoint before it' output

# ---- permissions: they do not restrict root, so if the test runs as root it starts the program as the user nobody ----
as_nobody=()
[ "$(id -u)" -eq 0 ] && as_nobody=(setpriv --reuid=65534 --regid=65534 --clear-groups)
denied() { # denied NAME COMMAND...: expects exit code 77 from the unprivileged user's command
    local name=$1
    shift
    expect_code "folder: $name" 77 "${as_nobody[@]}" "$@"
}
mkdir mine
cp -r run text.txt "$TINY" mine/
chmod 755 . mine
[ "$(id -u)" -eq 0 ] && chown -R 65534:65534 mine
cd mine || exit 71
program=$TRAIN
cp "$TRAIN" train
chmod 755 train
TRAIN=$PWD/train
expect_code "folder: an unprivileged user's own run resumes" 0 "${as_nobody[@]}" "$TRAIN" tiny.json "${common[@]}" --out run \
    --allow-config-change
rm run/result.json
"${as_nobody[@]}" chmod 0 run/checkpoints/step_00000020/manifest.json
denied "a manifest without permission ends with 77" "$TRAIN" tiny.json "${common[@]}" --out run
denied "ckpt verify of a manifest without permission ends with 77" "$TRAIN" ckpt verify run
deep=$(printf '%0220d/' 1 2 3 4 5)
mkdir -p "$deep"
mv run "$deep"
denied "ckpt verify of a path longer than an error message ends with 77" "$TRAIN" ckpt verify "${deep}run"
mv "${deep}run" .
denied "generate with a manifest without permission ends with 77" "$TRAIN" generate run --tokens 3
chmod 600 run/checkpoints/step_00000020/manifest.json
chmod 0 run/checkpoints
cp run/metrics.jsonl lines
denied "a folder checkpoints without permission ends with 77" "$TRAIN" tiny.json "${common[@]}" --out run
check "folder: checkpoints without permission leave the metrics unchanged" cmp lines run/metrics.jsonl
denied "ckpt list of a folder checkpoints without permission ends with 77" "$TRAIN" ckpt list run
chmod 700 run/checkpoints
chmod 0 run/config.json
denied "a run's config without permission ends with 77" "$TRAIN" tiny.json "${common[@]}" --out run
denied "eval with a config without permission ends with 77" "$TRAIN" eval run
chmod 600 run/config.json
chmod 0 run/metrics.jsonl
denied "a metrics.jsonl without permission ends with 77" "$TRAIN" tiny.json "${common[@]}" --out run
denied "a metrics.jsonl without permission ends all processes with 77" "$TRAIN" tiny.json "${common[@]}" --ranks 2 --processes \
    --set gradient_accumulation_steps=1 --allow-config-change --out run
check "folder: a metrics.jsonl without permission is reported once" test "$(grep -c '^error' output)" -eq 1
chmod 600 run/metrics.jsonl
chmod 0 run/tokenizer.json
denied "a tokenizer without permission ends with 77" "$TRAIN" tiny.json "${common[@]}" --out run
denied "generate with a tokenizer without permission ends with 77" "$TRAIN" generate run --tokens 3
chmod 600 run/tokenizer.json
chmod 500 run
denied "a run folder in which no file can be created ends with 77" "$TRAIN" tiny.json "${common[@]}" --out run
chmod 700 run
chmod 0 run/checkpoints/step_00000010
denied "--resume of a checkpoint without permission ends with 77" "$TRAIN" tiny.json "${common[@]}" \
    --resume run/checkpoints/step_00000010 --out new
check "folder: --resume of a checkpoint without permission names the option" \
    grep -q '^error.77. --resume run/checkpoints/step_00000010: Permission denied$' output
chmod 700 run/checkpoints/step_00000010
cp -rp run best
id=$(sed -nE 's/.*"save_id": *"([0-9a-f]+)".*/\1/p' best/checkpoints/step_00000010/manifest.json | head -n 1)
printf '{"step": 10, "val_loss": 3.5, "save_id": "%s"}\n' "$id" >best/checkpoints/best.json
cp best/checkpoints/best.json record
chmod 0 best/checkpoints/step_00000010
denied "a best checkpoint without permission ends with 77" "$TRAIN" tiny.json "${common[@]}" --set train_steps=30 \
    --allow-config-change --set checkpoint.keep=1 --out best
check "folder: a best checkpoint without permission is named" grep -q '^error.77. the best checkpoint may be whole' output
check "folder: a best checkpoint without permission stays recorded" cmp record best/checkpoints/best.json
check "folder: a best checkpoint without permission stays" test -d best/checkpoints/step_00000010
chmod 700 best/checkpoints/step_00000010
mkdir -p out/tiny
cp -p run/config.json out/tiny/
chmod 0 out/tiny/config.json
denied "a new run with an unreadable run of the same name ends with 77" "$TRAIN" tiny.json "${common[@]}"
check "folder: an unreadable run of the same name is reported as possibly the same run" \
    grep -q 'it cannot be told whether that run is this config' <(tr -s ' \n' ' ' <output)
rm -r out/tiny
# With one damaged checkpoint and one without read permission, in either order, the missing permission decides the exit
# code.
for closed in 10 20; do
    cp -rp run both
    printf x | dd of=both/checkpoints/step_000000$((30 - closed))/model.safetensors bs=1 seek=5000 conv=notrunc status=none
    expect_code "folder: verify reports a damaged checkpoint, step $((30 - closed))" 65 "${as_nobody[@]}" "$TRAIN" ckpt verify \
        both
    chmod 0 both/checkpoints/step_000000$closed/manifest.json
    denied "a damaged checkpoint and one without permission at step $closed ends with 77" "$TRAIN" ckpt verify both
    rm -r both
done

# ---- saves without permission end with 77, other failed saves with 74 ----
longer=("${common[@]}" --set train_steps=22 --allow-config-change)
cp -rp run refused
chmod 500 refused/checkpoints
denied "a last save without permission ends with 77" "$TRAIN" tiny.json "${longer[@]}" --out refused
check "folder: a last save without permission is reported with its reason" grep -q 'step 22 is not saved: .*Permission denied' \
    output
check "folder: a run says that its last checkpoint is missing" \
    grep -q '^error.77. the run reached its goal, but its last checkpoint is not written' output
cp -rp run kept
chmod 500 kept/checkpoints/step_*
expect_code "folder: a save succeeds although older checkpoints cannot be removed" 0 "${as_nobody[@]}" "$TRAIN" tiny.json \
    "${longer[@]}" \
    --set checkpoint.keep=1 --out kept
check "folder: older checkpoints that cannot be removed cause a warning" grep -q '^warning: .*older checkpoints stay' \
    <(tr -s ' \n' ' ' <output | sed 's/ warning:/\nwarning:/g')
check "folder: the new checkpoint exists although older ones cannot be removed" \
    test -s kept/checkpoints/step_00000022/manifest.json
printf '#!/bin/sh\nexec %s "$@"\n' "${as_nobody[*]} $TRAIN" >as-nobody
chmod 755 as-nobody
nobodys=$TRAIN tiny=$TINY
TRAIN=$PWD/as-nobody TINY=tiny.json
held 3 stopping "${common[@]}"
mkdir -m 555 stopping/checkpoints
kill -TERM "$child"
let_go
TRAIN=$nobodys TINY=$tiny
check "folder: a stop without permission to save exits with code 77 (got $code)" test "$code" -eq 77
check "folder: a stop without permission to save says which steps are lost" \
    grep -q 'stopped after step [0-9]*, which is not saved; no checkpoint was written' err

chmod 0 tiny.json
denied "a config without permission ends with 77" "$TRAIN" tiny.json --out new
denied "config check of a config without permission ends with 77" "$TRAIN" config check tiny.json
chmod 600 tiny.json text.txt
chmod 0 text.txt
denied "a text without permission ends with 77" "$TRAIN" tiny.json --out new
denied "a dry run with a text without permission ends with 77" "$TRAIN" tiny.json --dry-run
denied "data train-bpe of a text without permission ends with 77" "$TRAIN" data train-bpe text.txt --vocab 300 --out t.json
chmod 600 text.txt
chmod 500 out/corpora
denied "a cache without permission ends with 77" "$TRAIN" tiny.json --set data.tokenizer_vocab_size=299 --out new
chmod 700 out/corpora
chmod 0 out/corpora/*/meta.json
denied "prepared text without permission ends with 77" "$TRAIN" tiny.json --out new
check "folder: unreadable prepared text gives no advice to remove its folder" bash -c '! grep -q "remove that folder" output'
chmod 600 out/corpora/*/meta.json
chmod 0 out/corpora/*/train_000000.bin
denied "data inspect of a token shard without permission ends with 77" "$TRAIN" data inspect out/corpora/*/train_000000.bin
denied "a token shard without permission as data.train ends with 77" "$TRAIN" tiny.json --set data.text=null \
    --set 'data.train="out/corpora/*/train_*.bin"' --out new
chmod 600 out/corpora/*/train_000000.bin
chmod 500 out
expect_code "folder: doctor runs where nothing can be written" 0 "${as_nobody[@]}" "$TRAIN" doctor
check "folder: doctor says that nothing can be written" \
    grep -qE '^!!  disk +[0-9.]+ GiB free for ./out, but nothing can be written there$' output
chmod 700 out
expect_code "folder: doctor runs where files can be written" 0 "${as_nobody[@]}" "$TRAIN" doctor
check "folder: doctor does not complain where files can be written" grep -qE '^(ok|!!)  disk +[0-9.]+ GiB free for ./out$' \
    output
mkdir closed
chmod 500 closed
[ "$(id -u)" -eq 0 ] && chown 65534 closed
denied "a run folder that cannot be created ends with 77" "$TRAIN" tiny.json "${common[@]}" --out closed/run
chmod 700 closed
cd .. || exit 71
TRAIN=$program

# ---- a small disk: a tmpfs, on systems that allow the test to mount one ----
if small 64 true 2>/dev/null; then
    run="'$TRAIN' '$TINY' ${common[*]}"
    expect_code "folder: a disk without room for one checkpoint exits with code 74" 74 small 300 "$run --out small/run"
    check "folder: a disk without room for one checkpoint ends the run before any step" bash \
        -c 'grep -q "nothing of this run could be saved" output && ! grep -q tok/s output'
    expect_code "folder: a dry run on a small disk succeeds" 0 small 1500 \
        "$run --dry-run --out small/run --set checkpoint.keep=0 --set checkpoint.save_interval=1"
    check "folder: a dry run warns that all kept checkpoints need more room" grep -q 'checkpoints will need' output
    check "folder: a dry run counts the checkpoints that will be kept" grep -q 'all 20 kept' output
    expect_code "folder: a dry run on a small disk with keep_every succeeds" 0 small 1500 \
        "$run --dry-run --out small/run --set checkpoint.keep=1 --set checkpoint.save_interval=1 --set checkpoint.keep_every=2"
    check "folder: a dry run warns that one checkpoint every two steps needs more room" grep -q 'checkpoints will need' output
    check "folder: a dry run says how often a checkpoint stays" grep -q '1 kept.* and one every 2 steps' output
    run="$run --set checkpoint.save_interval=4 --set checkpoint.keep=2 --out small/run"
    expect_code "folder: a run with room for two of three checkpoints succeeds" 0 small 1300 "$run && ls small/run/checkpoints"
    check "folder: a run with little room removes an older checkpoint first" grep -q 'made room' output
    check "folder: a run with little room has its last checkpoint" grep -q 'step_00000020' output
    check "folder: a run with little room has no failed save" bash -c '! grep -q "is not saved" output'
    expect_code "folder: a run with little room can be continued" 0 small 1300 \
        "$run && $run --set train_steps=24 --allow-config-change && ls small/run/checkpoints"
    check "folder: a continued run with little room saves" grep -q 'step_00000024' output
    # Existing checkpoints need no additional room, neither in out/NAME nor under --out.
    run="'$TRAIN' '$TINY' ${common[*]} --set data.text=../text.txt --set checkpoint.save_interval=4 --set checkpoint.keep=2"
    expect_code "folder: a run in out/NAME resumes on a small disk" 0 small 2000 \
        "cd small && $run && rm out/*/result.json && echo again && $run"
    check "folder: a run in out/NAME resumes from step 20 on a small disk" bash \
        -c 'sed "1,/^again/d" output | grep -q "resume  *step 20"'
    check "folder: a resumed run counts the checkpoints that exist" bash \
        -c '! sed "1,/^again/d" output | grep -q "checkpoints will need"'
else
    skip "folder: runs on a small disk" "this system mounts no tmpfs for us"
fi
finish

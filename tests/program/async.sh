#!/usr/bin/env bash
# async.sh -- tests that runs whose checkpoints are written by threads while they train have the bits of runs that wait, also
# after random kills, on three grids. POINTS: kills on each grid (5); they are the same every time, SEED=n draws others.
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/lib.sh"
make_text
mkfifo lines
RANDOM=$((${SEED:-1} % 32768))
points=${POINTS:-5}
# Slow builds run one grid, and fewer steps: they look for races, which are the same on all.
all_cases() { [ -z "${TEST_SAMPLE:-}" ]; }
last=24
all_cases || last=8 points=1
run=(--set train_batch_size=16 --set train_micro_batch_size_per_gpu=2 --set gradient_accumulation_steps=auto --set cpu.threads=1
    --set model.num_layers=4 --set "train_steps=$last" --set checkpoint.save_interval=2 --set checkpoint.keep=2 --set eval.interval=8
    --set eval.steps=4 --set eval.sample_interval=8)

# same_files NAME A B STEP: expects that the tensors of both runs' checkpoints of this step are the same
same_files() {
    local a b x file
    a=$(printf '%s/checkpoints/step_%08d' "$2" "$4")
    b=$(printf '%s/checkpoints/step_%08d' "$3" "$4")
    for file in "$a"/*.safetensors; do
        x=$b/${file##*/}
        if ! [ -f "$x" ] || ! cmp -i "$(tensors "$file"):$(tensors "$x")" "$file" "$x"; then not_ok "$1: $file differs"; return; fi
    done
    losses "$2/metrics.jsonl" >losses.a
    losses "$3/metrics.jsonl" >losses.b
    check "$1" cmp losses.a losses.b
}

# ends NAME FOLDER OPTION...: expects that a run that was killed ends with the bits of one that was not, and removes it
ends() {
    local name=$1 folder=$2
    expect_code "async: a killed run resumes and reaches its end ($name)" 0 "$TRAIN" "$TINY" "${run[@]}" "${@:3}" --out "$folder"
    same_files "async: the same bits as a run that was never killed ($name)" "$name-waits" "$folder" $last
    check "async: no temporary folder is left ($name)" test -z "$(find "$folder/checkpoints" -maxdepth 1 -name '*.tmp-*' -o -name '.trash-*')"
    rm -rf "$folder"
}

# grid NAME OPTION...: tests the runs on this grid
grid() {
    local name=$1 folder i n from child killed pending
    shift
    expect_code "async: a run with synchronous saves succeeds ($name)" 0 "$TRAIN" "$TINY" "${run[@]}" "$@" --set checkpoint.async=false --out "$name-waits"
    expect_code "async: a run with asynchronous saves succeeds ($name)" 0 "$TRAIN" "$TINY" "${run[@]}" "$@" --out "$name-goes-on"
    same_files "async: the same bits as with synchronous saves ($name)" "$name-waits" "$name-goes-on" $last
    same_files "async: a checkpoint has the same bits as a synchronous one ($name)" "$name-waits" "$name-goes-on" $((last - 2))
    check "async: every second step is saved once, in order ($name)" test \
        "$(sed -nE 's/.*"event": "ckpt", "step": ([0-9]+),.*/\1/p' "$name-goes-on/metrics.jsonl" | tr '\n' ' ')" = "$(seq -s ' ' 2 2 $last) "
    check "async: only the newest checkpoints and the best are kept ($name)" test "$(checkpoint_steps "$name-goes-on" | tail -n 2 | tr '\n' ' ')" = "$((last - 2)) $last " \
        -a "$(checkpoint_steps "$name-goes-on" | wc -l)" -le 3
    # Chains of kills, each some milliseconds after a step: while a save is pending, or between saves.
    folder=$name-killed killed=0 pending=0
    for ((i = 0; i < 4 * points && killed < points; i++)); do
        from=$(checkpoint_steps "$folder" | grep -x "[0-9]*" | tail -n 1)
        n=$((${from:-0} + 1 + RANDOM % 4))
        if ((n > last - 2)); then
            ends "$name" "$folder" "$@"
            n=$((1 + RANDOM % 4))
        fi
        "$TRAIN" "$TINY" --json "${run[@]}" "$@" --out "$folder" >lines 2>/dev/null </dev/null &
        child=$!
        children+=("$child")
        exec 3<lines
        until_step "$n" <&3
        sleep "0.0$((RANDOM % 3))$((RANDOM % 10))"
        kill -KILL $child
        exec 3<&-
        wait $child 2>/dev/null
        [ $? -ne 137 ] || killed=$((killed + 1))
        [ -z "$(find "$folder/checkpoints" -maxdepth 1 -name '*.tmp-*' 2>/dev/null)" ] || pending=$((pending + 1))
    done
    ends "$name" "$folder" "$@"
    check "async: it was killed $killed times, $pending of them while files were written ($name)" test $killed -eq "$points"
}
all_cases && grid alone
all_cases && grid sharded --ranks 2 --set zero_optimization.stage=3 --set zero_optimization.stage3_param_persistence_threshold=0 --set checkpoint.writers=2
grid stages --ranks 4 --set parallel.pipeline=2 --set zero_optimization.stage=1 --set checkpoint.writers=3

all_cases || finish

# ---- which saves wait ------------------------------------------------------------------------------------------------
# waited FOLDER: prints the steps whose save the training waited for
waited() {
    sed -nE 's/.*"event": "ckpt", "step": ([0-9]+),.*"seconds": ([^,]*), "stall": ([^,]*),.*/\1 \2 \3/p' "$1/metrics.jsonl" |
        awk '$2 == $3 { printf "%s ", $1 }'
}
check "async: the run waits only for the last save" test "$(waited alone-goes-on)" = "24 "
check "async: with checkpoint.async false the run waits for all saves" test "$(waited alone-waits)" = "$(seq -s ' ' 2 2 24) "
check "async: the plan counts the snapshot" grep -q "snapshot [0-9]" output
expect_code "async: a run that saves only at its end succeeds" 0 "$TRAIN" "$TINY" "${run[@]}" --set checkpoint.save_interval=0 --set train_steps=6 --out end
check "async: a run that saves only at its end plans no snapshot" test "$(grep -c "snapshot" output)" = 0

# ---- a disk that fails -----------------------------------------------------------------------------------------------
# No file may have more than 96 KiB, which a checkpoint's files need and no others.
limited() { (ulimit -f 96 && exec "$@"); }
expect_code "async: a run whose saves all fail exits with code 74" 74 limited "$TRAIN" "$TINY" "${run[@]}" --set train_steps=8 --out failing
for step in 2 4 6 8; do
    check "async: the failed save of step $step is reported" grep -q "step $step is not saved: cannot write" <(tr -s ' \n' ' ' <output)
done
check "async: the message says that the save is tried again" grep -q "trying again at the next interval" <(tr -s ' \n' ' ' <output)
check "async: failed saves leave no files" test -z "$(find failing/checkpoints -mindepth 1 -name '*step_*')"
expect_code "async: the same command succeeds on a sound disk" 0 "$TRAIN" "$TINY" "${run[@]}" --set train_steps=8 --out failing

# ---- a stop ----------------------------------------------------------------------------------------------------------
"$TRAIN" "$TINY" --json "${run[@]}" --set train_steps=2000 --set checkpoint.save_interval=3 --out stopped >lines 2>/dev/null </dev/null &
child=$!
children+=("$child")
exec 3<lines
until_step 9 <&3
kill -TERM $child
cat <&3 >/dev/null
exec 3<&-
wait $child
check "async: a stop exits with code 85" test $? = 85
last=$(sed -nE 's/.*"event": "train", "step": ([0-9]+),.*/\1/p' stopped/metrics.jsonl | tail -n 1)
check "async: a stop saves its last step" test "$(checkpoint_steps stopped | tail -n 1)" = "$last"

# ---- the best, and milestones ----------------------------------------------------------------------------------------
expect_code "async: a run with milestones succeeds" 0 "$TRAIN" "$TINY" "${run[@]}" --set checkpoint.keep=1 --set checkpoint.keep_every=10 --out miles
for step in 10 20 24; do
    check "async: milestone $step is kept" grep -qx $step <(checkpoint_steps miles)
done
best=$(sed -nE 's/.*"step": ([0-9]+).*/\1/p' miles/checkpoints/best.json)
check "async: the best checkpoint is there" grep -qx "$best" <(checkpoint_steps miles)
finish

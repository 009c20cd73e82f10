#!/usr/bin/env bash
# grids.sh -- tests whole runs on tensor-parallel ranks and pipeline stages: they have the losses of one rank, they can be
# resumed on other grids, and generate and eval open them on any grid. STEPS: steps of each run (24).
# shellcheck source-path=SCRIPTDIR
source "$(dirname "$0")/lib.sh"
make_text
child='' code=''
set -m # without job control, background processes would ignore SIGINT
steps=${STEPS:-24}
run=(--set model.num_layers=4 --set train_batch_size=12 --set train_micro_batch_size_per_gpu=2 --set gradient_accumulation_steps=auto
    --set fp64.enabled=true --set cpu.threads=1 --set parallel.timeout=60 --set "train_steps=$steps" --set eval.interval=10
    --set eval.sample_interval=10 --set checkpoint.save_interval=0)

# on PP TP RANKS SETTING...: stores the options of a grid in the list `on`
on() {
    on=(--set "parallel.pipeline=$1" --set "parallel.tensor=$2" --ranks "$3")
    for setting in "${@:4}"; do on+=(--set "$setting"); done
}

# ---- the losses of one rank ------------------------------------------------------------------------------------------
expect_code "grids: a run on one rank succeeds" 0 "$TRAIN" "$TINY" "${run[@]}" --out one
# as NAME LINE PP TP RANKS SETTING...: starts a run on that grid and expects that its console has LINE
as() {
    local name=$1 line=$2
    shift 2
    on "$@"
    expect_code "grids: a run on $line succeeds" 0 "$TRAIN" "$TINY" "${run[@]}" "${on[@]}" --out "$name"
    # The line is wrapped at the width of the console.
    check "grids: the grid is printed: $line" grep -qF "ranks $line" <(tr -s ' \n' ' ' <output)
    alike "grids: a run on $line has the same losses as on one rank" one "$name"
    check "grids: a run on $line has the same sample as on one rank" test "$(text one)" = "$(text "$name")"
}
as pp2tp2 "4 = pp 2 x tp 2 (threads, 1 thread each), ZeRO 0, 1f1b, 6 micro-batches, bubble 14 %" 2 2 4
turn 0 && as gpipe "4 = pp 2 x tp 2 (threads, 1 thread each), ZeRO 0, gpipe, 6 micro-batches, bubble 14 %" 2 2 4 parallel.schedule=gpipe
turn 0 && same_run "grids: gpipe has the same bits as 1f1b" pp2tp2 gpipe
turn 1 && as stages3 "3 = pp 3 (threads, 1 thread each), ZeRO 0, 1f1b, 6 micro-batches, bubble 25 %" 3 1 3 "parallel.pipeline_split=[2,1,1]"
turn 0 && as rows "4 = dp 2 x tp 2 (threads, 1 thread each), ZeRO 3, sequence parallel" 1 2 4 parallel.sequence_parallel=true \
    zero_optimization.stage=3 activation_checkpointing.policy=full
turn 1 && as chunks "4 = pp 2 x dp 2 (threads, 1 thread each), ZeRO 1, interleaved x 2, 3 micro-batches, bubble 14 %" 2 1 4 \
    parallel.pipeline_chunks=2 zero_optimization.stage=1
on 2 2 4 parallel.schedule=gpipe
expect_code "grids: a dry run on a grid succeeds" 0 "$TRAIN" "$TINY" "${run[@]}" "${on[@]}" --dry-run --out dry
check "grids: a dry run on a grid prints one line and leaves no folder" test "$(grep -c '^dry run' output)" -eq 1 -a ! -e dry
for how in " on 2 ranks; --world N looks whether its batch fits N of them" "--world=6 on 6 ranks" "--world=2 on 2 ranks"; do
    read -ra options <<<"${how%% on *}"
    expect_code "grids: config check${how%% on *} accepts the config" 0 "$TRAIN" config check "$TINY" --set parallel.tensor=2 \
        "${options[@]}"
    check "grids: config check${how%% on *} prints the number of ranks" grep -qx ".*tiny.json: good on ${how#* on }" output
done
show=(config show "$TINY" --set model.num_layers=5 --set gradient_accumulation_steps=3 --schedule)
expect_code "grids: config show --schedule succeeds" 0 "$TRAIN" "${show[@]}" --world 4 --set parallel.pipeline=2 \
    --set "parallel.pipeline_split=[3,2]"
cat >expected <<'END'
1f1b, 3 micro-batches, bubble 25 %
stage 0  embedding, blocks 0 to 2
stage 1  blocks 3 to 4, head
stage 0  F0 F1       B0--- F2 B1---    B2---
stage 1     F0 B0--- F1 B1--- F2 B2---
END
check "grids: a schedule is drawn with the layers of its stages" diff expected <(sed 's/ *$//' output)
expect_code "grids: the schedule of interleaved chunks is shown" 0 "$TRAIN" "${show[@]}" --world 2 --set parallel.pipeline=2 \
    --set parallel.pipeline_chunks=2 \
    --set "parallel.pipeline_split=[1,2,1,1]" --set model.vocab_size=300
check "grids: the schedule of chunks names the layers of each chunk" test "$(sed -n 2,3p output)" = \
    $'stage 0  a: embedding, block 0; b: block 3\nstage 1  a: blocks 1 to 2; b: block 4, head'
check "grids: a split that does not depend on the vocabulary does not mention it" test "$(grep -c vocabulary output)" -eq 0
expect_code "grids: the schedule of one micro-batch is shown" 0 "$TRAIN" "${show[@]}" --world 2 --set parallel.pipeline=2 \
    --set gradient_accumulation_steps=1
check "grids: the schedule of one micro-batch is written in the singular" test "$(head -n 1 output)" = \
    "1f1b, 1 micro-batch, bubble 50 %"
expect_code "grids: the schedule of one stage is shown" 0 "$TRAIN" "${show[@]}"
check "grids: the schedule of one stage does not mention the vocabulary" test "$(grep -c vocabulary output)" -eq 0
expect_code "grids: the schedule of 16 stages is shown" 0 "$TRAIN" "${show[@]}" --world 16 --set parallel.pipeline=16 \
    --set model.num_layers=16 \
    --set gradient_accumulation_steps=40
check "grids: the schedule of 16 stages fits a terminal" test "$(wc -L <output)" -eq 80
check "grids: the schedule of 16 stages reaches its first backward passes" grep -qxE 'stage 0   F{16} +B-F.*[.]{3}' output
check "grids: the names of 16 stages are aligned" grep -qx 'stage 9   block 9' output
expect_code "grids: a schedule with more chunks than letters is shown" 0 "$TRAIN" "${show[@]}" --world 2 \
    --set parallel.pipeline=2 --set parallel.pipeline_chunks=28 \
    --set model.num_layers=56
check "grids: a schedule with more chunks than letters starts again at a" \
    grep -qE '^stage 0  a: embedding.*; y: block 48; z: block 50; a: block 52; b: block 54$' output
for by in best:7 uniform:3 parameters:4; do # the head takes as many operations as seven blocks
    expect_code "grids: a split by ${by%:*} is shown" 0 "$TRAIN" "${show[@]}" --world 2 --set parallel.pipeline=2 \
        --set "pipeline.partition=${by%:*}" --set model.num_layers=9 --set model.vocab_size=100000
    check "grids: a split by ${by%:*} assigns blocks by their cost" grep -qx "stage 0  embedding, blocks 0 to ${by#*:}" output
done
# idle MICRO-BATCHES: prints the advice that a dry run with 2 stages and so many micro-batches gives about the bubble
idle() {
    "$TRAIN" "$TINY" --dry-run "${run[@]}" --ranks 2 --set parallel.pipeline=2 --set train_batch_size=auto \
        --set "gradient_accumulation_steps=$1" 2>&1 | tr -s ' \n' ' ' | grep -o 'stages wait .* would halve it'
}
# The bubble is 1 / (micro-batches + 1).
check "grids: a bubble of a half is answered with a number of micro-batches that halves it" \
    test "$(idle 1)" = "stages wait 50 % of the time; gradient_accumulation_steps 3 would halve it"
check "grids: a bubble of a third is answered with a number of micro-batches that halves it" \
    test "$(idle 2)" = "stages wait 33 % of the time; gradient_accumulation_steps 5 would halve it"
check "grids: a bubble of a quarter is not mentioned" test -z "$(idle 3)"
on 2 2 6
expect_code "grids: a number of ranks that is not a multiple of the pipeline is refused" 78 "$TRAIN" "$TINY" "${run[@]}" \
    "${on[@]}" --out six
check "grids: a refused number of ranks is answered with possible ones" \
    grep -qF 'parallel.tensor: 2 x pipeline 2 = 4, but there are 6 ranks; write --ranks 4 or 8, or 1 here' output


# In step 2 the ranks of dp 1 read windows 6 and 7 (windows 4 to 7 in their order); window 6 has a token beyond the
# vocabulary.
"$TRAIN" data train-bpe --vocab 300 --out tok.json text.txt >output 2>&1
"$TRAIN" data tokenize --tokenizer tok.json --out shards --val-fraction 0.1 text.txt >output 2>&1
printf '\377\377' | dd of=shards/train_000000.bin bs=1 seek=$((1024 + 2 * (6 * 32 + 5))) conv=notrunc status=none
on 2 1 4 'data.train=shards/train_*.bin' data.text=null data.shuffle=false train_batch_size=4
expect_code "grids: a rank that reads damaged data exits with code 65" 65 timeout 60 "$TRAIN" "$TINY" "${run[@]}" "${on[@]}" \
    --out damaged
check "grids: a rank that reads damaged data prints its coordinates" \
    grep -Eq '^error\[65\] rank (1 pp 0|3 pp 1) dp 1: .*shards/train_000000.bin: token id 65535 ' output
check "grids: only one rank prints the damage" test "$(grep -Ec '^(error|bug)\[' output)" -eq 1

# ---- runs that are resumed on other grids
# ----------------------------------------------------------------------------------
on 2 2 4
held 5 stop "${run[@]}" "${on[@]}"
kill -TERM "$child"
let_go
check "grids: a signal ends all ranks with exit code 85 (got $code)" test "$code" -eq 85
cp -r stop stop-4
cp -r stop stop-2
expect_code "grids: a stopped run resumes on one rank" 0 "$TRAIN" "$TINY" "${run[@]}" --out stop
check "grids: a resume on one rank is printed" grep -q '^resume  step [0-9]* from stop/checkpoints' output
alike "grids: a resume on one rank has the same losses as the whole run" one stop
expect_code "grids: a stopped run resumes on dp 4" 0 "$TRAIN" "$TINY" "${run[@]}" --ranks 4 --set zero_optimization.stage=2 \
    --set train_micro_batch_size_per_gpu=3 --out stop-4
alike "grids: a resume on dp 4 has the same losses as the whole run" one stop-4
expect_code "grids: a stopped run resumes on its own grid" 0 "$TRAIN" "$TINY" "${run[@]}" "${on[@]}" --out stop-2
same_run "grids: a resume on its own grid has the same bits as the whole run" pp2tp2 stop-2

# ---- generate, eval and ckpt on a grid's run
# -----------------------------------------------------------------------------------
generate=(generate pp2tp2 --prompt "the king" --tokens 30)
expect_code "grids: generate opens a run of pp 2 x tp 2 on one rank" 0 "$TRAIN" "${generate[@]}"
without_speed output >text.one
expect_code "grids: eval opens a run of pp 2 x tp 2 on one rank" 0 "$TRAIN" eval pp2tp2
grep "^step " output >loss.one
number=0
for how in "--ranks 2" "--ranks 3" "--ranks 4" "--ranks 2 --set parallel.pipeline=2" "--ranks 4 --set parallel.tensor=1" \
    "--ranks 4 --set parallel.pipeline=4 --set parallel.tensor=1"; do
    number=$((number + 1))
    turn $number || continue
    read -ra options <<<"$how"
    expect_code "grids: generate runs with $how" 0 "$TRAIN" "${generate[@]}" "${options[@]}"
    without_speed output >text.other
    check "grids: the text with $how is the same as on one rank" cmp -s text.one text.other
    expect_code "grids: eval runs with $how" 0 "$TRAIN" eval pp2tp2 "${options[@]}"
    check "grids: the loss with $how is the same as on one rank" awk '{ x[NR] = $5; n[NR] = $10 }
        END { d = x[1] - x[2]; exit !(NR == 2 && n[1] == n[2] && n[1] > 1000 && d <= 2e-6 && d >= -2e-6) }' loss.one <(grep "^step " output)
done
expect_code "grids: generate refuses ranks that the --set does not divide" 78 "$TRAIN" generate pp2tp2 --ranks 3 \
    --set parallel.tensor=2
check "grids: generate answers with numbers of ranks that fit" grep -qF -- \
    '--set parallel.tensor=2: parallel.tensor: 2, but there are 3 ranks; write --ranks 2 or 4, or 1 here' output
expect_code "grids: ckpt verify accepts a checkpoint of a grid" 0 "$TRAIN" ckpt verify pp2tp2
expect_code "grids: ckpt inspect reads a checkpoint of a grid" 0 "$TRAIN" ckpt inspect pp2tp2
check "grids: ckpt inspect prints the grid that saved" grep -qx 'world       4 ranks = pp 2 x tp 2, ZeRO 0, 1 writer' output
expect_code "grids: ckpt list reads a checkpoint of a grid" 0 "$TRAIN" ckpt list pp2tp2
check "grids: ckpt list prints the grid that saved" grep -q '  pp 2 x tp 2, ZeRO 0' output
expect_code "grids: bench step measures a grid's model on one rank" 0 "$TRAIN" bench step pp2tp2/config.json --steps 1
expect_code "grids: bench step refuses more than one rank" 78 "$TRAIN" bench step pp2tp2/config.json --steps 1 \
    --set parallel.tensor=2
check "grids: bench step says what to write instead of a grid" \
    grep -qF 'parallel.tensor: 2, but there is 1 rank here; write 1' output
finish

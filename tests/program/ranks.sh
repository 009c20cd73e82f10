#!/usr/bin/env bash
# ranks.sh -- tests whole runs on several data-parallel ranks: they have the losses of one rank, all ranks end together
# however the run ends, and runs can be resumed on other numbers of ranks. STEPS: steps of each run (24).
. "$(dirname "$0")/lib.sh"
make_text
child='' code=''
set -m # without job control, background processes would ignore SIGINT
steps=${STEPS:-24}
# The batch is the same for any number of ranks, in f64: runs on different ranks differ only by the order of sums.
run=(--set train_batch_size=12 --set train_micro_batch_size_per_gpu=1 --set gradient_accumulation_steps=auto --set fp64.enabled=true
    --set cpu.threads=1 --set parallel.timeout=60 --set "train_steps=$steps" --set eval.interval=10 --set eval.sample_interval=10
    --set checkpoint.save_interval=0)

# failed_as NAME CODE PATTERN: expects exactly one error message in the output, with that code and matching the pattern
failed_as() {
    check "$1: one error message is printed" test "$(grep -Ec '^(error|bug)\[' output)" -eq 1
    check "$1: the error message names the cause" grep -Eq "^error\[$2\] $3" output
}

# ---- the losses of one rank ------------------------------------------------------------------------------------------
expect_code "ranks: a run on one rank succeeds" 0 "$TRAIN" "$TINY" "${run[@]}" --out one
check "ranks: a run on one rank prints no line about ranks" test "$(grep -c '^ranks' output)" -eq 0
for world in "2 0" "3 1" "4 3"; do
    read -r n stage <<<"$world"
    [ "$n" -eq 2 ] || turn "$n" || continue
    on=(--ranks "$n" --set "zero_optimization.stage=$stage")
    expect_code "ranks: a run on $n ranks at ZeRO $stage succeeds" 0 "$TRAIN" "$TINY" "${run[@]}" "${on[@]}" --out "on-$n"
    check "ranks: a run on $n ranks at ZeRO $stage prints its ranks" \
        grep -q "^ranks   $n = dp $n (threads, 1 thread each), ZeRO $stage\$" output
    check "ranks: a run on $n ranks prints its folder once" test "$(grep -c '^run  ' output)" -eq 1
    alike "ranks: a run on $n ranks at ZeRO $stage has the same losses as on one rank" one "on-$n"
    check "ranks: a run on $n ranks at ZeRO $stage has the same sample as on one rank" test "$(text one)" = "$(text "on-$n")"
    check "ranks: a run on $n ranks counts the tokens of all ranks" \
        test "$(grep -c "\"tokens\": $((steps * 12 * 32))," "on-$n/metrics.jsonl")" -ge 1
done
expect_code "ranks: a rerun succeeds" 0 "$TRAIN" "$TINY" "${run[@]}" --ranks 2 --out again
same_run "ranks: a rerun has the same bits" on-2 again
check "ranks: no logs are written without --log-ranks" test ! -e on-2/logs
expect_code "ranks: starting a finished run again exits with code 0" 0 "$TRAIN" "$TINY" "${run[@]}" --ranks 2 --out again
check "ranks: a finished run reports once that it is finished" test "$(grep -c 'again is finished' output)" -eq 1
expect_code "ranks: a dry run on three ranks succeeds" 0 "$TRAIN" "$TINY" "${run[@]}" --ranks 3 --dry-run --out dry \
    --set memory_breakdown=true
check "ranks: the plan of a dry run is for all ranks" grep -qE '^memory  plan [0-9.]+ MiB for all 3 ranks: weights' output
check "ranks: the memory of a dry run is that of all ranks" bash -c \
    "tr -s ' \n' ' ' <output | grep -qE 'resident [0-9.]+ MiB, peak [0-9.]+ MiB, plan [0-9.]+ MiB for all 3 ranks'"
check "ranks: a dry run prints one line and leaves no folder" test "$(grep -c '^dry run' output)" -eq 1 -a ! -e dry

# ---- logs ------------------------------------------------------------------------------------------------------------
expect_code "ranks: a run with --log-ranks succeeds" 0 "$TRAIN" "$TINY" "${run[@]}" --set train_steps=6 \
    --set wall_clock_breakdown=true --set checkpoint.writers=3 \
    --ranks 3 --log-ranks --out logged
check "ranks: wall_clock_breakdown prints the work of each rank" grep -Eq '^ +a rank: .* tok/s .* work [0-9.]+ ms a step' output
check "ranks: metrics.jsonl names the slowest rank" grep -Eq '"ranks": 3, "slowest_rank": [0-2], "slowest": ' \
    logged/metrics.jsonl
check "ranks: wall_clock_breakdown prints communication" grep -Eq ' communication [0-9.]+' output
for rank in 0 1 2; do
    check "ranks: rank $rank writes its own log" grep -q '^run     logged$' "logged/logs/rank_00$rank.log"
done
cp -r logged blocked && rm -rf blocked/logs blocked/result.json && : >blocked/logs
expect_code "ranks: a file instead of the folder logs exits with code 73" 73 "$TRAIN" "$TINY" "${run[@]}" --set train_steps=6 \
    --set wall_clock_breakdown=true \
    --ranks 3 --log-ranks --out blocked
check "ranks: a file instead of the folder logs is named" grep -qxF 'error[73] blocked/logs is there and is not a folder' output
rm blocked/logs && mkdir blocked/logs && : >outside && ln -s ../../outside blocked/logs/rank_001.log
expect_code "ranks: a link instead of a log exits with code 73" 73 "$TRAIN" "$TINY" "${run[@]}" --set train_steps=6 \
    --set wall_clock_breakdown=true --set checkpoint.writers=3 --ranks 3 --log-ranks --out blocked
check "ranks: a link instead of a log is named" grep -qE '^error\[73\] .*blocked/logs/rank_001.log is a symbolic link; ' output
check "ranks: a link instead of a log is not followed" test ! -s outside
rm -r blocked/logs && mkdir away && ln -s ../away blocked/logs
expect_code "ranks: a link instead of the folder logs exits with code 73" 73 "$TRAIN" "$TINY" "${run[@]}" --set train_steps=6 \
    --set wall_clock_breakdown=true --set checkpoint.writers=3 --ranks 3 --log-ranks --out blocked
check "ranks: a link instead of the folder logs is not followed" test -z "$(ls away)"
# Resuming does not read the index, but other programs do.
newest=$(find blocked/checkpoints -name "step_*" | sort | tail -n 1) && echo '{}' >"$newest/model.safetensors.index.json"
expect_code "ranks: a damaged index does not prevent resuming" 0 "$TRAIN" "$TINY" "${run[@]}" --set train_steps=6 \
    --set wall_clock_breakdown=true --set checkpoint.writers=3 --ranks 3 --out blocked
check "ranks: a damaged index is named" grep -qF "warning: $newest/model.safetensors.index.json is damaged: it is not the index" \
    output
check "ranks: --log-ranks writes one log per rank" test "$(find logged/logs -type f | wc -l)" -eq 3

# ---- stops -----------------------------------------------------------------------------------------------------------
# stopped NAME HOW: starts a run on three ranks in the folder NAME and stops it after a step
stopped() {
    held 3 "$1" "${run[@]}" --ranks 3 --set zero_optimization.stage=2
    if [ "$2" = STOP ]; then touch "$1/STOP"; else kill "-$2" "$child"; fi
    let_go
    check "ranks: $2 ends all ranks with exit code 85 (got $code)" test "$code" -eq 85
    check "ranks: $2 leaves one checkpoint" test "$(checkpoint_steps "$1" | wc -l)" -eq 1
}
stopped stop STOP
stopped term TERM
cp -r stop stop-2
if turn 0; then
    expect_code "ranks: a stopped run resumes on one rank" 0 "$TRAIN" "$TINY" "${run[@]}" --out stop
    check "ranks: a resume on one rank is printed" grep -q '^resume  step [0-9]* from stop/checkpoints' output
    alike "ranks: a run resumed on one rank has the same losses as the uninterrupted run" one stop
fi
if turn 1; then
    expect_code "ranks: a stopped run resumes on four ranks at ZeRO 3" 0 "$TRAIN" "$TINY" "${run[@]}" --ranks 4 \
        --set zero_optimization.stage=3 --out stop-2
    alike "ranks: a run resumed on four ranks has the same losses as the uninterrupted run" one stop-2
fi
expect_code "ranks: a stopped run resumes on as many ranks" 0 "$TRAIN" "$TINY" "${run[@]}" --ranks 3 \
    --set zero_optimization.stage=2 --out term
expect_code "ranks: the same run without a stop succeeds" 0 "$TRAIN" "$TINY" "${run[@]}" --ranks 3 \
    --set zero_optimization.stage=2 --out on-3-2
same_run "ranks: a run resumed on as many ranks has the same bits as the uninterrupted run" on-3-2 term

# Nobody reads the console for longer than parallel.timeout. The run waits and goes on as soon as it is read.
held 3 paused "${run[@]}" --ranks 2 --set parallel.timeout=4
sleep 6
let_go
check "ranks: a run whose console is not read for a while continues (got $code)" test "$code" -eq 0
same_run "ranks: a run whose console is not read for a while has the same bits as another run" on-2 paused

# A killed run keeps its saved steps and runs the others again.
held 7 killed "${run[@]}" --ranks 2 --set checkpoint.save_interval=5
kill -KILL "$child"
let_go
check "ranks: SIGKILL kills a run on several ranks (got $code)" test "$code" -eq 137
expect_code "ranks: a killed run resumes" 0 "$TRAIN" "$TINY" "${run[@]}" --ranks 2 --set checkpoint.save_interval=5 --out killed
same_run "ranks: a killed and resumed run has the same bits as the uninterrupted run" on-2 killed
if [[ $TRAIN == */tsan/* ]]; then
    skip "ranks: two signals end all ranks at once" "ThreadSanitizer queues signals"
else
    held 2 twice "${run[@]}" --ranks 2
    kill -STOP "$child"
    kill -INT "$child"
    kill -TERM "$child"
    kill -CONT "$child"
    let_go
    check "ranks: two signals end all ranks at once with a signal's code (got $code)" test "$code" -eq 130 -o "$code" -eq 143
fi

# ---- failures --------------------------------------------------------------------------------------------------------
diverging=(--set fp64.enabled=false --set fp16.enabled=true --set fp16.loss_scale=1e30 --set max_consecutive_skipped_steps=3)
expect_code "ranks: a run that diverges exits with code 88" 88 "$TRAIN" "$TINY" "${run[@]}" "${diverging[@]}" --ranks 3 --out diverged
failed_as "ranks: a run that diverges" 88 'step 3: 3 steps in a row had gradients that are not finite'
check "ranks: a run that diverges records its end in the metrics" grep -q '"event": "end", "step": 3,' diverged/metrics.jsonl

# In step 2 rank 1 reads windows 6 and 7 (windows 4 to 7 in their order); window 6 has a token beyond the vocabulary.
"$TRAIN" data train-bpe --vocab 300 --out tok.json text.txt >output 2>&1
"$TRAIN" data tokenize --tokenizer tok.json --out shards --val-fraction 0.1 text.txt >output 2>&1
printf '\377\377' | dd of=shards/train_000000.bin bs=1 seek=$((1024 + 2 * (6 * 32 + 5))) conv=notrunc status=none
shards=(--set 'data.train=shards/train_*.bin' --set data.text=null --set data.shuffle=false --set train_batch_size=4
    --set train_micro_batch_size_per_gpu=2)
expect_code "ranks: a rank that reads damaged data ends all with exit code 65" 65 timeout 60 "$TRAIN" "$TINY" "${run[@]}" "${shards[@]}" \
    --ranks 2 --out damaged
failed_as "ranks: a rank that reads damaged data" 65 'rank 1 dp 1: .*shards/train_000000.bin: token id 65535 '
check "ranks: the step before the damaged data is in the metrics" grep -q '"event": "train", "step": 1,' damaged/metrics.jsonl
expect_code "ranks: a model larger than the memory exits with code 90" 90 "$TRAIN" "$TINY" "${run[@]}" --ranks 2 \
    --set model.hidden_size=400000 --out huge
failed_as "ranks: a model larger than the memory" 90 'the plan needs .* for all 2 ranks and .*, or fewer --ranks$'
check "ranks: a model larger than the memory leaves no run folder" test ! -e huge
# Where address space is limited, either all ranks have OpenBLAS or none: memory given to one rank is not taken from
# another.
if [[ $TRAIN == */release/* ]]; then
    for limit in 1500000 1700000 1900000 3000000; do
        expect_code "ranks: a run within $limit KiB of address space succeeds" 0 timeout -k 5 60 bash \
            -c 'ulimit -v "$0" && exec "$@"' "$limit" \
            "$TRAIN" "$TINY" "${run[@]}" --set train_steps=6 --ranks 4 --out "limited-$limit"
    done
    check "ranks: a run within $limit KiB of address space prints its BLAS library" \
        grep -Eq '^device  cpu: .*(OpenBLAS|built-in)' output
else
    skip "ranks: runs within limits of address space" "a sanitizer takes more"
fi
expect_code "ranks: a batch that the ranks do not divide is refused" 78 "$TRAIN" "$TINY" "${run[@]}" --ranks 5 --out odd
expect_code "ranks: a run folder that cannot be created exits with code 73" 73 "$TRAIN" "$TINY" "${run[@]}" --ranks 3 --out text.txt
failed_as "ranks: a run folder that cannot be created" 73 'text.txt is not a folder'
expect_code "ranks: the folder of another run is refused" 78 "$TRAIN" "$TINY" "${run[@]}" --ranks 3 --set model.num_layers=1 \
    --out one
failed_as "ranks: the folder of another run" 78 ''
finish

#!/usr/bin/env bash
# length.sh -- tests the length of a run in tokens, and its limits in time: a run that is stopped by max_time after every step,
# and goes on on another grid each time, is the uninterrupted one; a run in a batch job stops before the job ends.
# shellcheck source-path=SCRIPTDIR
source "$(dirname "$0")/lib.sh"

make_text
# A step has 16 x 32 = 512 tokens on every grid, so 2000 tokens are 4 steps.
options=(--set train_steps=null --set train_tokens=2000 --set train_batch_size=16 --set train_micro_batch_size_per_gpu=4
    --set gradient_accumulation_steps=null --set fp64.enabled=true --set scheduler.params.warmup_num_steps=2
    --set eval.interval=2 --set eval.sample_interval=0)
expect_code "length: a run by tokens succeeds" 0 "$TRAIN" "$TINY" "${options[@]}" --out whole
check "length: the number of steps follows from the tokens" grep -q '^done    4 steps, 2,048 tokens' output
check "length: the schedule uses this number of steps" \
    test "$("$TRAIN" config show whole/config.json | sed -nE 's|^ *// "total_num_steps": ([0-9]+), .*|\1|p')" = 4
step=0
for grid in "1" "2" "2 --set parallel.tensor=2" "4 --set parallel.tensor=2 --set parallel.pipeline=2"; do
    read -ra on <<<"--ranks $grid"
    step=$((step + 1))
    expect_code "length: max_time stops step $step (--ranks $grid)" 85 "$TRAIN" "$TINY" "${options[@]}" --set max_time=1e-6 \
        "${on[@]}" --out timed
    check "length: the end of the run names max_time (--ranks $grid)" grep -qE "^stopped after (step|the last step,) $step \(max_time: 1e-06 s\); " output
    check "length: step $step is saved (--ranks $grid)" test "$(checkpoint_steps timed | tail -n 1)" = $step
done
check "length: metrics.jsonl records the stop by max_time" grep -q '"event": "end", .*"text": "max_time reached"' timed/metrics.jsonl
expect_code "length: after its last step max_time does not stop the run again" 0 "$TRAIN" "$TINY" "${options[@]}" \
    --set max_time=1e-6 --out timed
steps=4
alike "length: the stopped run has the same losses as the whole one" whole timed

# ---- the end of a batch job ------------------------------------------------------------------------------------------------
# in_job SECONDS COMMAND...: runs the command in a job that ends in so many seconds, or up to a second sooner. An end that is over
# when the program reads it does not count, so there must be enough seconds for its start on a busy machine.
in_job() {
    env SLURM_JOB_ID=17 SLURM_NTASKS=1 SLURM_RESTART_COUNT=2 SLURM_JOB_NODELIST='n[1-2]' \
        SLURM_JOB_END_TIME=$(($(date +%s) + $1)) timeout 60 "${@:2}"
}
long=(--set train_steps=1000000 --set steps_per_print=1000000 --set eval.interval=0 --set eval.sample_interval=0
    --set checkpoint.save_interval=1000000)
for ranks in 1 2; do
    begun=$SECONDS
    expect_code "length: a run on $ranks ranks stops before its job ends" 85 in_job 4 "$TRAIN" "$TINY" "${long[@]}" --ranks $ranks \
        --out job$ranks
    check "length: the run stops before the job's end ($ranks ranks)" test $((SECONDS - begun)) -le 4
    check "length: the beginning names the job ($ranks ranks)" grep -qE \
        '^job     SLURM job 17, restart 2, on n\[1-2\], [34] seconds left$' output
    check "length: the end tells what is left of the job ($ranks ranks)" grep -qE '^saving now: [0-4] seconds? of the job are left$' output
    check "length: the last line says why ($ranks ranks)" grep -qE '^stopped after step [0-9]+ \(before the job ends\); ' output
    check "length: metrics.jsonl says why ($ranks ranks)" grep -q '"event": "end", .*"text": "before the job ends"' job$ranks/metrics.jsonl
done
check "length: metrics.jsonl names the job" grep -q '"event": "start", .*"job":"SLURM job 17, restart 2, on n\[1-2\]"' job1/metrics.jsonl
check "length: commands.txt names the job" grep -q '^# attempt 0, .*, SLURM job 17, restart 2, on n\[1-2\]$' job1/commands.txt
first=$(checkpoint_steps job1 | tail -n 1)
expect_code "length: a job that is nearly over still makes a step" 85 in_job 3 "$TRAIN" "$TINY" "${long[@]}" --set parallel.timeout=60 \
    --out job1
check "length: one step was trained in the job that is nearly over" test "$(checkpoint_steps job1 | tail -n 1)" -gt "$first"
expect_code "length: a job whose end is over does not stop a run" 0 in_job -100 "$TRAIN" "$TINY" "${options[@]}" --out late
check "length: a job whose end is over causes a warning" grep -q '^warning: SLURM_JOB_END_TIME is over' output
check "length: a job whose end is not known is named all the same" grep -qxF 'job     SLURM job 17, restart 2, on n[1-2]' output
expect_code "length: an end that is not a time is refused" 64 env SLURM_JOB_END_TIME=soon "$TRAIN" "$TINY" "${options[@]}" --out late
check "length: an end that is not a time is named" grep -qE '^error\[64\] SLURM_JOB_END_TIME=soon is not the time' output
expect_code "length: a run within max_time ends as usual" 0 "$TRAIN" "$TINY" "${options[@]}" --set max_time=3600 --out within
check "length: a run that is in no job names none" test "$(grep -c '^job' output)" -eq 0
finish

#!/usr/bin/env bash
# slurm.sh -- tests runs in a private SLURM with two nodes: srun with each of its ways to start MPI programs; jobs of `./train
# slurm` that stop at a signal before their limit, or by themselves if no signal comes, and that start again and go on to the bits
# of a run that was never stopped. LAUNCH=full: also a job that is preempted, one whose node is lost, one that asks for a wrong
# number of nodes, and an array of three.
# shellcheck source-path=SCRIPTDIR disable=SC2154
source "$(dirname "$0")/slurm_lib.sh"
source "$(dirname "$0")/lib.sh"
trap 'slurm_down; clean_up' EXIT
if ! slurm_up; then
    skip "slurm: runs in a private SLURM" "$why"
    finish
fi
make_text
ln -s "$TRAIN" train
cp "$TINY" tiny.json

# A job's first start makes at most ten steps a second once its console is full, however fast the machine is, because nobody
# reads faster than that before the run saves: a signal may come half a minute after its time. The ranks agree on a stop after
# each step, because the time of a step changes suddenly when the console is full.
cat >slow-train <<'END'
#!/bin/bash
out=${*: -1}
[ "$SLURM_RESTART_COUNT" ] && exec ./train "$@"
exec ./train "$@" --json > >(while read -r line; do echo "$line"; compgen -G "$out/checkpoints/step_*" >/dev/null || sleep 0.1; done)
END
chmod +x slow-train
steps=${STEPS:-700}
run=(--set train_batch_size=32 --set train_micro_batch_size_per_gpu=8 --set gradient_accumulation_steps=auto --set data.seq_length=64
    --set "train_steps=$steps" --set eval.interval=0 --set eval.sample_interval=0 --set checkpoint.save_interval=1000000
    --set checkpoint.keep=0 --set cpu.threads=1 --set parallel.tensor=2 --set parallel.timeout=60 --set parallel.stop_interval=1)
short=("${run[@]}" --set train_steps=6)
shape=(--nodes 2 --tasks-per-node 2 --cpus-per-task 1)
"$TRAIN" tiny.json "${run[@]}" --ranks 4 --out whole >whole.log 2>&1 &
reference=$!
children+=("$reference")

state() { squeue -h -j "$1" -t all -o %T 2>/dev/null; }
in_state() { [[ " $2 " == *" $(state "$1") "* ]]; }
slow='s|^\(srun .*\)\./train |\1./slow-train |'
# submit NAME SED_SCRIPT SBATCH_OPTION...: submits the job script of a run in the folder NAME, changed by sed; sets $job
submit() {
    local name=$1 change=$2
    shift 2
    "$TRAIN" slurm tiny.json "${shape[@]}" "${run[@]}" --time 10:00 --out "$name" | sed "$slow; $change" >"$name.sbatch"
    job=$(sbatch --parsable -o "$name.log" "$@" "$name.sbatch")
}
# start_again JOB: lets a job that was requeued start at once, and without another signal before its limit. SLURM would let it
# wait for two minutes, and revokes the credential of a job that starts in the second in which it was requeued.
start_again() {
    eventually 90 in_state "$1" PENDING || return
    sleep 3
    scontrol update JobId="$1" StartTime=now TimeLimit=10
}
# noted NAME TEXT: succeeds if the folder's jobs.txt has a line that matches
noted() { grep -qE "$2" "$1/jobs.txt" 2>/dev/null; }
# went_on NAME JOB: expects that the job ends, in its second start, with the bits of the uninterrupted run
went_on() {
    eventually 120 in_state "$2" "COMPLETED FAILED TIMEOUT NODE_FAIL CANCELLED"
    check "slurm: $1: the job is completed" test "$(state "$2")" = COMPLETED
    check "slurm: $1: jobs.txt has both starts and their ends: $(cut -d ' ' -f 2- "$1/jobs.txt" | tr '\n' ';')" \
        test "$(grep -c "job $2, restart 0, .*: starts\$" "$1/jobs.txt") $(grep -c "job $2, restart 1, .*: starts\$" "$1/jobs.txt") $(
            grep -c "restart 1, .*: the run is finished" "$1/jobs.txt")" = "1 1 1"
    check "slurm: $1: commands.txt names job and restart" grep -qE "^# attempt 1, .*, SLURM job $2, restart 1, on n" "$1/commands.txt"
    check "slurm: $1: metrics.jsonl has the job at both starts" \
        test "$(grep -cE "\"event\": \"start\".*\"job\":\"SLURM job $2, restart [01], on n" "$1/metrics.jsonl")" -eq 2
    check "slurm: $1: both starts have the same log" test "$(grep -c ': starts$' "$1.log")" -eq 2
    same_run "slurm: $1: the bits are the same as in a run that was never stopped" whole "$1"
}

# ---- two jobs that stop before their limit of a minute, at the same time -----------------------------------------------------
submit signal '' --time=1 --signal=USR1@60
signal=$job
# This one gets no signal, and begins eleven seconds before its end.
# shellcheck disable=SC2016 # the job expands it
submit limit '/^#SBATCH --signal/d; s/^note starts/&\n[ "$restart" -gt 0 ] || sleep $((SLURM_JOB_END_TIME - $(date +%s) - 11))/' --time=1
limit=$job

# ---- srun ----------------------------------------------------------------------------------------------------------------
"$TRAIN" tiny.json "${short[@]}" --ranks 4 --out threads >output 2>&1
for mpi in none pmi2 pmix; do
    srun --mpi=list 2>&1 | grep -qw $mpi || { skip "slurm: srun --mpi=$mpi" "this SLURM has no plugin $mpi"; continue; }
    expect_code "slurm: srun --mpi=$mpi trains on two nodes" 0 timeout 60 srun --mpi=$mpi --overcommit -N2 --ntasks-per-node=2 \
        ./train tiny.json "${short[@]}" --out $mpi
    same_run "slurm: srun --mpi=$mpi has the same bits as with threads" threads $mpi
done
# Task 3, on the second node, does not become a rank.
# shellcheck disable=SC2016 # the tasks expand it
expect_code "slurm: a rank that never arrives ends the step with exit code 69" 69 timeout 60 srun --overcommit -N2 --ntasks-per-node=2 \
    --kill-on-bad-exit=0 --wait=10 sh -c '[ "$SLURM_PROCID" -eq 3 ] && exec sleep 5; exec "$@"' sh \
    ./train tiny.json "${short[@]}" --set parallel.timeout=3 --out missing
check "slurm: the rank that never arrives is named with its node" grep -qE '^error\[69\] rank 3 \(n2\) of 4 has not arrived' output
# rank_of JOB RANK: prints the process of this rank of the job
rank_of() {
    local process
    for process in $(pgrep -x train); do
        ! cat "/proc/$process/environ" 2>/dev/null | tr '\0' '\n' |
            grep -xcE "SLURM_CONF=$SLURM_CONF|SLURM_PROCID=$2|SLURM_JOB_ID=$1" | grep -qx 3 || echo "$process"
    done
}
# Somebody kills a rank of a job on one node. The message names the node, and the job goes on on the other one.
shape=(--nodes 1 --tasks-per-node 2 --cpus-per-task 1)
submit killed ''
killed=$job
shape=(--nodes 2 --tasks-per-node 2 --cpus-per-task 1)
eventually 30 made_steps killed 20
node=$(squeue -h -j "$killed" -o %N)
kill -KILL "$(rank_of "$killed" 1)"
eventually 30 noted killed 'exit code'
check "slurm: killed: the job starts again without the node that the message names: $(tail -n 1 killed/jobs.txt)" \
    noted killed "restart 0, on $node: exit code (87|137), a failure: starts again without $node\$"
start_again "$killed"

# ---- the worked example ------------------------------------------------------------------------------------------------------
ln -s "$repository/configs" configs
sed 's/--set train_batch_size=16/& --set data.text=text.txt --set data.tokenizer_vocab_size=300 --set train_steps=10 --set eval.interval=0 --set eval.sample_interval=0/' \
    "$repository/scripts/train.sbatch" >example.sbatch
example=$(sbatch --parsable --overcommit -o example.log example.sbatch)
eventually 60 in_state "$example" "COMPLETED FAILED TIMEOUT CANCELLED"
check "slurm: scripts/train.sbatch trains on two nodes: $(tail -n 1 example.log)" in_state "$example" COMPLETED
check "slurm: scripts/train.sbatch has a result" test -s out/two-machines/result.json

# ---- and how they go on --------------------------------------------------------------------------------------------------
eventually 60 noted signal 'exit code 85, saved: starts again'
check "slurm: signal: the run stops at the signal, saves and is requeued" noted signal 'restart 0, .* exit code 85, saved: starts again'
check "slurm: signal: the log says that a signal came" grep -q '^SIGUSR1: ' signal.log
start_again "$signal"
eventually 90 noted limit 'exit code 85, saved: starts again'
check "slurm: limit: the run stops without a signal, saves and is requeued" noted limit 'restart 0, .* exit code 85, saved: starts again'
check "slurm: limit: metrics.jsonl says why it stopped" grep -q '"event": "end", .*"text": "before the job ends"' limit/metrics.jsonl
check "slurm: limit: no signal came" test "$(grep -c '^SIG' limit.log)" -eq 0
start_again "$limit"
wait $reference
went_on signal "$signal"
went_on limit "$limit"
eventually 60 in_state "$killed" "COMPLETED FAILED"
check "slurm: killed: the job is completed" in_state "$killed" COMPLETED
check "slurm: killed: it has gone on on the other node: $(cut -d ' ' -f 2- killed/jobs.txt | tr '\n' ';')" \
    test "$(grep -cE "restart 1, on (n1|n2): starts\$" killed/jobs.txt) $(grep -c "restart 1, on $node: " killed/jobs.txt)" = "1 0"
[ "$full" != full ] || source "$repository/tests/launch/slurm_full.sh"
finish

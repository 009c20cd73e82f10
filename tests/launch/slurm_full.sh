# slurm_full.sh -- the longer tests of slurm.sh, with LAUNCH=full.
# shellcheck shell=bash disable=SC2154

# ---- a wrong number of nodes -----------------------------------------------------------------------------------------------
many=$(sbatch --parsable -o many.log -N 3 signal.sbatch)
sleep 3
check "slurm: a job that asks for more nodes than there are does not start: $(squeue -h -j "$many" -o %r)" in_state "$many" PENDING
scancel "$many"
"$TRAIN" slurm tiny.json --nodes 3 --tasks-per-node 1 --cpus-per-task 1 "${short[@]}" --set train_batch_size=32 \
    --set train_micro_batch_size_per_gpu=8 >printed 2>err
check "slurm: a config that does not fit three nodes is refused before" test $? -eq 78 -a ! -s printed
submit nodes "s/train_steps=$steps/train_steps=6/" --nodes=1
eventually 60 in_state "$job" "COMPLETED FAILED"
check "slurm: a job on fewer nodes than the script was printed for ends, and does not start again" \
    noted nodes 'restart 0, .*: (exit code 78: ended|the run is finished)'

# ---- preemption ------------------------------------------------------------------------------------------------------------
submit preempted ''
preempted=$job
eventually 60 grep -qs '"event": "train", "step": 20,' preempted/metrics.jsonl
urgent=$(sbatch --parsable -p hi -N2 --ntasks-per-node=8 -o urgent.log --wrap 'srun sleep 1')
eventually 60 in_state "$urgent" "RUNNING COMPLETING COMPLETED"
check "slurm: preempted: the run saves when SLURM tells it" grep -q '"event": "end", .*"text": "stopped on request"' preempted/metrics.jsonl
eventually 60 in_state "$urgent" COMPLETED
check "slurm: preempted: the urgent job has run" in_state "$urgent" COMPLETED
start_again "$preempted"
eventually 120 in_state "$preempted" "COMPLETED FAILED"
check "slurm: preempted: the job is completed" in_state "$preempted" COMPLETED
same_run "slurm: preempted: the bits are the same as in a run that was never stopped" whole preempted

# ---- a node that is lost -----------------------------------------------------------------------------------------------------
# tasks_of NODE JOB: prints the tasks of this SLURM's job on the node, and the processes of SLURM that have started them
tasks_of() {
    local process
    for process in /proc/[0-9]*; do
        cat "$process/environ" 2>/dev/null | tr '\0' '\n' | grep -xcE "SLURM_CONF=$SLURM_CONF|SLURMD_NODENAME=$1|SLURM_JOB_ID=$2" |
            grep -qx 3 || continue
        echo "${process#/proc/}"
        awk '/^PPid:/ { print $2 }' "$process/status"
    done | sort -u | grep -vx 1
}
submit lost 's/--set train_steps/--set checkpoint.save_interval=50 --set train_steps/'
lost=$job
eventually 60 grep -qs '"event": "ckpt", "step": 50,' lost/metrics.jsonl
begun=$SECONDS
mapfile -t tasks < <(tasks_of n2 "$lost")
check "slurm: lost node: its tasks are found" test ${#tasks[@]} -ge 3
# shellcheck disable=SC2154 # node has set pid_n2
kill -KILL "$pid_n2" "${tasks[@]}"
eventually 90 in_state "$lost" "PENDING COMPLETED FAILED"
check "slurm: lost node: the job is requeued after $((SECONDS - begun)) s" in_state "$lost" PENDING
node n2
eventually 60 test "$(sinfo -h -o %D -t idle,mix,alloc)" -eq 2
start_again "$lost"
eventually 120 in_state "$lost" "COMPLETED FAILED"
check "slurm: lost node: the job is completed" in_state "$lost" COMPLETED
same_run "slurm: lost node: the bits are the same as in a run that was never stopped" whole lost

# ---- an array of three: each task goes on with the run of the one before it ----------------------------------------------------
third=$((steps / 3))
"$TRAIN" slurm tiny.json "${shape[@]}" "${run[@]}" --time 10:00 --out array >array.sbatch
# Each task but the last one is stopped by a file, as by a user.
# shellcheck disable=SC2016 # the job expands it
sed -i 's|^srun |[ $SLURM_ARRAY_TASK_ID -eq 3 ] \|\| { (until [ "$(grep -c "event.: .train" array/metrics.jsonl)" -ge $((SLURM_ARRAY_TASK_ID * '$third')) ]; do sleep 0.2; done; touch array/STOP) \& }\nsrun |' array.sbatch
sbatch --parsable -o array.%a.log --array=1-3%1 array.sbatch >submitted
eventually 150 test -e array/result.json
check "slurm: array: the third task finishes the run" eventually 20 grep -q 'the run is finished' array.3.log
check "slurm: array: the tasks before it were stopped" test "$(grep -lE 'stopped by array/STOP' array.1.log array.2.log | wc -l)" -eq 2
same_run "slurm: array: the bits are the same as in a run that was never stopped" whole array

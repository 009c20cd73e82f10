#!/usr/bin/env bash
# slurm.sh -- tests `./train slurm`: the text of the job script, what is refused, and what the script does after each exit code.
# SLURM's commands are replaced by small ones that note their calls; tests/launch/slurm.sh runs the script in a real SLURM.
#
# After a change of the script's text: TEXTS=write tests/program/slurm.sh writes scripts/train.sbatch and
# tests/golden/slurm_gpu.sbatch anew.
# shellcheck source-path=SCRIPTDIR disable=SC2154 # lib.sh sets here and work
source "$(dirname "$0")/lib.sh"
root=$(realpath "$here/../..")
ln -s "$root/configs" configs

# ---- the text ------------------------------------------------------------------------------------------------------------
cpu=(configs/demo.json --nodes 2 --tasks-per-node 2 --cpus-per-task 1 --time 1:00:00 --set train_batch_size=16
    --set parallel.tensor=2 --out out/two-machines)
gpu=(configs/gpt2_1558m_8gpu.json --nodes 4 --gpus-per-node 8 --time 24:00:00)
# text NAME FILE ARGUMENT...: expects that the command prints this file, which bash and shellcheck accept
text() {
    local name=$1 file=$root/$2
    shift 2
    "$TRAIN" slurm "$@" >printed 2>err
    check "slurm: the script for $name is printed" test $? -eq 0 -a ! -s err
    [ "${TEXTS:-}" != write ] || cp printed "$file"
    check "slurm: the script for $name is that of ${file#"$root/"}" diff "$file" printed
    check "slurm: bash reads the script for $name" bash -n printed
    if command -v shellcheck >/dev/null; then
        check "slurm: shellcheck finds nothing in the script for $name" shellcheck printed
    else
        skip "slurm: shellcheck of the script for $name" "shellcheck is not installed"
    fi
}
text "two machines without GPUs" scripts/train.sbatch "${cpu[@]}"
text "four machines with GPUs" tests/golden/slurm_gpu.sbatch "${gpu[@]}"
# cores N ARGUMENT...: expects that the tasks of the job have so many cores
cores() {
    "$TRAIN" slurm "${gpu[@]}" "${@:2}" >printed 2>err
    check "slurm: a task with a GPU has $1 cores with: ${*:2}" grep -qx "#SBATCH --cpus-per-task=$1" printed
    # shellcheck disable=SC2016 # the script expands it
    check "slurm: srun gets them with: ${*:2}" grep -qF ' --cpus-per-task="$SLURM_CPUS_PER_TASK" ./train' printed
}
cores 4
cores 4 --set cpu.threads=2
cores 6 --set cpu.threads=6
cores 2 --cpus-per-task 2
printf '{"model": {"num_layers": 1, "hidden_size": 32, "num_attention_heads": 2}, "data": {"text": "t"}, "train_steps": 9}' \
    >$'a b\n$(touch evil).json'
"$TRAIN" slurm $'a b\n$(touch evil).json' --nodes 1 --cpus-per-task 1 --set $'eval.sample_prompt=\'$(touch evil)\n\'' \
    --out $'-o\n$(touch evil)' >printed
check "slurm: bash reads a script with odd names" bash -n printed
check "slurm: odd names are quoted" grep -qF "#SBATCH --job-name=a_b___touch_evil_" printed
check "slurm: a newline in a job name does not add a line to the script" test "$(grep -c '^ *\$(touch\|^\$(touch' printed)" -eq 0
# A name may hold what printf would read as a format, and is cut.
long='50%d_of_%s'$(printf 'x%.0s' {1..120})
cp $'a b\n$(touch evil).json' "$long.json"
"$TRAIN" slurm "$long.json" --nodes 1 --cpus-per-task 1 >printed
name=$(sed -n 's/^#SBATCH --job-name=//p' printed)
check "slurm: a long name with percent signs is cut to a plain one" test "$name" = "$(tr % _ <<<"${long:0:100}")"

# ---- what is refused -----------------------------------------------------------------------------------------------------
# refused NAME CODE SENTENCE ARGUMENT...: expects that the command ends with this code, prints no script, and says so
refused() {
    local name=$1 code=$2 sentence=$3 got
    shift 3
    "$TRAIN" slurm "$@" >printed 2>err
    got=$?
    check "slurm: $name is refused" test $got -eq "$code" -a ! -s printed
    check "slurm: the refusal of $name says why: $(head -n 1 err)" grep -qF -- "$sentence" err
}
refused "a batch that does not fit the ranks" 78 "train_batch_size: 512 is not a multiple of micro 16 x dp 24 = 384" \
    configs/gpt2_1558m_8gpu.json --nodes 3 --gpus-per-node 8
refused "a config that is not there" 66 "none.json" none.json --nodes 2 --cpus-per-task 1
refused "a job without cores" 64 "how many cores has a task?" configs/demo.json --nodes 2
refused "a config from standard input" 64 "it must be a file" - --nodes 2 --cpus-per-task 1
refused "a limit that SLURM cannot read" 64 "--time 1h: write a limit as SLURM reads it" configs/demo.json --nodes 2 \
    --cpus-per-task 1 --time 1h
refused "a limit that is shorter than a save" 64 "is too short: the run must be told to stop" configs/demo.json --nodes 2 \
    --cpus-per-task 1 --time 2:00
refused "a device that the job lacks" 78 "the job has no GPUs" configs/demo.json --nodes 2 --cpus-per-task 1 --set device=cuda
refused "a device that the job's GPUs are not" 78 "the job has GPUs" configs/demo.json --nodes 2 --gpus-per-node 1 \
    --set device=cpu
refused "another number of tasks than of GPUs" 64 "has a task for each" configs/demo.json --nodes 2 --gpus-per-node 4 \
    --tasks-per-node 2
refused "a folder that is no run" 66 "configs is not the folder of a run" configs --nodes 2 --cpus-per-task 1
refused "a job without machines" 64 "--nodes" configs/demo.json --cpus-per-task 1
for limit in 3 03:00 0:03:00 0-1 0-0:03 0-0:03:00; do
    expect_code "slurm: the limit $limit is accepted" 0 "$TRAIN" slurm configs/demo.json --nodes 1 --cpus-per-task 1 --time $limit
    check "slurm: the limit $limit stays as it is" grep -qx "#SBATCH --time=$limit" output
done

# ---- the signal ----------------------------------------------------------------------------------------------------------
make_text
run=(--set train_steps=6 --set steps_per_print=2 --set checkpoint.save_interval=2 --set eval.interval=0
    --set eval.sample_interval=0)
expect_code "slurm: a run on one rank" 0 "$TRAIN" "$TINY" "${run[@]}" --out "my run"
"$TRAIN" slurm "$TINY" "${run[@]}" --nodes 1 --cpus-per-task 1 --out "my run" >printed
check "slurm: the script uses the step and save times that the run has measured" grep -qE "a save of [0-9]+ s and a step of 1 s, as" printed
# A run that takes long.
sed -i -E 's/("event": "ckpt".*"seconds": )[0-9.e-]+/\1100.5/; s/("tokens_per_step": )[0-9]+/\11000/; s/("tokens_per_second": )[0-9.e+-]+/\140/' \
    "my run/metrics.jsonl"
"$TRAIN" slurm "$TINY" "${run[@]}" --nodes 1 --cpus-per-task 1 --out "my run" >printed
check "slurm: a save of 101 s, a step of 25 s and a minute are 186 s" grep -qx "#SBATCH --signal=USR1@186" printed
"$TRAIN" slurm "my run" --nodes 1 --cpus-per-task 1 >printed
check "slurm: the script for resuming a run names its folder" grep -qx 'out="my run"' printed
# shellcheck disable=SC2016 # the script expands it
check "slurm: the script for resuming a run starts it in its folder" grep -qF './train "$out"' printed

# ---- the script, with commands that only note their calls ------------------------------------------------------------------
mkdir bin job
cat >bin/srun <<'END'
#!/bin/bash
echo "srun $*" >>calls
echo "end=${SLURM_JOB_END_TIME:-none}" >>calls
[ ! -e said ] || cat said >&2
exit "$(cat code)"
END
cat >bin/scontrol <<'END'
#!/bin/bash
if [ "$1 $2" = "show hostnames" ]; then
    # shellcheck disable=SC2086
    eval "printf '%s\n' $(sed -E 's/\[([0-9]+)-([0-9]+)\]/{\1..\2}/; s/,/ /g' <<<"$3")"
    exit
fi
echo "scontrol $*" >>calls
[ ! -e refuse ]
END
cat >bin/squeue <<'END'
#!/bin/bash
case "$*" in
*%x*) cat excluded 2>/dev/null ;;
*%e*) echo 2026-11-24T18:00:00 ;;
esac
END
printf '#!/bin/bash\nprintf "n%%d\\n" {1..%s}\n' '$(cat machines)' >bin/sinfo
sed -i 's/{1..\$(cat machines)}/$(seq "$(cat machines)")/' bin/sinfo
printf '#!/bin/bash\nexit 0\n' >bin/sleep
chmod +x bin/*
"$TRAIN" slurm configs/demo.json --nodes 2 --cpus-per-task 1 --out r >job/script
echo 4 >machines
# start CODE [NAME=VALUE...]: runs the script, whose srun ends with this code; leaves its output in "output" and its exit code in $got
start() {
    echo "$1" >code
    rm -f calls
    env -u SLURM_JOB_END_TIME PATH="$work/bin:$PATH" SLURM_JOB_ID=17 SLURM_JOB_NODELIST='n[1-2]' SLURM_JOB_PARTITION=p \
        SLURM_JOB_NUM_NODES=2 SLURM_CPUS_PER_TASK=1 "${@:2}" bash job/script >output 2>&1
    got=$?
}
# again NAME CODE [MACHINES]: expects that the job is requeued after this code, without these machines
again() {
    check "slurm: after $1 the script exits with code $2" test "$got" -eq "$2"
    check "slurm: after $1 the job is requeued" grep -qx "scontrol requeue 17" calls
    check "slurm: after $1 the next start excludes these machines: ${3:-none}" test \
        "$(sed -n 's/^scontrol update JobId=17 ExcNodeList=//p' calls)" = "${3:-}"
}
# ended NAME CODE: expects that the job is not requeued after this code
ended() {
    check "slurm: after $1 the script exits with code $2" test "$got" -eq "$2"
    check "slurm: after $1 the job is not requeued" test "$(grep -c scontrol calls)" -eq 0
}
start 0
ended "0" 0
check "slurm: srun gets the task's cores, the config and the folder" grep -qx \
    'srun --kill-on-bad-exit=0 --wait=60 --cpus-per-task=1 ./train configs/demo.json --out r' calls
check "slurm: the end of the job is exported" grep -qx "end=$(date -d 2026-11-24T18:00:00 +%s)" calls
check "slurm: the folder has the job's number, restart and machines" grep -qE \
    '^[0-9T:-]+ job 17, restart 0, on n\[1-2\]: starts$' r/jobs.txt
check "slurm: the log has the job's number, restart and machines" grep -qE '^[0-9T:-]+ job 17, restart 0, on n\[1-2\]: the run is finished$' output
start 0 SLURM_JOB_END_TIME=1764000000 SLURM_RESTART_COUNT=3
check "slurm: an end of the job that SLURM has set is kept" grep -qx "end=1764000000" calls
check "slurm: the restart is counted" grep -q 'job 17, restart 3, on' output
start 85
again "85" 85
touch r/STOP
start 85
ended "85 by RUN/STOP" 85
rm r/STOP
for code in 1 2 64 65 66 70 73 74 76 77 78 88 89 90 128; do
    start $code
    ended "$code" $code
done
for code in 69 75 86 87 129 134 137 139 143; do
    start $code
    again "$code" $code
done
said() { printf 'warning: on n1\nerror[78] rank 1 on n1: differs\nerror[%s\nerror[87] rank 0 (on n1)\n' "$1" >said; }
said "87] rank 2 dp 0: the process of this rank on n2 has ended, or the network to it is broken"
start 87
again "87 that names a machine" 87 n2
start 137
again "a signal, if a rank that was not killed names a machine" 137 n2
echo n4 >excluded
rm excluded
mv r/jobs.txt kept
wait="group n1, call 2, barrier: rank 0 has waited 4 s (parallel.timeout) for"
said "86] rank 0 dp 0 on n1: $wait rank 1 (on n2), which has not arrived"
start 86
again "86 of a rank on n1, which waits for one on n2" 86 n2
said "86] rank 0 dp 0 on n1: $wait ranks 1, 2, which have not arrived; rank 2 waits for rank 3 (on n2; group n1, call 1, barrier)"
start 86
again "86 of a rank on n1, which waits for others that wait for one on n2" 86 n2
said "86] rank 0 dp 0 on n1: $wait ranks 1, 2 (on n1, n2.cluster.org), which have not arrived"
start 86
again "86 that blames two machines" 86 n1,n2
said "86] rank 0 dp 0 on n1: $wait ranks 1-8 (on n1, n2, n3 and others), which have not arrived"
start 86
again "86 that blames many machines" 86
said "86] rank 0 dp 0 on n1: $wait ranks 0-3 and their GPUs have all come to it, and it does not end; read n1"
start 86
again "86 that blames nobody" 86
said "87] rank 0 dp 0 on n1: group world, call 2: rank 0 waits for rank 1 (on n2), which has left the group"
start 87
again "87 for a rank that has left" 87 n2
mv kept r/jobs.txt
echo n4 >excluded
echo "error[86] rank 0: rank 1 does not answer" >said
start 86
again "86 without a machine in its message" 86
echo "error[86] rank 0: rank 1 (on n1.cluster.org) does not answer" >said
start 86
again "86 that names a machine, in a job that excludes one" 86 n4,n1
echo "error[86] rank 0: ranks 1, 2 (on n9, n11) do not answer" >said
start 86
again "86 that names a machine of another job" 86
echo "error[87] rank 0: rank 1 (on n2) has ended" >said
rm excluded
echo 2 >machines
start 87
again "87 where no other machine is there" 87
start 71
ended "71 where no other machines are there" 71
echo 4 >machines
echo "error[71] rank 3 dp 1 on n2: NCCL on rank 3 says: n1 unhandled cuda error" >said
mv r/jobs.txt kept
start 71
again "71 of a rank on n2" 71 n2
mv kept r/jobs.txt
rm said
start 71
again "71" 71 'n[1-2]'
start 71
ended "71 for the second time" 71
: >refuse
start 85
check "slurm: a requeue that is refused is reported" grep -q 'the job could not be requeued' output
check "slurm: a requeue that is refused ends the script with the run's code" test $got -eq 85
rm refuse
for _ in {1..20}; do start 69; done
ended "69 after 20 failures" 69
check "slurm: the job was requeued after 20 failures" test "$(grep -c ', a failure' r/jobs.txt)" -eq 20
start 85
again "85 after 20 failures" 85
start 69 SLURM_JOB_ID=18
check "slurm: failures are counted separately for another job" grep -qx "scontrol requeue 18" calls
finish

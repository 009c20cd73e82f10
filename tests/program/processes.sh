#!/usr/bin/env bash
# processes.sh -- tests runs whose ranks are processes (--processes): they have the bits of ranks that are threads, end
# together however one of them ends, and leave nothing. POINTS: how many ranks are killed at random moments (5); SEED=n draws
# others.
. "$(dirname "$0")/lib.sh"
make_text
start_clock
child='' code='' tracer=''
set -m # without job control, background processes would ignore SIGINT
RANDOM=$((${SEED:-1} % 32768))
run=(--set train_batch_size=12 --set train_micro_batch_size_per_gpu=1 --set gradient_accumulation_steps=auto --set fp64.enabled=true --set cpu.threads=1
    --set parallel.timeout=60 --set train_steps=12 --set eval.interval=6 --set eval.sample_interval=6
    --set checkpoint.save_interval=0)

# ---- the bits of threads ---------------------------------------------------------------------------------------------
grid=(--ranks 4 --set parallel.tensor=2 --set zero_optimization.stage=2)
expect_code "processes: a run on threads succeeds" 0 "$TRAIN" "$TINY" "${run[@]}" "${grid[@]}" --set checkpoint.save_interval=6 \
    --set checkpoint.keep=0 --out threads
expect_code "processes: a run on processes succeeds" 0 "$TRAIN" "$TINY" "${run[@]}" "${grid[@]}" --processes --out processes
check "processes: a run prints that its ranks are processes" \
    grep -q '^ranks   4 = dp 2 x tp 2 (processes, 1 thread each), ZeRO 2$' output
same_run "processes: a run on processes has the same bits as with threads" threads processes
check "processes: a run on processes has the same sample as with threads" test "$(text threads)" = "$(text processes)"
stages=(--ranks 2 --set parallel.pipeline=2 --set train_steps=6)
expect_code "processes: stages as threads succeed" 0 "$TRAIN" "$TINY" "${run[@]}" "${stages[@]}" --out stages
expect_code "processes: stages as processes succeed" 0 "$TRAIN" "$TINY" "${run[@]}" "${stages[@]}" --processes --out stages-p \
    --set memory_breakdown=true
check "processes: memory_breakdown prints the memory of rank 0's process" bash -c \
    "tr -s ' \n' ' ' <output | grep -qE \"resident [0-9.]+ MiB, peak [0-9.]+ MiB in rank 0's process, plan [0-9.]+ MiB for all 2 ranks\""
same_run "processes: stages as processes have the same bits as with threads" stages stages-p

# ---- a checkpoint of threads, of which each rank has a part -------------------------------------------------------------
# The other way, from processes to threads, is below: a run that SIGTERM has stopped.
mkdir -p moved/checkpoints
cp threads/config.json threads/metrics.jsonl threads/tokenizer.json moved
cp -r threads/checkpoints/step_00000006 moved/checkpoints
expect_code "processes: a run of threads resumes on processes" 0 "$TRAIN" "$TINY" "${run[@]}" "${grid[@]}" --processes --out moved
check "processes: a run of threads resumes from its checkpoint" grep -q '^resume  step 6 from moved/checkpoints' output
same_run "processes: a run resumed on processes has the same bits as an uninterrupted run" threads moved

# ---- other commands --------------------------------------------------------------------------------------------------
for command in "eval threads" "generate threads --tokens 8 --temperature 0" "verify $TINY --set parallel.tensor=2"; do
    read -ra words <<<"$command"
    expect_code "processes: ${words[0]} on threads succeeds" 0 "$TRAIN" "${words[@]}" --ranks 2
    without_speed output | sed -E 's/threads/ranks/; s/ +[0-9.]+ s$//' >on.threads
    expect_code "processes: ${words[0]} on processes succeeds" 0 "$TRAIN" "${words[@]}" --ranks 2 --processes
    without_speed output | sed -E 's/processes/ranks/; s/threads/ranks/; s/ +[0-9.]+ s$//' >on.processes
    check "processes: ${words[0]} prints the same on processes" cmp on.threads on.processes
done
expect_code "processes: bench comm succeeds" 0 "$TRAIN" bench comm --processes --repetitions 1
check "processes: bench comm prints what the ranks are" grep -q '2 ranks as processes' output

expect_code "processes: a command line that asks for threads, too, exits with code 64" 64 "$TRAIN" "$TINY" --ranks 2 --processes \
    --no-processes --dry-run
check "processes: a command line that asks for threads, too, is explained" \
    grep -qx 'error\[64\] --processes and --no-processes contradict each other' output

# ---- stops -----------------------------------------------------------------------------------------------------------
# start STEP RUN OPTION...: starts a run on four processes that is held after this step; sets $child and $ranks
start() {
    held "$1" "$2" "${run[@]}" "${grid[@]}" --processes "${@:3}"
    mapfile -t ranks < <(ranks_of "$child")
    check "processes: four ranks run" test ${#ranks[@]} -eq 4
    [ ${#ranks[@]} -eq 4 ] || finish
}
sleep 600 & # a process that has nothing open but what this script has
plain=$!
disown
children+=("$plain")
start 3 term
# has NAME PROCESS LIST: expects that the process has just these descriptors, and that a program that it started would
# inherit none of them
has() {
    local got
    got=$(descriptors "$2" "$plain")
    check "processes: $1 has open what it needs (got $got)" test "$got" = "$3"
}
data='1 train_000000.bin, 1 val_000000.bin'
# Rank 0 has the result's pipe, sockets to the launcher, to three ranks for reports and to three for tensors, and each rank
# one that accepts. Three wake its threads, and one tells of SIGUSR2.
has "the launcher" "$child" "1 pipe, 1 socket, $data"
has "rank 0" "${ranks[0]}" "4 anon_inode, 1 pipe, 8 socket, 1 term, 1 term/lock, 1 term/metrics.jsonl, 1 term/samples.txt, $data"
for r in 1 2; do has "rank $r" "${ranks[r]}" "4 anon_inode, 4 socket, $data"; done # they differ on two axes: no tensors
has "rank 3" "${ranks[3]}" "4 anon_inode, 5 socket, $data"
kill $plain
kill -TERM "$child"
let_go
check "processes: SIGTERM to the launcher saves and exits with code 85 (got $code)" test "$code" -eq 85
nothing_left "processes: SIGTERM" "${ranks[@]}"
expect_code "processes: a stopped run resumes on threads" 0 "$TRAIN" "$TINY" "${run[@]}" "${grid[@]}" --out term
check "processes: a stopped run resumes from its checkpoint" grep -Eq '^resume  step [0-9]+ from term/checkpoints' output
same_run "processes: a run resumed on threads has the same bits as an uninterrupted run" threads term
start 3 all
kill -s SIGRTMIN+1 "${ranks[0]}" # the launcher passes signals on with this one, and with a number
sleep 0.1
check "processes: a signal from another process stops nothing" test "$(grep -c 'finishing this step' err)" -eq 0
check "processes: the lock names the process that can be stopped" grep -q "process $child on" all/lock
kill -USR1 "$child" "${ranks[@]}"
let_go
check "processes: a signal to every process counts once (got $code)" test "$code" -eq 85
start 2 twice
kill -STOP "$child"
kill -INT "$child"
kill -TERM "$child"
begun=$(now)
kill -CONT "$child"
nothing_left "processes: a second signal" "${ranks[@]}"
let_go # not before, so that the run cannot end after the first one
check "processes: two signals end all ranks with a signal's code (got $code)" test "$code" -eq 130 -o "$code" -eq 143
in_time "processes: two signals end all ranks" "$(since "$begun")" 0
start 2 unread --set parallel.timeout=1
sleep 3 # the console is a pipe that nobody reads
let_go
check "processes: a run continues if its console is not read (got $code)" test "$code" -eq 0
start 2 parent
begun=$(now)
kill -KILL "$child"
let_go
check "processes: SIGKILL ends the launcher (got $code)" test "$code" -eq 137
nothing_left "processes: a killed launcher" "${ranks[@]}"
in_time "processes: the death of the launcher ends all ranks" "$(since "$begun")" 0

# ---- ranks that are killed -------------------------------------------------------------------------------------------
# Every second one is killed at a random call by which it sends or receives tensors, in a step, an evaluation or a sample,
# the others after a random step.
points=${POINTS:-5} killed=0 kinds=(sendmsg recvfrom) calls=(0 0)
if can_attach; then
    start 1 killed --set checkpoint.save_interval=4
    trace "${ranks[1]}" -o calls -e trace=sendmsg,recvfrom
    let_go
    wait "$tracer"
    for k in 0 1; do calls[k]=$(grep -c "^${kinds[k]}" calls); done
    echo "calls in a run after its first step: sendmsg ${calls[0]}, recvfrom ${calls[1]}"
else
    skip "processes: ranks are killed at system calls" "strace cannot attach to a process here"
fi
for ((i = 0; i < points; i++)); do
    victim=$((i < 4 ? i : RANDOM % 4)) k=$((i / 2 % 2))
    rm -rf killed
    start 1 killed --set checkpoint.save_interval=4
    if ((i % 2 == 0 && calls[k] > 0)); then
        n=$((1 + (RANDOM * 32768 + RANDOM) % calls[k]))
        point="rank $victim at ${kinds[k]} $n"
        trace "${ranks[victim]}" -o /dev/null -e "trace=${kinds[k]}" -e "inject=${kinds[k]}:signal=KILL:when=$n"
        let_go
        ended=$(now)
        wait "$tracer"
    else
        n=$((1 + RANDOM % 10))
        point="rank $victim after step $n"
        until_step $n <&3
        now >died
        kill -KILL "${ranks[victim]}"
        let_go
        ended=$(now)
    fi
    [ "$code" -ne 0 ] || continue # the run had ended before
    killed=$((killed + 1))
    check "processes: the death of $point ends all with exit code 87 (got $code)" test "$code" -eq 87
    in_time "processes: the death of $point ends all" "$(awk -v died="$(<died)" -v ended="$ended" 'BEGIN { printf "%.1f", ended - died }')" 0
    check "processes: the death of $point is named once" test "$(grep -cE '^error\[87\].*killed by signal 9' err)" -eq 1 -a \
        "$(grep -c '^error' err)" -eq 1
    nothing_left "processes: the death of $point" "${ranks[@]}"
    expect_code "processes: after the death of $point the run resumes" 0 "$TRAIN" "$TINY" "${run[@]}" "${grid[@]}" \
        --processes --set checkpoint.save_interval=4 --out killed
    same_run "processes: after the death of $point the run has the same bits as an uninterrupted run" threads killed
done
check "processes: $killed of $points ranks were killed before the end of the run" test $killed -ge $((points * 3 / 4))
finish

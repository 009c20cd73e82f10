#!/usr/bin/env bash
# process_faults.sh -- tests faults of one rank that is a process (--processes): death in the middle of a save, a full disk on
# the rank that writes, and a data file that is removed or cut during the run. All ranks end together with one message,
# nothing is left, and the same command goes on from the checkpoint before it, with the bits of an uninterrupted run. What
# happens between saves is in processes.sh, faults of NCCL in nccl_faults.sh.
. "$(dirname "$0")/lib.sh"
make_text
start_clock
child='' code='' tracer=''
run=(--set train_batch_size=4 --set train_micro_batch_size_per_gpu=1 --set gradient_accumulation_steps=auto --set cpu.threads=1
    --set parallel.timeout=60 --set train_steps=12 --set eval.interval=0 --set eval.sample_interval=0
    --set checkpoint.save_interval=4 --ranks 2 --set zero_optimization.stage=1)
expect_code "process faults: an uninterrupted run succeeds" 0 "$TRAIN" "$TINY" "${run[@]}" --set checkpoint.writers=1 --out whole

# sockets_of PROCESS...: prints the names of the local sockets that these processes have
sockets_of() {
    local process
    for process in "$@"; do readlink "/proc/$process/fd/"*; done | sed -nE 's/^socket:\[([0-9]+)\]$/\1/p' >inodes
    awk 'NR == FNR { open[$1]; next } $7 in open && $8 != "" { print $8 }' inodes /proc/net/unix
}

# start STEP RUN OPTION...: starts a run on two processes that is held after this step; sets $ranks and $sockets
start() {
    held "$1" "$2" "${run[@]}" --set checkpoint.writers=2 --processes "${@:3}"
    mapfile -t ranks < <(ranks_of "$child")
    mapfile -t sockets < <(sockets_of "${ranks[@]}")
    check "process faults: two ranks run and have sockets" test ${#ranks[@]} -eq 2 -a ${#sockets[@]} -ge 2
    [ ${#ranks[@]} -eq 2 ] || finish
}

# trouble RANK INJECTION: from now on, system calls of this rank fail or end its process (inject= of strace)
trouble() { trace "${ranks[$1]}" -o /dev/null -e "trace=${2%%:*}" -e "inject=$2"; }

# ends NAME CODE SENTENCE: lets the run go on, and expects that it ends with this code and one error message, which matches
# SENTENCE, and that nothing of it is left. It ends within two seconds after the rank that had trouble, or from now on.
ends() {
    local name=$1 begun took socket left=''
    begun=$(now)
    let_go
    check "process faults: $name ends the run with $2 (got $code)" test "$code" -eq "$2"
    took=$(since "$begun")
    if [ -n "$tracer" ]; then
        wait "$tracer"
        took=$(awk -v died="$(<died)" -v begun="$begun" -v took="$took" 'BEGIN { printf "%.1f", took - died + begun }')
        tracer=''
    fi
    in_time "process faults: $name ends the run" "$took" 0
    check "process faults: $name is reported once: $(grep '^error' err)" test "$(grep -c '^error' err)" -eq 1
    check "process faults: $name is reported with its cause" grep -qE "^error\[$2\] $3" err
    nothing_left "process faults: $name" "${ranks[@]}"
    for socket in "${sockets[@]}"; do ! grep -qF "$socket" /proc/net/unix || left+=" $socket"; done
    check "process faults: $name leaves no socket" test -z "$left"
}

# goes_on NAME RUN: expects that the run's checkpoint of step 4 is intact, and that the same command completes the run
goes_on() {
    check "process faults: after $1, the checkpoint before it exists" test "$(checkpoint_steps "$2" | grep -v tmp)" = 4
    expect_code "process faults: after $1, the checkpoint before it is intact" 0 "$TRAIN" ckpt verify "$2"
    expect_code "process faults: after $1, the run goes on" 0 "$TRAIN" "$TINY" "${run[@]}" --set checkpoint.writers=1 --processes --out "$2"
    same_run "process faults: after $1, the run has the bits of an uninterrupted run" whole "$2"
    check "process faults: after $1, no part of a save is left" \
        test -z "$(find "$2/checkpoints" -name '*.tmp-*' -o -name '.trash*')"
}

# ---- during a save ---------------------------------------------------------------------------------------------------
killed='the process of this rank was killed by signal 9 \(Killed\)$'
if can_attach; then
    start 5 writer
    trouble 1 fsync:signal=KILL:when=1
    ends "the death of a writer" 87 "rank 1 dp 1: $killed"
    check "process faults: the death of a writer is in the middle of a save" test -d writer/checkpoints/step_00000008.tmp-*
    goes_on "the death of a writer" writer
    start 5 first
    trouble 0 renameat:signal=KILL:when=1
    ends "the death of rank 0 before it renames a save" 87 'the process of rank 0 was killed by signal 9 \(Killed\)$'
    check "process faults: the death of rank 0 is in the middle of a save" test -f first/checkpoints/step_00000008.tmp-*/manifest.json
    goes_on "the death of rank 0" first
    start 5 full
    trouble 1 fsync:error=ENOSPC
    ends "a full disk on a writer" 74 'the run reached its goal, but its last checkpoint is not written'
    check "process faults: a full disk on a writer is reported with its file" \
        grep -qE 'step 8 is not saved: .*-00002-of-00002.safetensors .*: No space left on device; trying again at the next interval' err
    goes_on "a full disk on a writer" full
else
    skip "process faults: faults during a save" "strace cannot attach to a process here"
fi

# ---- data ------------------------------------------------------------------------------------------------------------
start 5 cut --set data.cache=cut-corpora
cp cut-corpora/*/train_000000.bin kept.bin
truncate -s 2000 cut-corpora/*/train_000000.bin
ends "a data file that is cut" 65 'rank [01] dp [01]: .*train_000000.bin has been cut since it was opened'
cp kept.bin cut-corpora/*/train_000000.bin
run+=(--set data.cache=cut-corpora)
goes_on "a data file that is cut" cut
start 5 removed
rm cut-corpora/*/train_000000.bin
let_go
check "process faults: a data file that is removed does not disturb a run that has it open (got $code)" test "$code" -eq 0
finish

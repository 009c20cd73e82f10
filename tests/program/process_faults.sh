#!/usr/bin/env bash
# process_faults.sh -- tests faults of one rank that is a process (--processes): death in the middle of a save, a full disk on
# the rank that writes, and a data file that is removed or cut during the run. All ranks end together with one message,
# nothing is left, and the same command goes on from the checkpoint before it, with the bits of an uninterrupted run. Faults
# during a save come to the rank's own thread in runs that wait for their saves, and to the thread that writes in the others.
# What happens between saves is in processes.sh, faults of NCCL in nccl_faults.sh.
. "$(dirname "$0")/lib.sh"
make_text
start_clock
child='' code='' tracer='' from=0
run=(--set train_batch_size=4 --set train_micro_batch_size_per_gpu=1 --set gradient_accumulation_steps=auto --set cpu.threads=1
    --set parallel.timeout=60 --set train_steps=12 --set eval.interval=0 --set eval.sample_interval=0
    --set checkpoint.save_interval=4 --set data.cache=corpora --ranks 2 --set zero_optimization.stage=1)
waits=(--set checkpoint.async=false)
expect_code "process faults: an uninterrupted run succeeds" 0 "$TRAIN" "$TINY" "${run[@]}" --set checkpoint.writers=1 --out whole

# sockets_of PROCESS...: prints the names of the local sockets that these processes have
sockets_of() {
    local process
    for process in "$@"; do readlink "/proc/$process/fd/"*; done | sed -nE 's/^socket:\[([0-9]+)\]$/\1/p' >inodes
    awk 'NR == FNR { open[$1]; next } $7 in open && $8 != "" { print $8 }' inodes /proc/net/unix
}

# start STEP RUN OPTION...: starts a run on two processes that is held after this step; sets $ranks and $sockets. If $from is
# 4, the run goes on from a checkpoint of step 4: it has no save between its start and the one of step 8.
start() {
    [ $from -eq 0 ] || cp -r at-4 "$2"
    held "$1" "$2" "${run[@]}" --set checkpoint.writers=2 --processes "${@:3}"
    mapfile -t ranks < <(ranks_of "$child")
    mapfile -t sockets < <(sockets_of "${ranks[@]}")
    check "process faults: two ranks run and have sockets" test ${#ranks[@]} -eq 2 -a ${#sockets[@]} -ge 2
    [ ${#ranks[@]} -eq 2 ] || finish
}

# trouble RANK CALL:EFFECT: from now on, such system calls of this rank's own thread fail or end its process (inject= of strace)
trouble() { trace "${ranks[$1]}" -o /dev/null -e "trace=${2%%:*}" -e "inject=$2"; }

# trouble_of_threads RANK CALL:EFFECT [CALL:EFFECT]: the same for all threads of the rank; lists their calls in the file "calls"
trouble_of_threads() {
    local list=${2%%:*} more=()
    if [ $# -gt 2 ]; then
        list+=,${3%%:*}
        more=(-e "inject=$3")
    fi
    trace "${ranks[$1]}" -f -o calls -e "trace=$list" -e "inject=$2" "${more[@]}"
}

# of_a_writer NAME RANK CALL: expects that the first such call was made by another thread than the rank's own
of_a_writer() {
    local thread
    thread=$(grep -m 1 " $3(" calls | awk '{ print $1 }')
    check "process faults: $1 comes to the thread that writes ($thread of ${ranks[$2]})" \
        test -n "$thread" -a "$thread" != "${ranks[$2]}"
}

# ends NAME CODE SENTENCE: lets the run go on, and expects that it ends with this code and one error message, which matches
# SENTENCE, and that nothing of it is left. It ends within two seconds after the rank that had trouble, or from now on.
ends() {
    local name=$1 begun took errors
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
    errors=$(grep '^error' err)
    check "process faults: $name is reported once: $errors" test -n "$errors" -a "$errors" = "${errors%%$'\n'*}"
    check "process faults: $name is reported with its cause" grep -qE "^error\[$2\] $3" err
    nothing_left "process faults: $name" "${ranks[@]}"
    printf '%s\n' "${sockets[@]}" >names
    check "process faults: $name leaves no socket" test -z "$(grep -oFf names /proc/net/unix)"
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
killed_0='the process of rank 0 was killed by signal 9 \(Killed\)$'
unsaved='the run reached its goal, but its last checkpoint is not written'
full='step 8 is not saved: .*-00002-of-00002.safetensors .*: No space left on device; trying again'
# during_saves TROUBLE OF WHEN OPTION...: a writer dies, rank 0 dies, and a writer's disk is full, in the save of step 8. TROUBLE: the
# function that makes the trouble. OF: "" if it comes to the ranks' own threads, or whose else it is. WHEN: when the save is tried
# again.
during_saves() {
    local make=$1 of=$2 when=$3 folder=${2:+thread-}
    shift 3
    start 5 "${folder}writer" "$@"
    $make 1 fsync:signal=KILL:when=1
    ends "the death of a writer$of" 87 "rank 1 dp 1: $killed"
    [ -z "$of" ] || of_a_writer "the death of a writer" 1 fsync
    check "process faults: the death of a writer$of is in the middle of a save" test -d "${folder}writer"/checkpoints/step_00000008.tmp-*
    if ! [ -d at-4 ]; then
        cp -r "${folder}writer" at-4
        rm -r at-4/checkpoints/step_00000008.tmp-*
        sed -i -E '/"step": [5-8],/d' at-4/metrics.jsonl # `start` must wait for those of its own run
    fi
    goes_on "the death of a writer$of" "${folder}writer"
    start 5 "${folder}first" "$@"
    $make 0 renameat:signal=KILL:when=1
    ends "the death of rank 0$of before it renames a save" 87 "$killed_0"
    [ -z "$of" ] || of_a_writer "the death of rank 0" 0 renameat
    check "process faults: the death of rank 0$of is in the middle of a save" \
        test -f "${folder}first"/checkpoints/step_00000008.tmp-*/manifest.json
    goes_on "the death of rank 0$of" "${folder}first"
    start 5 "${folder}full" "$@"
    $make 1 fsync:error=ENOSPC
    ends "a full disk of a writer$of" 74 "$unsaved"
    [ -z "$of" ] || of_a_writer "a full disk" 1 fsync
    check "process faults: a full disk of a writer$of is reported with its file" grep -qE "$full $when" err
    goes_on "a full disk of a writer$of" "${folder}full"
}
if can_attach; then
    during_saves trouble '' 'at the next interval' "${waits[@]}"
    # Asynchronous saves. The run may have made its last step when it learns that the save has failed.
    from=4
    during_saves trouble_of_threads "'s thread" '(at the next interval|before the run ends)'
    # The steps are made slow, and the writing of files much slower.
    start 5 cut-pending --set data.cache=pending-corpora
    trouble_of_threads 1 write:delay_enter=200ms sendmsg:delay_enter=2ms
    {
        until compgen -G 'cut-pending/checkpoints/step_00000008.tmp-*' >/dev/null; do sleep 0.01; done
        cp pending-corpora/*/train_000000.bin kept.bin
        truncate -s 2000 pending-corpora/*/train_000000.bin
    } &
    children+=($!)
    ends "a data file that is cut while a save is pending" 65 'rank [01] dp [01]: .*train_000000.bin has been cut since it was opened'
    check "process faults: a data file is cut while a save is pending" test -d cut-pending/checkpoints/step_00000008.tmp-*
    goes_on "a data file that is cut while a save is pending" cut-pending
    from=0
else
    skip "process faults: faults during a save" "strace cannot attach to a process here"
fi

# ---- data ------------------------------------------------------------------------------------------------------------
start 5 cut --set data.cache=cut-corpora "${waits[@]}"
cp cut-corpora/*/train_000000.bin kept.bin
truncate -s 2000 cut-corpora/*/train_000000.bin
ends "a data file that is cut" 65 'rank [01] dp [01]: .*train_000000.bin has been cut since it was opened'
cp kept.bin cut-corpora/*/train_000000.bin
goes_on "a data file that is cut" cut
start 5 removed --set data.cache=cut-corpora
rm cut-corpora/*/train_000000.bin
let_go
check "process faults: a data file that is removed does not disturb a run that has it open (got $code)" test "$code" -eq 0
finish

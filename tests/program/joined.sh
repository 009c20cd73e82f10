#!/usr/bin/env bash
# joined.sh -- tests ranks that a launcher has started, each as a process, by torchrun's variables: they have the bits of ranks
# that are threads, only rank 0 prints, all end with the same code, and ranks that differ or do not come are named.
# shellcheck source-path=SCRIPTDIR
source "$(dirname "$0")/lib.sh"
make_text
ranks=()
run=(--set train_batch_size=16 --set train_micro_batch_size_per_gpu=4 --set gradient_accumulation_steps=auto --set cpu.threads=1
    --set fp64.enabled=true --set train_steps=6 --set eval.interval=3 --set eval.sample_interval=6 --set parallel.timeout=60)

# quiet NAME RANK...: expects that these ranks have printed nothing
quiet() {
    local name=$1 r bad=''
    shift
    for r; do [ ! -s "rank.$r" ] || bad+=" rank $r: $(head -n 1 "rank.$r");"; done
    if [ -z "$bad" ]; then ok "$name"; else not_ok "$name:$bad"; fi
}

# all_cases: succeeds unless a slow build runs only a part of the cases: each way to meet and to end once
all_cases() { [ -z "${TEST_SAMPLE:-}" ]; }
stages=(--set parallel.pipeline=2)
all_cases || run+=(--set train_steps=2 --set scheduler.params.warmup_num_steps=1 --set eval.interval=0 --set eval.sample_interval=0)

# ---- the bits of threads -------------------------------------------------------------------------------------------------
grid=(--set parallel.tensor=2 --set zero_optimization.stage=2)
all_end "joined: stages succeed" 0 2 "$TINY" "${run[@]}" "${stages[@]}" --out stages-j
quiet "joined: of stages only rank 0 prints" 1
if all_cases; then
    expect_code "joined: a run on threads succeeds" 0 "$TRAIN" "$TINY" "${run[@]}" "${grid[@]}" --ranks 4 --out threads
    grep -v '^ranks \|^run \|^ *[0-9]\|saved\|checkpoints/step_\|./train\|available' output >said.threads
    all_end "joined: a run on ranks of a launcher succeeds" 0 4 "$TINY" "${run[@]}" "${grid[@]}" --out joined
    check "joined: a run prints that its ranks are processes" grep -q '^ranks   4 = dp 2 x tp 2 (processes' output
    quiet "joined: only rank 0 prints" 1 2 3
    grep -v '^ranks \|^run \|^ *[0-9]\|saved\|checkpoints/step_\|./train\|available' output >said.joined
    check "joined: rank 0 prints what a run on threads prints" diff said.threads said.joined
    same_run "joined: a run has the same bits as with threads" threads joined
    check "joined: a run has the same sample as with threads" test "$(text threads)" = "$(text joined)"
    check "joined: no rendezvous file is left" test -z "$(ls -A out/.rendezvous)"
    expect_code "joined: stages as threads succeed" 0 "$TRAIN" "$TINY" "${run[@]}" "${stages[@]}" --ranks 2 --out stages
    same_run "joined: stages have the same bits as with threads" stages stages-j

    # Stops and resumes.
    all_end "joined: a run that max_time stops exits with code 85 on all ranks" 85 4 "$TINY" "${run[@]}" "${grid[@]}" --set max_time=1e-9 \
        --out resumed
    quiet "joined: a stop is printed by rank 0 alone" 1 2 3
    all_end "joined: the run resumes from its folder, and all ranks exit with code 0" 0 4 resumed --set max_time=0
    same_run "joined: a resumed run has the same bits as an uninterrupted one" threads resumed
    all_end "joined: a finished run shows its result on rank 0" 0 4 resumed --set max_time=0
    quiet "joined: the result is shown by rank 0 alone" 1 2 3

    all_end "joined: a run that diverges exits with code 88 on all ranks" 88 4 "$TINY" --set train_batch_size=8 --set fp16.enabled=true \
        --set train_micro_batch_size_per_gpu=2 --set gradient_accumulation_steps=auto --set fp16.hysteresis=1 \
        --set fp16.loss_scale=1e30 --set max_consecutive_skipped_steps=1 --set parallel.timeout=60 --out diverged
    check "joined: the divergence is reported once" test "$(cat rank.? | grep -c '^error\[88\] ')" -eq 1
fi

# ---- stops ---------------------------------------------------------------------------------------------------------------
# busy N RUN OPTION...: starts so many ranks of a long run, and returns after its third step
busy() {
    start_ranks "$1" "$TINY" "${run[@]}" --set train_steps=1000000 --set parallel.stop_interval=1 --set checkpoint.save_interval=0 \
        --out "${@:2}"
    until grep -qs '"step": 3,' "$2/metrics.jsonl" || ! kill -0 "${ranks[0]}" 2>/dev/null; do sleep 0.02; done
}
# A signal to any rank stops all after the same step.
busy 2 signal
kill -TERM "${ranks[1]}"
ranks_end "joined: a signal to rank 1 ends all ranks with exit code 85" 85
check "joined: a signal saves a checkpoint" test "$(checkpoint_steps signal | wc -l)" -eq 1
quiet "joined: a signal to rank 1 is answered by rank 0 alone" 1
if all_cases; then
    busy 2 killed
    { kill -KILL "${ranks[1]}" && wait "${ranks[1]}"; } 2>/dev/null
    wait "${ranks[0]}"
    check "joined: a rank that is killed ends the others with exit code 87" test $? -eq 87
    check "joined: a rank that is killed is named" grep -qE '^error\[87\] rank 1 dp 1: ' rank.0
    # Nobody else can say that rank 0 is lost.
    busy 3 lost --set train_batch_size=12
    { kill -KILL "${ranks[0]}" && wait "${ranks[0]}"; } 2>/dev/null
    for r in 1 2; do
        wait "${ranks[r]}"
        check "joined: rank $r exits with code 87 if rank 0 is killed" test $? -eq 87
    done
    check "joined: the first rank of the machine says that rank 0 is lost" grep -qE \
        '^error\[87\] rank 0 dp 0: the process of this rank on ' rank.1
    quiet "joined: other ranks do not repeat it" 2
fi

# ---- other commands ------------------------------------------------------------------------------------------------------
if all_cases; then
    plain() { without_speed "$1" | sed -E 's/threads/ranks/; s/processes/ranks/; s/ +[0-9.]+ s$//'; }
    python3 "$here/../golden/make_hf.py" hf
    printf 'the king\n' >prompt.txt
    for command in "eval threads" "eval threads --multiple-choice hf/choices.bin" "generate threads --tokens 8 --temperature 0" \
        "generate threads --tokens 8 --prompt-file prompt.txt --samples 2 --stop z" "verify $TINY --set parallel.tensor=2"; do
        read -ra words <<<"$command"
        expect_code "joined: ${words[0]} on threads succeeds" 0 "$TRAIN" "${words[@]}" --ranks 2
        plain output >on.threads
        all_end "joined: ${words[0]} succeeds" 0 2 "${words[@]}"
        plain output >on.joined
        check "joined: ${words[0]} prints the same" diff on.threads on.joined
        quiet "joined: ${words[0]} prints on rank 0 alone" 1
    done
    all_end "joined: bench comm succeeds" 0 2 bench comm --repetitions 1
    check "joined: bench comm prints what the ranks are" grep -q '2 ranks as processes' output
    quiet "joined: bench comm prints on rank 0 alone" 1
    all_end "joined: bench parallel succeeds" 0 2 bench parallel "$TINY" --rounds 1 --batch 2 --length 8 --set model.vocab_size=300
    check "joined: bench parallel compares with one rank" grep -qE '^one rank +[0-9.]+ .* 100\.0 %' output
    quiet "joined: bench parallel prints on rank 0 alone" 1
fi

# ---- mistakes ------------------------------------------------------------------------------------------------------------
# one_line NAME CODE PATTERN: expects that all ranks have ended with this code, and that rank 0 alone has printed this line
one_line() {
    ranks_end "joined: $1 ends all ranks with exit code $2" "$2"
    check "joined: rank 0 names $1" grep -qE "$3" rank.0
    check "joined: $1 is reported once" test "$(cat rank.? | grep -c '^error')" -eq 1
}
# Mistakes that all ranks have.
if all_cases; then
    start_ranks 4 "$TINY" --set optimizer.params.lrr=1 --set modell.x=1
    ranks_end "joined: a config with mistakes ends all ranks with exit code 78" 78
    check "joined: rank 0 prints all mistakes of the config" test "$(grep -c 'unknown key' output)" -eq 2
    quiet "joined: the other ranks print no mistakes" 1 2 3
    # What a launcher decides is not advised: ./train --ranks is refused under it.
    for advice in "parallel.tensor=2;2, but there are 3 ranks; write 1 here" \
        "parallel.data=2;2, but there are 3 ranks; write 3 here, or leave the key out" \
        "train_batch_size=8;8 is not micro 2 x accum 1 x dp 3 = 6; write train_batch_size 6"; do
        start_ranks 3 "$TINY" --set train_micro_batch_size_per_gpu=2 --set gradient_accumulation_steps=1 --set "${advice%%;*}"
        ranks_end "joined: ${advice%%=*} that does not fit exits with code 78" 78
        check "joined: the advice for ${advice%%=*} names no --ranks" grep -qxF -- \
            "--set ${advice%%;*}: $(cut -d= -f1 <<<"$advice"): ${advice#*;}" output
    done
    start_ranks 3 none.json
    one_line "a missing config" 66 '^error\[66\] none.json cannot be read'
    start_ranks 3 evall
    one_line "an unknown command" 64 '^error\[64\] evall is neither'
    start_ranks 3 -
    one_line "a config on standard input" 64 "^error\[64\] a launcher's ranks"
    start_ranks 3 generate threads --token 4
    one_line "an unknown option of a command" 64 '^error\[64\] --token: '
    start_ranks 2 "$TINY" --set data.text=none.txt --set parallel.timeout=20
    ranks_end "joined: missing data end all ranks with exit code 66" 66
    check "joined: missing data are reported once" test "$(cat rank.? | grep -c '^error\[66\]')" -eq 1
    # Where rank 0 cannot write its file, all find out.
    touch file
    start_ranks 3 "$TINY" "${run[@]}" --set train_batch_size=12 --set parallel.rendezvous=file/x
    ranks_end "joined: a folder that cannot be made ends all ranks with exit code 73" 73
    quiet "joined: a folder that cannot be made is reported by rank 0" 1 2
fi
# Mistakes that one rank has: the others do not wait for it.
begun=$SECONDS
options() { [ "$1" -ne 1 ] || echo --nonsense; }
start_ranks 2 "$TINY" "${run[@]}"
one_line "an option that only rank 1 has" 64 '^error\[64\] rank 1 \([^ ]+, dp 1\): --nonsense: '
if all_cases; then
    options() { [ "$1" -ne 0 ] || echo --nonsense; }
    start_ranks 2 "$TINY" "${run[@]}"
    one_line "an option that only rank 0 has" 64 '^error\[64\] --nonsense: '
    options() { [ "$1" -ne 0 ] || echo --set=modell.x=1; }
    start_ranks 2 "$TINY" "${run[@]}"
    ranks_end "joined: a mistake in the config of rank 0 ends all ranks with exit code 78" 78
    check "joined: a mistake in the config of rank 0 is printed by it" grep -q 'unknown key' rank.0
    quiet "joined: a mistake in the config of rank 0 is printed by no other rank" 1
    options() { [ "$1" -ne 1 ] || echo --set=modell.x=1; }
    start_ranks 2 "$TINY" "${run[@]}" --set parallel.rendezvous=elsewhere
    one_line "a mistake in the config of rank 1" 78 '^error\[78\] rank 1 \([^ ]+, dp 1\): .*unknown key'
    options() { :; }
    # shellcheck disable=SC2016 # the script's own
    printf '#!/bin/sh\nshift\nexec "%s" none.json "$@"\n' "$TRAIN" >no_config && chmod +x no_config
    # shellcheck disable=SC2034 # start_ranks reads it
    program=("$TRAIN" ./no_config)
    start_ranks 2 "$TINY" "${run[@]}"
    one_line "a config that rank 1 lacks" 66 '^error\[66\] rank 1 \([^ ]+, dp 1\): none.json cannot be read'
    # shellcheck disable=SC2016 # the script's own
    printf '#!/bin/sh\nshift\nexec "%s" generate "$@"\n' "$TRAIN" >generate && chmod +x generate
    # shellcheck disable=SC2034
    program=("$TRAIN" ./generate)
    start_ranks 2 eval threads
    one_line "another command" 78 '^error\[78\] rank 1 \(.*\): the command is "generate threads", but "eval threads" on 1 of '
    # shellcheck disable=SC2034
    program=()
fi
options() { :; }
check "joined: ranks do not wait for one that has made a mistake" test $((SECONDS - begun)) -lt 50

# differ NAME CODE PATTERN: expects that two ranks end with this code, and that one line on rank 0 or 1 says why
differ() {
    all_end "joined: $1 ends all ranks with exit code $2" "$2" 2 "$TINY" "${run[@]}" --out refused
    check "joined: $1 is named, once" test "$(cat rank.? | grep -cE "$3")" -eq 1
    check "joined: nothing else is printed about $1" test "$(cat rank.? | grep -c '^error')" -eq 1
}
options() { [ "$1" -eq 0 ] || printf '%s\n' --set optimizer.params.lr=0.5; }
differ "another config" 78 '^error\[78\] ranks differ: rank 0 has optimizer.params.lr 0.01, rank 1 has 0.5; start all'
options() { :; }
if all_cases; then
    options() { [ "$1" -eq 0 ] || printf '%s\n' --resume never; }
    differ "another option" 78 '^error\[78\] rank 1 \(.*\): the command is "train --out refused --resume never", but "train --out refused" on '
    options() { [ "$1" -eq 1 ] || printf '%s\n' --set parallel.schedule=gpipe; }
    differ "a key that only rank 0 has" 78 '^error\[78\] ranks differ: rank 0 has parallel.schedule "gpipe", rank 1 has "1f1b"; start'
    options() { [ "$1" -eq 0 ] || printf '%s\n' --set parallel.rendezvous="$PWD/out/.rendezvous"; }
    all_end "joined: ranks may reach the rendezvous in different ways" 0 2 "$TINY" "${run[@]}" --set train_steps=5 --set eval.interval=0 --out ways
    options() { :; }
    cp "$TRAIN" other && echo >>other
    # shellcheck disable=SC2034 # start_ranks reads it
    program=("$TRAIN" ./other)
    differ "another program" 78 "^error\[78\] rank 1 \(.*\): the program's hash is \"[0-9a-f]{16}\", but \"[0-9a-f]{16}\" on "
    # shellcheck disable=SC2034
    program=()
    before() { [ "$1" -eq 0 ] || echo WORLD_SIZE=4; }
    differ "another number of ranks" 78 '^error\[78\] .*rank 1 .* 4 .* 2'
    before() { :; }
fi

# connected PROCESS: succeeds if the process has a connection over TCP
connected() {
    local inode
    for inode in $(readlink "/proc/$1/fd/"* 2>/dev/null | sed -n 's/^socket:\[\(.*\)\]$/\1/p'); do
        awk -v inode="$inode" '$4 == "01" && $10 == inode { found = 1 } END { exit !found }' /proc/net/tcp /proc/net/tcp6 && return
    done
    return 1
}
# A rank that is killed while the ranks meet: the fourth never comes.
before() { echo WORLD_SIZE=4; }
start_ranks 3 "$TINY" "${run[@]}" --out refused
until connected "${ranks[2]}" || ! kill -0 "${ranks[0]}" 2>/dev/null; do sleep 0.02; done
sleep 0.3 # so long, at most, a handshake takes
{ kill -KILL "${ranks[2]}" && wait "${ranks[2]}"; } 2>/dev/null
for r in 0 1; do
    wait "${ranks[r]}"
    check "joined: rank $r exits with code 87 if a rank is killed during the rendezvous" test $? -eq 87
done
check "joined: rank 0 names the rank that was killed" grep -qE '^error\[87\] .*rank 2 ' rank.0
quiet "joined: rank 1 does not repeat it" 1
if all_cases; then
    before() { [ "$1" -lt 2 ] || echo RANK=1; }
    start_ranks 3 "$TINY" "${run[@]}" --set train_batch_size=12 --out refused
    wait "${ranks[0]}"
    check "joined: a rank that arrives twice ends rank 0 with exit code 76" test $? -eq 76
    check "joined: a rank that arrives twice is named" grep -qE '^error\[76\] .*rank 1 .*twice' rank.0
    wait
    before() { :; }
fi
before() { :; }

# ---- no folder that all share --------------------------------------------------------------------------------------------
secret=0123456789abcdef$(tr -d - </proc/sys/kernel/random/uuid)
before() { echo "TRAIN_SECRET=$secret"; }
all_end "joined: ranks find each other by a secret from the environment" 0 2 "$TINY" "${run[@]}" "${stages[@]}" --out secret \
    --set parallel.rendezvous=unused
check "joined: ranks that know a secret write no rendezvous file" test ! -e unused
! all_cases || same_run "joined: ranks connected by a secret have the same bits as with threads" stages secret
check "joined: the secret is stored nowhere" bash -c "! grep -rq $secret secret rank.?"
if all_cases; then
    before() { echo "TRAIN_SECRET=$secret$1"; }
    start_ranks 2 "$TINY" "${run[@]}" --out refused --set parallel.timeout=1
    wait "${ranks[1]}"
    check "joined: a rank with another secret exits with code 76" test $? -eq 76
    check "joined: a rank with another secret reports it" grep -qE '^error\[76\] rank 1 .* has another secret' rank.1
    wait "${ranks[0]}"
    check "joined: rank 0 waits for the right one, and exits with code 69" test $? -eq 69
    check "joined: no rank prints its secret" bash -c "! grep -q $secret rank.?"
    before() { :; }
    echo $secret >key && chmod 600 key
    all_end "joined: ranks find each other by a secret in a file" 0 2 "$TINY" "${run[@]}" "${stages[@]}" --set parallel.secret_file=key --out key-run
    check "joined: the secret of the file is stored nowhere" bash -c "! grep -rq $secret key-run rank.?"
    chmod 644 key
    all_end "joined: a secret that others may read is refused with 77" 77 2 "$TINY" "${run[@]}" --set parallel.secret_file=key --out refused
    check "joined: a refused start leaves no run folder" test ! -e refused

    # A launcher without a name for its start.
    before() { printf '%s\n' RANK= WORLD_SIZE= MASTER_ADDR= "PMI_RANK=$1" PMI_SIZE=2 "MPI_LOCALRANKID=$1" MPI_LOCALNRANKS=2; }
    all_end "joined: under MPICH's mpiexec a run exits with code 78" 78 2 "$TINY" "${run[@]}" --out refused
    check "joined: the sentence names the key" grep -qE '^error\[78\] PMI gives its ranks .*: set parallel.rendezvous to a folder' output
    all_end "joined: under MPICH's mpiexec parallel.rendezvous is enough" 0 2 "$TINY" "${run[@]}" "${stages[@]}" \
        --set parallel.rendezvous=place --out mpich
    same_run "joined: under MPICH's mpiexec a run has the same bits as with threads" stages mpich
fi
finish

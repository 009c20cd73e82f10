#!/usr/bin/env bash
# flight.sh -- tests the files that a run leaves in RUN/flight (parallel/flight): on SIGUSR2, which stops nothing and changes no
# bit, and when a rank is stopped or lost, on ranks that are threads, processes or a launcher's. When a process dumps, and what
# is in a file, is tested in tests/parallel/flight.
# shellcheck source-path=SCRIPTDIR
source "$(dirname "$0")/lib.sh"
make_text
child='' code=''
set -m # without job control, background processes would ignore SIGINT
run=(--set train_batch_size=12 --set train_micro_batch_size_per_gpu=1 --set gradient_accumulation_steps=auto --set cpu.threads=1
    --set parallel.timeout=60 --set "train_steps=${STEPS:-12}" --set eval.interval=0 --set eval.sample_interval=0
    --set checkpoint.save_interval=0 --ranks 3)
files() { find "$1/flight" -name 'rank_*.jsonl' 2>/dev/null | wc -l; }

# dump_of RUN RANK: prints the name of the dump that the rank's file belongs to
dump_of() { sed -nE '1s/.*"dump":"([0-9a-f]{16})".*/\1/p' "$(printf '%s/flight/rank_%05d.jsonl' "$1" "$2")" 2>/dev/null; }

# dumped RUN OLD RANK...: waits until the files of these ranks are of one dump, other than OLD; prints its name
dumped() {
    local folder=$1 old=$2 i r names
    shift 2
    for ((i = 0; i < 500; i++)); do
        names=$(for r; do echo "dump $(dump_of "$folder" "$r")"; done | sort -u)
        [[ $names =~ ^dump\ ([0-9a-f]{16})$ ]] && [ "${BASH_REMATCH[1]}" != "$old" ] && echo "${BASH_REMATCH[1]}" && return
        sleep 0.02
    done
    return 1
}

# said FILE TIMES: waits until the command that shows more has been printed so often
said() {
    local i
    for ((i = 0; i < 250; i++)); do
        [ "$(grep -c '^flight: .*\./train flight' "$1")" -ge "$2" ] && break
        sleep 0.02
    done
    test "$(grep -c '^flight: .*\./train flight' "$1")" -eq "$2"
}

expect_code "flight: an undisturbed run succeeds" 0 "$TRAIN" "$TINY" "${run[@]}" --out whole
check "flight: an undisturbed run leaves no files" test ! -e whole/flight

expect_code "flight: the help of a run is printed" 0 "$TRAIN" --help train
check "flight: the help names SIGUSR2" grep -q '^SIGUSR2 writes RUN/flight and stops nothing' output

# ---- ./train flight without a dump -----------------------------------------------------------------------------------
# refused PATH SENTENCE: expects that `./train flight PATH` ends with 66 and says this
refused() {
    expect_code "flight: $1 has no dump" 66 "$TRAIN" flight "$1"
    check "flight: the message says why there is no dump: $2" grep -qF "$2" output
}
cp -r whole dumped
mkdir dumped/flight
refused nowhere 'there is no folder nowhere: give the folder of a run'
refused "$TINY" "$TINY is no folder: give the folder of a run"
refused . '. is a folder without config.json, so it is no run'
refused whole 'whole holds no flight recorder'
refused dumped/flight 'dumped/flight is a part of a run: ./train flight dumped'
refused "$(echo whole/checkpoints/step_* | cut -d' ' -f1)" ' is a part of a run: ./train flight whole'

# ---- SIGUSR2 ---------------------------------------------------------------------------------------------------------
for kind in threads processes; do
    options=()
    [ $kind = threads ] || options=(--processes)
    held 3 $kind "${run[@]}" "${options[@]}"
    kill -USR2 "$child"
    first=$(dumped $kind '' 0 1 2)
    check "flight: $kind: SIGUSR2 writes a file of each rank, of one dump" test -n "$first" -a "$(files $kind)" -eq 3
    check "flight: $kind: rank 0 reports the dump once" said err 1
    check "flight: $kind: the reason is the signal" grep -q '"reason":"signal","rank":2,"ranks":3,' $kind/flight/rank_00002.jsonl
    check "flight: $kind: the files contain communication calls" grep -q '"kind":"collective","name":"all-reduce"' $kind/flight/rank_00001.jsonl
    if [ $kind = processes ]; then
        mapfile -t ranks < <(ranks_of "$child")
        kill -USR2 "${ranks[-1]}"
    else
        kill -USR2 "$child"
    fi
    second=$(dumped $kind "$first" 0 1 2)
    check "flight: $kind: another signal, to any rank, writes another dump" test -n "$second"
    for _ in {1..20}; do kill -USR2 "$child"; done
    check "flight: $kind: several signals in a row write a dump" test -n "$(dumped $kind "$second" 0 1 2)"
    let_go
    check "flight: $kind: SIGUSR2 does not stop the run (got $code)" test "$code" -eq 0
    check "flight: $kind: nothing else is left in the folder" test -z "$(find $kind/flight -name '*.tmp')"
    same_run "flight: $kind: SIGUSR2 changes no bit" whole $kind
done
if [ -z "${TEST_SAMPLE:-}" ]; then
    trap '' USR2
    held 3 ignored "${run[@]}" --processes
    trap - USR2
    kill -USR2 "$child"
    mapfile -t ranks < <(ranks_of "$child")
    kill -USR2 "${ranks[@]}"
    let_go
    check "flight: a signal that is ignored from the start stays ignored (got $code)" test "$code" -eq 0 -a ! -e ignored/flight

    held 3 refused "${run[@]}"
    echo "no folder" >refused/flight
    kill -USR2 "$child"
    let_go
    check "flight: a file that cannot be written does not end the run (got $code)" test "$code" -eq 0
    check "flight: a file that cannot be written causes a warning" grep -qx 'warning: the flight recorder cannot be written to refused/flight: Not a directory' err
    same_run "flight: a file that cannot be written changes no bit" whole refused

    # ---- a stopped rank ----------------------------------------------------------------------------------------------
    held 3 stopped "${run[@]}" --processes
    kill -USR2 "$child"
    first=$(dumped stopped '' 0 1 2)
    check "flight: rank 0 reports a dump once, before another signal" said err 1
    mapfile -t ranks < <(ranks_of "$child")
    kill -STOP "${ranks[1]}"
    kill -USR2 "$child"
    second=$(dumped stopped "$first" 0 2)
    check "flight: the other ranks write their files while one is stopped" test -n "$second"
    check "flight: a stopped rank has the file of an earlier dump" test "$(dump_of stopped 1)" = "$first"
    check "flight: rank 0 reports the dump although a rank is stopped" said err 2
    kill -CONT "${ranks[1]}"
    check "flight: a rank that is continued writes its file" test "$(dumped stopped "$first" 0 1 2)" = "$second"
    kill -STOP "${ranks[0]}"
    kill -USR2 "$child"
    third=$(dumped stopped "$second" 1 2)
    check "flight: the other ranks write one dump while rank 0 is stopped" test -n "$third"
    check "flight: rank 0's file is then of an earlier dump" test "$(dump_of stopped 0)" = "$second"
    kill -CONT "${ranks[0]}"
    check "flight: rank 0 writes its file when it is continued" test "$(dumped stopped "$second" 0 1 2)" = "$third"
    let_go
    check "flight: the run continues after all dumps (got $code)" test "$code" -eq 0
    same_run "flight: the run with dumps has the same bits" whole stopped
fi

# ---- deadlines and lost ranks --------------------------------------------------------------------------------------------
# ends NAME RUN CODE SENTENCE REASON RANK...: lets the run go on, and expects its end, with one error message, and files of
# these ranks alone
ends() {
    local name=$1 folder=$2 reason=$5 last
    let_go
    check "flight: $name ends the run with exit code $3 (got $code)" test "$code" -eq "$3"
    check "flight: $name has one error message, as without the recorder" test "$(grep -c '^error' err)" -eq 1
    check "flight: $name is named in the error message" grep -qE "^error\[$3\] $4\$" err
    check "flight: $name: what follows names the command" test "$(grep -v '^warning' err | sed 1d | grep -c "^flight: .*\./train flight $folder")" -ge 1
    shift 5
    last=$(dumped "$folder" '' "$@")
    check "flight: $name leaves files of the others" test -n "$last" -a "$(files "$folder")" -eq $#
    check "flight: $name is the reason" grep -q "\"reason\":\"$reason\"" "$(printf '%s/flight/rank_%05d.jsonl' "$folder" "$1")"
}
held 3 hangs "${run[@]}" --processes --set parallel.timeout=2
mapfile -t ranks < <(ranks_of "$child")
kill -STOP "${ranks[1]}"
# Rank 1 alone, or with the other one, which may itself be in an earlier call in which it waits for rank 1.
ends "a stopped rank" hangs 86 \
    '.*rank [02] dp [02]: group .*, call [0-9]+, .*: rank [02] has waited 2 s \(parallel.timeout\) for .*(rank 1|ranks 0, 1|ranks 1, 2)[ ,;].*' \
    deadline 0 2
held 3 lost "${run[@]}" --processes
mapfile -t ranks < <(ranks_of "$child")
kill -KILL "${ranks[2]}"
ends "a killed rank" lost 87 'rank 2 dp 2: the process of this rank was killed by signal 9 \(Killed\)' failure 0 1
if [[ $TRAIN == */tsan/* ]]; then
    skip "flight: a stopped rank 0" "ThreadSanitizer lets each end take a second more, after which another rank ends the program, too"
else
    held 3 deaf "${run[@]}" --processes --set parallel.timeout=2
    mapfile -t ranks < <(ranks_of "$child")
    kill -STOP "${ranks[0]}"
    ends "a stopped rank 0" deaf 86 'rank 1 dp 1: group .*: rank 1 has waited 2 s \(parallel.timeout\) for (rank 0, which has|ranks 0, 2, which have) not arrived' deadline 1 2
    check "flight: a rank that cannot tell the others does not wait for their files" test "$(grep -c '^flight' err)" -eq 1
fi

# ---- a launcher's ranks ----------------------------------------------------------------------------------------------
ranks=()
args=("${run[@]}")
unset 'args[-1]' 'args[-1]'
start_ranks 3 "$TINY" "${args[@]}" --set train_steps=1000000 --set parallel.stop_interval=1 --out joined
until grep -qs '"step": 3,' joined/metrics.jsonl || ! kill -0 "${ranks[0]}" 2>/dev/null; do sleep 0.02; done
kill -USR2 "${ranks[2]}"
check "flight: a signal to one rank of a launcher writes the files of all" test -n "$(dumped joined '' 0 1 2)"
check "flight: rank 0 of a launcher reports the dump" said rank.0 1
kill -TERM "${ranks[1]}"
ranks_end "flight: a launcher's ranks continue until they are stopped" 85
check "flight: other ranks of a launcher print nothing" test ! -s rank.1 -a ! -s rank.2
finish

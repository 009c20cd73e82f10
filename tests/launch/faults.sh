#!/usr/bin/env bash
# faults.sh -- ranks of a launcher that do not fit together, or that are lost: within two seconds after the deadline all that are
# left end with the same code, and one message says which rank, on which host. Prints a table with LAUNCH_TABLES=FOLDER.
# shellcheck source-path=SCRIPTDIR disable=SC2154
source "$(dirname "$0")/lib.sh"
make_text
start_clock
deadline=4
run=(--set train_batch_size=16 --set train_micro_batch_size_per_gpu=4 --set gradient_accumulation_steps=auto --set train_steps=1000000
    --set eval.interval=0 --set eval.sample_interval=0 --set "parallel.timeout=$deadline" --set cpu.threads=1)
start_run() { start_rank "$1" "$size" "$TRAIN" "$TINY" "${run[@]}" --out run "${@:2}"; }

# begin SIZE: no rank is started yet
begin() {
    size=$1 rank_pid=()
    rm -rf run rank.[0-9]*
    port=$(free_ports 17 | head -n 1)
}
# fault NAME LIMIT CODE SENTENCE: expects that the ranks end within two seconds after LIMIT with this code, and that a single
# error message matches SENTENCE
fault() {
    local name=$1 limit=$2 code=$3 sentence=$4 said begun took
    begun=$(now)
    end_ranks $((limit + 20))
    took=$(since "$begun")
    all_end "faults: $name" "$code"
    in_time "faults: $name ends" "$took" $((limit + ${traced:-0}))
    said=$(cat rank.[0-9]* | grep "^error")
    check "faults: $name is reported by ${speakers:-1}" test "$(grep -c '^error' <<<"$said")" -eq "${speakers:-1}"
    check "faults: $name is reported with its cause: $(head -n 1 <<<"$said")" grep -qE "^error\[$code\] .*$sentence" <<<"$said"
    row faults "$name" "$limit s" "$took s" "${codes[*]: -1}" "$(head -n 1 <<<"$said" | tr '|' ' ')"
}

# ---- before they have met --------------------------------------------------------------------------------------------------
begin 4
for rank in 0 1 3; do start_run $rank; done
fault "a rank that never arrives" $deadline 69 'rank 2'
begin 4
for rank in 0 1 3; do start_run $rank; done
first=${rank_pid[1]}
sleep 0.5
mv rank.1 rank.1a # the second one writes to a file of its own
start_run 1
rank_pid[4]=$first
fault "a rank that arrives twice" $deadline 76 'rank 1'
begin 4
for rank in 0 1 3; do start_run $rank; done
start_run 2 --set optimizer.params.lr=1e-3
fault "another config" $deadline 78 'rank 2'
cp "$TRAIN" other && printf x >>other
begin 4
for rank in 0 1 3; do start_run $rank; done
start_rank 2 4 ./other "$TINY" "${run[@]}" --out run
fault "another binary" $deadline 78 'rank 2'
begin 4
for rank in 0 1 3; do start_run $rank; done
sleep 1
start_rank 2 5 "$TRAIN" "$TINY" "${run[@]}" --set train_batch_size=20 --out run
fault "a rank of another world" $deadline 78 'rank 2 .*5 ranks'
if grep -qw avx512vl /proc/cpuinfo; then
    skip "faults: a CPU level that is asked for and not there" "this machine has every level; parallel/trainer/test_device_ranks takes one away"
else
    begin 2
    for rank in 0 1; do start_run $rank --set cpu.level=v4; done
    fault "a CPU level that is asked for and not there" $deadline 78 'cpu.level'
fi

# ---- while they train --------------------------------------------------------------------------------------------------------
# trains SIZE OPTION...: starts a run and waits until it trains
trains() {
    begin "$1"
    for ((rank = 0; rank < size; rank++)); do start_run $rank "${@:2}"; done
    eventually 30 made_steps run 5 || { not_ok "faults: the run does not train: $(tail -qn 1 rank.[0-9]*)"; finish; }
}
trains 4
kill -KILL "${rank_pid[2]}"
unset 'rank_pid[2]'
fault "a rank that is killed" 0 87 'rank 2'
trains 4
kill -STOP "${rank_pid[2]}"
held=${rank_pid[2]}
unset 'rank_pid[2]'
fault "a rank that is stopped" $deadline 86 'ranks? ([013], )*2'
kill -KILL "$held"
trains 4
kill -KILL "${rank_pid[0]}"
unset 'rank_pid[0]'
fault "rank 0 is killed" 0 87 'rank 0'

if ! make_hosts; then
    skip "faults: hosts that are cut off" "$why"
    finish
fi
placed=(1 1 2 2) master=${ipv4[1]}
trains 4
cut_off 2
# Each host says that the other one is lost.
speakers=2
fault "a network that is cut in the middle of a step" $deadline '8[67]' 'h[12]'
joined 2

# ---- in the middle of a save ---------------------------------------------------------------------------------------------------
short=(--set train_steps=40 --set checkpoint.save_interval=2 --set checkpoint.keep=0)
placed=()
expect_code "faults: an uninterrupted run" 0 "$TRAIN" "$TINY" "${run[@]}" "${short[@]}" --set checkpoint.async=false --ranks 4 --out whole
if ! strace -f --seccomp-bpf -o /dev/null -e trace=fsync -e inject=fsync:delay_enter=1 true 2>err; then
    skip "faults: a host that is lost in the middle of a save" "strace cannot delay calls here"
    finish
fi
placed=(1 1 2 2)
speakers=1
traced=1 # second more: each sync takes longer, and strace ends after the run; up to 0.4 s of it were needed beside other tests
# loses NAME OPTION...: a host is lost in the middle of a save, and the run goes on without that save. Each sync of rank 0 takes
# 0.05 s more, so the run saves nearly all the time.
loses() {
    local name=$1 saves=("${short[@]}" "${@:2}") newest
    begin 4
    start_rank 0 4 strace -f --seccomp-bpf -o /dev/null -e trace=fsync -e inject=fsync:delay_enter=50000 "$TRAIN" "$TINY" "${run[@]}" "${saves[@]}" --out run
    for rank in 1 2 3; do start_run $rank "${saves[@]}"; done
    eventually 60 test -d run/checkpoints/step_00000006 || not_ok "faults: the run does not save"
    cut_off 2
    kill -KILL "${rank_pid[2]}" "${rank_pid[3]}"
    unset 'rank_pid[2]' 'rank_pid[3]'
    fault "$name" $deadline '8[67]' 'h2'
    joined 2
    expect_code "faults: $name: the newest checkpoint is whole" 0 "$TRAIN" ckpt verify run
    newest=$(checkpoint_steps run | grep -x '[0-9]*' | tail -n 1)
    check "faults: $name: the newest checkpoint is not the last one" test "${newest:-40}" -lt 40
    rm -f rank.[0-9]*
    start_ranks 4 "$TRAIN" "$TINY" "${run[@]}" "${saves[@]}" --out run
    end_ranks 60
    all_end "faults: $name: the run goes on from step ${newest:-0}: the end" 0
    same_run "faults: $name: the run has the same bits as an uninterrupted run" whole run
}
loses "a host that is lost in the middle of a save" --set checkpoint.async=false
loses "a host that is lost while a save is pending"
finish

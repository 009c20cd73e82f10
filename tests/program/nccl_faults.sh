#!/usr/bin/env bash
# nccl_faults.sh -- tests failures of NCCL on emulated GPUs, one for each rank: calls that fail, errors that no call
# returns, calls that never end, and a peer that disappears. All processes must end within two seconds after
# parallel.timeout, with the right exit code and one error message: NCCL's own, or which rank has waited how long. The
# message has the group, the operation, its number, elements and ranks.
# shellcheck source-path=SCRIPTDIR
source "$(dirname "$0")/lib.sh"
make_text
if ! EMU_DEVICES=2 "$TRAIN" doctor | grep -q 'emulated GPU'; then
    skip "nccl faults: two GPUs" "this is not the program of \`make CUDA=emu\`"
    finish
fi
export EMU_DEVICES=2
run=(--set device=cuda --set train_batch_size=4 --set train_micro_batch_size_per_gpu=1 --set gradient_accumulation_steps=auto
    --set train_steps=2 --set scheduler.type=Constant --set eval.interval=0 --set eval.sample_interval=0 --set cpu.threads=1
    --set checkpoint.save_interval=0 --set zero_optimization.stage=1)

start_clock

# stamped: copies lines from stdin and puts the time of arrival before each
stamped() {
    local line
    while IFS= read -r line; do echo "$(now) $line"; done
}

# fault NAME FAULT DEADLINE CODE WORDS SETTING...: expects that a run with that fault (nccl_emu.h) ends in time with this
# exit code and one error message that matches WORDS
fault() {
    local name=$1 which=$2 deadline=$3 code=$4 sentence=$5 got setting begun taken said on=()
    for setting in "${@:6}"; do on+=(--set "$setting"); done
    rm -rf run
    EMU_NCCL_FAULT=$which timeout 60 "$TRAIN" "$TINY" --ranks "$EMU_DEVICES" "${run[@]}" "${on[@]}" --set "parallel.timeout=$deadline" --out run \
        2>&1 </dev/null | stamped >output
    got=${PIPESTATUS[0]}
    # The time at which the fault was injected or, where the device hangs later, at which it began to hang.
    begun=$(sed -nE 's/^([0-9.]+) emu: EMU_NCCL_FAULT: device.*/\1/p' output | tail -n 1)
    taken=$(since "${begun:--99}")
    check "nccl faults: $name with its exit code (got $got)" test "$got" -eq "$code"
    in_time "nccl faults: $name" "$taken" "$deadline"
    said=$(sed -nE 's/^[0-9.]+ (error|bug)/\1/p' output)
    check "nccl faults: $name with one error message: $said" test "$(grep -Ec '^[0-9.]+ (error|bug)\[' output)" -eq 1
    check "nccl faults: $name with an error message that names the cause" grep -Eq "^[0-9.]+ error\[$code\] $sentence" output
}

# A query of the device does not return while a call of NCCL hangs, so the watchdog cannot hold its deadline. Rank 0 ends the
# run half a minute later, or the guard does if ranks are threads; the other tests run meanwhile. On a busy machine the ranks may
# be a second apart, so the timeout is longer.
# blind OPTION...: starts such a run, which leaves its exit code and the time in the file blind.code
blind() {
    (
        EMU_STREAMS=deferred EMU_QUERY=block EMU_NCCL_FAULT=1:AllReduce:60:never timeout 90 "$TRAIN" "$TINY" --ranks 2 "${run[@]}" \
            --set parallel.tensor=2 --set parallel.timeout=3 --out "blind${1:-}" "$@" >"blind${1:-}.output" 2>&1 </dev/null
        echo "$? $SECONDS" >"blind${1:-}.code"
    ) &
}
blind
blind=$!
blind --no-processes
blind_threads=$!

place='(rank [0-3]( (pp|dp|tp) [01])+: )?'
in_tp='group tp, call [0-9]+, all-reduce( \(max\))? of [0-9]+ f32 of ranks 0, 1'
in_dp='group shard, call [0-9]+, reduce-scatter of [0-9]+ f32( and [0-9]+ more)? of ranks 0, 1'
in_pp='group pp, call [0-9]+, (send|receive) of [0-9]+ f32 (to|from) rank [01]( and 1 more)?'
remote='remote process exited or there was a network error'
# waited SECONDS: prints a regular expression for the part of the message that says which rank has waited
waited() { echo "rank [0-3] has waited $1 s \\(parallel.timeout\\); "; }
all_came='ranks LIST and their GPUs have all come to it, and it does not end; run with NCCL_DEBUG=INFO for details$'
fault "a call that fails ends the run" \
    1:AllReduce:9:error=3 1 71 "rank 1 tp 1: $in_tp: NCCL on rank 1 says: internal error - " parallel.tensor=2
fault "a call that has lost a peer ends the run" \
    1:ReduceScatter:4:error=6 1 87 "rank 1 dp 1: $in_dp: NCCL on rank 1 says: $remote"
fault "an asynchronous error ends the run" 1:AllReduce:9:async=2 1 71 \
    "rank 1 tp 1: $in_tp: NCCL on rank 1 says: unhandled system error" parallel.tensor=2
fault "a peer lost after a call ends the run" 1:ReduceScatter:4:async=6 1 87 "rank 1 dp 1: $in_dp: NCCL on rank 1 says: $remote"
fault "an init that hangs ends the run" 1:CommInitRankConfig:1:never 2 86 \
    "${place}group dp, call 0, connect: $(waited 2)${all_came/LIST/0, 1}"
fault "a collective that hangs ends the run" 1:AllReduce:9:never 1 86 \
    "$place${in_tp% of ranks*}: $(waited 1)${all_came/LIST/0, 1}" parallel.tensor=2
# The hosts are one micro-batch ahead of their devices, about 100 calls.
EMU_STREAMS=deferred fault "a hanging collective that the host is far ahead of ends the run" 1:AllReduce:60:never 1 86 \
    "${place}group tp, call 63, all-reduce of 1024 f32: $(waited 1)${all_came/LIST/0, 1}" \
    parallel.tensor=2 model.num_layers=12
fault "a group call that hangs ends the run" 0:GroupEnd:4:never 1 86 "$place${in_dp% of ranks*}: $(waited 1)" \
    zero_optimization.overlap_comm=false # the fourth group is then a sum, not a gather
fault "a message that hangs ends the run" 1:Send:6:never 1 86 "$place$in_pp: $(waited 1)" parallel.pipeline=2
fault "a peer that vanishes ends the run" \
    1:AllReduce:9:vanish 1 87 "$place$in_tp: NCCL on rank 0 says: $remote" parallel.tensor=2
fault "a SIGKILL ends the run" \
    1:AllReduce:9:kill 1 87 'rank 1 tp 1: the process of this rank was killed by signal 9 \(Killed\)$' parallel.tensor=2

# Two of the four ranks hang in connect. The other two have connected and wait on the host; the message must not be about
# them.
EMU_DEVICES=4
stuck="connect: $(waited 1)$all_came"
fault "an init that hangs on two of four ranks ends the run" 1:CommInitRankConfig:1:never 1 86 \
    "${place}group pp, call 0, ${stuck/LIST/1, 3}" parallel.tensor=2 parallel.pipeline=2
fault "a second init that hangs ends the run" 1:CommInitRankConfig:2:never 1 86 \
    "${place}group dp, call 0, ${stuck/LIST/0, 1}" parallel.pipeline=2
EMU_DEVICES=2

# Rank 0's process holds the deadlines, so the error message is also in its log.
EMU_NCCL_FAULT=1:AllReduce:9:never expect_code "nccl faults: a hanging call with --log-ranks ends with 86" 86 timeout 60 \
    "$TRAIN" "$TINY" --ranks 2 "${run[@]}" \
    --set parallel.tensor=2 --set parallel.timeout=1 --log-ranks --out logged
said=$(grep '^error\[86\] ' output)
check "nccl faults: --log-ranks writes the error message to the log of rank 0" grep -qxF "${said:-none}" logged/logs/rank_000.log

# In verify, rank 0 alternates between the steps of a single rank and those of the grid; a wait in NCCL must still time out.
while read -r name which sentence; do
    EMU_NCCL_FAULT=$which expect_code "nccl faults: verify ends with 86 on ${name//_/ }" 86 timeout 60 "$TRAIN" verify "$TINY" \
        --ranks 2 \
        --set device=cuda --set parallel.timeout=2
    check "nccl faults: verify prints the call that hangs on ${name//_/ }" \
        grep -Eq "^error\[86\] ${place}group $sentence, .*: $(waited 2)" output
done <<'ROWS'
an_init_never_ends 1:CommInitRankConfig:1:never dp, call 0
a_collective_never_ends 1:AllReduce:9:never (dp|shard), call [0-9]+
ROWS
EMU_NCCL_FAULT=1:CommInitRankConfig:1:never expect_code "nccl faults: bench comm ends with 86 if an init hangs" 86 timeout 60 \
    "$TRAIN" bench comm --device cuda --repetitions 1 --timeout 2
check "nccl faults: bench comm names the init that hangs" \
    grep -Eq "^error\[86\] ${place}group all, call 0, connect: $(waited 2)" output

# A rank whose process is stopped makes no call any more.
rm -rf run
"$TRAIN" "$TINY" --ranks 2 "${run[@]}" --set train_steps=100000 --set parallel.timeout=1 --out run >output 2>&1 </dev/null &
launcher=$!
children+=("$launcher")
until grep -qs '"event": "train", "step": 2,' run/metrics.jsonl || ! kill -0 $launcher; do sleep 0.05; done
kill -STOP "$(pgrep -P $launcher | sort -n | tail -n 1)"
begun=$(now)
wait $launcher
got=$?
taken=$(since "$begun")
check "nccl faults: a rank that is stopped ends the run (got $got)" test $got -eq 86
in_time "nccl faults: a rank that is stopped ends the run" "$taken" 1
check "nccl faults: a rank that is stopped is named: $(grep '^error' output)" \
    grep -Eq '^error\[86\] .*rank 0 has waited 1 s \(parallel.timeout\) for rank 1, which has not arrived$' output
check "nccl faults: one error is printed" test "$(grep -c '^error\[' output)" -eq 1

wait "$blind"
read -r code taken <blind.code
check "nccl faults: a driver that stands ends the run with 86 (got $code)" test "$code" -eq 86
check "nccl faults: a driver that stands ends the run after half a minute ($taken s)" test "$taken" -ge 33
stands='rank [01] has waited 33 s \(parallel.timeout and 30 s more\), and the driver of its GPU does not answer$'
check "nccl faults: a driver that stands is named: $(grep '^error' blind.output)" \
    grep -qE "^error\[86\] rank [01] tp [01]: group tp, call [0-9]+, all-reduce.*, or a later call: $stands" blind.output
check "nccl faults: a driver that stands is named once" test "$(grep -c '^error' blind.output)" -eq 1
wait "$blind_threads"
read -r code taken <blind--no-processes.code
check "nccl faults: threads: a watchdog that stands ends the run with 86 (got $code)" test "$code" -eq 86
check "nccl faults: threads: a watchdog that stands ends the run after half a minute ($taken s)" test "$taken" -ge 33
stands='rank [01] has waited 33 s \(parallel.timeout and 30 s more\), and the watchdog of NCCL, which holds the deadline, does not answer'
check "nccl faults: threads: a watchdog that stands is named: $(grep '^error' blind--no-processes.output)" \
    grep -qE "^error\[86\] group tp, calls [0-9]+ to [0-9]+, the last all-reduce: $stands; rank [01] is in " blind--no-processes.output
check "nccl faults: the clock of this test has run" test "$(stat -c %s clock)" -gt 50
finish

#!/usr/bin/env bash
# many.sh -- 66 ranks on as many hosts, which are host names of their own on this machine: control packets travel over a tree, in
# which rank 65 is below rank 1. They train; and if rank 1 is killed or stopped, all end with the code of a star and one message.
# shellcheck source-path=SCRIPTDIR disable=SC2154,SC2034
source "$(dirname "$0")/lib.sh"
if ! unshare --uts true 2>/dev/null; then
    skip "many: ranks on 66 hosts" "this system allows no host names of processes"
    finish
fi
make_text
hosts=66 deadline=5
run=(--set "train_batch_size=$hosts" --set train_micro_batch_size_per_gpu=1 --set gradient_accumulation_steps=auto
    --set scheduler.params.warmup_num_steps=1 --set eval.interval=0 --set eval.sample_interval=0 --set cpu.threads=1)
# starts STEPS TIMEOUT: starts all ranks
starts() {
    rm -rf run rank.[0-9]*
    # shellcheck disable=SC2016 # the inner shell's
    start_ranks $hosts unshare --uts sh -c 'hostname "m$RANK" && LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 exec "$@"' sh \
        "$TRAIN" "$TINY" "${run[@]}" --set "train_steps=$1" --set "parallel.timeout=$2" --out run
}
# says NAME CODE SENTENCE: expects that a single rank has printed an error, which matches SENTENCE
says() {
    local said
    said=$(cat rank.[0-9]* | grep '^error')
    check "many: $1 is reported once" test "$(grep -c '^error' <<<"$said")" -eq 1
    check "many: $1 is reported with its cause: $(head -n 1 <<<"$said")" grep -qE "^error\[$2\] rank 1 .*$3" <<<"$said"
}

starts 2 60
end_ranks 60
all_end "many: 66 hosts train: the end" 0
check "many: they are as many machines" grep -q "processes on $hosts machines" rank.0

starts 1000000 60
check "many: they train until one is killed" eventually 40 made_steps run 2
kill -KILL "${rank_pid[1]}"
end_ranks 20
check "many: the rank is killed" test "${codes[1]}" = 137
unset 'codes[1]'
all_end "many: one is killed, and" 87
says "one that is killed" 87 'on m1 has ended'

# Rank 65 does not hear rank 0's verdict, and ends by itself when it has not heard of rank 1 for long.
starts 1000000 $deadline
check "many: they train until one is stopped" eventually 40 made_steps run 2
begun=$SECONDS
kill -STOP "${rank_pid[1]}"
stopped=${rank_pid[1]}
unset 'rank_pid[1]'
end_ranks $((deadline + 10))
check "many: one rank is stopped, and all ranks end within $((SECONDS - begun)) s" test $((SECONDS - begun)) -le $((deadline + 6))
kill -KILL "$stopped"
all_end "many: one is stopped, and" 86
says "one that is stopped" 86 'on m1 has been silent'
finish

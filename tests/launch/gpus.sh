#!/usr/bin/env bash
# gpus.sh -- four ranks with an emulated GPU each, started by torchrun's variables, exchange data through the emulated NCCL and
# have the bits of processes that ./train has started itself: on one host; on two with two GPUs each, they have their losses.
# Needs the program of `make CUDA=emu`.
# shellcheck source-path=SCRIPTDIR disable=SC2154,SC2034
source "$(dirname "$0")/lib.sh"
make_text
export EMU_DEVICES=4
if ! "$TRAIN" doctor | grep -q 'emulated GPU'; then
    skip "gpus: four emulated GPUs" "this is not the program of \`make CUDA=emu\`"
    finish
fi
run=(--set device=cuda --set data.seq_length=16 --set train_batch_size=4 --set train_micro_batch_size_per_gpu=1
    --set gradient_accumulation_steps=auto --set parallel.timeout=60 --set train_steps=2 --set eval.interval=1 --set eval.steps=1
    --set eval.sample_interval=0 --set checkpoint.save_interval=1 --set checkpoint.writers=1 --set cpu.threads=1 --set scheduler.type=Constant)
no_hosts=''
make_hosts || no_hosts=$why
while read -r name options; do
    read -ra options <<<"$options"
    expect_code "gpus: $name started with --ranks trains" 0 "$TRAIN" "$TINY" "${run[@]}" --ranks 4 "${options[@]}" --out "$name-forked"
    join 4 "$TRAIN" "$TINY" "${run[@]}" "${options[@]}" --out "$name-joined"
    all_end "gpus: $name started with torchrun's variables: the end" 0
    check "gpus: $name uses NCCL" grep -q '^ranks   4 = .*NCCL' rank.0
    same_run "gpus: $name has the same bits as with --ranks" "$name-forked" "$name-joined"
    # With one visible device each, as --gpus-per-task=1 gives, a rank's GPU is device 0.
    start_ranks 0
    port=$(free_ports 17 | head -n 1)
    for rank in 0 1 2 3; do CUDA_VISIBLE_DEVICES=$rank start_rank $rank 4 "$TRAIN" "$TINY" "${run[@]}" "${options[@]}" --out "$name-one"; done
    end_ranks 60
    all_end "gpus: $name with one visible GPU for each rank: the end" 0
    same_run "gpus: $name with one visible GPU for each rank has the same bits as with --ranks" "$name-forked" "$name-one"
    [ -z "$no_hosts" ] || { skip "gpus: $name on two hosts with two GPUs each" "$no_hosts"; continue; }
    placed=(1 1 2 2) master=${ipv4[1]}
    EMU_DEVICES=2 NCCL_SOCKET_IFNAME=wire join 4 "$TRAIN" "$TINY" "${run[@]}" "${options[@]}" --out "$name-hosts"
    placed=() master=127.0.0.1
    all_end "gpus: $name on two hosts with two GPUs each: the end" 0
    near_f32 "gpus: $name on two hosts with two GPUs each has the same losses as with --ranks" "$name-forked" "$name-hosts"
    row launchers "torchrun's variables, two hosts with two emulated GPUs each, NCCL stand-in" "${options[*]}" "4 ranks" "" "losses of --ranks, 2e-5"
done <<'ROWS'
zero1 --set zero_optimization.stage=1
tensor --set parallel.tensor=2
ROWS
finish

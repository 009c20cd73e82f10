#!/usr/bin/env bash
# nccl_joined.sh -- tests ranks that a launcher has started, with an emulated GPU each: they have the bits of ranks that ./train
# starts itself, whether each sees all GPUs of the machine or only its own, as with srun --gpus-per-task=1.
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/lib.sh"
make_text
if ! EMU_DEVICES=4 "$TRAIN" doctor | grep -q 'emulated GPU'; then
    skip "nccl joined: four GPUs" "this is not the program of \`make CUDA=emu\`"
    finish
fi
run=(--set device=cuda --set data.seq_length=16 --set train_batch_size=4 --set train_micro_batch_size_per_gpu=1
    --set gradient_accumulation_steps=auto --set parallel.timeout=60 --set train_steps=1 --set eval.interval=1 --set eval.steps=1
    --set eval.sample_interval=0 --set checkpoint.save_interval=0 --set checkpoint.writers=1 --set cpu.threads=1
    --set scheduler.type=Constant --set zero_optimization.stage=3 --set parallel.pipeline=2)
EMU_DEVICES=4 expect_code "nccl joined: ranks that the program starts succeed" 0 "$TRAIN" "$TINY" "${run[@]}" --ranks 4 --out started
before() { echo EMU_DEVICES=4; }
all_end "nccl joined: ranks that see all GPUs succeed" 0 4 "$TINY" "${run[@]}" --out all
check "nccl joined: they use NCCL" grep -q '^ranks   4 = pp 2 x dp 2 (processes, NCCL 2.28.9, 1 thread each), ZeRO 3' output
same_run "nccl joined: ranks that see all GPUs have the same bits" started all
before() { printf '%s\n' EMU_DEVICES=1 "EMU_BUS=$1"; }
all_end "nccl joined: ranks that see a GPU each succeed" 0 4 "$TINY" "${run[@]}" --out each
same_run "nccl joined: ranks that see a GPU each have the same bits" started each
before() { echo EMU_DEVICES=2; }
all_end "nccl joined: four ranks on a machine with two GPUs end with 78" 78 4 "$TINY" "${run[@]}" --out few
# The kernels for Hopper must be on the GPU of every rank. The rank that fails first prints the message.
hopper=(--set device=cuda --set bf16.enabled=true --set model.hidden_size=128 --set model.num_attention_heads=2 --set model.num_layers=1
    --set data.seq_length=16 --set train_batch_size=2 --set train_micro_batch_size_per_gpu=1 --set gradient_accumulation_steps=auto
    --set cuda.attention=hopper --set train_steps=1 --set scheduler.type=Constant --set eval.interval=0 --set eval.sample_interval=0)
before() { printf '%s\n' EMU_DEVICES=1 "EMU_BUS=$1" "EMU_CAPABILITY=$((90 - 10 * $1))"; }
all_end "nccl joined: attention for Hopper ends with 78 if one rank has another GPU" 78 2 "$TINY" "${hopper[@]}" --out mixed
check "nccl joined: the message names that GPU" grep -q 'a GPU here has 8.0; write "portable"' rank.0 rank.1
if [ -x "${TRAIN}_without_90a" ]; then
    before() { printf '%s\n' EMU_DEVICES=1 "EMU_BUS=$1"; }
    TRAIN=${TRAIN}_without_90a all_end "nccl joined: attention for Hopper ends with 78 in a program without it" 78 2 \
        "$TINY" "${hopper[@]}" --out without
    check "nccl joined: the message names the architecture" grep -q 'this program was built without 90a in ARCH' rank.0 rank.1
else
    skip "nccl joined: a program without attention for Hopper" "there is no $(basename "$TRAIN")_without_90a: name it to make"
fi
finish

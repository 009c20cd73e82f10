#!/usr/bin/env bash
# nccl_processes.sh -- tests ranks that are processes with a GPU each, on four emulated GPUs: they train with the bits of
# ranks that are threads (test_nccl_grids compares more grids), and several of them can share one GPU if NCCL takes them for
# ranks on different machines. Their failures are tested by nccl_faults.sh.
. "$(dirname "$0")/lib.sh"
make_text
if ! EMU_DEVICES=4 "$TRAIN" doctor | grep -q 'emulated GPU'; then
    skip "nccl processes: four GPUs" "this is not the program of \`make CUDA=emu\`"
    finish
fi
export EMU_DEVICES=4
run=(--set device=cuda --set data.seq_length=16 --set train_batch_size=4 --set train_micro_batch_size_per_gpu=1
    --set gradient_accumulation_steps=auto --set parallel.timeout=60 --set train_steps=1 --set eval.interval=1 --set eval.steps=1
    --set eval.sample_interval=0 --set checkpoint.save_interval=0 --set checkpoint.writers=1 --set cpu.threads=1
    --set scheduler.type=Constant)

while read -r name how options; do
    read -ra options <<<"$options"
    for kind in threads processes; do
        flag=()
        [ $kind = processes ] || flag=(--no-processes)
        expect_code "nccl processes: $name on $kind succeeds" 0 "$TRAIN" "$TINY" "${run[@]}" --ranks 4 "${options[@]}" \
            "${flag[@]}" --out "$name-$kind"
        check "nccl processes: $name on $kind prints its grid and NCCL" \
            grep -q "^ranks   4 = ${how//_/ } ($kind, NCCL 2.28.9, 1 thread each)" output
    done
    same_run "nccl processes: $name on processes has the bits of threads" "$name-threads" "$name-processes"
done <<'ROWS'
zero3 dp_4 --set zero_optimization.stage=3
pp pp_2_x_dp_2 --set parallel.pipeline=2
ROWS

# ---- processes that share a GPU ----------------------------------------------------------------------------------------
export EMU_DEVICES=1
expect_code "nccl processes: one rank on one GPU succeeds" 0 "$TRAIN" "$TINY" "${run[@]}" --out one
NCCL_HOSTID=each expect_code "nccl processes: two processes on one GPU succeed with NCCL_HOSTID=each" 0 "$TRAIN" "$TINY" \
    "${run[@]}" --ranks 2 --processes --set zero_optimization.stage=2 --out shared
check "nccl processes: two processes on one GPU use NCCL" \
    grep -q '^ranks   2 = dp 2 (processes, NCCL 2.28.9, 1 thread each), ZeRO 2' output
near_f32 "nccl processes: two processes on one GPU train as one rank does" one shared
expect_code "nccl processes: two processes on one GPU end with 78" 78 "$TRAIN" "$TINY" "${run[@]}" --ranks 2 --processes --out none
check "nccl processes: two processes on one GPU are both named, once" test "$(grep -c '^error\[78\] ranks 0 and 1 are processes with the same GPU, 0000:01:00.0, where a process cannot reach the memory of another; leave out --processes, write --ranks 1' output)" -eq 1
# Commands on a run start their ranks as they are asked to.
expect_code "nccl processes: eval by threads that share a GPU succeeds" 0 "$TRAIN" eval one --ranks 2
expect_code "nccl processes: eval by processes with one GPU ends with 78" 78 "$TRAIN" eval one --ranks 2 --processes
EMU_DEVICES=2 EMU_BUS=same expect_code "nccl processes: a GPU that is listed twice ends with 78" 78 "$TRAIN" "$TINY" \
    "${run[@]}" --ranks 2 --processes --out none
check "nccl processes: a GPU that is listed twice is named" \
    grep -q '^error\[78\] ranks 0 and 1 have the same GPU, 0000:01:00.0; name each GPU once' output
finish

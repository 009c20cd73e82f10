#!/usr/bin/env bash
# offload.sh -- tests a model whose optimizer states do not fit the GPU: GPT-2 1558M, shrunk, on an emulated device with as
# little memory. Without states on the host the run is refused with the ratio that fits, and with this ratio it trains.
. "$(dirname "$0")/lib.sh"

if ! "$TRAIN" doctor | grep -q '^ok .*cuda .*emulated'; then
    skip "offload: a GPU without room for the optimizer's states" "the program is not built for the emulated device"
    finish
fi
make_text
config=$(dirname "$TINY")/../../configs/gpt2_1558m.json
shrunk=(--set device=cuda --set data.train=null --set data.val=null --set data.text=text.txt --set data.tokenizer_vocab_size=300
    --set model.vocab_size=null --set model.num_layers=2 --set model.hidden_size=256 --set model.num_attention_heads=4
    --set model.max_position_embeddings=32 --set data.seq_length=32 --set train_batch_size=2 --set train_steps=3
    --set eval.interval=0 --set eval.steps=1 --set steps_per_print=1 --set zero_optimization.stage=3 --set checkpoint.save_interval=0)
offload=zero_optimization.offload_optimizer

# mib WORD: prints the number of MiB after this word in the run's line about memory
mib() { tr -s ' \n' ' ' <output | sed -nE "s/.*memory plan.*$1 ([0-9.]+) MiB.*/\1/p"; }
# needs OPTION...: writes the MiB that a run plans on a large device
needs() {
    EMU_MEMORY=900 "$TRAIN" "$config" "${shrunk[@]}" --dry-run "$@" >output 2>&1 || not_ok "offload: a dry run"
    tr -s ' \n' ' ' <output | sed -nE 's/.* memory plan ([0-9.]+) MiB.*/\1/p'
}
all=$(needs)
rest=900-$(tr -s ' \n' ' ' <output | sed -nE 's/.*; available ([0-9.]+) MiB.*/\1/p')
part=$(needs --set $offload.device=cpu)
check "offload: most bytes of the plan are in host memory" awk "BEGIN { exit !($part > 5 && $part < $all / 2) }"
# In the middle between both plans, beside what the device takes and the 256 MiB that stay free.
EMU_MEMORY=$(awk "BEGIN { print int($rest + 256 + ($all + $part) / 2) }")
export EMU_MEMORY
expect_code "offload: states that do not fit the GPU exit with code 90" 90 "$TRAIN" "$config" "${shrunk[@]}" --out refused
told=$(tr -s ' \n' ' ' <output)
ratio=$(sed -nE 's/.*write zero_optimization.offload_optimizer \{"device": "cpu", "ratio": ([0-9.]+)\}: .*/\1/p' <<<"$told")
check "offload: the error names the ratio that fits" awk "BEGIN { exit !(\"$ratio\" > 0.2 && \"$ratio\" < 0.8) }"
expect_code "offload: with this ratio the model trains" 0 "$TRAIN" "$config" "${shrunk[@]}" --out part \
    --set $offload.device=cpu --set "$offload.ratio=$ratio"
told=$(tr -s ' \n' ' ' <output)
check "offload: the start says how many bytes are in host memory" \
    grep -qE "MiB of the host's memory, page-locked, for [0-9.]+ % of the optimizer's states" <<<"$told"
expect_code "offload: with all states on the host it trains" 0 "$TRAIN" "$config" "${shrunk[@]}" --out all --set $offload.device=cpu \
    --set wall_clock_breakdown=true
# Each of the reports on steps 2 and 3 has one update, which moves all states.
told=$(tr -s ' \n' ' ' <output | sed -nE "s/.* ([0-9.]+ MiB) of the host's memory, page-locked.*/\1/p")
check "offload: wall_clock_breakdown prints twice that the link to the host carries ${told:-?}, and how fast" \
    test "$(grep -cE "^ +host states, each way, a step:  ${told:-?} in [0-9.]+ [mu]?s, [0-9.]+ GB/s\$" output)" -eq 2
check "offload: metrics.jsonl has the bytes and the seconds" \
    grep -qE '"event": *"speed".*"host_updates": *[0-9.e-]*[1-9][0-9.e-]*, *"host_bytes": *[0-9]+' all/metrics.jsonl
# The machine has free memory, but the driver page-locks less than the states need.
EMU_LOCKED=12 expect_code "offload: page-locked memory that the driver refuses ends with 90" 90 \
    "$TRAIN" "$config" "${shrunk[@]}" --out locked --set $offload.device=cpu
told=$(tr -s ' \n' ' ' <output)
refused="the driver refused [0-9.]+ [KM]iB of page-locked host memory for optimizer states \(lower $offload.ratio\), after [0-9.]+"
refused+=" [KM]iB, although [0-9.]+ [MG]iB are free \(WSL2 and some containers limit it\)"
check "offload: the error says that the driver refused it, and not that memory is missing" \
    grep -qE "error.90. $refused\$" <<<"${told% }"
# 350 billion parameters on a GPU of 5.7 TiB: their states take 3.8 TiB, more than this host has.
EMU_MEMORY=6000000 expect_code "offload: states that do not fit the host end with 90" 90 "$TRAIN" "$config" "${shrunk[@]}" \
    --set model.num_layers=192 --set model.hidden_size=12288 --set model.num_attention_heads=96 --set $offload.device=cpu --dry-run
told=$(tr -s ' \n' ' ' <output)
check "offload: the error names the ratio that fits the host" grep -qE "error\[90\] .*\
page-locked for the optimizer's states, and .* are available for that; lower $offload.ratio to 0" <<<"$told"
# A pipeline of one and seven layers on one GPU: the ratio is that of both stages, of which rank 0 has the smaller.
unequal=("$TINY" --set device=cuda --set model.hidden_size=256 --set model.num_layers=8 --set parallel.pipeline=2
    --set parallel.pipeline_split=[1,7] --ranks 2 --dry-run)
export EMU_MEMORY=620
expect_code "offload: unequal stages that do not fit the GPU exit with code 90" 90 "$TRAIN" "${unequal[@]}"
ratio=$(tr -s ' \n' ' ' <output | sed -nE 's/.*"cpu", "ratio": ([0-9.]+)\}: .*/\1/p')
expect_code "offload: with the ratio ${ratio:-?} that the error names they fit" 0 "$TRAIN" "${unequal[@]}" \
    --set $offload.device=cpu --set "$offload.ratio=$ratio"
less=$(awk -v ratio="${ratio:-0}" 'BEGIN { print ratio - 0.05 }')
expect_code "offload: with $less they do not fit" 90 "$TRAIN" "${unequal[@]}" --set $offload.device=cpu --set "$offload.ratio=$less"
unset EMU_MEMORY
expect_code "offload: on a large GPU the model trains without offload" 0 "$TRAIN" "$config" "${shrunk[@]}" --out none
losses() { grep -o '"loss": *[^,]*' "$1/metrics.jsonl"; }
check "offload: the runs have recorded losses" test -n "$(losses none)"
for run in part all; do
    check "offload: the losses of $run equal those on a large GPU" test "$(losses $run)" = "$(losses none)"
done
finish

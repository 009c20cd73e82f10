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
check "offload: on the host are most bytes of the plan" awk "BEGIN { exit !($part > 5 && $part < $all / 2) }"
# In the middle between both plans, beside what the device takes and the 256 MiB that stay free.
EMU_MEMORY=$(awk "BEGIN { print int($rest + 256 + ($all + $part) / 2) }")
export EMU_MEMORY
expect_code "offload: states that do not fit the GPU end with 90" 90 "$TRAIN" "$config" "${shrunk[@]}" --out refused
told=$(tr -s ' \n' ' ' <output)
ratio=$(sed -nE 's/.*write zero_optimization.offload_optimizer \{"device": "cpu", "ratio": ([0-9.]+)\}: .*/\1/p' <<<"$told")
check "offload: the error names the ratio that fits" awk "BEGIN { exit !(\"$ratio\" > 0.2 && \"$ratio\" < 0.8) }"
expect_code "offload: with this ratio the model trains" 0 "$TRAIN" "$config" "${shrunk[@]}" --out part \
    --set $offload.device=cpu --set "$offload.ratio=$ratio"
told=$(tr -s ' \n' ' ' <output)
check "offload: it says how much lies on the host" \
    grep -qE "MiB of the host's memory, page-locked, for [0-9.]+ % of the optimizer's states" <<<"$told"
expect_code "offload: with all states on the host it trains" 0 "$TRAIN" "$config" "${shrunk[@]}" --out all --set $offload.device=cpu
unset EMU_MEMORY
expect_code "offload: on a large GPU it trains without" 0 "$TRAIN" "$config" "${shrunk[@]}" --out none
losses() { grep -o '"loss": *[^,]*' "$1/metrics.jsonl"; }
check "offload: there are losses" test -n "$(losses none)"
for run in part all; do
    check "offload: the losses of $run are those of a large GPU" test "$(losses $run)" = "$(losses none)"
done
finish

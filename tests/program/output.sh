#!/usr/bin/env bash
# output.sh -- tests what the program prints: lost output is reported, amounts follow one rule for units, singulars are
# right, and the commands in its messages can be pasted into a shell.
. "$(dirname "$0")/lib.sh"
make_text
one=(--set train_steps=1 --set scheduler.params.warmup_num_steps=1 --set eval.interval=0 --set eval.sample_interval=0 --set eval.sample_tokens=2 --set checkpoint.save_interval=1
    --set model.num_layers=1 --set model.num_attention_heads=1 --set model.num_key_value_heads=1)

# ---- singulars, and a small part of a text
# --------------------------------------------------------------------------------

expect_code "output: a run of one step succeeds" 0 "$TRAIN" "$TINY" "${one[@]}" --out run
check "output: one layer and one head are printed in the singular" grep -qE '^model +1 layer, [0-9]+ wide, 1 head \(1 kv\)' \
    output
check "output: one step is printed in the singular" grep -qE ' 1 step = .* tokens = 0\.[0-9]+ passes over ' output
check "output: the last line prints one step in the singular" grep -qE '^done +1 step, ' output
read -r windows rest < <(sed -nE 's/^windows ([0-9,]+) of 32 tokens; ([0-9]+) tokens? at the end fills? none$/\1 \2/p' output | tr -d ,)
length=$(awk -v n=$((32 * windows + rest)) 'BEGIN { for (i = 4; i < 999; i++) if (n % i == 1) { print i; exit } }')
expect_code "output: a dry run with a window of ${length:=none} tokens succeeds" 0 "$TRAIN" "$TINY" "${one[@]}" \
    --set data.seq_length="$length" --dry-run
check "output: one token left over is printed in the singular (length $length)" \
    grep -qE "^windows [0-9,]+ of $length tokens; 1 token at the end fills none$" output
for _ in {1..40}; do cat text.txt; done >much.txt
expect_code "output: a run over little of the text succeeds" 0 "$TRAIN" "$TINY" "${one[@]}" --set train_batch_size=1 \
    --set train_micro_batch_size_per_gpu=1 \
    --set gradient_accumulation_steps=1 --set data.text=much.txt --dry-run
check "output: a small part of the text is printed as less than 0.01 passes" grep -qE ' tokens = less than 0\.01 passes over ' \
    output

# ---- what determines the update of the weights ---------------------------------------------------------------------------

# update LINE OPTION...: checks the line about the update that a dry run of 20 steps with these options prints
update() {
    local line=$1
    shift
    "$TRAIN" "$TINY" --dry-run --set train_steps=20 --set optimizer.params.lr=0.01 "$@" >output 2>&1
    check "output: a dry run prints: $line" grep -qF "update $line memory " <(tr -s ' \n' ' ' <output)
}
plain=(--set 'scheduler={"type":"Constant"}' --set optimizer.params.weight_decay=0 --set gradient_clipping=0)
update "AdamW, learning rate 0.01 (Constant), no weight decay, no gradient clipping" "${plain[@]}"
update "AdamW, learning rate 0.01 (Constant), weight decay 0.1 on matrices, gradients clipped to norm 0.5" "${plain[@]}" \
    --set optimizer.params.weight_decay=0.1 --set gradient_clipping=0.5
update "SGD, learning rate 0.01 (Constant), weight decay 0.1 on all weights (added to the gradient), no gradient clipping" \
    "${plain[@]}" --set optimizer.type=SGD --set optimizer.params.weight_decay=0.1 --set optimizer.weight_decay_on=all
update "SGD with Nesterov momentum 0.9, learning rate 0.01 (Constant), no weight decay, no gradient clipping" "${plain[@]}" \
    --set optimizer.type=SGD --set optimizer.params.momentum=0.9 --set optimizer.params.nesterov=true
# As in DeepSpeed, Adam is AdamW unless adam_w_mode is false.
update "Adam, learning rate 0.01 (Constant), weight decay 0.1 on matrices, no gradient clipping" "${plain[@]}" \
    --set optimizer.type=Adam --set optimizer.params.weight_decay=0.1
update "Adam, learning rate 0.01 (Constant), weight decay 0.1 on matrices (added to the gradient), no gradient clipping" \
    "${plain[@]}" --set optimizer.type=Adam --set optimizer.params.weight_decay=0.1 --set optimizer.params.adam_w_mode=false
# WSD warms up to the peak in 5 updates and ends one update above 0: of its 10 last updates the last has a tenth of the peak.
update "AdamW, learning rate up to 0.01, 0.001 at the end (WSD), no weight decay, no gradient clipping" "${plain[@]}" \
    --set 'scheduler={"type":"WSD","params":{"warmup_num_steps":5,"decay_num_steps":10}}'
update "AdamW, learning rate up to 0.01 (WarmupLR), no weight decay, no gradient clipping" "${plain[@]}" \
    --set 'scheduler={"type":"WarmupLR","params":{"warmup_num_steps":5}}'
masters="16 weights with f32 master weights"
update "AdamW, learning rate 0.01 (Constant), no weight decay, no gradient clipping, bf$masters" "${plain[@]}" \
    --set bf16.enabled=true
update "AdamW, learning rate 0.01 (Constant), no weight decay, no gradient clipping, bf16 weights with stochastic rounding" \
    "${plain[@]}" --set bf16.enabled=true --set bf16.bf16_master_weights_and_grads=true
update "AdamW, learning rate 0.01 (Constant), no weight decay, no gradient clipping, f$masters, loss scale from 65,536" \
    "${plain[@]}" --set fp16.enabled=true
update "AdamW, learning rate 0.01 (Constant), no weight decay, no gradient clipping, f$masters, loss scale 128" \
    "${plain[@]}" --set fp16.enabled=true --set fp16.loss_scale=128

# ---- amounts -------------------------------------------------------------------------------------------------------------

size=$("$TRAIN" ckpt list run | sed -nE 's/^step_.* ([0-9.]+ [KM]iB)  .*/\1/p')
check "output: ckpt list prints a size" test -n "$size"
check "output: ckpt verify prints the same size" bash -c "'$TRAIN' ckpt verify run | grep -qE 'whole \([0-9]+ tensors, $size\)'"
"$TRAIN" ckpt inspect run >inspected
check "output: ckpt inspect prints a row for each weight" grep -qE '^  .*norm.* \(32\) +128 bytes  model[.].*norm[.]weight$' inspected
check "output: ckpt inspect prints no size below one unit" test -z "$(grep -E ' 0\.[0-9]+ [KMG]iB' inspected)"

# ---- a hint that can be pasted -------------------------------------------------------------------------------------------

"$TRAIN" <(cat "$TINY") "${one[@]}" --out piped >output 2>&1
check "output: a config is read from a pipe" test $? -eq 0
check "output: a config from a pipe is not suggested again" test -z "$(grep -F '/dev/fd/' output | grep -v '^config ')"
check "output: a run whose config came from a pipe is suggested by its folder" grep -q '^next    ./train generate piped' output

# ---- standard output that cannot be written ------------------------------------------------------------------------------

"$TRAIN" data train-bpe text.txt --vocab-size 300 --out made.json >/dev/null 2>&1
# lost ARGUMENT...: expects exit code 74 and one error message from a command whose output cannot be written
lost() {
    "$TRAIN" "$@" >/dev/full 2>err </dev/null
    check "output: if the output of ${*:1:2} is lost, it exits with code 74" test $? -eq 74
    check "output: if the output of ${*:1:2} is lost, that is reported" grep -qE '^error\[74\] .*output .* written' err
    check "output: if the output of ${*:1:2} is lost, that is reported once" test "$(grep -c -v -e '^best: ' -e '^newest: ' err)" -eq 1
}
cp "$TINY" tiny.json
lost config show tiny.json
lost config defaults
lost config explain optimizer.params.lr
lost ckpt list run
lost ckpt inspect run
lost ckpt verify run
lost generate run --tokens 3
lost generate --help
lost eval run
lost doctor
lost bench ops --help
lost data --help
lost --help exit-codes
lost --version
lost tiny.json "${one[@]}" --dry-run
# A run's result is its folder, so the run continues and warns that its console output is lost.
for name in full again; do # the first run trains, the second finds it finished
    "$TRAIN" "$TINY" "${one[@]}" --out full >/dev/full 2>err </dev/null
    check "output: a run whose output is lost ($name) continues" test $? -eq 0
    check "output: a run whose output is lost ($name) reports it once" \
        test "$(grep -c '^warning: standard output cannot be written' err)" -eq 1
done
same_run "output: a run whose output is lost has the same bits" run full
"$TRAIN" config explain optimizer.params.lr nonsense >/dev/full 2>err </dev/null
check "output: a failing command whose output is lost keeps its exit code" test $? -eq 64
finish

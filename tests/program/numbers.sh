#!/usr/bin/env bash
# numbers.sh -- compares the numbers that a run writes with values computed here: targets and bytes of evaluations, tokens
# and operations per second, the checkpoints kept, and the skipped steps that end a run.
. "$(dirname "$0")/lib.sh"
make_text

# field FILE EVENT KEY: prints the values of a key, in order, from the lines of one event
field() { grep "\"event\": \"$2\"" "$1" | sed -nE "s/.*\"$3\": ([0-9.e+-]+|null).*/\1/p"; }
# equal TOLERANCE A B: succeeds if A differs from B by at most this share of B
equal() { awk -v e="$1" -v a="$2" -v b="$3" 'BEGIN { d = a - b; exit !(d <= e * b && -d <= e * b) }'; }

# ---- evaluations: interval, last, and ./train eval -----------------------------------------------------------------------

steps=(--set train_steps=12 --set steps_per_print=5 --set eval.interval=4 --set eval.sample_interval=0)
"$TRAIN" "$TINY" "${steps[@]}" --set eval.steps=0 --set checkpoint.save_interval=4 --set checkpoint.keep=2 --out all >console 2>&1
check "numbers: a run of 12 steps succeeds" test $? -eq 0
tokens=$(sed -nE 's/.* tokens train, ([0-9,]+) val.*/\1/p' console | tr -d ,)
windows=$(((tokens - 1) / 32))
check "numbers: the size of the text is printed" \
    grep -q "^ *$(awk -v n="$(wc -c <text.txt)" 'BEGIN { printf "%.2f", n / 1e6 }') MB text -> [0-9]" console
check "numbers: the last batch of $windows windows is not full" test $((windows % 8)) -ne 0
check "numbers: the run evaluates at every fourth step" test "$(field all/metrics.jsonl val step | tr '\n' ' ')" = "4 8 12 "
check "numbers: every evaluation counts all targets" \
    test "$(field all/metrics.jsonl val targets | tr '\n' ' ')" = "$((32 * windows)) $((32 * windows)) $((32 * windows)) "
check "numbers: every evaluation counts the same bytes" test "$(field all/metrics.jsonl val bytes | sort -u | wc -l)" -eq 1
last=$(field all/metrics.jsonl val loss | tail -n 1)
bits=$(field all/metrics.jsonl val bits_per_byte | tail -n 1)
bytes=$(field all/metrics.jsonl val bytes | tail -n 1)
check "numbers: bits per byte are nats divided by ln 2 and by bytes per token" \
    equal 1e-12 "$bits" "$(awk -v n="$last" -v t=$((32 * windows)) -v b="$bytes" 'BEGIN { printf "%.17g", n * t / log(2) / b }')"
# One token of the validation text is not a target, and the remainder at its end is shorter than a window.
text=$(sed -nE 's/.*"val": \{"bytes": ([0-9]+),.*/\1/p' "$(find . -name meta.json | head -n 1)")
check "numbers: $bytes of $text bytes are in the targets" test "$bytes" -lt "$text" -a "$bytes" -gt $((text - 40 * (text / tokens + 1)))
check "numbers: result.json has the last evaluation" \
    equal 1e-14 "$(sed -nE 's/.*"val_loss":[[:space:]]*([0-9.e+-]+).*/\1/p' all/result.json)" "$last"
expect_code "numbers: eval of the run succeeds" 0 "$TRAIN" eval all
check "numbers: eval gives the same loss over the same targets" grep -qF \
    "$(printf 'loss %.6f nats a token over %d targets   %.6f bits per byte over %d bytes' "$last" $((32 * windows)) "$bits" "$bytes")" output
expect_code "numbers: eval of an older checkpoint succeeds" 0 "$TRAIN" eval all/checkpoints/step_00000008
check "numbers: eval of an older checkpoint gives the loss of that step" grep -qF \
    "$(printf 'step 8   val loss %.6f nats a token over %d targets' "$(field all/metrics.jsonl val loss | sed -n 2p)" $((32 * windows)))" output

expect_code "numbers: a run with evaluations of one batch succeeds" 0 "$TRAIN" "$TINY" "${steps[@]}" --set eval.steps=1 \
    --set checkpoint.save_interval=3 --set checkpoint.keep=0 --set checkpoint.keep_best=false --out one
check "numbers: evaluations of one batch count one batch's targets" \
    test "$(field one/metrics.jsonl val targets | tr '\n' ' ')" = "256 256 256 "
all=$(((windows + 7) / 8))
check "numbers: the header says that evaluations have one batch of $all" \
    grep -qx "val     each evaluation covers 1 of $all micro-batches (eval.steps)" output
check "numbers: the end says that evaluations have one batch" grep -qE "^val     loss [0-9.]+ nats a token, [0-9.]+ bits per byte, on 1 of $all( |\$)" output
check "numbers: metrics.jsonl says that evaluations have one batch" test "$(field one/metrics.jsonl val all_batches | tr '\n' ' ')" = "$all $all $all "
check "numbers: evaluations of all batches say nothing" test -z "$(field all/metrics.jsonl val all_batches)"
expect_code "numbers: eval of the run with evaluations of one batch succeeds" 0 "$TRAIN" eval one
check "numbers: eval covers all targets although evaluations had one batch" grep -qF " over $((32 * windows)) targets " output

# ---- checkpoints kept ----------------------------------------------------------------------------------------------------

check "numbers: checkpoint.keep 2 keeps the last two checkpoints" test "$(checkpoint_steps all | tr '\n' ' ')" = "8 12 "
check "numbers: checkpoint.keep 0 keeps all checkpoints" test "$(checkpoint_steps one | tr '\n' ' ')" = "3 6 9 12 "

# ---- speed ---------------------------------------------------------------------------------------------------------------

# A step has 16 rows of 32 tokens. Operations per token: six for every weight of a matrix (two blocks with q, k, v of 64
# rows together, an output of 32 rows and three matrices of 128 in the MLP, and a head padded to 384 rows, each 32 wide),
# and six for each of two blocks, 32 columns and 32 keys.
operations=$((6 * (2 * (64 * 32 + 32 * 32 + 3 * 128 * 32) + 384 * 32) + 6 * 2 * 32 * 32))
mapfile -t seconds < <(field all/metrics.jsonl speed seconds)
mapfile -t rates < <(field all/metrics.jsonl speed tokens_per_second)
mapfile -t flops < <(field all/metrics.jsonl speed gflops)
check "numbers: speed is reported every five steps and at the end" test "${#seconds[@]}" -eq 3
window=(2560 2560 1024)
for i in 0 1 2; do
    check "numbers: report $i has tokens divided by seconds" equal 1e-12 "${rates[i]}" \
        "$(awk -v n="${window[i]}" -v s="${seconds[i]}" 'BEGIN { printf "%.17g", n / s }')"
    check "numbers: report $i has the FLOP/s that follow from the tokens" equal 1e-12 "${flops[i]}" \
        "$(awk -v n=$operations -v r="${rates[i]}" 'BEGIN { printf "%.17g", n * r / 1e9 }')"
    row=$(grep -E "^ +$((i < 2 ? 5 * i + 5 : 12)) +[0-9,]+ " console | tr -d ,)
    check "numbers: row $i on the console has the same speed" grep -qE " $(printf '%.0f' "${rates[i]}") +$(printf '%.1f' "${flops[i]}") G " <<<"$row "
done

# ---- skipped steps -------------------------------------------------------------------------------------------------------

# skipped FILE: prints how many steps were skipped
skipped() { grep -c '"applied": false' "$1"; }
quiet=(--set eval.interval=0 --set checkpoint.save_interval=0 --set eval.sample_interval=0 --set train_micro_batch_size_per_gpu=2)
fp16=("${quiet[@]}" --set fp16.enabled=true --set fp16.hysteresis=1)
why=([1]="its gradients are not finite" [4]="4 steps in a row had gradients that are not finite")
for limit in 1 4; do
    expect_code "numbers: $limit skipped steps in a row end the run with exit code 88" 88 "$TRAIN" "$TINY" "${fp16[@]}" \
        --set fp16.loss_scale=1e30 \
        --set max_consecutive_skipped_steps=$limit --out skips$limit
    check "numbers: $limit skipped steps end the run at that step" test "$(losses skips$limit/metrics.jsonl | wc -l)" -eq $limit
    check "numbers: $limit skipped steps are reported with advice" \
        grep -q "error.*step $limit: ${why[limit]}; write a smaller fp16.loss_scale, or lower" output
done
expect_code "numbers: weights that overflow end the run with exit code 88" 88 "$TRAIN" "$TINY" "${quiet[@]}" \
    --set optimizer.params.lr=1e6 \
    --set scheduler.params.warmup_max_lr=1e6 --set max_consecutive_skipped_steps=5 --out huge
check "numbers: weights that overflow end the run after five skipped steps" test "$(skipped huge/metrics.jsonl)" -eq 5
check "numbers: weights that overflow are reported with advice on the learning rate" \
    grep -q 'error.*in a row .*; lower optimizer.params.lr' output
# A dynamic loss scale may be halved many times; the steps skipped meanwhile are not divergence.
expect_code "numbers: steps skipped while the loss scale falls do not end the run" 0 "$TRAIN" "$TINY" "${fp16[@]}" \
    --set fp16.initial_scale_power=40 \
    --set max_consecutive_skipped_steps=2 --out falls
check "numbers: more steps than the limit are skipped while the loss scale falls" test "$(skipped falls/metrics.jsonl)" -gt 5
# The run's forty speed reports cover adjacent windows. Up to each report, the windows together may not be longer than the
# time between the start event and the report. A second that is counted twice shows in the first two reports already.
grep -E '"event": "(start|speed)"' falls/metrics.jsonl |
    sed -E 's/.*"event": "([a-z]+)".*"t": ([0-9.]+).*/\1 \2 &/; s/^([a-z]+ [0-9.]+).*"seconds": ([0-9.e-]+).*/\1 \2/' >windows
check "numbers: the times of two reports do not overlap" awk '$1 == "start" { start = $2 }
    $1 == "speed" { n++; sum += $3; if (!($3 > 0) || sum > $2 - start + 0.001) bad = 1 }
    END { exit bad || n != 40 }' windows
expect_code "numbers: an overflow at the smallest loss scale exits with code 88" 88 "$TRAIN" "$TINY" "${fp16[@]}" \
    --set fp16.initial_scale_power=60 \
    --set fp16.min_loss_scale=2e17 --out floor
check "numbers: the run ends when the loss scale cannot be lowered" \
    test "$(field floor/metrics.jsonl train loss_scale | tr '\n' ' ')" = \
    "1.152921504606847e+18 5.7646075230342349e+17 2.8823037615171174e+17 2e+17 "
check "numbers: an overflow at the smallest loss scale is reported with advice" \
    grep -qF "step 4: gradients overflow at the smallest loss scale (2e+17); write a smaller fp16.min_loss_scale, or lower" \
    output
finish

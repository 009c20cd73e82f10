#!/usr/bin/env bash
# bench_gpu.sh -- tests scripts/bench_gpu.sh: without a GPU it prints one error message; with a fake program in place of
# train it prints one table, for the largest batch that fits.
. "$(dirname "$0")/lib.sh"

# shellcheck disable=SC2154 # lib.sh sets it
script=$here/../../scripts/bench_gpu.sh
if nvidia-smi -L >/dev/null 2>&1; then
    skip "bench_gpu: a missing GPU exits with code 69" "there is one"
else
    expect_code "bench_gpu: a missing GPU exits with code 69" 69 "$script"
    check "bench_gpu: a missing GPU is reported in one sentence" test "$(wc -l <output)" -eq 1
fi
expect_code "bench_gpu: an unknown option is refused" 64 "$script" --fast

# stand_in SIZE [COMMAND [GPU]]: writes a fake train for a GPU, whose steps fit if they have fewer than SIZE sequences. COMMAND is run
# before ops are measured
stand_in() {
    cat >train <<END
#!/bin/sh
case "\$*" in
doctor) echo "ok    cuda          cuda: ${3:-NVIDIA H200} (sm_90), cuBLASLt 13"; [ ! -e $PWD/hopper ] || echo "ok    attention     kernels portable and hopper" ;;
--version) echo "train 0.1 (commit 1a2b3c4)" ;;
"bench step"*)
    batch=\$(echo "\$*" | sed -E 's/.*per_gpu=([0-9]+).*/\1/')
    [ "\$batch" -lt $1 ] || exit 90
    echo "\$*" | sed -nE 's/.*chunk_rows=([0-9]+) .*gelu=([a-z]+) .*/chunk \1 gelu \2/p' | sed "s/\$/ batch \$batch/" >>$PWD/settings
    echo '{"ms":106.25,"tokens_per_s":616000,"gflops":494700,"gflops12":519435,"products_ms":84,"products_gflops":637000,"forward_ms":30,"backward_ms":70,"update_ms":1,"share":0.85,"attention_share":0.5,"optimizer_ms":1.1,"loop_ms":1,"op_norm_forward_ms":0.6,"op_adamw_ms":1.1,"ops_ms":104.25,"memory_mib":61000}' ;;
"bench ops"*)
    ${2:-}
    echo "ceilings: copy loop 3740.00 GB/s; product 65536x4096x16384 637000.0 GFLOP/s"
    echo "copy n 65536 cols 3072                                              0.215      0.208   3600.00       0.0       96.5" ;;
esac
END
    chmod +x train
}
stand_in 33
export BENCH_TRAIN=$PWD/train PYTHON=/none
expect_code "bench_gpu: all measurements succeed" 0 "$script" "$PWD/gpu.md"
check "bench_gpu: the table names the device and the commit" \
    grep -q '^NVIDIA H200 (sm_90), cuBLASLt 13; driver .*; 20.*; train 0.1 (commit 1a2b3c4)$' gpu.md
check "bench_gpu: a batch that does not fit is halved" \
    grep \
    -qxF '| step of GPT-2 124M, 32 x 1024 tokens, bf16 | 106.2 ms | 616000.0 tokens/s, 494.7 TFLOP/s | 85.0 % of its products'"'"' rate |' \
    gpu.md
check "bench_gpu: the table has a step of a larger model, with the batch that fits there" \
    grep -q '^| step of GPT-2 1558M, 8 x 1024 tokens, selective recomputation, bf16 | 106.2 ms |' gpu.md
check "bench_gpu: the table has the phases of a step" grep -qxF '| backward | 70.0 ms | | |' gpu.md
check "bench_gpu: the table has the model FLOP/s utilisation" \
    grep -qF '| 494.7, 519.4 TFLOP/s | MFU6 50.0 %, MFU12 52.5 % of 989.4 TFLOP/s |' gpu.md
check "bench_gpu: the table has the idle time of a step" grep -qxF '| idle: the step less all its ops | 2.0 ms | | |' gpu.md
check "bench_gpu: the table has the memory in use" grep -q '^| memory .* | 61000.0 MiB |' gpu.md
check "bench_gpu: the table has each op of a step" grep -qxF '| in the step: adamw | 1.1 ms | | |' gpu.md
check "bench_gpu: the table has the ceilings of matrix multiplication" \
    grep -qxF '| product 65536x4096x16384 | | 637000.0 GFLOP/s | ceiling |' gpu.md
check "bench_gpu: the table has each op measured alone" \
    grep -qxF '| copy n 65536 cols 3072 | 0.215 ms | 3600.00 GB/s, 0.0 GFLOP/s | 96.5 % |' gpu.md
check "bench_gpu: all results are in one table" test "$(grep -c '^|---' gpu.md)" -eq 1
check "bench_gpu: the table reports that PyTorch is not installed" grep -q '^| PyTorch | not installed' gpu.md
for gpu in "NVIDIA H100 80GB HBM3/989.4" "NVIDIA A100-SXM4-80GB/312" "NVIDIA B200/2250" "NVIDIA H200 NVL/"; do
    stand_in 33 "" "${gpu%/*}"
    "$script" "$PWD/gpu.md" >output 2>&1
    check "bench_gpu: the peak of ${gpu%/*} is that of its machine file, if it has one" \
        test "$(sed -nE 's/.*MFU12 .* of ([0-9.]+) TFLOP.*/\1/p' gpu.md | head -n 1)" = "${gpu#*/}"
done
stand_in 33
expect_code "bench_gpu: --out needs a folder" 64 "$script" --out
expect_code "bench_gpu: --out names a folder" 0 "$script" --out kept
check "bench_gpu: --out keeps two files" test "$(find kept -type f | sort | paste -sd ' ')" = "kept/bench_gpu.md kept/bench_gpu.tar.gz"
check "bench_gpu: what the measurements printed is kept" \
    test "$(tar -xzOf kept/bench_gpu.tar.gz ./gpt2_124m ./gpt2_1558m ./ops | grep -c '"ms":106.25\|ceilings')" -eq 3
expect_code "bench_gpu: a word too many is refused" 64 "$script" --out chosen --choices
expect_code "bench_gpu: --choices succeeds" 0 "$script" --choices --out chosen
check "bench_gpu: --choices keeps two files" test "$(find chosen -type f | sort | paste -sd ' ')" = "chosen/bench_choices.md chosen/bench_choices.tar.gz"
check "bench_gpu: --choices measures five steps" test "$(grep -c '^| .* sequences | 106.2 ms | 616000.0 tokens/s | 2.0 ms |$' chosen/bench_choices.md)" -eq 5
check "bench_gpu: --choices names the chunks, the form of GELU and the batch" \
    test "$(sort -u settings | paste -sd ' ')" = "chunk 1311 gelu true batch 32 chunk 16384 gelu false batch 32 chunk 16384 gelu true batch 32 chunk 16384 gelu true batch 4 chunk 4096 gelu true batch 32"
touch hopper
expect_code "bench_gpu: --choices succeeds with attention for Hopper" 0 "$script" --choices --out chosen
check "bench_gpu: --choices measures attention for Hopper where there is some" \
    grep -q '^| attention for Hopper, 32 sequences | 106.2 ms |' chosen/bench_choices.md
stand_in 33 'exec sleep 60'
BENCH_LIMIT=1 expect_code "bench_gpu: a measurement that hangs ends with 1" 1 "$script" "$PWD/gpu.md"
check "bench_gpu: a measurement that hangs is stopped and reported" grep -qxF '| the ops | stopped after 1 s | | |' gpu.md
check "bench_gpu: the other measurements are reported" test "$(grep -c '^| step of .* | 106.2 ms |' gpu.md)" -eq 2
stand_in 0
expect_code "bench_gpu: a step that fits with no batch exits with code 1" 1 "$script" "$PWD/gpu.md"
check "bench_gpu: a step that fits with no batch is reported" grep -q '^| step of GPT-2 124M, 1 x 1024 tokens | exit code 90: ' gpu.md
check "bench_gpu: ops are measured although no step fits" grep -q '^| copy n 65536' gpu.md
finish

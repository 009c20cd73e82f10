#!/usr/bin/env bash
# verify.sh -- `./train verify`: what it prints, and its exit codes.
. "$(dirname "$0")/lib.sh"

configs=${TINY%/*}/../../configs
expect_code "verify: the demo on four ranks" 0 "$TRAIN" verify "$configs/demo.json" --ranks 4 --set zero_optimization.stage=3
check "verify: says the grid" grep -qF 'grid       4 ranks = dp 4 (threads), ZeRO 3' output
check "verify: says the model" grep -qE '^model      2 of 4 blocks, hidden size 32 of 128, vocabulary 509, f64$' output
check "verify: says the steps" grep -qE '^steps      3 of 8 sequences of 64 tokens; a rank has 1 micro-batch of 2$' output
check "verify: names the worst deviation" grep -qE '^equal      to a single rank; worst deviation .* \(bound 1e-12\): [a-z ]+ of [a-z.0-9]+\[[0-9]+\], step [1-3]' output
expect_code "verify: a batch that three ranks cannot share" 0 "$TRAIN" verify "$configs/gpt2_124m.json" --ranks 3 --set zero_optimization.stage=2
expect_code "verify: the model as it is" 0 "$TRAIN" verify "$TINY" --ranks 2 --full --dtype config
check "verify: names the bound of f32" grep -qF "(bound 2e-05)" output
expect_code "verify: rows that two sequences have too few of" 0 "$TRAIN" verify "$TINY" --ranks 4 --full --set parallel.tensor=4 \
    --set parallel.sequence_parallel=true --set train_micro_batch_size_per_gpu=4 --set data.seq_length=7
expect_code "verify: one rank" 0 "$TRAIN" verify "$TINY"
expect_code "verify: a device that is not there" 69 env CUDA_VISIBLE_DEVICES= "$TRAIN" verify "$TINY" --ranks 3 --dtype config --set fp64.enabled=false \
    --set device=cuda
check "verify: ... is said by all" grep -Eq '^error\[69\] [^r]' output
expect_code "verify: a dtype that is none" 64 "$TRAIN" verify "$TINY" --dtype fp8
check "verify: a dtype that is none: what to write" grep -qF 'write config or fp64' output
expect_code "verify: parallel.data of other ranks" 78 "$TRAIN" verify "$TINY" --ranks 2 --set parallel.data=3
expect_code "verify: no config" 64 "$TRAIN" verify
finish

#!/usr/bin/env bash
# verify.sh -- tests what `./train verify` prints, and its exit codes.
. "$(dirname "$0")/lib.sh"

configs=${TINY%/*}/../../configs
expect_code "verify: the demo on four ranks equals one rank" 0 "$TRAIN" verify "$configs/demo.json" --ranks 4 \
    --set zero_optimization.stage=3
check "verify: the grid is printed" grep -qF 'grid       4 ranks = dp 4 (threads), ZeRO 3' output
check "verify: the sizes of the reduced model are printed" \
    grep -qE '^model      2 of 4 blocks, hidden size 32 of 128, vocabulary 509, f64$' output
check "verify: the number of steps and sequences is printed" \
    grep -qE '^steps      3 of 8 sequences of 64 tokens; a rank has 1 micro-batch of 2$' output
check "verify: the worst deviation is printed with its tensor" \
    grep -qE '^equal      to a single rank; worst deviation .* \(bound 1e-12\): [a-z ]+ of [a-z.0-9]+\[[0-9]+\], step [1-3]' \
    output
expect_code "verify: shard groups equal one rank" 0 "$TRAIN" verify "$configs/demo.json" --ranks 4 \
    --set zero_optimization.stage=3 --set parallel.shard=2
check "verify: shard groups are printed" grep -qF 'grid       4 ranks = dp 4 (threads), ZeRO 3 in groups of 2' output
expect_code "verify: a batch that three ranks cannot share is adapted" 0 "$TRAIN" verify "$configs/gpt2_124m.json" --ranks 3 \
    --set zero_optimization.stage=2
expect_code "verify: --full compares the whole model" 0 "$TRAIN" verify "$TINY" --ranks 2 --full --dtype config
check "verify: the bound of f32 is printed" grep -qF "(bound 2e-05)" output
expect_code "verify: the batch is enlarged until its rows can be divided among the ranks" 0 "$TRAIN" verify "$TINY" --ranks 4 \
    --full --set parallel.tensor=4 \
    --set parallel.sequence_parallel=true --set train_micro_batch_size_per_gpu=4 --set data.seq_length=7
expect_code "verify: one rank equals itself" 0 "$TRAIN" verify "$TINY"
expect_code "verify: a missing device exits with code 69" 69 env CUDA_VISIBLE_DEVICES= "$TRAIN" verify "$TINY" --ranks 3 \
    --dtype config --set fp64.enabled=false \
    --set device=cuda
check "verify: a missing device is reported without a rank" grep -Eq '^error\[69\] [^r]' output
expect_code "verify: an unknown dtype is refused" 64 "$TRAIN" verify "$TINY" --dtype fp8
check "verify: an unknown dtype is answered with the known ones" grep -qF 'write config or fp64' output
expect_code "verify: parallel.data that contradicts --ranks is refused" 78 "$TRAIN" verify "$TINY" --ranks 2 \
    --set parallel.data=3
expect_code "verify: another name of a key that verify sets is accepted" 0 "$TRAIN" verify "$TINY" \
    --set zero_optimization.param_persistence_threshold=10
expect_code "verify: a learning rate that is too large for fp64 is refused" 78 "$TRAIN" verify "$TINY" \
    --set optimizer.params.lr=20
check "verify: the refusal names the learning rate, which the user gave" test "$(cat output)" = "error[78] --set: \
optimizer.params.lr: 20 is too large to compare in fp64, where verify takes an eps of lr / 10 and the largest eps is 1; write at \
most 10, or say --dtype config"
expect_code "verify: a missing config is refused" 64 "$TRAIN" verify
finish

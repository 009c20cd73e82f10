#!/usr/bin/env bash
# layers.sh -- tests that scripts/check_layers.sh refuses each kind of wrong include, planted in a small tree, and nothing
# else.
. "$(dirname "$0")/lib.sh"

mkdir scripts
# shellcheck disable=SC2154 # lib.sh sets it
cp "$here/../../scripts/check_layers.sh" scripts/

# file PATH INCLUDE...: writes a file that includes these files
file() {
    mkdir -p "$(dirname "$1")"
    printf '#include "%s"\n' "${@:2}" >"$1"
}
# refused NAME WORDS: expects that the check ends with 1 and prints WORDS; then makes the tree valid again
refused() {
    expect_code "layers: $1" 1 scripts/check_layers.sh
    check "layers: $1 with its file and line" grep -qF -- "$2" output
    sound
}
sound() {
    rm -rf model optim data configs parallel tests rooms train.[ch]
    file model/core/fs.c model/core/check.h
    file model/kernels/cpu/gemm.c model/kernels/ops.h model/core/check.h
    file model/kernels/normal.h model/kernels/vmath.h
    file data/text/prepare.c data/tokenizer/tokenizer.h data/loader.h
    file data/loader.h data/text/meta.h
    file model/gpt.c model/param/param.h model/kernels/ops.h
    file parallel/zero/store.c model/param/store.h parallel/grid/grid.h
    file parallel/run/open.c parallel/trainer/trainer.h model/gpt.h optim/optimizer.h
    file parallel/comm/nccl/nccl.c parallel/comm/comm.h
    file train.c parallel/commands/commands.h
    file tests/core/test_fs.c model/core/fs.h parallel/run/open.h
    file tests/support/files/child.c train.c tests/support/files/child.h
}
sound
expect_code "layers: valid includes are accepted" 0 scripts/check_layers.sh
check "layers: valid includes cause no message" test ! -s output
file model/core/fs.c model/kernels/ops.h
refused "an include of a higher floor is refused" "model/core/fs.c:1: floor 0 includes model/kernels/ops.h of floor 1"
file model/gpt.c model/core/check.h optim/optimizer.h
refused "an include of the optimizer by the model is refused" "model/gpt.c:2: floor 3a includes optim/optimizer.h of floor 3b"
file parallel/comm/local/local.c parallel/comm/nccl/nccl.h
refused "an include of one transport by another is refused" \
    "parallel/comm/local/local.c:1: a transport includes another one, parallel/comm/nccl/nccl.h"
file optim/optimizer.c model/gpt.h
refused "an include of the model by the optimizer is refused" "optim/optimizer.c:1: floor 3b includes model/gpt.h of floor 3a"
file model/gpt.c parallel/grid/grid.h
refused "an include of parallel/ by the model is refused" "model/gpt.c:1: model/ includes nothing of parallel/"
file configs/config.c data/loader.h
file data/tokens/token_file.c configs/config.h
file data/loader.h data/tokens/token_file.h configs/config.h
file configs/config.c data/loader.h
refused "a cycle of includes between two folders of one floor is refused" \
    "configs/config.c:1: configs includes data, of its own floor, in a cycle"
file data/tokens/token_file.c data/text/prepare.h
file data/tokenizer/tokenizer.h data/tokens/token_file.h
refused "a cycle of includes between three folders is refused" \
    "data/tokenizer/tokenizer.h:1: data/tokenizer includes data/tokens, of its own floor, in a cycle"
mkdir -p model/kernels/cuda && echo 'asm volatile("nop;");' >model/kernels/cuda/ptx_tma.cuh
expect_code "layers: inline PTX in ptx*.cuh is accepted" 0 scripts/check_layers.sh
cp model/kernels/cuda/ptx_tma.cuh model/kernels/cuda/flash.cuh
refused "inline PTX outside of ptx*.cuh is refused" "model/kernels/cuda/flash.cuh:1: inline PTX outside of"
echo 'pid_t p = fork();' >model/core/progress.c
printf '    /* unlike fork() */\n    pid_t p = progress_fork();\n' >model/core/child.c
expect_code "layers: fork in progress.c is accepted" 0 scripts/check_layers.sh
cp model/core/progress.c parallel/run/open.c
refused "fork outside of progress.c is refused" "parallel/run/open.c:1: fork outside of model/core/progress.c"
echo 'if (vfork() == 0)' >parallel/run/open.c
refused "vfork is refused" "parallel/run/open.c:1: fork outside of model/core/progress.c"
file rooms/new.c model/core/check.h
refused "a folder without a floor is refused" "the folder rooms is on no floor"
file parallel/run/open.c train.c
refused "an include of the program by a lower floor is refused" "floor 5 includes train.c of floor 7"
file train.c tests/support/files/child.h
refused "an include of a test header by the program is refused" \
    "train.c:1: floor 7 includes tests/support/files/child.h of floor 8"
file model/gpt.c gpt.h
refused "an include of a path that does not begin at the root is refused" "include gpt.h from the root of the repository"
file tests/support/files/child.c child.h
refused "an include in a test of a path that does not begin at the root is refused" \
    "tests/support/files/child.c:1: include child.h from the root of the repository"
file train.h && file train.c train.h
refused "an include of a second file at the root by the program is refused" \
    "train.c:1: include train.h from the root of the repository"
file model/gpt.c model/core/check.h && printf '#include <cuda_runtime.h>\n' >>model/gpt.c
refused "an include of a vendor's header is refused" "model/gpt.c:2: a vendor header"
finish

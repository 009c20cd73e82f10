#!/usr/bin/env bash
# quickstart.sh -- tests scripts/quickstart.sh with fake programs in place of all that it calls: kernels are compiled if
# there is a GPU or CUDA asks for it, arguments are passed to train, and a failing command ends the script.
. "$(dirname "$0")/lib.sh"

# stand_in FILE TEXT: writes a fake program, a shell script with this text
stand_in() {
    mkdir -p "$(dirname "$1")"
    printf '#!/bin/sh\n%s\n' "$2" >"$1" && chmod +x "$1"
}
mkdir scripts
# shellcheck disable=SC2154 # lib.sh sets it
cp "$here"/../../scripts/{quickstart,cuda_lib}.sh scripts/
# shellcheck disable=SC2016 # the stand-ins expand it
{
    stand_in scripts/setup.sh 'echo "setup $*"'
    stand_in train 'echo "train $*"'
    stand_in bin/make 'echo "make CUDA=${CUDA:-default}"'
    stand_in bin/nvidia-smi 'exit "${NO_GPU:-0}"'
    stand_in cuda/bin/nvcc 'exit 0'
}
export PATH=$PWD/bin:$PATH CUDA_HOME=$PWD/cuda
unset CUDA

# said NAME LINE COMMAND...: expects that the command succeeds and that its output has this line
said() {
    local name=$1 line=$2
    shift 2
    expect_code "quickstart: $name (exit code 0)" 0 \
        "$@" && check "quickstart: $name (command line printed)" grep -qxF "$line" output
}
said "a machine with a GPU builds with CUDA" "make CUDA=default" scripts/quickstart.sh
said "arguments are passed to ./train" "train configs/demo.json --set seed=2" scripts/quickstart.sh --set seed=2
said "packages are installed first" "setup --run" scripts/quickstart.sh
export NO_GPU=1
if compgen -G '/dev/nvidia[0-9]*' >/dev/null; then
    skip "quickstart: a machine with nvcc and no GPU builds without CUDA" "there is one"
else
    said "a machine with nvcc and no GPU builds without CUDA" "make CUDA=0" scripts/quickstart.sh
    check "quickstart: a build without CUDA is announced" grep -q '^quickstart: .*building for the CPU only' output
fi
CUDA=1 said "CUDA=1 is passed to make" "make CUDA=1" scripts/quickstart.sh
stand_in bin/make 'exit 3'
expect_code "quickstart: a failing build ends with its exit code" 3 scripts/quickstart.sh
finish

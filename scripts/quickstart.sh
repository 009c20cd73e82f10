#!/usr/bin/env bash
# quickstart.sh -- installs the packages, builds the program and trains the demo, starting from a fresh clone. Arguments are
# passed to ./train.
set -eu
cd "$(dirname "$0")/.."
scripts/setup.sh --run

. scripts/cuda_lib.sh
# The kernels take more than a minute to compile and cannot run without a GPU.
if [ -z "${CUDA:-}" ] && find_nvcc >/dev/null && ! has_gpu; then
    echo "quickstart: there is nvcc and no GPU: building for the CPU only (make builds the CUDA backend, too)"
    export CUDA=0
fi
make -j "$(nproc)" </dev/null
exec ./train configs/demo.json "$@"

#!/usr/bin/env bash
# quickstart.sh -- from a fresh clone to a trained demo: packages, build, training. Arguments go to ./train.
set -eu
cd "$(dirname "$0")/.."
scripts/setup.sh --run

. scripts/cuda_lib.sh
# Kernels take a minute and more to compile, and would not run here.
if [ -z "${CUDA:-}" ] && find_nvcc >/dev/null && ! has_gpu; then
    echo "quickstart: there is nvcc and no GPU: building for the CPU only (make builds the CUDA backend, too)"
    export CUDA=0
fi
make -j "$(nproc)" </dev/null
exec ./train configs/demo.json "$@"

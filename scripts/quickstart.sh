#!/usr/bin/env bash
# quickstart.sh -- from a fresh clone to a trained demo: packages, build, training. Arguments go to ./train.
set -eu
cd "$(dirname "$0")/.."
scripts/setup.sh --run

has_nvcc() { command -v nvcc >/dev/null || [ -x "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" ]; }
has_gpu() { nvidia-smi -L >/dev/null 2>&1 || compgen -G '/dev/nvidia[0-9]*' >/dev/null; }
# Kernels take a minute and more to compile, and would not run here.
if [ -z "${CUDA:-}" ] && has_nvcc && ! has_gpu; then
    echo "quickstart: there is nvcc and no GPU: building for the CPU only (make builds the CUDA backend, too)"
    export CUDA=0
fi
make -j "$(nproc)" </dev/null
exec ./train configs/demo.json "$@"

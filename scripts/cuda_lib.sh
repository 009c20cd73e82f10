# cuda_lib.sh -- functions that find nvcc, the GPUs and the CUDA libraries. Sourced by scripts and by the Makefile.
# shellcheck shell=bash

# find_nvcc: prints the path TOOLKIT/bin/nvcc, searched in $CUDA_HOME, PATH and /usr/local/cuda; fails if there is none. Follows
# a link such as /usr/bin/nvcc, because nvcc looks for its other programs in its own folder, but not a link to ccache.
find_nvcc() {
    local path real
    for path in "${CUDA_HOME:+$CUDA_HOME/bin/nvcc}" "$(command -v nvcc 2>/dev/null)" /usr/local/cuda/bin/nvcc; do
        [ -n "$path" ] && [ -x "$path" ] || continue
        real=$(readlink -f "$path")
        [[ $real == */bin/nvcc ]] || real=$path
        [[ $real == */bin/nvcc ]] || continue
        echo "$real"
        return
    done
    return 1
}

# has_gpu: succeeds if nvidia-smi lists a GPU or its device files exist
has_gpu() { nvidia-smi -L >/dev/null 2>&1 || compgen -G '/dev/nvidia[0-9]*' >/dev/null; }

# gpu_capabilities ROOT: prints the compute capabilities of this machine's GPUs, such as 80 or 90, one per line. Uses
# nvidia-smi, or the program of the toolkit in ROOT
gpu_capabilities() {
    { nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null || "$1/bin/__nvcc_device_query" 2>/dev/null; } |
        tr -s ', ' '\n\n' | sed -nE 's/^([0-9]+)\.?([0-9])$/\1\2/p' | sort -u
}

# kernels_unchanged_since COMMIT: succeeds if nothing has changed since the commit that the machine code of the kernels, or the
# check of it, depends on. Headers that kernels share with the program and nvcc's options count, too; documents do not, nor do
# probes, which tests/program/gpu_probe.sh compiles.
kernels_unchanged_since() {
    git diff --quiet "$1" -- '*.cu' '*.cuh' ':!tests/probe' ':!*.md' model/kernels/cuda 'model/kernels/*.h' \
        model/core/host_device.h tests/support/device scripts/sass scripts/sass_report.sh 2>/dev/null &&
        [ -z "$(git diff -G'NVCC|NVFLAGS|CUDA_|ARCH|UNCONTRACTED' "$1" -- Makefile)" ]
}

# cuda_wheels: prints the folders of Python packages that hold libnccl or libcublasLt, each followed by a colon
cuda_wheels() {
    python3 - 2>/dev/null <<'END'
import glob, os, site, sys
folders = {os.path.dirname(f) for p in sys.path + site.getsitepackages()
           for n in ("libnccl.so.2", "libcublasLt.so.1?") for f in glob.glob(p + "/nvidia/*/lib/" + n)}
print("".join(f + ":" for f in sorted(folders)), end="")
END
}

# cuda_library_path ROOT: prints LD_LIBRARY_PATH preceded by the folders of the toolkit's libraries and of the wheels
cuda_library_path() {
    local wheels
    wheels=$(cuda_wheels)
    echo "$1/lib64:$1/lib${wheels:+:${wheels%:}}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
}

# commit: prints the commit that the current folder is checked out at, also where git is not installed
commit() {
    local head
    git describe --always --dirty --abbrev=10 2>/dev/null && return
    head=$(cat .git/HEAD 2>/dev/null)
    [[ $head != ref:* ]] || head=$(cat ".git/${head#ref: }" 2>/dev/null)
    head=${head:-unknown}
    echo "${head:0:10}"
}

# disassemblers: prints the folder of the virtual environment in which scripts/setup.sh installs nvdisasm and cuobjdump
disassemblers() { echo "${XDG_CACHE_HOME:-${HOME:-}/.cache}/train.c-disassemblers"; }

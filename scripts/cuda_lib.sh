# cuda_lib.sh -- what scripts and the Makefile ask about CUDA: where nvcc, the GPUs and the toolkit's libraries are. Sourced.
# shellcheck shell=bash

# find_nvcc: $CUDA_HOME's, PATH's or /usr/local/cuda's, as TOOLKIT/bin/nvcc; fails where there is none. A link such as
# /usr/bin/nvcc is followed, because nvcc looks for its parts beside itself; one to another program (ccache) is not.
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

# has_gpu: whether the driver tells of one, or of its device files
has_gpu() { nvidia-smi -L >/dev/null 2>&1 || compgen -G '/dev/nvidia[0-9]*' >/dev/null; }

# gpu_capabilities ROOT: of this machine's GPUs, as 80 or 90, one a line: of nvidia-smi, or of the toolkit's own question
gpu_capabilities() {
    { nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null || "$1/bin/__nvcc_device_query" 2>/dev/null; } |
        tr -s ', ' '\n\n' | sed -nE 's/^([0-9]+)\.?([0-9])$/\1\2/p' | sort -u
}

# cuda_wheels: where python's packages keep libnccl and libcublasLt, each followed by a colon
cuda_wheels() {
    python3 - 2>/dev/null <<'END'
import glob, os, site, sys
folders = {os.path.dirname(f) for p in sys.path + site.getsitepackages()
           for n in ("libnccl.so.2", "libcublasLt.so.1?") for f in glob.glob(p + "/nvidia/*/lib/" + n)}
print("".join(f + ":" for f in sorted(folders)), end="")
END
}

# cuda_library_path ROOT: LD_LIBRARY_PATH with the toolkit's libraries first, then the wheels'
cuda_library_path() {
    local wheels
    wheels=$(cuda_wheels)
    echo "$1/lib64:$1/lib${wheels:+:${wheels%:}}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
}

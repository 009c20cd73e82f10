#!/bin/sh
# Times a GPT-2 124M training step here and in PyTorch on this machine's CPU and prints both and the ratio.
# PYTHON=/path/to/python chooses the interpreter; all arguments go to compare_pytorch.py (--help lists them).
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
error=$(mktemp)
trap 'rm -f "$error"' EXIT

imports() {
    "$python" -c 'import torch' 2>"$error"
}

# PyTorch's wheel for CUDA wants CUDA's libraries even on the CPU. Where they came as wheels of their own, or with a
# toolkit, the loader has to be told.
add_libraries() {
    folders=$("$python" -c '
import glob, os, site, sysconfig
roots = [sysconfig.get_paths()["purelib"]] + site.getsitepackages()
print(":".join(sorted({f for r in roots for f in glob.glob(os.path.join(r, "nvidia", "*", "lib"))})))' 2>/dev/null) || folders=
    LD_LIBRARY_PATH="$folders:${CUDA_HOME:-/usr/local/cuda}/lib64${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
    export LD_LIBRARY_PATH
}

if ! imports; then
    add_libraries
    if ! imports; then
        echo "compare_pytorch: $python cannot import torch: $(tail -n 1 "$error")" >&2
        echo "Install it, for example in a virtual environment:" >&2
        echo "    python3 -m venv venv && venv/bin/pip install torch numpy" >&2
        echo "and run: PYTHON=venv/bin/python scripts/compare_pytorch.sh" >&2
        exit 69
    fi
fi
"$python" scripts/compare_pytorch.py "$@"

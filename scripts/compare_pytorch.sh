#!/bin/sh
# compare_pytorch.sh -- times a GPT-2 124M training step of this program and of PyTorch on this machine's CPU, and prints both
# times and their ratio. PYTHON=/path/to/python selects the interpreter. All arguments are passed to compare_pytorch.py (see its
# --help).
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
error=$(mktemp)
trap 'rm -f "$error"' EXIT

imports() {
    "$python" -c 'import torch' 2>"$error"
}

# add_libraries: adds the folders of CUDA's libraries to LD_LIBRARY_PATH. A PyTorch wheel for CUDA needs these libraries even on
# the CPU, and the loader does not find them if they were installed as separate wheels or with a toolkit.
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

#!/usr/bin/env bash
# tidy.sh -- runs clang-tidy on the given C files with the flags that the Makefile compiles them with; prints only its
# complaints.
set -u
cd "$(dirname "$0")/.." || exit 71
# Clang 14 supports _Float16 only if its instructions are enabled.
flags=(-std=c11 -D_GNU_SOURCE -I. -mavx512fp16 '-DPROGRAM_COMMIT="checked"' '-DPROGRAMS=PROGRAM(test_one)')
read -ra cjson <<<"${CJSON_PREFIX:+-I$CJSON_PREFIX/include} $(pkg-config --cflags libcjson 2>/dev/null)"
flags+=("${cjson[@]}")
bad=0
for file in "$@"; do
    extra=()
    [[ $file == model/kernels/cpu/* ]] &&
        extra=(-march=x86-64-v3 -DCPU_LEVEL=v3 -DREAL=float -DREAL_DTYPE=F32 -DREAL_SUFFIX=f32)
    # Use the emulator's CUDA headers, so no CUDA toolkit is needed.
    [[ $file == model/kernels/cuda/* || $file == tests/emu/* || $file == tests/cuda/* ]] && extra=(-isystem tests/emu/include)
    [[ $file == tests/probe/* ]] && extra=('-DNCCL_HEADER="tests/emu/nccl/nccl_emu.h"')
    # Only gcc has __builtin_shuffle.
    gcc -E "${flags[@]}" "${extra[@]}" "$file" 2>/dev/null | grep -q __builtin_shuffle && continue
    clang-tidy --quiet --warnings-as-errors='*' "$file" -- "${flags[@]}" "${extra[@]}" 2>/dev/null || bad=1
done
exit $bad

#!/usr/bin/env bash
# nccl_header.sh -- tests that the program's own declarations of NCCL agree with the header of the emulated NCCL and with
# nccl.h, if one is found, in every number and type, and that a copy with one change is refused.
. "$(dirname "$0")/lib.sh"

# shellcheck disable=SC2154 # lib.sh sets it
root=$(realpath "$here/../..")
. "$root/scripts/cuda_lib.sh"

# alike HEADER FOLDER...: compiles the comparison with this header and these include folders, and runs it; leaves its
# messages in the file "output"
alike() {
    local header=$1 folder
    local -a from=()
    shift
    for folder in "$@"; do from+=(-I "$folder"); done
    # shellcheck disable=SC2086 # it may be two words
    ${CC:-gcc} -std=c11 "${from[@]}" "-DNCCL_HEADER=\"$header\"" -o alike "$root/tests/probe/nccl_header.c" >output 2>&1 && ./alike >output 2>&1
}

# changed NAME WORDS SED HEADER FOLDER...: expects that a copy of library.h, changed by SED, is refused with WORDS
changed() {
    local name=$1 words=$2 edit=$3 at=parallel/comm/nccl/library.h
    shift 3
    mkdir -p "copy/${at%/*}"
    sed -E "$edit" "$root/$at" >"copy/$at"
    if cmp -s "$root/$at" "copy/$at"; then
        not_ok "nccl_header: $name: nothing was changed"
    elif alike "$1" copy "${@:2}"; then
        not_ok "nccl_header: $name: not seen"
    else
        check "nccl_header: $name in library.h is refused" grep -qF "$words" output
    fi
}

# compared NAME HEADER FOLDER...: expects that the header agrees with library.h, and that changes in library.h are noticed
compared() {
    local name=$1
    shift
    if ! alike "$@"; then
        not_ok "nccl_header: the program's declarations are not those of $name"
        grep -m 5 -E 'error|other' output | sed 's/^/    | /'
        return
    fi
    ok "nccl_header: library.h agrees with $name: $(sed "s|$root/||" output)"
    changed "a changed number ($name)" ncclRemoteError 's/^( *)NCCL_INTERNAL_ERROR,$/\1NCCL_ODD, NCCL_INTERNAL_ERROR,/' "$@"
    changed "a changed data type ($name)" ncclFloat16 's/^( *)NCCL_UINT64,$/\1NCCL_ODD, NCCL_UINT64,/' "$@"
    changed "a changed reduction ($name)" ncclMax 's/NCCL_PRODUCT, NCCL_MAX/NCCL_MAX, NCCL_PRODUCT/' "$@"
    changed "a changed order of fields ($name)" 'where minCTAs lies' 's/min_ctas, max_ctas;/max_ctas, min_ctas;/' "$@"
    changed "a changed type of a field ($name)" 'the type of magic' 's/unsigned magic, version/int magic, version/' "$@"
    changed "a changed length of ncclConfig_t ($name)" \
        'the size of ncclConfig_t' 's/, nvlink_centric;/, nvlink_centric, odd[64];/' "$@"
    changed "a changed length of the unique id ($name)" 'the size of ncclUniqueId' 's/internal\[128\]/internal[64]/' "$@"
    changed "a changed type of a count ($name)" \
        ncclRecv 's/\(void \*to, size_t count, NcclType type, int from/(void *to, int count, NcclType type, int from/' "$@"
    changed "a missing const ($name)" \
        ncclSend 's/\(const void \*from, size_t count, NcclType type, int to/(void *from, size_t count, NcclType type, int to/' "$@"
    changed "a changed order of arguments ($name)" \
        ncclAllReduce '/all_reduce,/,/stream/s/NcclType type, NcclOp op/NcclOp op, NcclType type/' "$@"
    changed "a changed magic number ($name)" 'other values' 's/0xcafebeef/0xcafebabe/' "$@"
}

compared "the emulated NCCL's header" "$root/tests/emu/nccl/nccl_emu.h" "$root"
# nccl.h is not part of the CUDA toolkit, but the files that it includes are.
home=$(find_nvcc) && home=${home%/bin/nvcc} || home=${CUDA_HOME:-/usr/local/cuda}
IFS=: read -ra folders <<<"${CPATH:-}"
folders+=("${CUDA_HOME:-$home}/include" "$home/include" /usr/local/cuda/include /usr/local/include /usr/include
    "$(python3 -c 'import nvidia.nccl as n; print(list(n.__path__)[0] + "/include")' 2>/dev/null)")
found='' runtime=''
for folder in "${folders[@]}"; do
    [ -n "$found" ] || [ ! -f "$folder/nccl.h" ] || found=$folder
    [ -n "$runtime" ] || [ ! -f "$folder/cuda_runtime.h" ] || runtime=$folder
done
if [ -z "$found" ]; then
    skip "nccl_header: library.h agrees with nccl.h"
elif [ -z "$runtime" ]; then
    skip "nccl_header: library.h agrees with nccl.h" "$found/nccl.h includes CUDA's cuda_runtime.h, which is not here"
else
    compared nccl.h "$found/nccl.h" "$root" "$runtime"
fi
finish

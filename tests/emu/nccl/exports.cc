/* exports.cc -- the function names that dlsym finds. Each name resolves to the function declared in
 * nccl_emu.h, or to NULL if EMU_NCCL_FAULT contains missing=NAME. */
#include "tests/emu/nccl/rules.h"

#define EXPORT(name)                                                                               \
    extern "C" decltype(&name) resolve_##name(void)                                                \
    {                                                                                              \
        return faults_missing(#name) ? nullptr : name;                                             \
    }                                                                                              \
    extern "C" __attribute__((ifunc("resolve_" #name),                                             \
                              visibility("default"))) decltype(name) export_##name __asm__(#name);

EXPORT(ncclGetVersion)
EXPORT(ncclGetUniqueId)
EXPORT(ncclCommInitRank)
EXPORT(ncclCommInitRankConfig)
EXPORT(ncclCommFinalize)
EXPORT(ncclCommDestroy)
EXPORT(ncclCommAbort)
EXPORT(ncclGetErrorString)
EXPORT(ncclGetLastError)
EXPORT(ncclCommGetAsyncError)
EXPORT(ncclCommCount)
EXPORT(ncclCommUserRank)
EXPORT(ncclCommCuDevice)
EXPORT(ncclAllReduce)
EXPORT(ncclReduceScatter)
EXPORT(ncclAllGather)
EXPORT(ncclBroadcast)
EXPORT(ncclSend)
EXPORT(ncclRecv)
EXPORT(ncclGroupStart)
EXPORT(ncclGroupEnd)

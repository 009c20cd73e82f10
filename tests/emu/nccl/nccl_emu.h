/* nccl_emu.h -- the interface of NCCL 2.28.9 as far as the stand-in for libnccl.so.2 serves it:
 * names, numbers and layouts are those of nccl.h, written down anew.
 *
 * The stand-in carries what a communicator carries over TCP sockets, on the interface that
 * NCCL_SOCKET_IFNAME names, else on loopback; its ranks are threads or processes, one to a device.
 * It ends the program with a sentence where the real library would hang, or give wrong numbers on
 * some machine. Read at each communicator's init:
 *
 *   EMU_NCCL_READ     early (default): what is sent is read as soon as the stream has come to the
 *                     call, before any peer; late: when all peers have come, right before it leaves
 *   EMU_NCCL_SEED     number: where rings start and which way round they go (default 0)
 *   EMU_NCCL_RESERVE  bytes of device memory that each communicator takes (default 0)
 *
 * At any time:
 *
 *   EMU_NCCL_FAULT    faults, with commas between them. DEVICE:FUNCTION:N:KIND, at the device's
 *                     N-th call (from 1) of the function, named without its prefix, or of "any":
 *                     error=CODE (it returns the code and does nothing), async=CODE (it returns
 *                     success, never completes, and the code is the communicator's asynchronous
 *                     error), never (the same without an error; an init does not return), kill (of
 *                     the process), vanish (the device's connections end, and the thread goes no
 *                     further). version=CODE: what ncclGetVersion answers. missing=FUNCTION, with
 *                     its prefix: dlsym does not find it
 *   EMU_NCCL_ORDER    a folder in which each process leaves the order of its launches when its last
 *                     communicator is destroyed, and looks at those that others left: the union of
 *                     all must leave no devices waiting for each other
 *
 * Of the real library's settings: NCCL_SOCKET_IFNAME, NCCL_SOCKET_FAMILY, NCCL_HOSTID, and
 * NCCL_MULTI_RANK_GPU_ENABLE=1, with which two ranks may have one device. */
#ifndef TESTS_EMU_NCCL_NCCL_EMU_H
#define TESTS_EMU_NCCL_NCCL_EMU_H

#include "tests/emu/include/cuda_runtime_api.h"

#include <limits.h>

#ifdef __cplusplus
extern "C" {
#endif

#define NCCL_VERSION_CODE     22809
#define NCCL_CONFIG_MAGIC     0xcafebeefu
#define NCCL_CONFIG_UNDEF_INT INT_MIN
/* A function; its symbol has another name, so that exports.cc can say which names are found. */
#define NCCL_FUNCTION(result, name, ...) result name(__VA_ARGS__) __asm__("emu_" #name)

typedef struct ncclComm *ncclComm_t;

typedef struct {
    char internal[128];
} ncclUniqueId;

typedef enum {
    ncclSuccess = 0,
    ncclUnhandledCudaError = 1,
    ncclSystemError = 2,
    ncclInternalError = 3,
    ncclInvalidArgument = 4,
    ncclInvalidUsage = 5,
    ncclRemoteError = 6,
    ncclInProgress = 7
} ncclResult_t;

typedef enum {
    ncclInt8 = 0,
    ncclUint8 = 1,
    ncclInt32 = 2,
    ncclUint32 = 3,
    ncclInt64 = 4,
    ncclUint64 = 5,
    ncclFloat16 = 6,
    ncclFloat32 = 7,
    ncclFloat64 = 8,
    ncclBfloat16 = 9
} ncclDataType_t;

typedef enum { ncclSum = 0, ncclProd = 1, ncclMax = 2, ncclMin = 3, ncclAvg = 4 } ncclRedOp_t;

typedef struct {
    size_t size;
    unsigned magic, version;
    int blocking, cgaClusterSize, minCTAs, maxCTAs;
    const char *netName;
    int splitShare, trafficClass;
    const char *commName;
    int collnetEnable, CTAPolicy, shrinkShare, nvlsCTAs, nChannelsPerNetPeer, nvlinkCentricSched;
} ncclConfig_t;

#define NCCL_CONFIG_INITIALIZER                                                                    \
    {                                                                                              \
        sizeof(ncclConfig_t), NCCL_CONFIG_MAGIC, NCCL_VERSION_CODE, NCCL_CONFIG_UNDEF_INT,         \
            NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NULL,             \
            NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NULL, NCCL_CONFIG_UNDEF_INT,             \
            NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT,                   \
            NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT                                           \
    }

NCCL_FUNCTION(ncclResult_t, ncclGetVersion, int *version);
NCCL_FUNCTION(ncclResult_t, ncclGetUniqueId, ncclUniqueId *id);
NCCL_FUNCTION(ncclResult_t, ncclCommInitRank, ncclComm_t *comm, int ranks, ncclUniqueId id,
              int rank);
NCCL_FUNCTION(ncclResult_t, ncclCommInitRankConfig, ncclComm_t *comm, int ranks, ncclUniqueId id,
              int rank, ncclConfig_t *config);
NCCL_FUNCTION(ncclResult_t, ncclCommFinalize, ncclComm_t comm);
NCCL_FUNCTION(ncclResult_t, ncclCommDestroy, ncclComm_t comm);
NCCL_FUNCTION(ncclResult_t, ncclCommAbort, ncclComm_t comm);
NCCL_FUNCTION(const char *, ncclGetErrorString, ncclResult_t result);
NCCL_FUNCTION(const char *, ncclGetLastError, ncclComm_t comm);
NCCL_FUNCTION(ncclResult_t, ncclCommGetAsyncError, ncclComm_t comm, ncclResult_t *error);
NCCL_FUNCTION(ncclResult_t, ncclCommCount, ncclComm_t comm, int *ranks);
NCCL_FUNCTION(ncclResult_t, ncclCommUserRank, ncclComm_t comm, int *rank);
NCCL_FUNCTION(ncclResult_t, ncclCommCuDevice, ncclComm_t comm, int *device);

NCCL_FUNCTION(ncclResult_t, ncclAllReduce, const void *send, void *recv, size_t count,
              ncclDataType_t type, ncclRedOp_t reduction, ncclComm_t comm, cudaStream_t stream);
NCCL_FUNCTION(ncclResult_t, ncclReduceScatter, const void *send, void *recv, size_t count,
              ncclDataType_t type, ncclRedOp_t reduction, ncclComm_t comm, cudaStream_t stream);
NCCL_FUNCTION(ncclResult_t, ncclAllGather, const void *send, void *recv, size_t count,
              ncclDataType_t type, ncclComm_t comm, cudaStream_t stream);
NCCL_FUNCTION(ncclResult_t, ncclBroadcast, const void *send, void *recv, size_t count,
              ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream);
NCCL_FUNCTION(ncclResult_t, ncclSend, const void *send, size_t count, ncclDataType_t type, int peer,
              ncclComm_t comm, cudaStream_t stream);
NCCL_FUNCTION(ncclResult_t, ncclRecv, void *recv, size_t count, ncclDataType_t type, int peer,
              ncclComm_t comm, cudaStream_t stream);
NCCL_FUNCTION(ncclResult_t, ncclGroupStart, void);
NCCL_FUNCTION(ncclResult_t, ncclGroupEnd, void);

#ifdef __cplusplus
}
#endif

#endif

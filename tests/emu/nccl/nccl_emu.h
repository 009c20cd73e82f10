/* nccl_emu.h -- the interface of the emulated NCCL, a libnccl.so.2 for the emulated CUDA devices.
 * It declares the part of NCCL 2.28.9 that the emulation implements. Names, numbers and layouts are
 * those of nccl.h, written anew.
 *
 * The emulated NCCL sends all data over TCP sockets, on the interface that NCCL_SOCKET_IFNAME
 * names, else on loopback. Its ranks are threads or processes with one device each. It ends the
 * program with an error message where the real library would hang, or would give wrong numbers on
 * some machine. These environment variables are read when a communicator is created:
 *
 *   EMU_NCCL_READ     early (default): a call reads its input as soon as its stream reaches the
 *                     call, before any peer arrives; late: when all peers have arrived, just
 *                     before the data is sent
 *   EMU_NCCL_CONNECT  each (default): the first use of each operation waits on the host for all
 *                     ranks; ring: the first collective waits for its two neighbours in the ring,
 *                     and no later one waits
 *   EMU_NCCL_LEAVE    late (default): a call is complete when all its ranks have arrived; early: a
 *                     broadcast's root and the sender of a message do not wait for anybody
 *   EMU_NCCL_SEED     number: selects where rings start and in which direction they go (default 0)
 *   EMU_NCCL_RESERVE  bytes of device memory that each communicator allocates (default 0)
 *
 *   EMU_NCCL_COMMS    a file, which gets a line for each communicator: its name, ranks and CTAs
 *
 * These are read at any time:
 *
 *   EMU_NCCL_FAULT    faults, separated by commas. DEVICE:FUNCTION:N:KIND plants one at the
 *                     device's N-th call (from 1) of the function, which is named without its
 *                     prefix, or "any". KIND is error=CODE (the call returns the code and does
 *                     nothing), async=CODE (it returns success, never completes, and the code
 *                     becomes the communicator's asynchronous error), never (the same without an
 *                     error; an init does not return), wrong (all numbers of the call's result get
 *                     the other sign), late (the call is launched half a second late, after it has
 *                     met its peers), kill (kills the process) or vanish (closes the device's
 *                     connections and blocks the thread). version=CODE makes
 *                     ncclGetVersion return the code. missing=FUNCTION, with its prefix, hides the
 *                     function from dlsym
 *   EMU_NCCL_ORDER    a folder. When its last communicator is destroyed, each process writes the
 *                     order of its launches there, and checks it together with those of the other
 *                     processes: no devices may wait for each other in a cycle
 *
 * Of the real library's variables it knows NCCL_SOCKET_IFNAME, NCCL_SOCKET_FAMILY, NCCL_HOSTID,
 * NCCL_MAX_CTAS, which replaces the limit of each communicator's config, and
 * NCCL_MULTI_RANK_GPU_ENABLE=1, which allows two ranks on one device. */
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
/* Declares a function. Its symbol gets another name, so that exports.cc decides which names are
 * exported. */
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

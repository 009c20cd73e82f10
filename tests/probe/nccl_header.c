/* nccl_header.c -- compiles only if the program's own declarations of NCCL
 * (parallel/comm/nccl/library.h) agree with the header NCCL_HEADER, which is nccl.h or the header
 * of the test stand-in. A newer ncclConfig_t may be longer: the library recognises by size and
 * version which one it was given. */
#include NCCL_HEADER

#include "parallel/comm/nccl/library.h"

#include <stdio.h>
#include <string.h>

#define SAME(a, b, what)  _Static_assert((long long)(a) == (long long)(b), what)
#define ALIKE(a, b, what) _Static_assert(__builtin_types_compatible_p(a, b), what)

/* ---- constants ------------------------------------------------------------------------------- */

SAME(NCCL_SUCCESS, ncclSuccess, "ncclSuccess");
SAME(NCCL_UNHANDLED_CUDA_ERROR, ncclUnhandledCudaError, "ncclUnhandledCudaError");
SAME(NCCL_SYSTEM_ERROR, ncclSystemError, "ncclSystemError");
SAME(NCCL_INTERNAL_ERROR, ncclInternalError, "ncclInternalError");
SAME(NCCL_INVALID_ARGUMENT, ncclInvalidArgument, "ncclInvalidArgument");
SAME(NCCL_INVALID_USAGE, ncclInvalidUsage, "ncclInvalidUsage");
SAME(NCCL_REMOTE_ERROR, ncclRemoteError, "ncclRemoteError");
SAME(NCCL_IN_PROGRESS, ncclInProgress, "ncclInProgress");
SAME(NCCL_INT8, ncclInt8, "ncclInt8");
SAME(NCCL_UINT8, ncclUint8, "ncclUint8");
SAME(NCCL_INT32, ncclInt32, "ncclInt32");
SAME(NCCL_UINT32, ncclUint32, "ncclUint32");
SAME(NCCL_INT64, ncclInt64, "ncclInt64");
SAME(NCCL_UINT64, ncclUint64, "ncclUint64");
SAME(NCCL_FLOAT16, ncclFloat16, "ncclFloat16");
SAME(NCCL_FLOAT32, ncclFloat32, "ncclFloat32");
SAME(NCCL_FLOAT64, ncclFloat64, "ncclFloat64");
SAME(NCCL_BFLOAT16, ncclBfloat16, "ncclBfloat16");
SAME(NCCL_SUM, ncclSum, "ncclSum");
SAME(NCCL_PRODUCT, ncclProd, "ncclProd");
SAME(NCCL_MAX, ncclMax, "ncclMax");
SAME(NCCL_UNDEFINED, NCCL_CONFIG_UNDEF_INT, "NCCL_CONFIG_UNDEF_INT");
_Static_assert(NCCL_VERSION_CODE >= NCCL_LEAST, "a header older than what is served");
SAME(sizeof(NcclResult), sizeof(ncclResult_t), "the size of ncclResult_t");
SAME(sizeof(NcclType), sizeof(ncclDataType_t), "the size of ncclDataType_t");
SAME(sizeof(NcclOp), sizeof(ncclRedOp_t), "the size of ncclRedOp_t");
SAME(sizeof(NcclStream), sizeof(cudaStream_t), "the size of cudaStream_t");

/* ---- structures ------------------------------------------------------------------------------ */

#define FIELD(own, own_type, theirs, their_type)                                                   \
    SAME(offsetof(own_type, own), offsetof(their_type, theirs), "where " #theirs " lies");         \
    ALIKE(__typeof__(((own_type *)0)->own), __typeof__(((their_type *)0)->theirs),                 \
          "the type of " #theirs)
#define CONFIG(own, theirs) FIELD(own, NcclConfig, theirs, ncclConfig_t)

FIELD(internal, NcclId, internal, ncclUniqueId);
SAME(sizeof(NcclId), sizeof(ncclUniqueId), "the size of ncclUniqueId");
CONFIG(size, size);
CONFIG(magic, magic);
CONFIG(version, version);
CONFIG(blocking, blocking);
CONFIG(cga_cluster_size, cgaClusterSize);
CONFIG(min_ctas, minCTAs);
CONFIG(max_ctas, maxCTAs);
CONFIG(net_name, netName);
CONFIG(split_share, splitShare);
CONFIG(traffic_class, trafficClass);
CONFIG(comm_name, commName);
CONFIG(collnet_enable, collnetEnable);
CONFIG(cta_policy, CTAPolicy);
CONFIG(shrink_share, shrinkShare);
CONFIG(nvls_ctas, nvlsCTAs);
CONFIG(channels_per_net_peer, nChannelsPerNetPeer);
CONFIG(nvlink_centric, nvlinkCentricSched);
_Static_assert(NCCL_VERSION_CODE / 100 > NCCL_LEAST / 100
                   ? sizeof(NcclConfig) <= sizeof(ncclConfig_t)
                   : sizeof(NcclConfig) == sizeof(ncclConfig_t),
               "the size of ncclConfig_t");

/* Returns whether both configurations are equal if no option is set. */
static int alike_when_nothing_is_chosen(void)
{
    NcclConfig own = NCCL_CONFIG_NONE;
    ncclConfig_t theirs = NCCL_CONFIG_INITIALIZER;
    own.size = theirs.size;
    own.version = theirs.version;
    return memcmp(&own, &theirs, sizeof own) == 0;
}

/* ---- functions ------------------------------------------------------------------------------- */

/* From here on, the program's type names mean NCCL's types. */
#define NcclHandle                        struct ncclComm
#define NcclId                            ncclUniqueId
#define NcclResult                        ncclResult_t
#define NcclType                          ncclDataType_t
#define NcclOp                            ncclRedOp_t
#define NcclConfig                        ncclConfig_t
#define NcclStream                        cudaStream_t
#define X(field, name, result, arguments) ALIKE(__typeof__(name), result arguments, #name);
NCCL_FUNCTIONS(X)

/* Functions that only tests and probes call. */
ALIKE(__typeof__(ncclCommInitRank),
      ncclResult_t(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank), "ncclCommInitRank");
ALIKE(__typeof__(ncclCommFinalize), ncclResult_t(ncclComm_t comm), "ncclCommFinalize");
ALIKE(__typeof__(ncclCommAbort), ncclResult_t(ncclComm_t comm), "ncclCommAbort");
ALIKE(__typeof__(ncclCommCount), ncclResult_t(const ncclComm_t comm, int *count), "ncclCommCount");
ALIKE(__typeof__(ncclCommUserRank), ncclResult_t(const ncclComm_t comm, int *rank),
      "ncclCommUserRank");
ALIKE(__typeof__(ncclCommCuDevice), ncclResult_t(const ncclComm_t comm, int *device),
      "ncclCommCuDevice");

int main(void)
{
    if (!alike_when_nothing_is_chosen()) {
        puts("NCCL_CONFIG_INITIALIZER has other values");
        return 1;
    }
    printf("alike: the program and " NCCL_HEADER ", NCCL %d\n", NCCL_VERSION_CODE);
    return 0;
}

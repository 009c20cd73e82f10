/* library.h -- libnccl.so.2 as a table of function pointers. The types are declared here as in NCCL
 * 2.28.9, so that no build needs nccl.h. A newer library recognizes a structure of an older version
 * by its size, magic and version.
 *
 * NCCL's user guide documents the functions and when each may be called. */
#ifndef PARALLEL_COMM_NCCL_LIBRARY_H
#define PARALLEL_COMM_NCCL_LIBRARY_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

/* The oldest supported version, numbered as by NCCL: 10000 * major + 100 * minor + patch. */
enum { NCCL_LEAST = 22809 };
#define NCCL_LEAST_TEXT "2.28.9"

typedef struct NcclHandle NcclHandle; /* ncclComm_t is a pointer to this */
typedef void *NcclStream;             /* stands for cudaStream_t */
/* ncclUniqueId: one rank creates it, and all ranks that pass it form one communicator. */
typedef struct {
    char internal[128];
} NcclId;

typedef enum {
    NCCL_SUCCESS,
    NCCL_UNHANDLED_CUDA_ERROR,
    NCCL_SYSTEM_ERROR,
    NCCL_INTERNAL_ERROR,
    NCCL_INVALID_ARGUMENT,
    NCCL_INVALID_USAGE,
    NCCL_REMOTE_ERROR,
    NCCL_IN_PROGRESS
} NcclResult;

typedef enum {
    NCCL_INT8,
    NCCL_UINT8,
    NCCL_INT32,
    NCCL_UINT32,
    NCCL_INT64,
    NCCL_UINT64,
    NCCL_FLOAT16,
    NCCL_FLOAT32,
    NCCL_FLOAT64,
    NCCL_BFLOAT16
} NcclType;

typedef enum { NCCL_SUM, NCCL_PRODUCT, NCCL_MAX } NcclOp;

/* ncclConfig_t of NCCL 2.28. */
typedef struct {
    size_t size;
    unsigned magic, version;
    int blocking, cga_cluster_size, min_ctas, max_ctas;
    const char *net_name;
    int split_share, traffic_class;
    const char *comm_name;
    int collnet_enable, cta_policy, shrink_share, nvls_ctas, channels_per_net_peer, nvlink_centric;
} NcclConfig;

/* Corresponds to NCCL_CONFIG_INITIALIZER: every option is left undefined. */
enum { NCCL_UNDEFINED = INT_MIN };
#define NCCL_CONFIG_NONE                                                                           \
    ((NcclConfig){.size = sizeof(NcclConfig),                                                      \
                  .magic = 0xcafebeef,                                                             \
                  .version = NCCL_LEAST,                                                           \
                  .blocking = NCCL_UNDEFINED,                                                      \
                  .cga_cluster_size = NCCL_UNDEFINED,                                              \
                  .min_ctas = NCCL_UNDEFINED,                                                      \
                  .max_ctas = NCCL_UNDEFINED,                                                      \
                  .net_name = NULL,                                                                \
                  .split_share = NCCL_UNDEFINED,                                                   \
                  .traffic_class = NCCL_UNDEFINED,                                                 \
                  .comm_name = NULL,                                                               \
                  .collnet_enable = NCCL_UNDEFINED,                                                \
                  .cta_policy = NCCL_UNDEFINED,                                                    \
                  .shrink_share = NCCL_UNDEFINED,                                                  \
                  .nvls_ctas = NCCL_UNDEFINED,                                                     \
                  .channels_per_net_peer = NCCL_UNDEFINED,                                         \
                  .nvlink_centric = NCCL_UNDEFINED})

/* X(field of NcclLibrary, symbol in the library, return type, (parameters)) */
#define NCCL_FUNCTIONS(X)                                                                          \
    X(get_version, ncclGetVersion, NcclResult, (int *version))                                     \
    X(get_unique_id, ncclGetUniqueId, NcclResult, (NcclId * id))                                   \
    X(comm_init, ncclCommInitRankConfig, NcclResult,                                               \
      (NcclHandle * *comm, int ranks, NcclId id, int rank, NcclConfig *config))                    \
    X(comm_destroy, ncclCommDestroy, NcclResult, (NcclHandle * comm))                              \
    X(comm_async_error, ncclCommGetAsyncError, NcclResult,                                         \
      (NcclHandle * comm, NcclResult * error))                                                     \
    X(error_string, ncclGetErrorString, const char *, (NcclResult result))                         \
    X(last_error, ncclGetLastError, const char *, (NcclHandle * comm))                             \
    X(all_reduce, ncclAllReduce, NcclResult,                                                       \
      (const void *from, void *to, size_t count, NcclType type, NcclOp op, NcclHandle *comm,       \
       NcclStream stream))                                                                         \
    X(reduce_scatter, ncclReduceScatter, NcclResult,                                               \
      (const void *from, void *to, size_t count, NcclType type, NcclOp op, NcclHandle *comm,       \
       NcclStream stream))                                                                         \
    X(all_gather, ncclAllGather, NcclResult,                                                       \
      (const void *from, void *to, size_t count, NcclType type, NcclHandle *comm,                  \
       NcclStream stream))                                                                         \
    X(broadcast, ncclBroadcast, NcclResult,                                                        \
      (const void *from, void *to, size_t count, NcclType type, int root, NcclHandle *comm,        \
       NcclStream stream))                                                                         \
    X(send, ncclSend, NcclResult,                                                                  \
      (const void *from, size_t count, NcclType type, int to, NcclHandle *comm,                    \
       NcclStream stream))                                                                         \
    X(receive, ncclRecv, NcclResult,                                                               \
      (void *to, size_t count, NcclType type, int from, NcclHandle *comm, NcclStream stream))      \
    X(group_start, ncclGroupStart, NcclResult, (void))                                             \
    X(group_end, ncclGroupEnd, NcclResult, (void))

typedef struct {
#define X(field, name, result, arguments) result(*field) arguments;
    NCCL_FUNCTIONS(X)
#undef X
} NcclLibrary;

/* Returns the library that nccl_open has opened. It stays open until the process ends. */
const NcclLibrary *nccl_library(void);
/* For tests: the next nccl_open uses these functions instead of the library's. NULL restores the
 * real library. */
void nccl_library_use(const NcclLibrary *functions);

#endif

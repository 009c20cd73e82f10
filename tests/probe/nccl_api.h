/* nccl_api.h -- opens libnccl.so.2 at run time and provides what a rank needs around its calls:
 * error names, settings by environment variables, and a wait that detects a communicator's
 * asynchronous error. */
#ifndef TESTS_PROBE_NCCL_API_H
#define TESTS_PROBE_NCCL_API_H

#include "tests/probe/nccl_set.h"

#include <dlfcn.h>
#include <nccl.h>

#define NCCL_FUNCTIONS(X)                                                                          \
    X(GetVersion)                                                                                  \
    X(GetUniqueId)                                                                                 \
    X(GetLastError)                                                                                \
    X(CommInitRank)                                                                                \
    X(CommDestroy)                                                                                 \
    X(CommAbort)                                                                                   \
    X(CommSplit)                                                                                   \
    X(CommGetAsyncError)                                                                           \
    X(CommUserRank)                                                                                \
    X(CommCount)                                                                                   \
    X(AllReduce)                                                                                   \
    X(ReduceScatter)                                                                               \
    X(AllGather)                                                                                   \
    X(Send)                                                                                        \
    X(Recv)                                                                                        \
    X(GroupStart)                                                                                  \
    X(GroupEnd)

/* NCCL's functions without their prefix. */
static struct {
#define X(name) decltype(&nccl##name) name;
    NCCL_FUNCTIONS(X)
#undef X
} nccl;

/* Fills `nccl`; returns 0, or -1 with the reason in `why`. */
static inline int api_open(char *why, size_t size)
{
    void *library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        snprintf(why, size, "%s", dlerror());
        return -1;
    }
#define X(name)                                                                                    \
    nccl.name = (decltype(&nccl##name))dlsym(library, "nccl" #name);                               \
    if (!nccl.name) {                                                                              \
        snprintf(why, size, "%s", dlerror());                                                      \
        return -1;                                                                                 \
    }
    NCCL_FUNCTIONS(X)
#undef X
    return 0;
}

static inline const char *result_name(ncclResult_t result)
{
    static const char *const names[] = {
        "ncclSuccess",         "ncclUnhandledCudaError", "ncclSystemError", "ncclInternalError",
        "ncclInvalidArgument", "ncclInvalidUsage",       "ncclRemoteError", "ncclInProgress"};
    unsigned i = (unsigned)result;
    return i < sizeof names / sizeof *names ? names[i] : "an unknown ncclResult_t";
}

/* Writes the text of NCCL's last error on one line, or "no text" if there is none. */
static inline const char *last_error(ncclComm_t comm, char *text, size_t size)
{
    const char *said = nccl.GetLastError(comm);
    snprintf(text, size, "%s", said && *said ? said : "no text");
    set_one_line(text);
    return text;
}

/* One rank of a set: its number, and its resources on the GPU. */
struct rank {
    struct set *s;
    int rank, n;
    ncclComm_t comm;
    cudaStream_t stream;
    float *send, *recv;
    unsigned *wrong;
};

static inline void nccl_check(const struct rank *at, const char *call, ncclResult_t result)
{
    char text[256];
    if (result == ncclSuccess) return;
    set_fail(at->s, at->rank, "%s: %s: %s", call, result_name(result),
             last_error(NULL, text, sizeof text));
}

static inline void cuda_check(const struct rank *at, const char *call, cudaError_t code)
{
    if (code != cudaSuccess)
        set_fail(at->s, at->rank, "%.*s: %s", (int)strcspn(call, "("), call,
                 cudaGetErrorString(code));
}

/* Makes a call and ends this rank if the call fails. The parent can read which call a rank is
 * in. */
#define NCCL(at, name, ...)                                                                        \
    (set_doing((at)->s, (at)->rank, "nccl" #name),                                                 \
     nccl_check(at, "nccl" #name, nccl.name(__VA_ARGS__)))
#define CUDA(at, call) (set_doing((at)->s, (at)->rank, #call), cuda_check(at, #call, call))

static inline void setting(const char *name, const char *value)
{
    setenv(name, value, 1);
}

/* Sets the environment of one rank before its first NCCL call. `pinned` fixes NCCL's transport,
 * algorithm and memory, for machines where its own choices fail. */
static inline void settings_apply(const struct set *s, int rank)
{
    static const char *const pinned[][2] = {
        {"NCCL_NET", "Socket"},         {"NCCL_P2P_DISABLE", "1"}, {"NCCL_SHM_DISABLE", "1"},
        {"NCCL_ALGO", "Ring"},          {"NCCL_PROTO", "Simple"},  {"NCCL_MAX_CTAS", "2"},
        {"NCCL_MNNVL_ENABLE", "0"},     {"NCCL_NVLS_ENABLE", "0"}, {"NCCL_CUMEM_ENABLE", "0"},
        {"NCCL_CUMEM_HOST_ENABLE", "0"}};
    unsetenv("NCCL_DEBUG");
    setting("NCCL_HOSTID", s->same_host ? "probe" : probe_name("probe-%d", rank));
    setting("NCCL_SOCKET_IFNAME", "lo");
    setting("NCCL_IB_DISABLE", "1");
    setting("NCCL_RAS_ENABLE", "0");
    if (s->version >= NCCL_VERSION(2, 30, 0)) setting("NCCL_MULTI_RANK_GPU_ENABLE", "1");
    if (s->implicit_order) setting("NCCL_LAUNCH_ORDER_IMPLICIT", "1");
    for (size_t i = 0; s->pinned && i < sizeof pinned / sizeof *pinned; i++)
        setting(pinned[i][0], pinned[i][1]);
}

/* Waits for a stream; ends this rank if CUDA or the communicator reports an error. */
static inline void comm_wait(const struct rank *at, ncclComm_t comm, cudaStream_t stream)
{
    cudaError_t code;
    set_doing(at->s, at->rank, "the wait for its stream");
    for (unsigned i = 1; (code = cudaStreamQuery(stream)) == cudaErrorNotReady; i++) {
        ncclResult_t result = ncclSuccess;
        if (i % 64) continue;
        nccl_check(at, "ncclCommGetAsyncError", nccl.CommGetAsyncError(comm, &result));
        if (result != ncclInProgress) nccl_check(at, "asynchronous", result);
    }
    cuda_check(at, "cudaStreamQuery", code);
}

/* Creates a communicator of all ranks of the set, with an id from rank 0. */
static inline ncclComm_t comm_make(const struct rank *at)
{
    static_assert(sizeof(ncclUniqueId) == sizeof at->s->id, "the id's place in the mapping");
    ncclUniqueId id;
    ncclComm_t comm = NULL;
    if (at->rank == 0) {
        NCCL(at, GetUniqueId, &id);
        memcpy(at->s->id, &id, sizeof id);
    }
    set_barrier(at->s, at->rank);
    memcpy(&id, at->s->id, sizeof id);
    NCCL(at, CommInitRank, &comm, at->n, id, at->rank);
    return comm;
}

#endif

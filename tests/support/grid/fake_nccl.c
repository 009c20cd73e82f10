/* fake_nccl.c -- implements the functions of NCCL on threads of one process (see fake_nccl.h). */
#include "tests/support/grid/fake_nccl.h"

#include "model/core/check.h"
#include "model/core/log.h"
#include "parallel/comm/local/local.h"
#include "parallel/grid/launcher.h"

#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A group of ranks that open a communicator with the same id. */
typedef struct Meeting {
    int number, open;
    LocalWorld *world;
    struct Meeting *next;
} Meeting;

struct NcclHandle {
    Meeting *meeting;
    Comm comm;
    atomic_bool ending;
};

FakeNccl fake_nccl;

enum { MOST_RANKS = 8, LOG_BYTES = 65536, MICROSECONDS_LATE = 100000 };
static struct {
    pthread_mutex_t mutex; /* protects the other fields */
    Meeting *meetings;
    int ids, open;
    char log[MOST_RANKS][LOG_BYTES];
} fake = {.mutex = PTHREAD_MUTEX_INITIALIZER};

/* Whether this thread is between GroupStart and GroupEnd, and the communicator that it has called
 * there. */
static _Thread_local bool grouping;
static _Thread_local NcclHandle *grouped;

const char *fake_nccl_log(int rank)
{
    return fake.log[rank];
}

void fake_nccl_forget(int rank)
{
    fake.log[rank][0] = '\0';
}

int fake_nccl_open(void)
{
    return fake.open;
}

/* Returns whether this thread would receive one of the signals that stop a run. */
static bool receives_signals(void)
{
    const int stops[] = {SIGINT, SIGTERM, SIGUSR1, SIGHUP, launcher_signal()};
    bool any = false;
    sigset_t blocked;
    pthread_sigmask(SIG_BLOCK, NULL, &blocked);
    for (size_t i = 0; i < sizeof stops / sizeof *stops; i++)
        any = any || !sigismember(&blocked, stops[i]);
    return any;
}

/* Logs the call. Returns -1 if the call is to be executed; otherwise the result that the test has
 * chosen for it, which the caller returns instead. */
static int called(const char *name, const char *format, ...) __attribute__((format(printf, 2, 3)));
static int called(const char *name, const char *format, ...)
{
    int rank = log_rank();
    va_list args;
    if (receives_signals()) atomic_fetch_add(&fake_nccl.unheld, 1);
    pthread_mutex_lock(&fake.mutex);
    char *log = fake.log[rank];
    size_t used = strlen(log);
    used += (size_t)snprintf(log + used, LOG_BYTES - used, "%s", name);
    va_start(args, format);
    used += (size_t)vsnprintf(log + used, LOG_BYTES - used, format, args);
    va_end(args);
    CHECK(used + 2 < LOG_BYTES, "a log of %zu bytes", used);
    snprintf(log + used, LOG_BYTES - used, "\n");
    pthread_mutex_unlock(&fake.mutex);
    while (fake_nccl.blocks && strcmp(fake_nccl.blocks, name) == 0 && fake_nccl.blocks_on == rank)
        pause();
    bool fails = fake_nccl.fails && strcmp(fake_nccl.fails, name) == 0;
    return fails && fake_nccl.fails_on == rank ? (int)fake_nccl.result : -1;
}

/* ---- communicators --------------------------------------------------------------------------- */

/* This call is not logged, because any rank may be the one that opens the library. */
static NcclResult fake_get_version(int *version)
{
    *version = fake_nccl.version;
    bool fails = fake_nccl.fails && strcmp(fake_nccl.fails, "GetVersion") == 0;
    return fails ? fake_nccl.result : NCCL_SUCCESS;
}

static NcclResult fake_get_unique_id(NcclId *id)
{
    int result = called("GetUniqueId", "%s", "");
    if (result >= 0) return (NcclResult)result;
    memset(id, 0x5a, sizeof *id);
    pthread_mutex_lock(&fake.mutex);
    snprintf(id->internal, sizeof id->internal, "%d", ++fake.ids);
    pthread_mutex_unlock(&fake.mutex);
    return NCCL_SUCCESS;
}

static Meeting *meeting_of(int number, int ranks)
{
    pthread_mutex_lock(&fake.mutex);
    Meeting *m = fake.meetings;
    while (m && m->number != number)
        m = m->next;
    if (m == NULL) {
        m = must_calloc(1, sizeof *m);
        *m = (Meeting){.number = number,
                       .open = ranks,
                       .world = local_world_create(ranks, 0),
                       .next = fake.meetings};
        fake.meetings = m;
    }
    fake.open++;
    pthread_mutex_unlock(&fake.mutex);
    return m;
}

static NcclResult fake_comm_init(NcclHandle **comm, int ranks, NcclId id, int rank,
                                 NcclConfig *config)
{
    const NcclConfig none = NCCL_CONFIG_NONE;
    bool sound = config->size == sizeof *config && config->magic == 0xcafebeef &&
                 config->version == 22809 && config->cta_policy == none.cta_policy;
    char limit[32] = "";
    atomic_fetch_or(&fake_nccl.connect, 1 << log_rank());
    if (config->max_ctas != NCCL_UNDEFINED)
        snprintf(limit, sizeof limit, ", at most %d CTAs", config->max_ctas);
    int result = called("CommInitRankConfig", " %d of %d%s%s, %s%s", rank, ranks,
                        config->blocking == 1 ? ", blocking" : "", sound ? "" : ", bad config",
                        config->comm_name, limit);
    if (result >= 0) return (NcclResult)result;
    NcclHandle *made = must_calloc(1, sizeof *made);
    made->meeting = meeting_of((int)strtol(id.internal, NULL, 10), ranks);
    made->comm = local_world_join(made->meeting->world, rank);
    comm_barrier(&made->comm);
    if (fake_nccl.late >> log_rank() & 1) usleep(MICROSECONDS_LATE);
    atomic_fetch_or(&fake_nccl.returned, 1 << log_rank());
    *comm = made;
    return NCCL_SUCCESS;
}

static NcclResult fake_comm_destroy(NcclHandle *comm)
{
    atomic_store(&comm->ending, true);
    int result = called("CommDestroy", "%s", "");
    if (result >= 0) return (NcclResult)result;
    Meeting *m = comm->meeting, **at = &fake.meetings;
    comm_close(&comm->comm);
    pthread_mutex_lock(&fake.mutex);
    fake.open--;
    if (--m->open == 0) {
        while (*at != m)
            at = &(*at)->next;
        *at = m->next;
        local_world_destroy(m->world);
        free(m);
    }
    pthread_mutex_unlock(&fake.mutex);
    free(comm);
    return NCCL_SUCCESS;
}

static NcclResult fake_comm_async_error(NcclHandle *comm, NcclResult *error)
{
    CHECK(!atomic_load(&comm->ending), "an error is asked of %s, which is being destroyed",
          comm->comm.name);
    *error = (NcclResult)atomic_load(&fake_nccl.async);
    atomic_fetch_add(&fake_nccl.asked, 1);
    return NCCL_SUCCESS;
}

static const char *fake_error_string(NcclResult result)
{
    return result == NCCL_REMOTE_ERROR ? "remote process exited" : "unhandled system error";
}

static const char *fake_last_error(NcclHandle *comm)
{
    (void)comm;
    return fake_nccl.last_error;
}

/* ---- verbs ----------------------------------------------------------------------------------- */

static DType dtype_of(NcclType type)
{
    switch (type) {
    case NCCL_FLOAT64: return F64;
    case NCCL_FLOAT32: return F32;
    case NCCL_BFLOAT16: return BF16;
    case NCCL_FLOAT16: return F16;
    case NCCL_INT32: return I32;
    case NCCL_INT64: return I64;
    case NCCL_UINT8: return U8;
    default: CHECK(0, "type %d", (int)type); return U8;
    }
}

static Tensor tensor(const void *data, size_t count, NcclType type)
{
    return tensor_1d((void *)(uintptr_t)data, dtype_of(type), (int64_t)count);
}

/* Returns whether the call transfers data. The first call after GroupStart also begins a group of
 * the communicator below. */
static bool moves(NcclHandle *comm)
{
    if (fake_nccl.detached) return false;
    if (grouping && grouped == NULL) {
        grouped = comm;
        comm_group_begin(&comm->comm);
    }
    return true;
}

static NcclResult fake_all_reduce(const void *from, void *to, size_t count, NcclType type,
                                  NcclOp op, NcclHandle *comm, void *stream)
{
    (void)stream;
    int result = called("AllReduce", " %zu type %d op %d%s", count, (int)type, (int)op,
                        from == to ? " in place" : "");
    if (fake_nccl.meeting & ~atomic_load(&fake_nccl.returned))
        atomic_fetch_add(&fake_nccl.early, 1);
    if (result >= 0) return (NcclResult)result;
    if (moves(comm))
        comm_all_reduce(&comm->comm, NULL, tensor(to, count, type),
                        op == NCCL_SUM ? REDUCE_SUM : REDUCE_MAX);
    return NCCL_SUCCESS;
}

static NcclResult fake_reduce_scatter(const void *from, void *to, size_t count, NcclType type,
                                      NcclOp op, NcclHandle *comm, void *stream)
{
    (void)stream;
    int result = called("ReduceScatter", " %zu type %d op %d", count, (int)type, (int)op);
    if (result >= 0) return (NcclResult)result;
    if (moves(comm))
        comm_reduce_scatter(&comm->comm, NULL, tensor(to, count, type),
                            tensor(from, count * (size_t)comm->comm.size, type));
    return NCCL_SUCCESS;
}

static NcclResult fake_all_gather(const void *from, void *to, size_t count, NcclType type,
                                  NcclHandle *comm, void *stream)
{
    (void)stream;
    int result = called("AllGather", " %zu type %d", count, (int)type);
    if (result >= 0) return (NcclResult)result;
    if (moves(comm))
        comm_all_gather(&comm->comm, NULL, tensor(to, count * (size_t)comm->comm.size, type),
                        tensor(from, count, type));
    return NCCL_SUCCESS;
}

static NcclResult fake_broadcast(const void *from, void *to, size_t count, NcclType type, int root,
                                 NcclHandle *comm, void *stream)
{
    (void)stream;
    int result = called("Broadcast", " %zu type %d from %d%s", count, (int)type, root,
                        from == to ? " in place" : "");
    if (result >= 0) return (NcclResult)result;
    if (moves(comm)) comm_broadcast(&comm->comm, NULL, tensor(to, count, type), root);
    return NCCL_SUCCESS;
}

static NcclResult fake_send(const void *from, size_t count, NcclType type, int to, NcclHandle *comm,
                            void *stream)
{
    (void)stream;
    int result = called("Send", " %zu type %d to %d", count, (int)type, to);
    if (result >= 0) return (NcclResult)result;
    if (moves(comm)) comm_send(&comm->comm, NULL, tensor(from, count, type), to);
    return NCCL_SUCCESS;
}

static NcclResult fake_receive(void *to, size_t count, NcclType type, int from, NcclHandle *comm,
                               void *stream)
{
    (void)stream;
    int result = called("Recv", " %zu type %d from %d", count, (int)type, from);
    if (result >= 0) return (NcclResult)result;
    if (moves(comm)) comm_receive(&comm->comm, NULL, tensor(to, count, type), from);
    return NCCL_SUCCESS;
}

static NcclResult fake_group_start(void)
{
    int result = called("GroupStart", "%s", "");
    grouping = true;
    return result >= 0 ? (NcclResult)result : NCCL_SUCCESS;
}

static NcclResult fake_group_end(void)
{
    int result = called("GroupEnd", "%s", "");
    if (result >= 0) return (NcclResult)result;
    if (!grouping) return NCCL_INVALID_USAGE;
    if (grouped) comm_group_end(&grouped->comm);
    grouping = false;
    grouped = NULL;
    return NCCL_SUCCESS;
}

void fake_nccl_use(void)
{
    static const NcclLibrary functions = {
#define X(field, name, result, arguments) .field = fake_##field,
        NCCL_FUNCTIONS(X)
#undef X
    };
    fake_nccl = (FakeNccl){.version = 22809, .last_error = ""};
    for (int i = 0; i < MOST_RANKS; i++)
        fake_nccl_forget(i);
    nccl_library_use(&functions);
}

/* init.cc -- creates and destroys communicators. */
#include "tests/emu/nccl/rules.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* All communicators ever made: they stay allocated, so no address is reused. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static ncclComm *all_comms;

static uint64_t mix(uint64_t hash, const void *p, size_t n)
{
    const unsigned char *byte = (const unsigned char *)p;
    for (size_t i = 0; i < n; i++)
        hash = (hash ^ byte[i]) * 0x100000001b3ull;
    return hash;
}

/* Returns a number for NCCL_HOSTID or, without it, the machine's name. */
static uint64_t host_number(void)
{
    char name[256] = "";
    const char *given = getenv("NCCL_HOSTID");
    gethostname(name, sizeof name - 1);
    if (given == NULL) given = name;
    return mix(0xcbf29ce484222325ull, given, strlen(given));
}

/* ---- config ---------------------------------------------------------------------------------- */

/* Checks the config. The environment variable for blocking takes precedence over it. */
static ncclResult_t config_check(const ncclConfig_t *config)
{
    const char *environment = getenv("NCCL_COMM_BLOCKING");
    bool asked = environment != NULL && strcmp(environment, "1") == 0;
    if (config->magic != NCCL_CONFIG_MAGIC)
        return last_error(ncclInvalidArgument,
                          "ncclConfig_t argument not initialized via NCCL_CONFIG_INITIALIZER");
    if (config->size != sizeof *config)
        return last_error(ncclInvalidArgument, "ncclConfig_t of %zu bytes, not %zu", config->size,
                          sizeof *config);
    if (config->version != NCCL_VERSION_CODE)
        return last_error(ncclInvalidArgument, "ncclConfig_t of version %u, not %d",
                          config->version, NCCL_VERSION_CODE);
    if ((config->blocking == 0 && !asked) || (environment != NULL && strcmp(environment, "0") == 0))
        emu_die("ncclCommInitRankConfig: the stand-in has no communicators that do not block");
    if (config->blocking != NCCL_CONFIG_UNDEF_INT && config->blocking != 0 && config->blocking != 1)
        return last_error(ncclInvalidArgument, "Invalid config blocking attribute value %d",
                          config->blocking);
    if (config->maxCTAs != NCCL_CONFIG_UNDEF_INT && config->maxCTAs <= 0)
        return last_error(ncclInvalidArgument,
                          "Invalid config min/max channels attribute value %d/%d", config->minCTAs,
                          config->maxCTAs);
    return ncclSuccess;
}

/* Returns the most CTAs of the communicator's calls. The environment takes precedence over the
 * config. */
static int cta_limit(const ncclConfig_t *config)
{
    enum { MOST = 64 };
    const char *word = getenv("NCCL_MAX_CTAS");
    int given = word != NULL ? atoi(word) : 0;
    if (given <= 0 && config != NULL && config->maxCTAs != NCCL_CONFIG_UNDEF_INT)
        given = config->maxCTAs;
    return given > 0 && given < MOST ? given : MOST;
}

/* ---- how ranks find each other --------------------------------------------------------------- */

/* Sends this rank's Hello to the root and receives the Hellos of all ranks in `all`. */
static ncclResult_t hello(const IdContent *id, const Hello *mine, Hello *all)
{
    Welcome welcome;
    int s = net_connect(&id->address);
    if (s < 0) return last_error(ncclSystemError, "Bootstrap : cannot connect to the root");
    bool well = net_write(s, mine, sizeof *mine) && net_read(s, &welcome, sizeof welcome);
    ncclResult_t code = well ? (ncclResult_t)welcome.code : ncclRemoteError;
    if (well && welcome.fatal) emu_die("ncclCommInitRank: %s", welcome.sentence);
    if (well && code == ncclSuccess && !net_read(s, all, (size_t)mine->ranks * sizeof *all)) {
        well = false;
        code = ncclRemoteError;
    }
    close(s);
    if (!well) return last_error(code, "Bootstrap : connection closed by remote peer");
    if (code != ncclSuccess) return last_error(code, "%s", welcome.sentence);
    return ncclSuccess;
}

/* Chooses where the ring starts and in which direction it goes, from the seed and its members. */
static void ring_make(ncclComm *comm, const Hello *all)
{
    const char *seed = getenv("EMU_NCCL_SEED");
    uint64_t hash = mix(0xcbf29ce484222325ull, "ring", 4);
    if (seed != NULL) hash = mix(hash, seed, strlen(seed));
    for (int r = 0; r < comm->ranks; r++)
        hash = mix(hash, all[r].bus_id, strlen(all[r].bus_id));
    hash ^= hash >> 32;
    int start = (int)(hash >> 8 & 0xffff) % comm->ranks;
    int step = hash & 1 ? 1 : comm->ranks - 1;
    for (int i = 0; i < comm->ranks; i++) {
        comm->ring[i] = (start + i * step) % comm->ranks;
        if (comm->ring[i] == comm->rank) comm->position = i;
    }
}

static ncclResult_t join(ncclComm *comm, const IdContent *id)
{
    Hello mine, *all = (Hello *)calloc((size_t)comm->ranks, sizeof *all);
    if (all == NULL) emu_die("no memory for an init");
    memset(&mine, 0, sizeof mine);
    mine.id = id->id;
    mine.rank = comm->rank;
    mine.ranks = comm->ranks;
    mine.max_ctas = comm->max_ctas;
    mine.version = rules_version(NCCL_VERSION_CODE);
    mine.host = host_number();
    mine.device = comm->device;
    mine.process = getpid();
    int listener = -1;
    ncclResult_t code = net_interface(&mine.address);
    if (cudaDeviceGetPCIBusId(mine.bus_id, sizeof mine.bus_id, comm->device) != cudaSuccess)
        code = last_error(ncclUnhandledCudaError, "cudaDeviceGetPCIBusId failed");
    if (code == ncclSuccess && (listener = net_listen(&mine.address)) < 0)
        code = last_error(ncclSystemError, "Bootstrap : cannot listen");
    if (code == ncclSuccess) code = hello(id, &mine, all);
    if (code == ncclSuccess) {
        ring_make(comm, all);
        if (!mesh_open(comm, listener, all))
            code = last_error(ncclRemoteError, "Bootstrap : connection closed by remote peer");
    }
    if (listener >= 0) close(listener);
    free(all);
    return code;
}

/* ---- creating -------------------------------------------------------------------------------- */

/* Returns whether the environment variable is `word`. Without it, or with `usual`, it is not. */
static bool chosen(const char *variable, const char *word, const char *usual)
{
    const char *given = getenv(variable);
    if (given != NULL && strcmp(given, word) != 0 && strcmp(given, usual) != 0)
        emu_die("%s is %s or %s, not \"%s\"", variable, usual, word, given);
    return given != NULL && strcmp(given, word) == 0;
}

static ncclComm *comm_new(int ranks, int rank, const IdContent *id, const ncclConfig_t *config)
{
    ncclComm *comm = new ncclComm();
    comm->id = id->id;
    comm->rank = rank;
    comm->ranks = ranks;
    comm->device = emu_current_device();
    comm->wake = eventfd(0, EFD_CLOEXEC);
    comm->late = chosen("EMU_NCCL_READ", "late", "early");
    comm->one_ring = chosen("EMU_NCCL_CONNECT", "ring", "each");
    comm->early = chosen("EMU_NCCL_LEAVE", "early", "late");
    comm->link = (Link *)calloc((size_t)ranks, sizeof *comm->link);
    comm->ring = (int *)calloc((size_t)ranks, sizeof *comm->ring);
    if (comm->link == NULL || comm->ring == NULL || comm->wake < 0)
        emu_die("no memory for a communicator");
    for (int r = 0; r < ranks; r++)
        comm->link[r].data = comm->link[r].control = -1;
    comm->max_ctas = cta_limit(config);
    if (config != NULL && config->commName != NULL)
        snprintf(comm->name, sizeof comm->name, "%s", config->commName);
    pthread_mutex_lock(&lock);
    comm->next = all_comms;
    all_comms = comm;
    pthread_mutex_unlock(&lock);
    return comm;
}

static ncclResult_t take_memory(ncclComm *comm)
{
    const char *word = getenv("EMU_NCCL_RESERVE");
    size_t bytes = word != NULL ? strtoull(word, NULL, 10) : 0;
    if (cudaEventCreateWithFlags(&comm->reached, cudaEventDisableTiming) != cudaSuccess ||
        cudaEventCreateWithFlags(&comm->finished, cudaEventDisableTiming) != cudaSuccess)
        return last_error(ncclUnhandledCudaError, "cudaEventCreateWithFlags failed");
    if (bytes > 0 && cudaMalloc(&comm->reserve, bytes) != cudaSuccess)
        return last_error(ncclUnhandledCudaError, "Failed to CUDA malloc %zu bytes", bytes);
    return ncclSuccess;
}

/* Appends a line about the communicator to the file EMU_NCCL_COMMS. */
static void list_comm(const ncclComm *comm)
{
    const char *file = getenv("EMU_NCCL_COMMS");
    FILE *to = file != NULL && comm->rank == 0 ? fopen(file, "a") : NULL;
    if (to == NULL) return;
    fprintf(to, "%s of %d: at most %d CTAs\n", comm->name, comm->ranks, comm->max_ctas);
    fclose(to);
}

static void release(ncclComm *comm)
{
    if (comm->reached != NULL) cudaEventDestroy(comm->reached);
    if (comm->finished != NULL) cudaEventDestroy(comm->finished);
    if (comm->reserve != NULL) cudaFree(comm->reserve);
    comm->alive = false;
    comm->reached = comm->finished = NULL;
    comm->reserve = NULL;
}

static ncclResult_t init(ncclComm_t *made, int ranks, ncclUniqueId unique, int rank,
                         const ncclConfig_t *config)
{
    IdContent id;
    memcpy(&id, &unique, sizeof id);
    if (made == NULL)
        return last_error(ncclInvalidArgument, "CommInitRank : comm argument is NULL");
    if (ranks < 1 || rank < 0 || rank >= ranks)
        return last_error(ncclInvalidArgument, "Invalid rank requested : %d/%d", rank, ranks);
    ncclResult_t code = config != NULL ? config_check(config) : ncclSuccess;
    if (code != ncclSuccess) return code;
    ncclComm *comm = comm_new(ranks, rank, &id, config);
    code = join(comm, &id);
    if (code == ncclSuccess) code = take_memory(comm);
    /* No rank may launch anything before all have allocated their memory. */
    if (code == ncclSuccess && !mesh_meet(comm))
        code = last_error(ncclRemoteError, "Bootstrap : connection closed by remote peer");
    if (code != ncclSuccess) {
        comm->async = code; /* close the connections without telling the peers */
        mesh_close(comm);
        release(comm);
        return code;
    }
    comm->alive = true;
    list_comm(comm);
    rules_comm_made(comm);
    *made = comm;
    return ncclSuccess;
}

static ncclResult_t init_call(const char *function, ncclComm_t *made, int ranks, ncclUniqueId id,
                              int rank, const ncclConfig_t *config)
{
    ncclResult_t code = rules_enter(function, NULL);
    if (made != NULL) *made = NULL;
    if (code == ncclSuccess) code = init(made, ranks, id, rank, config);
    return rules_leave(function, NULL, code);
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t *config)
{
    return init_call("ncclCommInitRankConfig", comm, ranks, id, rank, config);
}

ncclResult_t ncclCommInitRank(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank)
{
    return init_call("ncclCommInitRank", comm, ranks, id, rank, NULL);
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    ncclResult_t code = rules_enter("ncclGetUniqueId", NULL);
    if (code == ncclSuccess)
        code = id != NULL ? root_start(id)
                          : last_error(ncclInvalidArgument, "GetUniqueId : out argument is NULL");
    return rules_leave("ncclGetUniqueId", NULL, code);
}

/* ---- destroying ------------------------------------------------------------------------------ */

/* The real library requires that all work of the communicator is complete. After an error it may
 * never be complete, so that is allowed. */
static ncclResult_t destroy(ncclComm *comm)
{
    if (comm->planned && comm->async == ncclSuccess &&
        cudaEventQuery(comm->finished) == cudaErrorNotReady)
        emu_die("ncclCommDestroy of %s, rank %d of %d, while what it was asked for is under way",
                comm->name, comm->rank, comm->ranks);
    rules_comm_gone(comm);
    mesh_close(comm);
    release(comm);
    return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    if (comm == NULL) return ncclSuccess;
    ncclResult_t code = rules_enter("ncclCommDestroy", comm);
    if (code == ncclSuccess) code = destroy(comm);
    return rules_leave("ncclCommDestroy", comm, code);
}

ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    ncclResult_t code = rules_enter("ncclCommFinalize", comm);
    if (comm == NULL)
        code = last_error(ncclInvalidArgument, "CommFinalize : comm argument is NULL");
    else if (code == ncclSuccess && comm->planned)
        cudaEventSynchronize(comm->finished);
    return rules_leave("ncclCommFinalize", comm, code);
}

/* Interrupts pending work. */
ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    if (comm == NULL) return ncclSuccess;
    ncclResult_t code = rules_enter("ncclCommAbort", comm);
    if (code == ncclSuccess) {
        uint64_t one = 1;
        rules_comm_gone(comm);
        comm->aborted = true;
        if (write(comm->wake, &one, sizeof one) != sizeof one) emu_die("no end to a communicator");
        if (comm->planned) cudaEventSynchronize(comm->finished);
        while (comm->inside > 0)
            sched_yield();
        mesh_close(comm);
        release(comm);
    }
    return rules_leave("ncclCommAbort", comm, code);
}

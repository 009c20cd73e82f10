/* test_nccl_misuse.c -- violations of the rules for creating communicators and for which thread may
 * call NCCL when. The emulated NCCL must refuse each, or return the error code of the real library.
 * Each function breaks its rule if rank->planted, else it follows the rule. */
#include "tests/emu/nccl/nccl_ranks.h"

enum { N = 8 };

static void all_reduce(Rank *r)
{
    OK(r->nccl->AllReduce(r->x, r->y, N, ncclFloat32, ncclSum, r->comm, r->stream));
}

/* ---- rule (vii): creating communicators ------------------------------------------------------ */

/* Checks that the call failed with the expected code, prints the library's error text, and
 * aborts. */
static void refused(Rank *r, ncclResult_t code, ncclResult_t expected)
{
    char text[256];
    snprintf(text, sizeof text, "code %d: %s\n", code, r->nccl->GetLastError(NULL));
    if (code != expected || write(2, text, strlen(text)) < 0) rank_fail(text, __LINE__, code);
    abort();
}

static void init_with(Rank *r, int ranks, int rank, ncclConfig_t *config, ncclResult_t expected)
{
    ncclResult_t code = r->nccl->CommInitRankConfig(&r->comm, ranks, r->world->id[0], rank, config);
    if (r->planted)
        refused(r, code, expected);
    else
        OK(code);
    OK(r->nccl->CommDestroy(r->comm));
}

static void config_magic(Rank *r)
{
    ncclConfig_t config = rank_config("x");
    OK(cudaSetDevice(r->rank));
    if (r->planted) config.magic = 0;
    init_with(r, 2, r->rank, &config, ncclInvalidArgument);
}

static void config_size(Rank *r)
{
    ncclConfig_t config = rank_config("x");
    OK(cudaSetDevice(r->rank));
    if (r->planted) config.size -= sizeof(int);
    init_with(r, 2, r->rank, &config, ncclInvalidArgument);
}

static void config_version(Rank *r)
{
    ncclConfig_t config = rank_config("x");
    OK(cudaSetDevice(r->rank));
    if (r->planted) config.version = 0;
    init_with(r, 2, r->rank, &config, ncclInvalidArgument);
}

static void config_not_blocking(Rank *r)
{
    ncclConfig_t config = rank_config("x");
    OK(cudaSetDevice(r->rank));
    if (r->planted) config.blocking = 0;
    init_with(r, 2, r->rank, &config, ncclSuccess);
}

/* The environment variable takes precedence over the config. */
static void environment_not_blocking(Rank *r)
{
    ncclConfig_t config = rank_config("x");
    OK(cudaSetDevice(r->rank));
    OK(setenv("NCCL_COMM_BLOCKING", r->planted ? "0" : "1", 1));
    if (!r->planted) config.blocking = 0;
    init_with(r, 2, r->rank, &config, ncclSuccess);
}

static void no_ctas(Rank *r)
{
    ncclConfig_t config = rank_config("x");
    OK(cudaSetDevice(r->rank));
    config.maxCTAs = r->planted ? 0 : 1;
    init_with(r, 2, r->rank, &config, ncclInvalidArgument);
}

/* The environment variable takes precedence over the config: with it the ranks agree. */
static void unequal_ctas(Rank *r)
{
    ncclConfig_t config = rank_config("x");
    OK(cudaSetDevice(r->rank));
    config.maxCTAs = 4 + r->rank;
    if (!r->planted) OK(setenv("NCCL_MAX_CTAS", "6", 1));
    init_with(r, 2, r->rank, &config, ncclSuccess);
}

static void rank_out_of_range(Rank *r)
{
    ncclConfig_t config = rank_config("x");
    OK(cudaSetDevice(r->rank));
    init_with(r, 2, r->planted ? 2 : r->rank, &config, ncclInvalidArgument);
}

static void rank_twice(Rank *r)
{
    ncclConfig_t config = rank_config("x");
    OK(cudaSetDevice(r->rank));
    init_with(r, 2, r->planted ? 0 : r->rank, &config, ncclSuccess);
}

static void unequal_sizes(Rank *r)
{
    ncclConfig_t config = rank_config("x");
    OK(cudaSetDevice(r->rank));
    init_with(r, r->planted && r->rank == 1 ? 3 : 2, r->rank, &config, ncclSuccess);
}

static void one_gpu_twice(Rank *r)
{
    ncclConfig_t config = rank_config("x");
    OK(cudaSetDevice(r->planted ? 0 : r->rank));
    init_with(r, 2, r->rank, &config, ncclInvalidUsage);
}

/* ---- rule (viii): which thread may call, and when -------------------------------------------- */

static void *call_all_reduce(void *argument)
{
    Rank *r = argument;
    OK(cudaSetDevice(r->rank));
    all_reduce(r);
    return NULL;
}

static void *look(void *argument)
{
    Rank *r = argument;
    ncclResult_t code = ncclInProgress;
    OK(r->nccl->CommGetAsyncError(r->comm, &code));
    OK(code);
    MUST(r->nccl->GetLastError(r->comm) != NULL);
    MUST(strcmp(r->nccl->GetErrorString(ncclSuccess), "no error") == 0);
    return NULL;
}

/* A second thread of a device may query errors, but make no calls. */
static void two_threads(Rank *r)
{
    pthread_t second;
    rank_open(r);
    OK(pthread_create(&second, NULL, r->planted && r->rank == 1 ? call_all_reduce : look, r));
    OK(pthread_join(second, NULL));
    all_reduce(r);
    rank_close(r);
}

static void *make_another(void *argument)
{
    Rank *r = argument;
    OK(cudaSetDevice(r->rank));
    OK(r->nccl->CommDestroy(rank_join(r, 0, r->ranks, r->rank)));
    return NULL;
}

static void two_threads_make(Rank *r)
{
    pthread_t second;
    rank_open(r);
    rank_ids(r, 1);
    if (r->planted) {
        OK(pthread_create(&second, NULL, make_another, r));
        OK(pthread_join(second, NULL));
    } else
        make_another(r);
    rank_close(r);
}

/* When all communicators of a device are destroyed, another thread may use the device. */
static void thread_after_thread(Rank *r)
{
    pthread_t second;
    rank_open(r);
    rank_ids(r, 1);
    OK(r->nccl->CommDestroy(r->comm));
    if (!r->planted) {
        OK(r->nccl->CommDestroy(r->other));
        r->other = NULL;
    }
    r->comm = NULL;
    OK(pthread_create(&second, NULL, make_another, r));
    OK(pthread_join(second, NULL));
    rank_close(r);
}

static void after_destroy(Rank *r)
{
    ncclComm_t kept;
    rank_open(r);
    kept = r->comm;
    OK(r->nccl->CommDestroy(r->comm));
    r->comm = r->planted ? kept : r->other;
    all_reduce(r);
    r->comm = NULL;
    rank_close(r);
}

static void destroyed_twice(Rank *r)
{
    rank_open(r);
    if (r->planted) OK(r->nccl->CommDestroy(r->comm));
    rank_close(r);
}

/* If rank->planted, the call is not complete when the communicator is destroyed. */
static void destroyed_under_way(Rank *r)
{
    rank_open(r);
    rank_warm(r, r->comm, r->stream);
    all_reduce(r);
    if (!r->planted) rank_wait(r);
    OK(r->nccl->CommDestroy(r->comm));
    r->comm = NULL;
    rank_close(r);
}

static void asked_after_destroy(Rank *r)
{
    ncclResult_t code;
    ncclComm_t kept;
    rank_open(r);
    kept = r->comm;
    if (!r->planted) OK(r->nccl->CommGetAsyncError(kept, &code));
    OK(r->nccl->CommDestroy(r->comm));
    r->comm = NULL;
    if (r->planted) OK(r->nccl->CommGetAsyncError(kept, &code));
    rank_close(r);
}

static void no_communicator(Rank *r)
{
    static char junk[4096];
    int n;
    rank_open(r);
    OK(r->nccl->CommCount(r->planted ? (ncclComm_t)junk : r->comm, &n));
    MUST(n == 2);
    rank_close(r);
}

/* The failed call itself returns a code. Querying errors is allowed after it. */
static void after_an_error(Rank *r)
{
    rank_open(r);
    if (r->planted) {
        ncclResult_t code =
            r->nccl->AllReduce(r->x, r->y, N, ncclFloat32, ncclSum, NULL, r->stream);
        MUST(code == ncclInvalidArgument);
        MUST(strstr(r->nccl->GetLastError(NULL), "comm argument is NULL") != NULL);
    }
    look(r);
    all_reduce(r);
    rank_close(r);
}

static void after_a_failed_init(Rank *r)
{
    ncclConfig_t config = rank_config("x");
    rank_open(r);
    if (r->planted) {
        ncclComm_t none;
        config.magic = 0;
        MUST(r->nccl->CommInitRankConfig(&none, 2, r->world->id[0], r->rank, &config) ==
             ncclInvalidArgument);
    }
    OK(r->nccl->GroupStart());
    all_reduce(r);
    OK(r->nccl->GroupEnd());
    rank_close(r);
}

static void end_without_start(Rank *r)
{
    OK(cudaSetDevice(r->rank));
    OK(r->nccl->GroupStart());
    OK(r->nccl->GroupEnd());
    if (r->planted) refused(r, r->nccl->GroupEnd(), ncclInvalidUsage);
}

static const Violation violations[] = {
    {"vii",
     "a config without its magic",
     config_magic,
     2,
     "code 4: ncclConfig_t argument not initialized",
     {0}},
    {"vii", "a config of another size", config_size, 2, "code 4: ncclConfig_t of", {0}},
    {"vii",
     "a config whose calls do not wait",
     config_not_blocking,
     2,
     "no communicators that do not block",
     {0}},
    {"vii",
     "an environment whose calls do not wait",
     environment_not_blocking,
     2,
     "no communicators that do not block",
     {0}},
    {"vii",
     "a config of another version",
     config_version,
     2,
     "code 4: ncclConfig_t of version 0",
     {0}},
    {"vii",
     "a config without CTAs",
     no_ctas,
     2,
     "code 4: Invalid config min/max channels attribute value",
     {0}},
    {"vii", "unequal CTAs", unequal_ctas, 2, "has at most 4 CTAs|has at most 5 CTAs", {0}},
    {"vii",
     "a rank out of range",
     rank_out_of_range,
     2,
     "code 4: Invalid rank requested : 2/2",
     {0}},
    {"vii", "a rank twice", rank_twice, 2, "rank 0 of 2 came twice", {0}},
    {"vii", "unequal sizes", unequal_sizes, 2, "says it has 3 ranks|says 3", {0}},
    {"vii", "one GPU for two ranks", one_gpu_twice, 2, "code 5: Duplicate GPU detected", {0}},
    {"viii",
     "a second thread issues a call",
     two_threads,
     2,
     "ncclAllReduce: two host threads issue calls for device 1",
     {0}},
    {"viii",
     "a second thread makes a communicator",
     two_threads_make,
     2,
     "a communicator is made: two host threads issue calls for device",
     {0}},
    {"viii",
     "a second thread while one communicator is left",
     thread_after_thread,
     2,
     "a communicator is made: two host threads issue calls for device",
     {0}},
    {"viii",
     "a call after destroy",
     after_destroy,
     2,
     "ncclAllReduce of a communicator that is destroyed",
     {0}},
    {"viii",
     "destroyed twice",
     destroyed_twice,
     2,
     "ncclCommDestroy of a communicator that is destroyed",
     {0}},
    {"viii",
     "destroyed while a call is under way",
     destroyed_under_way,
     2,
     "ncclCommDestroy of first, rank 0 of 2, while|ncclCommDestroy of first, rank 1 of 2, while",
     {"EMU_STREAMS=deferred"}},
    {"viii",
     "asked for errors after destroy",
     asked_after_destroy,
     2,
     "ncclCommGetAsyncError of a communicator that is destroyed",
     {0}},
    {"viii", "a communicator that is none", no_communicator, 2, "which is no communicator", {0}},
    {"viii",
     "a call after an error",
     after_an_error,
     2,
     "ncclAllReduce after ncclAllReduce failed with 4",
     {0}},
    {"viii",
     "a group after a failed init",
     after_a_failed_init,
     2,
     "ncclGroupStart after ncclCommInitRankConfig failed with 4: the failure has left this thread "
     "inside a group",
     {0}},
    {"viii",
     "a group's end without its start",
     end_without_start,
     1,
     "code 5: ncclGroupEnd: not in a group call.",
     {0}},
};

int main(void)
{
    return violations_main("misuse of NCCL", violations, sizeof violations / sizeof *violations);
}

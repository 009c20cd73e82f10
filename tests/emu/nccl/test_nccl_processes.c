/* test_nccl_processes.c -- ranks as processes: the data that the emulated NCCL transfers between
 * them, ranks that share a device, the order of launches of all processes, and the death of a peer.
 *
 * If NCCL_TEST_RANK is set, the program is itself one rank of two. They may run anywhere as long as
 * both see the folder NCCL_TEST_FOLDER (tests/program/nccl_hosts.sh). */
#include "tests/emu/nccl/nccl_ranks.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>

enum { N = 8, LARGE = 1 << 16 /* floats: more than socket buffers hold */ };

/* State that the processes of a test share. */
typedef struct {
    World world;
    atomic_int ids; /* set when the ids are in `world` */
} Shared;

typedef struct {
    Shared *shared;
    int rank, ranks;
    RankBody body;
    const char *settings[3];
} Process;

static void wait_for_ids(Shared *shared)
{
    while (!atomic_load(&shared->ids))
        sched_yield();
}

/* With LAZY_ROOT, the root's threads share the rank's core and get a low priority. They must still
 * make progress when other processes want the core, which SCHED_IDLE would not guarantee. */
static void *make_ids(void *context)
{
    World *world = context;
    if (getenv("LAZY_ROOT")) MUST(setpriority(PRIO_PROCESS, (id_t)gettid(), 19) == 0);
    for (int i = 0; i < 2; i++)
        OK(world->nccl.GetUniqueId(&world->id[i]));
    return NULL;
}

static void ids_for_all(World *world, Shared *shared)
{
    pthread_t maker;
    cpu_set_t core;
    CPU_ZERO(&core);
    CPU_SET(sched_getcpu(), &core);
    if (getenv("LAZY_ROOT")) MUST(sched_setaffinity(0, sizeof core, &core) == 0);
    MUST(pthread_create(&maker, NULL, make_ids, world) == 0);
    MUST(pthread_join(maker, NULL) == 0);
    memcpy(shared->world.id, world->id, sizeof world->id);
    atomic_store(&shared->ids, 1);
}

/* Runs one rank. Rank 0 makes the ids, so the root runs in its process. */
static void process_run(void *context)
{
    const Process *process = context;
    Shared *shared = process->shared;
    World world = {.ranks = process->ranks};
    const char *missing;
    struct rlimit none = {0, 0};
    setrlimit(RLIMIT_CORE, &none);
    signal(SIGABRT, SIG_DFL);
    setenv("EMU_DEVICES", "4", 1);
    setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 1);
    for (int i = 0; i < 3 && process->settings[i]; i++) {
        char *name = strdup(process->settings[i]), *value = strchr(name, '=');
        *value++ = '\0';
        setenv(name, value, 1);
        free(name);
    }
    MUST(nccl_load(&world.nccl, "libnccl.so.2", &missing));
    if (process->rank == 0) ids_for_all(&world, shared);
    wait_for_ids(shared);
    memcpy(world.id, shared->world.id, sizeof world.id);
    Rank rank = {
        .world = &world, .nccl = &world.nccl, .rank = process->rank, .ranks = process->ranks};
    process->body(&rank);
}

/* The exit codes and outputs of the processes. */
typedef struct {
    int code[WORLD_MOST];
    char text[WORLD_MOST][2048];
} Ends;

static void run(RankBody body, int ranks, const char *const settings[WORLD_MOST][3], Ends *ends)
{
    Shared *shared =
        mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t child[WORLD_MOST];
    int said[WORLD_MOST];
    Process process[WORLD_MOST];
    assert_ptr_not_equal(shared, MAP_FAILED);
    for (int i = 0; i < ranks; i++) {
        process[i] = (Process){.shared = shared, .rank = i, .ranks = ranks, .body = body};
        if (settings) memcpy(process[i].settings, settings[i], sizeof process[i].settings);
        child[i] = child_start(process_run, &process[i], &said[i]);
    }
    for (int i = 0; i < ranks; i++)
        ends->code[i] = child_end(child[i], said[i], ends->text[i], sizeof ends->text[i]);
    munmap(shared, sizeof *shared);
}

/* ---- transferred data ------------------------------------------------------------------------ */

static void fetch(Rank *r, const float *from, int n)
{
    OK(cudaStreamSynchronize(r->stream));
    OK(cudaMemcpy(r->host, from, (size_t)n * sizeof *from, cudaMemcpyDeviceToHost));
}

/* Calls each operation once and checks its result. x contains rank + 1. */
static void carry_all(Rank *r)
{
    const Nccl *n = r->nccl;
    int ranks = r->ranks, next = (r->rank + 1) % ranks, before = (r->rank + ranks - 1) % ranks;
    rank_open(r);
    OK(n->AllReduce(r->x, r->y, N, ncclFloat32, ncclSum, r->comm, r->stream));
    fetch(r, r->y, N);
    for (int i = 0; i < N; i++)
        MUST(r->host[i] == (float)(ranks * (ranks + 1)) / 2);
    OK(n->AllGather(r->x, r->y, N, ncclFloat32, r->comm, r->stream));
    fetch(r, r->y, ranks * N);
    for (int i = 0; i < ranks * N; i++)
        MUST((int)r->host[i] == i / N + 1);
    OK(n->ReduceScatter(r->y, r->y + r->rank * N, N, ncclFloat32, ncclSum, r->comm, r->stream));
    fetch(r, r->y + r->rank * N, N);
    for (int i = 0; i < N; i++)
        MUST(r->host[i] == (float)(ranks * (r->rank + 1)));
    OK(n->Broadcast(r->x, r->y, N, ncclFloat32, 1, r->comm, r->stream));
    fetch(r, r->y, N);
    MUST(r->host[N - 1] == 2);
    OK(n->GroupStart());
    OK(n->Send(r->x, N, ncclFloat32, next, r->comm, r->stream));
    OK(n->Recv(r->y, N, ncclFloat32, before, r->comm, r->stream));
    OK(n->GroupEnd());
    fetch(r, r->y, N);
    MUST(r->host[N - 1] == (float)(before + 1));
    rank_close(r);
}

/* Sums more data than socket buffers hold. */
static void carry_much(Rank *r)
{
    float *large, *host = malloc(LARGE * sizeof *host);
    rank_open(r);
    OK(cudaMalloc((void **)&large, LARGE * sizeof *large));
    for (int i = 0; host && i < LARGE; i++)
        host[i] = (float)(i % 1000 + r->rank);
    OK(cudaMemcpy(large, host, LARGE * sizeof *large, cudaMemcpyHostToDevice));
    OK(r->nccl->AllReduce(large, large, LARGE, ncclFloat32, ncclSum, r->comm, r->stream));
    OK(cudaStreamSynchronize(r->stream));
    OK(cudaMemcpy(host, large, LARGE * sizeof *large, cudaMemcpyDeviceToHost));
    for (int i = 0; host && i < LARGE; i++)
        MUST((int)host[i] == r->ranks * (i % 1000) + r->ranks * (r->ranks - 1) / 2);
    free(host);
    OK(cudaFree(large));
    rank_close(r);
}

static void all_end_with(const Ends *ends, int ranks, int code, const char *words)
{
    for (int i = 0; i < ranks; i++)
        if (ends->code[i] != code || !strstr(ends->text[i], words))
            fail_msg("rank %d ended with %d: %s", i, ends->code[i], ends->text[i]);
}

static void test_all_operations_between_processes_give_exact_results(void **state)
{
    Ends ends;
    (void)state;
    for (int ranks = 2; ranks <= WORLD_MOST; ranks += 2) {
        run(carry_all, ranks, NULL, &ends);
        all_end_with(&ends, ranks, 0, "");
    }
    run(carry_much, 3, NULL, &ends);
    all_end_with(&ends, 3, 0, "");
}

/* ---- ranks that share a device --------------------------------------------------------------- */

/* Puts both ranks on device 0. */
static void on_one_device(Rank *r)
{
    ncclConfig_t config = rank_config("x");
    OK(cudaSetDevice(0));
    ncclResult_t code =
        r->nccl->CommInitRankConfig(&r->comm, r->ranks, r->world->id[0], r->rank, &config);
    if (code != ncclSuccess) {
        fprintf(stderr, "%s\n", r->nccl->GetLastError(NULL));
        _exit(code);
    }
    OK(r->nccl->CommDestroy(r->comm));
}

static void test_two_ranks_on_one_device_of_a_host_are_refused(void **state)
{
    static const char *const hosts[WORLD_MOST][3] = {{"NCCL_HOSTID=a"}, {"NCCL_HOSTID=b"}};
    static const char *const allowed[WORLD_MOST][3] = {{"NCCL_MULTI_RANK_GPU_ENABLE=1"},
                                                       {"NCCL_MULTI_RANK_GPU_ENABLE=1"}};
    Ends ends;
    (void)state;
    run(on_one_device, 2, NULL, &ends);
    all_end_with(&ends, 2, ncclInvalidUsage, "Duplicate GPU detected");
    run(on_one_device, 2, hosts, &ends);
    all_end_with(&ends, 2, 0, "");
    run(on_one_device, 2, allowed, &ends);
    all_end_with(&ends, 2, 0, "");
}

/* Rank 0, whose process runs the root, ends as soon as it is refused. */
static void test_a_refused_init_reaches_all_processes_before_the_root_exits(void **state)
{
    static const char *const lazy[WORLD_MOST][3] = {{"LAZY_ROOT=1"}};
    Ends ends;
    (void)state;
    run(on_one_device, WORLD_MOST, lazy, &ends);
    all_end_with(&ends, WORLD_MOST, ncclInvalidUsage, "Duplicate GPU detected");
}

/* ---- rule (iii): the order of all processes' launches ---------------------------------------- */

/* The two ranks use two communicators in different orders. On separate streams the calls still
 * complete. */
static void two_orders(Rank *r)
{
    rank_open(r);
    rank_warm(r, r->comm, r->stream);
    rank_warm(r, r->other, r->side);
    for (int i = 0; i < 2; i++) {
        bool first = (i == 0) != (r->rank == 1 && getenv("PLANTED") != NULL);
        OK(r->nccl->AllReduce(r->x, first ? r->y : r->y + N, N, ncclFloat32, ncclSum,
                              first ? r->comm : r->other, first ? r->stream : r->side));
    }
    rank_wait(r);
    fprintf(stderr, "done\n");
    rank_close(r);
}

static void empty(const char *folder)
{
    char command[256];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    assert_int_equal(system(command), 0);
}

static void test_launches_in_different_orders_in_two_processes_are_refused(void **state)
{
    char folder[] = "/tmp/test_nccl.XXXXXX", setting[64];
    const char *settings[WORLD_MOST][3] = {{"EMU_STREAMS=deferred", setting},
                                           {"EMU_STREAMS=deferred", setting}};
    Ends ends;
    (void)state;
    assert_non_null(mkdtemp(folder));
    snprintf(setting, sizeof setting, "EMU_NCCL_ORDER=%s", folder);
    run(two_orders, 2, settings, &ends);
    all_end_with(&ends, 2, 0, "done");

    settings[0][2] = settings[1][2] = "PLANTED=1";
    run(two_orders, 2, settings, &ends);
    empty(folder);
    int first = ends.code[0] == 0 ? 0 : 1; /* the process that checks last sees the launches of
                                            * both */
    if (ends.code[first] != 0 || ends.code[1 - first] != -SIGABRT ||
        !strstr(ends.text[0], "done") || !strstr(ends.text[1], "done") ||
        !strstr(ends.text[1 - first], "devices of several processes waiting for each other"))
        fail_msg("%d: %s, %d: %s", ends.code[0], ends.text[0], ends.code[1], ends.text[1]);

    run(two_orders, 2, settings, &ends);
    all_end_with(&ends, 2, -SIGABRT, "No such file or directory");
}

/* ---- the death of a peer --------------------------------------------------------------------- */

static void *wait_for_stream(void *argument)
{
    Rank *r = argument;
    OK(cudaStreamSynchronize(r->stream));
    return NULL;
}

static void a_peer_is_killed(Rank *r)
{
    ncclResult_t code;
    pthread_t waits;
    rank_open(r);
    rank_warm(r, r->comm, r->stream);
    OK(r->nccl->AllReduce(r->x, r->y, N, ncclFloat32, ncclSum, r->comm, r->stream));
    OK(pthread_create(&waits, NULL, wait_for_stream, r));
    do
        OK(r->nccl->CommGetAsyncError(r->comm, &code));
    while (code == ncclSuccess);
    _exit(code);
}

static void test_a_killed_peer_process_causes_a_remote_error(void **state)
{
    static const char *const settings[WORLD_MOST][3] = {
        {"EMU_STREAMS=deferred"}, {"EMU_STREAMS=deferred", "EMU_NCCL_FAULT=1:AllReduce:2:kill"}};
    Ends ends;
    (void)state;
    run(a_peer_is_killed, 2, settings, &ends);
    if (ends.code[0] != ncclRemoteError || ends.code[1] != -SIGKILL)
        fail_msg("%d: %s, %d: %s", ends.code[0], ends.text[0], ends.code[1], ends.text[1]);
}

/* ---- one rank of two, on any machine --------------------------------------------------------- */

static void one_rank(void)
{
    char path[1024], ready[1024];
    const char *folder = getenv("NCCL_TEST_FOLDER"), *missing;
    World world = {.ranks = 2};
    int rank = atoi(getenv("NCCL_TEST_RANK")), file;
    setenv("EMU_DEVICES", "4", 1);
    alarm(30);
    snprintf(path, sizeof path, "%s/ids", folder);
    snprintf(ready, sizeof ready, "%s/ids.ready", folder);
    MUST(nccl_load(&world.nccl, "libnccl.so.2", &missing));
    if (rank == 0) {
        for (int i = 0; i < 2; i++)
            if (world.nccl.GetUniqueId(&world.id[i]) != ncclSuccess)
                rank_fail(world.nccl.GetLastError(NULL), __LINE__, 0);
        file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
        MUST(write(file, world.id, sizeof world.id) == sizeof world.id);
        OK(close(file));
        OK(rename(path, ready));
    } else {
        while ((file = open(ready, O_RDONLY)) < 0)
            sched_yield();
        MUST(read(file, world.id, sizeof world.id) == sizeof world.id);
        OK(close(file));
    }
    Rank here = {.world = &world, .nccl = &world.nccl, .rank = rank, .ranks = 2};
    carry_all(&here);
    printf("rank %d: all carried\n", rank);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_operations_between_processes_give_exact_results),
        cmocka_unit_test(test_two_ranks_on_one_device_of_a_host_are_refused),
        cmocka_unit_test(test_a_refused_init_reaches_all_processes_before_the_root_exits),
        cmocka_unit_test(test_launches_in_different_orders_in_two_processes_are_refused),
        cmocka_unit_test(test_a_killed_peer_process_causes_a_remote_error),
    };
    if (getenv("NCCL_TEST_RANK")) {
        one_rank();
        return 0;
    }
    return cmocka_run_group_tests_name("ranks as processes, over NCCL", tests, NULL, NULL);
}

/* nccl_ranks.h -- helpers for tests of the emulated NCCL: opening its functions as a program does,
 * running ranks as threads with a device each, and testing violations. A violation runs in a child
 * process, which must die with the right message, while the same process without the violation must
 * succeed. */
#ifndef TESTS_EMU_NCCL_NCCL_RANKS_H
#define TESTS_EMU_NCCL_NCCL_RANKS_H

#include "tests/emu/nccl/nccl_emu.h"
#include "tests/support/files/child.h"

#include <dlfcn.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#define RANK_FUNCTIONS(X)                                                                          \
    X(GetVersion)                                                                                  \
    X(GetUniqueId)                                                                                 \
    X(CommInitRankConfig)                                                                          \
    X(CommDestroy)                                                                                 \
    X(GetErrorString)                                                                              \
    X(GetLastError)                                                                                \
    X(CommGetAsyncError)                                                                           \
    X(CommCount)                                                                                   \
    X(CommUserRank)                                                                                \
    X(AllReduce)                                                                                   \
    X(ReduceScatter)                                                                               \
    X(AllGather)                                                                                   \
    X(Broadcast)                                                                                   \
    X(Send)                                                                                        \
    X(Recv)                                                                                        \
    X(GroupStart)                                                                                  \
    X(GroupEnd)

/* NCCL's functions, named without their prefix. */
typedef struct {
#define X(name) __typeof__(&nccl##name) name;
    RANK_FUNCTIONS(X)
#undef X
} Nccl;

/* Fills *nccl from the library. Returns false if the library cannot be opened, or lacks the
 * function *missing. */
static inline bool nccl_load(Nccl *nccl, const char *library, const char **missing)
{
    void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    *missing = NULL;
    if (handle == NULL) return false;
#define X(name)                                                                                    \
    nccl->name = (__typeof__(&nccl##name))dlsym(handle, "nccl" #name);                             \
    if (nccl->name == NULL) *missing = "nccl" #name;
    RANK_FUNCTIONS(X)
#undef X
    return *missing == NULL;
}

enum { WORLD_MOST = 4, WORLD_ROOM = 64 /* number of floats in x and in y */ };

struct Rank;
typedef void (*RankBody)(struct Rank *);

/* State that the ranks of a process share. */
typedef struct {
    Nccl nccl;
    int ranks;
    bool planted; /* commit the violation */
    RankBody body;
    ncclUniqueId id[2], more[3]; /* more: used by rank_join */
    pthread_barrier_t barrier;
    atomic_int mark;
} World;

typedef struct Rank {
    World *world;
    const Nccl *nccl;
    int rank, ranks;
    bool planted;              /* copy of world->planted */
    ncclComm_t comm, other;    /* two communicators of all ranks */
    cudaStream_t stream, side; /* two streams of the rank's device */
    float *x, *y;              /* device memory: x is filled with rank + 1, y with 0 */
    float *host;               /* pinned memory for copies */
} Rank;

static inline void rank_fail(const char *what, int line, int code)
{
    fprintf(stderr, "line %d: %s: %d\n", line, what, code);
    _exit(99);
}

/* Ends the process with 99 unless the call returns 0. */
#define OK(call)                                                                                   \
    do {                                                                                           \
        int code_ = (int)(call);                                                                   \
        if (code_) rank_fail(#call, __LINE__, code_);                                              \
    } while (0)
/* Ends the process with 99 unless the condition is true. */
#define MUST(condition)                                                                            \
    do {                                                                                           \
        if (!(condition)) rank_fail(#condition, __LINE__, 0);                                      \
    } while (0)

static inline ncclConfig_t rank_config(const char *name)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 1;
    config.commName = name;
    return config;
}

static inline void rank_wait(Rank *r)
{
    OK(cudaStreamSynchronize(r->stream));
    OK(cudaStreamSynchronize(r->side));
}

/* Creates both communicators, the streams and the buffers on the calling thread's device. */
static inline void rank_open(Rank *r)
{
    const size_t bytes = WORLD_ROOM * sizeof(float);
    ncclConfig_t config = rank_config("first"), other = rank_config("second");
    OK(cudaSetDevice(r->rank));
    OK(cudaMallocHost((void **)&r->host, bytes));
    for (int i = 0; i < WORLD_ROOM; i++)
        r->host[i] = (float)(r->rank + 1);
    OK(cudaStreamCreateWithFlags(&r->stream, cudaStreamNonBlocking));
    OK(cudaStreamCreateWithFlags(&r->side, cudaStreamNonBlocking));
    OK(cudaMalloc((void **)&r->x, bytes));
    OK(cudaMalloc((void **)&r->y, bytes));
    OK(cudaMemcpy(r->x, r->host, bytes, cudaMemcpyHostToDevice));
    OK(cudaMemset(r->y, 0, bytes));
    OK(cudaStreamSynchronize(NULL));
    OK(r->nccl->CommInitRankConfig(&r->comm, r->ranks, r->world->id[0], r->rank, &config));
    OK(r->nccl->CommInitRankConfig(&r->other, r->ranks, r->world->id[1], r->rank, &other));
}

static inline void rank_close(Rank *r)
{
    rank_wait(r);
    if (r->comm) OK(r->nccl->CommDestroy(r->comm));
    if (r->other) OK(r->nccl->CommDestroy(r->other));
    OK(cudaFreeHost(r->host));
    OK(cudaFree(r->x));
    OK(cudaFree(r->y));
    OK(cudaStreamDestroy(r->stream));
    OK(cudaStreamDestroy(r->side));
}

static inline void rank_meet(Rank *r)
{
    pthread_barrier_wait(&r->world->barrier);
}

/* Uses every operation of the communicator once, so that later calls do not wait for the peers'
 * hosts. */
static inline void rank_warm(Rank *r, ncclComm_t comm, cudaStream_t stream)
{
    const Nccl *n = r->nccl;
    OK(n->GroupStart());
    OK(n->AllReduce(r->x, r->y, 1, ncclFloat32, ncclSum, comm, stream));
    OK(n->ReduceScatter(r->x, r->y + 1, 1, ncclFloat32, ncclSum, comm, stream));
    OK(n->AllGather(r->x, r->y + 2, 1, ncclFloat32, comm, stream));
    OK(n->Broadcast(r->x, r->y + 2 + WORLD_MOST, 1, ncclFloat32, 0, comm, stream));
    for (int peer = 0; peer < r->ranks; peer++) {
        if (peer == r->rank) continue;
        OK(n->Send(r->x, 1, ncclFloat32, peer, comm, stream));
        OK(n->Recv(r->y + 16 + peer, 1, ncclFloat32, peer, comm, stream));
    }
    OK(n->GroupEnd());
    OK(cudaStreamSynchronize(stream));
}

/* Returns whether the world's mark is set within this many milliseconds. */
static inline bool mark_comes(World *world, int within)
{
    struct timespec start, now;
    clock_gettime(CLOCK_MONOTONIC, &start);
    do {
        if (atomic_load(&world->mark)) return true;
        sched_yield();
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while ((now.tv_sec - start.tv_sec) * 1000 + (now.tv_nsec - start.tv_nsec) / 1000000 < within);
    return false;
}

/* Thread body: sets the mark when the rank's stream has completed its work. */
static inline void *wait_and_mark(void *rank)
{
    Rank *r = rank;
    OK(cudaSetDevice(r->rank));
    OK(cudaStreamSynchronize(r->stream));
    atomic_store(&r->world->mark, 1);
    return NULL;
}

/* Creates n more ids in world->more. All ranks call it. */
static inline void rank_ids(Rank *r, int n)
{
    for (int i = 0; r->rank == 0 && i < n; i++)
        OK(r->nccl->GetUniqueId(&r->world->more[i]));
    rank_meet(r);
}

/* Joins the communicator with the id world->more[i]. */
static inline ncclComm_t rank_join(Rank *r, int i, int ranks, int rank)
{
    ncclComm_t comm;
    ncclConfig_t config = rank_config("more");
    OK(r->nccl->CommInitRankConfig(&comm, ranks, r->world->more[i], rank, &config));
    return comm;
}

static inline void *rank_thread(void *argument)
{
    Rank *r = argument;
    r->world->body(r);
    return NULL;
}

/* Runs body(rank) in one thread per rank. */
static inline void world_run(int ranks, RankBody body, bool planted)
{
    World world = {.ranks = ranks, .planted = planted, .body = body};
    Rank rank[WORLD_MOST];
    pthread_t thread[WORLD_MOST];
    const char *missing;
    MUST(nccl_load(&world.nccl, "libnccl.so.2", &missing));
    OK(pthread_barrier_init(&world.barrier, NULL, (unsigned)ranks));
    OK(world.nccl.GetUniqueId(&world.id[0]));
    OK(world.nccl.GetUniqueId(&world.id[1]));
    for (int i = 0; i < ranks; i++) {
        rank[i] = (Rank){
            .world = &world, .nccl = &world.nccl, .rank = i, .ranks = ranks, .planted = planted};
        OK(pthread_create(&thread[i], NULL, rank_thread, &rank[i]));
    }
    for (int i = 0; i < ranks; i++)
        OK(pthread_join(thread[i], NULL));
    pthread_barrier_destroy(&world.barrier);
}

/* A program that breaks a rule. */
typedef struct {
    const char *rule, *what;
    RankBody body; /* breaks the rule if rank->planted, else does the same correctly */
    int ranks;
    const char *sentence;    /* expected in the last message; "|" separates alternatives */
    const char *settings[4]; /* environment variables, "NAME=value" */
} Violation;

typedef struct {
    const Violation *violation;
    bool planted;
} ViolationRun;

static inline void violation_child(void *context)
{
    const ViolationRun *run = context;
    struct rlimit none = {0, 0};
    setrlimit(RLIMIT_CORE, &none);
    signal(SIGABRT, SIG_DFL); /* cmocka's handlers would report a failed test */
    signal(SIGSEGV, SIG_DFL);
    setenv("EMU_DEVICES", "4", 1);
    setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 1);
    for (int i = 0; i < 4 && run->violation->settings[i]; i++) {
        char *name = strdup(run->violation->settings[i]), *value = strchr(name, '=');
        *value++ = '\0';
        if (*value)
            setenv(name, value, 1);
        else
            unsetenv(name);
        free(name);
    }
    world_run(run->violation->ranks, run->violation->body, run->planted);
}

/* Returns whether one of the alternatives in `sentence` is in the text. */
static inline bool violation_said(const char *text, const char *sentence)
{
    char parts[512], *rest = parts;
    snprintf(parts, sizeof parts, "%s", sentence);
    for (char *part; (part = strsep(&rest, "|")) != NULL;)
        if (strstr(text, part)) return true;
    return false;
}

/* Runs the violation and its correct version. EMU_NCCL_TABLE=1 prints the message that it ended
 * with. */
static inline void violation_run(const Violation *v)
{
    char text[8192];
    ViolationRun planted = {v, true}, control = {v, false};
    int code = child_run(violation_child, &control, text, sizeof text);
    if (code != 0) fail_msg("(%s) %s: the control ended with %d: %s", v->rule, v->what, code, text);
    code = child_run(violation_child, &planted, text, sizeof text);
    if (getenv("EMU_NCCL_TABLE"))
        printf("| %s | %s | %.*s |\n", v->rule, v->what, (int)strcspn(text, "\n"), text);
    if (code != -SIGABRT || !violation_said(text, v->sentence))
        fail_msg("(%s) %s: ended with %d, \"%s\" is not in: %s", v->rule, v->what, code,
                 v->sentence, text);
}

/* A table of violations. */
typedef struct {
    const Violation *list;
    size_t n;
} Violations;

static inline void test_each_violation_in_the_table_ends_the_program(void **state)
{
    const Violations *v = *state;
    for (size_t i = 0; i < v->n; i++)
        violation_run(&v->list[i]);
}

/* main function of a test program with one table. */
static inline int violations_main(const char *name, const Violation *list, size_t n)
{
    Violations violations = {list, n};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(test_each_violation_in_the_table_ends_the_program, &violations),
    };
    return cmocka_run_group_tests_name(name, tests, NULL, NULL);
}

#endif

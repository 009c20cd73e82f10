/* nccl_faults.h -- part of nccl.cu: tests failures: two communicators used in different orders, a
 * peer that is killed, ranks that are threads of one process, and ranks with the same host id. */
#ifndef TESTS_PROBE_NCCL_FAULTS_H
#define TESTS_PROBE_NCCL_FAULTS_H

#include "tests/probe/nccl_collectives.h"

#define ORDER_VALUES  ((size_t)1 << 18)
#define KILLED_VALUES ((size_t)1 << 22)
#define KILLED_WAIT   10.0

/* ---- two communicators ----------------------------------------------------------------------- */

/* Runs 20 rounds of one all-reduce on each communicator; if `crossed`, odd ranks start with the
 * second communicator. */
static void order_ask(const struct rank *at, const ncclComm_t *comm, const cudaStream_t *stream,
                      const char *name, int crossed)
{
    struct set *s = at->s;
    int64_t from;
    set_ask(s, at->rank, name, 4, "deadlock");
    from = set_now();
    for (int i = 0; i < 40; i++) {
        int which = (i ^ (crossed && at->rank % 2)) & 1;
        size_t offset = (size_t)which * ORDER_VALUES;
        NCCL(at, AllReduce, at->send + offset, at->recv + offset, ORDER_VALUES, ncclFloat, ncclSum,
             comm[which], stream[which]);
    }
    for (int i = 0; i < 2; i++)
        comm_wait(at, comm[i], stream[i]);
    set_barrier(s, at->rank);
    if (at->rank == 0)
        probe_word(s->question, probe_name("completed in %.3g s", set_seconds_since(from)));
}

static void order_body(struct set *s, int rank)
{
    struct rank at = rank_start(s, rank);
    ncclComm_t comm[2] = {at.comm, NULL};
    cudaStream_t stream[2] = {at.stream, NULL}, one[2] = {at.stream, at.stream};
    CUDA(&at, cudaStreamCreateWithFlags(&stream[1], cudaStreamNonBlocking));
    set_ask(s, rank, "second_init", 8, "failed: no answer");
    comm[1] = comm_make(&at);
    /* Test the same order first. That also opens all connections, so the crossed test is only about
     * launches. */
    order_ask(&at, comm, stream, "same", 0);
    order_ask(&at, comm, stream, "crossed", 1);
    if (!s->implicit_order) order_ask(&at, comm, one, "crossed_one_stream", 1);
}

/* ---- a killed peer --------------------------------------------------------------------------- */

/* Runs all-reduces until something fails, for at most KILLED_WAIT seconds after the kill; writes
 * what it was to `seen`. */
static void killed_watch(const struct rank *at, char *seen, size_t size)
{
    struct set *s = at->s;
    for (;;) {
        ncclResult_t result;
        cudaError_t code;
        set_doing(s, at->rank, "ncclAllReduce");
        result = nccl.AllReduce(at->send, at->recv, KILLED_VALUES, ncclFloat, ncclSum, at->comm,
                                at->stream);
        if (result != ncclSuccess) {
            snprintf(seen, size, "%s from ncclAllReduce", result_name(result));
            return;
        }
        set_doing(s, at->rank, "the wait for its stream");
        while ((code = cudaStreamQuery(at->stream)) == cudaErrorNotReady) {
            int64_t killed_at = __atomic_load_n(&s->killed_at, __ATOMIC_SEQ_CST);
            nccl_check(at, "ncclCommGetAsyncError", nccl.CommGetAsyncError(at->comm, &result));
            if (result != ncclSuccess && result != ncclInProgress) {
                snprintf(seen, size, "%s", result_name(result));
                return;
            }
            if (killed_at && set_seconds_since(killed_at) > KILLED_WAIT) {
                snprintf(seen, size, "hang, no error");
                return;
            }
            set_sleep_us(100);
        }
        if (code != cudaSuccess) {
            snprintf(seen, size, "CUDA: %s", cudaGetErrorString(code));
            return;
        }
    }
}

/* Prints what this surviving rank saw. Then it aborts its communicator at once, or waits until the
 * other survivors have printed theirs. */
static void killed_survive(const struct rank *at)
{
    struct set *s = at->s;
    char seen[128], text[256];
    double seconds;
    int64_t from;
    ncclResult_t result;
    killed_watch(at, seen, sizeof seen);
    if (!s->killed_at) set_fail(s, at->rank, "%s before the kill", seen);
    seconds = set_seconds_since(s->killed_at);
    last_error(at->comm, text, sizeof text);
    __atomic_add_fetch(&s->seen, 1, __ATOMIC_SEQ_CST);
    printf("%s.rank%d.seen = %s after %.3g s (%s)\n", s->prefix, at->rank, seen, seconds, text);
    fflush(stdout);
    if (s->abort) {
        set_doing(s, at->rank, "ncclCommAbort");
        from = set_now();
        result = nccl.CommAbort(at->comm);
        probe_number(probe_name("%s.rank%d.abort", s->prefix, at->rank), set_seconds_since(from),
                     "s");
        if (result != ncclSuccess)
            probe_word(probe_name("%s.rank%d.abort.result", s->prefix, at->rank),
                       result_name(result));
        return;
    }
    set_doing(s, at->rank, "the wait for the other survivors");
    while (__atomic_load_n(&s->seen, __ATOMIC_SEQ_CST) < at->n - 1 &&
           set_seconds_since(s->killed_at) < KILLED_WAIT + 1)
        set_sleep_us(1000);
}

static void killed_body(struct set *s, int rank)
{
    struct rank at = rank_start(s, rank);
    int destructors;
    set_ask(s, rank, "survivors", KILLED_WAIT + 4, "failed: no answer");
    for (int i = 0; i < 5; i++)
        collective_time(&at, ALL_REDUCE, KILLED_VALUES, 1);
    set_barrier(s, rank);
    if (rank == s->victim) {
        /* The other ranks continue their loops: in either case the next all-reduce lacks a
         * partner. */
        collective_issue(&at, ALL_REDUCE, KILLED_VALUES);
        set_sleep_us(3000);
        __atomic_store_n(&s->killed_at, set_now(), __ATOMIC_SEQ_CST);
        kill(getpid(), SIGKILL);
    }
    killed_survive(&at);
    /* Without abort, test both ways to exit while a kernel may still be spinning. */
    destructors = s->abort || rank == 0;
    set_leave(s, rank, probe_name("%s.rank%d.%s", s->prefix, rank, destructors ? "exit" : "_exit"));
    if (destructors) exit(0);
    _exit(0);
}

static void killed_run(struct set *s, int n, int abort)
{
    s->abort = abort;
    s->victim = 1;
    set_run(s, probe_name("nccl.%d.killed%s", n, abort ? "_abort" : ""), n, killed_body, 24);
    s->victim = -1;
}

/* ---- ranks of one host ----------------------------------------------------------------------- */

struct thread_rank {
    struct rank at;
    ncclUniqueId id;
};

/* One rank as a thread: creates a communicator and then, if that worked, runs an all-reduce. */
static void *thread_body(void *argument)
{
    struct thread_rank *t = (struct thread_rank *)argument;
    struct rank *at = &t->at;
    char name[96], text[384], said[256];
    ncclResult_t result;
    int64_t from = set_now();
    cudaError_t code = cudaSetDevice(0);
    if (code == cudaSuccess) code = cudaStreamCreateWithFlags(&at->stream, cudaStreamNonBlocking);
    snprintf(name, sizeof name, "%s.rank%d", at->s->prefix, at->rank);
    if (code != cudaSuccess) {
        probe_word(name, cudaGetErrorString(code));
        return NULL;
    }
    result = nccl.CommInitRank(&at->comm, at->n, t->id, at->rank);
    snprintf(text, sizeof text, "init %s after %.3g s (%s)", result_name(result),
             set_seconds_since(from), last_error(NULL, said, sizeof said));
    probe_word(name, text);
    if (result != ncclSuccess) return NULL;
    result =
        nccl.AllReduce(at->send, at->recv, ORDER_VALUES, ncclFloat, ncclSum, at->comm, at->stream);
    code = cudaStreamSynchronize(at->stream);
    snprintf(text, sizeof text, "all-reduce %s, %s", result_name(result), cudaGetErrorString(code));
    probe_word(name, text);
    return NULL;
}

/* The single process of this set runs two ranks as threads. */
static void threads_body(struct set *s, int rank)
{
    struct thread_rank t[2];
    pthread_t thread[2];
    struct rank main_rank = {s, rank, 2, NULL, NULL, NULL, NULL, NULL};
    ncclUniqueId id;
    char why[256];
    settings_apply(s, rank);
    if (api_open(why, sizeof why)) set_fail(s, rank, "%s", why);
    for (int i = 0; i < 2; i++) {
        t[i].at = main_rank;
        t[i].at.rank = i;
        CUDA(&main_rank, cudaMalloc(&t[i].at.send, ORDER_VALUES * sizeof(float)));
        CUDA(&main_rank, cudaMalloc(&t[i].at.recv, ORDER_VALUES * sizeof(float)));
        CUDA(&main_rank, cudaMemset(t[i].at.send, 0, ORDER_VALUES * sizeof(float)));
    }
    CUDA(&main_rank, cudaDeviceSynchronize());
    NCCL(&main_rank, GetUniqueId, &id);
    for (int i = 0; i < 2; i++) {
        t[i].id = id;
        if (pthread_create(&thread[i], NULL, thread_body, &t[i]))
            set_fail(s, rank, "pthread_create");
    }
    set_doing(s, rank, "its threads");
    for (int i = 0; i < 2; i++)
        pthread_join(thread[i], NULL);
}

static void faults_threads_run(struct set *s)
{
    set_run(s, "nccl.threads", 1, threads_body, 7);
}

/* Two processes with the same host id: tests whether NCCL detects the duplicate GPU. */
static void same_host_body(struct set *s, int rank)
{
    struct rank at = rank_start(s, rank);
    if (at.rank == 0) probe_word(s->prefix, "init succeeded");
}

/* Runs the most reliable and shortest tests first, because tests after the end of the probe's time
 * are skipped. */
static void faults_run(struct set *s)
{
    killed_run(s, 4, 1);
    set_run(s, "nccl.2.order", 2, order_body, 12);
    s->implicit_order = 1;
    set_run(s, "nccl.2.order_implicit", 2, order_body, 12);
    s->implicit_order = 0;
    faults_threads_run(s);
    s->same_host = 1;
    set_run(s, "nccl.2.same_host", 2, same_host_body, 7);
    s->same_host = 0;
    killed_run(s, 4, 0);
    killed_run(s, 2, 0);
}

#endif

/* pool.c -- implements the thread pool of pool.h: threads sleep on a condition variable between
 * parallel regions and take tasks from one atomic word.
 *
 * The word packs the region's generation (a counter) and the number of the next task. A region ends
 * when its last task is done, not when the last thread has woken: a thread that wakes late finds
 * another generation or no tasks left, and takes none. */
#include "model/core/pool.h"

#include "model/core/check.h"
#include "model/core/figures.h"
#include "model/core/files.h"
#include "model/core/hash.h"
#include "model/core/log.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

struct Pool {
    int threads;
    pthread_t *thread; /* the threads - 1 that were started */
    char *workspace;
    pthread_mutex_t mutex;
    pthread_cond_t start, done;
    int stop; /* guarded by mutex */
    int rank;
    char place[64];        /* the rank's place in the grid, for messages */
    _Atomic uint64_t word; /* generation << TASK_BITS | next task */
    _Atomic int64_t n_tasks, completed;
    _Atomic(PoolBody)
        /* The region's body and context. They are read before a task is taken, and are valid if
         * taking it succeeds. */
        body;
    _Atomic(void *) context;
};

enum { TASK_BITS = 40 };
#define NO_TASK (((uint64_t)1 << TASK_BITS) - 1)

typedef struct {
    Pool *pool;
    int worker;
} Worker;

static uint64_t generation_of(uint64_t word)
{
    return word >> TASK_BITS;
}

/* Takes and runs tasks of the region `generation` until none is left. */
static void take_tasks(Pool *pool, uint64_t generation, int worker)
{
    for (;;) {
        uint64_t word = atomic_load_explicit(&pool->word, memory_order_acquire);
        if (generation_of(word) != generation) return;
        int64_t task = (int64_t)(word & NO_TASK);
        /* Read these values before taking the task: the compare-and-exchange below succeeds only if
         * the word, and so the region, has not changed in between. */
        int64_t n_tasks = atomic_load_explicit(&pool->n_tasks, memory_order_acquire);
        PoolBody body = atomic_load_explicit(&pool->body, memory_order_relaxed);
        void *context = atomic_load_explicit(&pool->context, memory_order_relaxed);
        if (task >= n_tasks) return;
        if (!atomic_compare_exchange_weak_explicit(&pool->word, &word, word + 1,
                                                   memory_order_acq_rel, memory_order_relaxed))
            continue;
        body(context, task, worker);
        /* Signal with the mutex held. Otherwise the owner could check the count, miss the signal,
         * and sleep forever. */
        if (atomic_fetch_add_explicit(&pool->completed, 1, memory_order_acq_rel) + 1 == n_tasks) {
            pthread_mutex_lock(&pool->mutex);
            pthread_cond_signal(&pool->done);
            pthread_mutex_unlock(&pool->mutex);
        }
    }
}

static void *worker_main(void *arg)
{
    Worker w = *(Worker *)arg;
    Pool *pool = w.pool;
    uint64_t seen = 0;
    free(arg);
    log_set_rank(pool->rank, pool->place);
    pthread_mutex_lock(&pool->mutex);
    for (;;) {
        /* Compare with the last generation that this thread has seen. If it has slept through a
         * whole region, it has missed nothing, because that region's tasks are done. */
        while (generation_of(atomic_load(&pool->word)) == seen && !pool->stop)
            pthread_cond_wait(&pool->start, &pool->mutex);
        if (pool->stop) break;
        seen = generation_of(atomic_load(&pool->word));
        pthread_mutex_unlock(&pool->mutex);
        take_tasks(pool, seen, w.worker);
        pthread_mutex_lock(&pool->mutex);
    }
    pthread_mutex_unlock(&pool->mutex);
    return NULL;
}

void signals_hold(sigset_t *before)
{
    /* Signals that a thread causes by its own faults, and the one that profilers send to each
     * thread. */
    static const int own[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS, SIGPROF};
    sigset_t held;
    sigfillset(&held);
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        sigdelset(&held, own[i]);
    pthread_sigmask(SIG_BLOCK, &held, before);
}

void signals_release(const sigset_t *before)
{
    pthread_sigmask(SIG_SETMASK, before, NULL);
}

void stack_prepare(void)
{
    enum { NEEDED = 1 << 20 };
    struct rlimit limit;
    if (getrlimit(RLIMIT_STACK, &limit) != 0 || limit.rlim_cur >= NEEDED) return;
    bool allowed = limit.rlim_max >= NEEDED;
    limit.rlim_cur = NEEDED;
    if (!allowed || setrlimit(RLIMIT_STACK, &limit) != 0)
        fail(EXIT_SYSTEM, "the limit on the stack is %s, and %s are needed; raise ulimit -s to %d",
             figure_bytes((double)limit.rlim_max).text, figure_bytes(NEEDED).text, NEEDED / 1024);
    /* At the start of the process, the C library set the size of new threads' stacks to the old
     * limit. */
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, NEEDED);
    pthread_setattr_default_np(&attributes);
    pthread_attr_destroy(&attributes);
}

int thread_try_start(pthread_t *thread, void *(*body)(void *), void *context)
{
    sigset_t before;
    signals_hold(&before);
    int error = pthread_create(thread, NULL, body, context);
    signals_release(&before);
    return error;
}

void thread_start(pthread_t *thread, void *(*body)(void *), void *context, const char *what)
{
    pthread_attr_t attributes;
    size_t stack = 0;
    int error = thread_try_start(thread, body, context);
    if (error == 0) return;
    pthread_attr_init(&attributes);
    pthread_attr_getstacksize(&attributes, &stack);
    pthread_attr_destroy(&attributes);
    /* EAGAIN may mean too many threads or no room for the stack. Try to map a stack to find out
     * which. */
    void *room = mmap(NULL, stack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (room == MAP_FAILED)
        fail(EXIT_NO_MEMORY, "%s does not get its stack, %s of address space; raise ulimit -v",
             what, figure_bytes((double)stack).text);
    munmap(room, stack);
    fail(EXIT_SYSTEM, "%s cannot be started: %s", what, strerror(error));
}

bool thread_start_detached(void *(*body)(void *), void *context)
{
    pthread_t thread;
    pthread_attr_t attributes;
    sigset_t before;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    signals_hold(&before);
    int error = pthread_create(&thread, &attributes, body, context);
    signals_release(&before);
    pthread_attr_destroy(&attributes);
    return error == 0;
}

bool mutex_lock_within(pthread_mutex_t *mutex, double seconds)
{
    enum { MICROSECONDS = 1000 };
    for (double waited = 0; waited <= seconds; waited += 1e-6 * MICROSECONDS) {
        if (pthread_mutex_trylock(mutex) == 0) return true;
        usleep(MICROSECONDS);
    }
    return false;
}

Pool *pool_create(int threads)
{
    CHECK(threads >= 1 && threads <= 4096, "%d threads", threads);
    Pool *pool = must_calloc(1, sizeof *pool);
    pool->threads = threads;
    pool->rank = log_rank();
    snprintf(pool->place, sizeof pool->place, "%s", log_place());
    pool->thread = must_calloc((size_t)threads, sizeof *pool->thread);
    pool->workspace = mmap(NULL, POOL_WORKSPACE * (size_t)threads, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pool->workspace == MAP_FAILED)
        fail(EXIT_NO_MEMORY, "the system refused %s of address space for %s; raise ulimit -v%s",
             figure_bytes((double)(POOL_WORKSPACE * (size_t)threads)).text,
             figure_of(threads, "thread").text, threads > 1 ? ", or set cpu.threads lower" : "");
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->start, NULL);
    pthread_cond_init(&pool->done, NULL);
    for (int i = 1; i < threads; i++) {
        Worker *w = must_alloc(sizeof *w);
        *w = (Worker){.pool = pool, .worker = i};
        thread_start(&pool->thread[i - 1], worker_main, w, "a thread of the pool");
    }
    return pool;
}

void pool_destroy(Pool *pool)
{
    if (pool == NULL) return;
    pthread_mutex_lock(&pool->mutex);
    pool->stop = 1;
    pthread_cond_broadcast(&pool->start);
    pthread_mutex_unlock(&pool->mutex);
    for (int i = 1; i < pool->threads; i++)
        pthread_join(pool->thread[i - 1], NULL);
    pthread_cond_destroy(&pool->done);
    pthread_cond_destroy(&pool->start);
    pthread_mutex_destroy(&pool->mutex);
    munmap(pool->workspace, POOL_WORKSPACE * (size_t)pool->threads);
    free(pool->thread);
    free(pool);
}

int pool_threads(const Pool *pool)
{
    return pool->threads;
}

void pool_run(Pool *pool, int64_t n_tasks, PoolBody body, void *context)
{
    /* Run small work in the caller: waking a thread costs more than it saves. */
    if (n_tasks <= 1 || pool->threads == 1) {
        for (int64_t task = 0; task < n_tasks; task++)
            body(context, task, 0);
        return;
    }
    uint64_t generation = generation_of(atomic_load(&pool->word)) + 1;
    generation &= ((uint64_t)1 << (64 - TASK_BITS)) - 1;
    pthread_mutex_lock(&pool->mutex);
    /* Set the atomic word to "no task" while the region changes: a late thread may still hold the
     * last region's word and must not take a new task with it. It can see the new n_tasks only
     * after this store. */
    atomic_store_explicit(&pool->word, generation << TASK_BITS | NO_TASK, memory_order_release);
    atomic_store_explicit(&pool->n_tasks, n_tasks, memory_order_release);
    atomic_store_explicit(&pool->body, body, memory_order_relaxed);
    atomic_store_explicit(&pool->context, context, memory_order_relaxed);
    atomic_store_explicit(&pool->completed, 0, memory_order_relaxed);
    atomic_store_explicit(&pool->word, generation << TASK_BITS, memory_order_release);
    pthread_cond_broadcast(&pool->start);
    pthread_mutex_unlock(&pool->mutex);
    /* The owner takes tasks, too. Often all tasks are then done, and it need not wait. */
    take_tasks(pool, generation, 0);
    if (atomic_load_explicit(&pool->completed, memory_order_acquire) == n_tasks) return;
    pthread_mutex_lock(&pool->mutex);
    while (atomic_load_explicit(&pool->completed, memory_order_acquire) < n_tasks)
        pthread_cond_wait(&pool->done, &pool->mutex);
    pthread_mutex_unlock(&pool->mutex);
}

void *pool_workspace(Pool *pool, int worker, size_t bytes)
{
    CHECK(bytes <= POOL_WORKSPACE, "%zu bytes of workspace asked for, %zu reserved", bytes,
          POOL_WORKSPACE);
    return pool->workspace + POOL_WORKSPACE * (size_t)worker;
}

/* Returns the number of cores that the control group (cgroup) allows, or `unlimited`. cpu.max
 * contains "quota period" in microseconds, or "max". */
static int cgroup_cores(int unlimited)
{
    char text[64];
    long long quota = 0, period = 0;
    file_head("/sys/fs/cgroup/cpu.max", text, sizeof text);
    int n = sscanf(text, "%lld %lld", &quota, &period);
    if (n != 2 || quota <= 0 || period <= 0) return unlimited;
    long long cores = (quota + period - 1) / period;
    return cores < unlimited ? (int)cores : unlimited;
}

uint64_t pool_cores_hash(void)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    sched_getaffinity(0, sizeof set, &set);
    return hash_bytes(0, &set, sizeof set);
}

int pool_allowed_cores(void)
{
    cpu_set_t set;
    int cores = 1;
    if (sched_getaffinity(0, sizeof set, &set) == 0) cores = CPU_COUNT(&set);
    cores = cgroup_cores(cores);
    return cores > 0 ? cores : 1;
}

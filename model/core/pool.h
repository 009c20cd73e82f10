/* pool.h -- the thread pool of one rank. A parallel region is a number of independent tasks. Idle
 * threads sleep; none of them spins.
 *
 * Any thread may run any task, so that a busy core does not delay the others. Tasks write to
 * disjoint outputs, and the division of work into tasks depends only on shapes and on the number of
 * threads. So every run gives the same bits. */
#ifndef MODEL_CORE_POOL_H
#define MODEL_CORE_POOL_H

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct Pool Pool;

/* Runs one task: task is in [0, n_tasks), worker in [0, threads). */
typedef void (*PoolBody)(void *context, int64_t task, int worker);

/* Creates a pool of `threads` >= 1 threads, counting the caller: threads - 1 are started. Ends the
 * program with EXIT_NO_MEMORY or EXIT_SYSTEM if the system refuses. */
Pool *pool_create(int threads);
void pool_destroy(Pool *pool);
int pool_threads(const Pool *pool);

/* Runs all tasks and returns when the last one is done. Only the thread that created the pool may
 * call it; not reentrant. */
void pool_run(Pool *pool, int64_t n_tasks, PoolBody body, void *context);

/* Returns scratch memory of one worker, aligned to 64 bytes and valid until the worker's next call.
 * POOL_WORKSPACE bytes of address space per worker are reserved at creation, so nothing is
 * allocated inside a step. Asking for more is a bug. */
#define POOL_WORKSPACE ((size_t)256 << 20)
void *pool_workspace(Pool *pool, int worker, size_t bytes);

/* Only the thread that runs the training steps should receive signals sent to the process. A thread
 * that is started between these two calls, by this program or by a library, blocks them for its
 * whole life; signals of its own faults (SIGSEGV, ...) still reach it. A signal that arrives
 * between the two calls is delivered after the second. */
void signals_hold(sigset_t *before);
void signals_release(const sigset_t *before);

/* Raises a limit on the stack (ulimit -s) that is too low, for this thread and for threads that are
 * started later. Ends the program with EXIT_SYSTEM if the system forbids it. */
void stack_prepare(void);

/* Starts a thread with signals blocked as described above; `what` names it in error messages. Ends
 * the program with EXIT_NO_MEMORY if there is no room for its stack, and with EXIT_SYSTEM on other
 * errors. */
void thread_start(pthread_t *thread, void *(*body)(void *), void *context, const char *what);

/* Starts a thread in the same way. Returns 0, or the errno value if the system refuses it. */
int thread_try_start(pthread_t *thread, void *(*body)(void *), void *context);
/* Starts a thread in the same way, detached: nobody waits for it, and it runs until the process
 * ends. Returns false if the system refuses it. */
bool thread_start_detached(void *(*body)(void *), void *context);

/* Takes the mutex. Returns false if it was not free for `seconds` seconds: its owner may never
 * release it. For threads that are about to end the process, and so must not wait for others. */
bool mutex_lock_within(pthread_mutex_t *mutex, double seconds);

/* Returns how many cores this process may use: the smaller of its CPU affinity and the control
 * group's cpu.max, at least 1. */
int pool_allowed_cores(void);
/* Returns a hash of the set of cores that this thread may run on (its CPU affinity). */
uint64_t pool_cores_hash(void);

/* Returns the start of part i when n items are cut into `parts` nearly equal ranges whose borders
 * are multiples of `grain`. Part i ends where part i + 1 starts. */
static inline int64_t pool_cut(int64_t n, int64_t parts, int64_t grain, int64_t i)
{
    int64_t grains = (n + grain - 1) / grain;
    int64_t border = grains * i / parts * grain;
    return border < n ? border : n;
}

#endif

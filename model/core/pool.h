/* pool.h -- one rank's threads. A parallel region is a number of independent tasks; waiting threads
 * block, none spins.
 *
 * Which thread runs a task is left to chance (a busy core must not hold up the others), so tasks
 * write disjoint outputs and the cut into tasks depends on shapes and on the thread count only:
 * results are the same bits in every run. */
#ifndef MODEL_CORE_POOL_H
#define MODEL_CORE_POOL_H

#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>

typedef struct Pool Pool;

/* One call of the body: task in [0, n_tasks), worker in [0, threads). */
typedef void (*PoolBody)(void *context, int64_t task, int worker);

/* threads >= 1, the caller's included: threads - 1 are started here. Ends the run with
 * EXIT_NO_MEMORY or EXIT_SYSTEM if the system refuses. */
Pool *pool_create(int threads);
void pool_destroy(Pool *pool);
int pool_threads(const Pool *pool);

/* Runs all tasks and returns when the last is done. Called by the pool's owner only; not reentrant.
 */
void pool_run(Pool *pool, int64_t n_tasks, PoolBody body, void *context);

/* Scratch of one worker, valid until its next call: address space reserved at creation
 * (POOL_WORKSPACE bytes each), so nothing is allocated inside a step. 64-byte aligned. Asking for
 * more than the reservation is a bug. */
#define POOL_WORKSPACE ((size_t)256 << 20)
void *pool_workspace(Pool *pool, int worker, size_t bytes);

/* Signals sent to the process are for the thread that runs the steps. A thread that is started
 * between these two calls, by this program or by a library, blocks them for its whole life; signals
 * of its own faults (SIGSEGV, ...) still reach it. A signal that comes between the calls is
 * delivered after the second. */
void signals_hold(sigset_t *before);
void signals_release(const sigset_t *before);

/* Starts a thread, called `what` in a sentence, with signals held. Ends the run with EXIT_NO_MEMORY
 * when there is no room for its stack, with EXIT_SYSTEM when the system refuses otherwise. */
void thread_start(pthread_t *thread, void *(*body)(void *), void *context, const char *what);

/* Cores this process may use: min(affinity, cgroup's cpu.max), at least 1. */
int pool_allowed_cores(void);

/* Bounds of part i of n items cut into `parts` nearly equal ranges whose borders are multiples of
 * `grain`. */
static inline int64_t pool_cut(int64_t n, int64_t parts, int64_t grain, int64_t i)
{
    int64_t grains = (n + grain - 1) / grain;
    int64_t border = grains * i / parts * grain;
    return border < n ? border : n;
}

#endif

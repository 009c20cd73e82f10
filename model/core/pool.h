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

/* Returns scratch memory of one worker, aligned to 64 bytes and valid until this function is next
 * called for that worker. POOL_WORKSPACE bytes of address space per worker are reserved at
 * creation, so nothing is allocated inside a step. Asking for more is a bug. */
#define POOL_WORKSPACE ((size_t)256 << 20)
void *pool_workspace(Pool *pool, int worker, size_t bytes);

/* Block and unblock the signals of the calling thread. A thread that is started between the two
 * calls, by this program or by a library, keeps signals blocked for its whole life, so that only
 * the thread that runs the training steps receives signals sent to the process. Signals of a
 * thread's own faults (SIGSEGV, ...) still reach it. A signal that arrives between the two calls is
 * delivered after signals_release. */
void signals_hold(sigset_t *before);
void signals_release(const sigset_t *before);

/* Raises a limit on the stack (ulimit -s) that is too low, for this thread and for threads that are
 * started later. Ends the program with EXIT_SYSTEM if the system forbids it. */
void stack_prepare(void);

/* Starts a thread with signals blocked (signals_hold); `what` names it in error messages. Ends the
 * program with EXIT_NO_MEMORY if there is no room for its stack, and with EXIT_SYSTEM on other
 * errors. */
void thread_start(pthread_t *thread, void *(*body)(void *), void *context, const char *what);

/* Like thread_start, but returns 0, or the errno value if the system refuses the thread. */
int thread_try_start(pthread_t *thread, void *(*body)(void *), void *context);
/* Like thread_try_start, but starts a detached thread: nobody waits for its end. Returns false if
 * the system refuses the thread. */
bool thread_start_detached(void *(*body)(void *), void *context);

/* Takes the mutex. Returns false if it was not free for `seconds` seconds. For threads that must
 * not wait for an owner who may never release it, for example because they are about to end the
 * process. */
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

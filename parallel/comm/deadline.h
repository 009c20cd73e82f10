/* deadline.h -- enforces parallel.timeout, the limit on how long a rank waits for other ranks:
 * measures waits, and ends the program with an error message (EXIT_HANG, EXIT_PEER_LOST) when the
 * other ranks do not arrive. All transports use it. */
#ifndef PARALLEL_COMM_DEADLINE_H
#define PARALLEL_COMM_DEADLINE_H

#include "parallel/comm/blame.h"

#include <pthread.h>

/* Returns how many of the seconds since `start` count against a deadline. This thread must have
 * gone to sleep at `start` for `seconds`. On a busy machine it wakes up late, and the delay counts,
 * too. But if the process was stopped (SIGSTOP), it wakes up much later, and its peers may have
 * been stopped as well. Therefore at most 0.05 s more than `seconds` counts. */
double deadline_passed(double start, double seconds);

/* Waits for the condition, which uses CLOCK_MONOTONIC, for at most `seconds`. Returns how many
 * seconds count against a deadline (deadline_passed). */
double deadline_sleep(pthread_cond_t *condition, pthread_mutex_t *mutex, double seconds);

/* The rank that prints during the run. While it is blocked in a write to a console that nobody
 * reads, such as a stopped terminal or a pager, it does not count as missing: the other ranks wait
 * for it without limit. */
enum { DEADLINE_PRINTS = 0 };

/* Seconds for which a thread that is about to end the program waits for the mutex of a group, whose
 * owner may never release it. Without the mutex, the message says less about the cause. */
static const double DEADLINE_LOCK = 0.2;

/* Ends the program (EXIT_HANG) because the wait has lasted `timeout` seconds. `blame` is the result
 * of blame_find. It is read only if some rank has not arrived. */
void deadline_end_waiting(const BlameWait *wait, double timeout, const Blame *blame)
    __attribute__((noreturn));
/* Ends the program (EXIT_PEER_LOST) because the ranks in wait->who have left the group. */
void deadline_end_lost(const BlameWait *wait) __attribute__((noreturn));

/* Returns whether one of these n world ranks is in a call whose deadline the transport enforces
 * itself. */
typedef bool (*DeadlineHolder)(const int *rank, int n);
/* Registers a transport that enforces the deadlines of its calls on another thread than the waiting
 * one. It stays registered for the life of the process. Registering it again has no effect. May be
 * called from any thread. */
void deadline_add_holder(DeadlineHolder holds);
/* Returns whether any registered transport enforces a deadline for one of these ranks. If so, a
 * rank that waits for it in another transport lets that transport's deadline end the program,
 * because its error message names the cause. */
bool deadline_held_elsewhere(const int *rank, int n);

#endif

/* deadline.h -- parallel.timeout: how long a rank waits for others, and with which sentence the
 * program ends (EXIT_HANG, EXIT_PEER_LOST) when they do not come, whatever the transport. */
#ifndef PARALLEL_COMM_DEADLINE_H
#define PARALLEL_COMM_DEADLINE_H

#include "parallel/comm/blame.h"

#include <pthread.h>

/* Waits for the condition, which measures CLOCK_MONOTONIC, for at most so many seconds, and returns
 * how many of them count against a deadline. A process that was stopped, and its peers with it,
 * wakes up long after the time is over: what is beyond `seconds` does not count. */
double deadline_sleep(pthread_cond_t *condition, pthread_mutex_t *mutex, double seconds);

/* Ends the program (EXIT_HANG): the wait has lasted `timeout` seconds. `blame`: what blame_find
 * has said of it; read only where somebody has not come. */
void deadline_end_waiting(const BlameWait *wait, double timeout, const Blame *blame)
    __attribute__((noreturn));
/* Ends the program (EXIT_PEER_LOST): those in wait->who have left the group. */
void deadline_end_lost(const BlameWait *wait) __attribute__((noreturn));

/* Says whether one of these n ranks of the world is in a call that a deadline of the transport's
 * own will end. */
typedef bool (*DeadlineHolder)(const int *rank, int n);
/* A transport whose calls have deadlines of their own, held by another thread than the waiting
 * one. Registered for the life of the process; again: nothing. From any thread. */
void deadline_add_holder(DeadlineHolder holds);
/* Asks all of these. Where it is true, who waits for such a rank somewhere else leaves the deadline
 * to that call: its end says why the rank does not come. */
bool deadline_held_elsewhere(const int *rank, int n);

#endif

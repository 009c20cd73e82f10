/* sleeping_threads.h -- waits until all other threads of the process sleep: so that a test knows
 * that another thread is blocked, or has ended, without a guess at how long that takes on a busy
 * machine. Also waits until another process is stopped.
 *
 * Programs that are built with a sanitizer also do this before every fork(). The allocators of
 * AddressSanitizer and ThreadSanitizer have locks. A thread that owns one during a fork does not
 * exist in the child, so the child would wait for the lock forever. Without a sanitizer nothing is
 * needed, because glibc takes its own allocator's locks before a fork. */
#ifndef TESTS_SUPPORT_SLEEPING_THREADS_H
#define TESTS_SUPPORT_SLEEPING_THREADS_H

#include <stdbool.h>
#include <sys/types.h>

/* Returns true as soon as all other threads of the process sleep or have ended, and false if they
 * have not all slept at the same time within `seconds` seconds. Before a fork, the limit is half a
 * second. */
bool other_threads_sleep(double seconds);

/* Returns when all threads of another process are stopped (SIGSTOP), or when it has ended. */
void process_wait_until_stopped(pid_t process);

#endif

/* quiet_forks.h -- lets programs that are built with a sanitizer fork only while their other
 * threads sleep. The allocators of AddressSanitizer and ThreadSanitizer have locks. A thread that
 * owns one during a fork does not exist in the child, so the child would wait for the lock forever.
 * Without a sanitizer nothing is needed, because glibc takes its own allocator's locks before a
 * fork. */
#ifndef TESTS_SUPPORT_QUIET_FORKS_H
#define TESTS_SUPPORT_QUIET_FORKS_H

#include <stdbool.h>

/* Returns true as soon as all other threads of the process sleep, and false if some thread has not
 * slept at the same time as the others for `seconds` seconds. With a sanitizer, every fork() calls
 * this before it copies the process, for at most half a second. */
bool quiet_forks_wait(double seconds);

#endif

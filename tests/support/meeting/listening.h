/* listening.h -- at which network addresses a process listens, as the kernel reports it. */
#ifndef TESTS_SUPPORT_MEETING_LISTENING_H
#define TESTS_SUPPORT_MEETING_LISTENING_H

#include "parallel/meeting/network.h"

#include <sys/types.h>

/* Writes the addresses of all TCP sockets on which the process listens: those in /proc/net/tcp and
 * tcp6 whose inodes are among its descriptors. Works for processes of the same network namespace.
 */
void listening(pid_t pid, AddressList *list);

#endif

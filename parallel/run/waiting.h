/* waiting.h -- prints on the console of a machine what its ranks wait for, if that takes long. */
#ifndef PARALLEL_RUN_WAITING_H
#define PARALLEL_RUN_WAITING_H

#include <stdbool.h>

typedef struct Waiting Waiting;

/* Prints "waiting for WHAT" on stderr, with the rank of the calling thread, unless waiting_end is
 * called within ten seconds. Only one rank of a machine should call this, so that the machine's
 * console shows one message. For ranks other than 0 this is an exception: they print nothing else
 * but errors. */
Waiting *waiting_begin(const char *what);
void waiting_end(Waiting *waiting);
/* For tests: sets the delay, in seconds, instead of ten. */
void waiting_set_delay(double seconds);

#endif

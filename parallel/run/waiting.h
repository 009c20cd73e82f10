/* waiting.h -- says on the console of a machine what its ranks wait for, if that takes long. */
#ifndef PARALLEL_RUN_WAITING_H
#define PARALLEL_RUN_WAITING_H

#include <stdbool.h>

typedef struct Waiting Waiting;

/* Prints "waiting for WHAT" on stderr, with the rank of the calling thread, unless waiting_end is
 * called within ten seconds. Ranks other than 0 print nothing else but errors, so this is for what
 * only one rank of a machine says. */
Waiting *waiting_begin(const char *what);
void waiting_end(Waiting *waiting);
/* For tests: how many seconds instead of ten. */
void waiting_set_delay(double seconds);

#endif

/* made_up_machines.h -- lets ranks that are threads or forked processes of a test believe that they
 * are on several machines. */
#ifndef TESTS_SUPPORT_GRID_MADE_UP_MACHINES_H
#define TESTS_SUPPORT_GRID_MADE_UP_MACHINES_H

#include "parallel/grid/machines.h"

/* Calls machines_set for as many ranks as `map` has letters. Each letter is a machine, and its name
 * is "host-" and the letter: in "aabb" two ranks are on host-a and two on host-b. To be called
 * before the ranks start; machines_forget ends it. */
void made_up_machines(const char *map);

#endif

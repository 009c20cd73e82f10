/* made_up_machines.c -- see made_up_machines.h. */
#include "tests/support/grid/made_up_machines.h"

#include "model/core/check.h"

#include <stdio.h>
#include <string.h>

void made_up_machines(const char *map)
{
    enum { MOST = 64 };
    MachineOfRank of[MOST];
    char host[MOST][8];
    int ranks = (int)strlen(map);
    CHECK(ranks <= MOST, "%d ranks", ranks);
    for (int r = 0; r < ranks; r++) {
        snprintf(host[r], sizeof host[r], "host-%c", map[r]);
        of[r] = (MachineOfRank){map[r], host[r]};
    }
    machines_set(ranks, of);
}

/* launch.c -- see launch.h. */
#include "parallel/grid/launch.h"

#include "model/core/check.h"

int launch_ranks(int ranks, const LaunchOptions *options, LaunchBody body, void *context)
{
    (void)options;
    CHECK(ranks == 1, "%d ranks", ranks);
    Comm world = comm_self("world");
    int code = body(&world, context);
    comm_close(&world);
    return code;
}

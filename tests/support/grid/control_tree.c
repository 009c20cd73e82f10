/* control_tree.c -- see control_tree.h. */
#include "tests/support/grid/control_tree.h"

#include "model/core/clock.h"
#include "parallel/comm/socket/world.h"
#include "tests/support/grid/thread_ranks.h"

#include <unistd.h>

/* Returns whether the connections of the star that this rank has are those that the tree keeps. */
static bool stands(SocketWorld *world)
{
    const SocketLinks *links = world->links;
    int rank = world->rank, from = rank ? rank : 1, end = rank ? rank + 1 : world->ranks;
    bool good = true;
    pthread_mutex_lock(&world->service.sends); /* its owner closes them */
    for (int i = from; i < end; i++)
        good = good && (links->star[rank > 0][i] >= 0) == (socket_links_parent(links, i) == 0);
    pthread_mutex_unlock(&world->service.sends);
    return good;
}

void control_tree_wait(Comm *world)
{
    const double longest = 20;
    SocketWorld *own = socket_group(world)->world;
    double end = seconds_now() + longest;
    while (own->links->parent && !stands(own) && seconds_now() < end)
        usleep(1000);
    if (own->links->parent && !stands(own))
        rank_wrong(world, "rank %d: the tree does not stand", world->rank);
}

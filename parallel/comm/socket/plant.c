/* plant.c -- connects the ranks of a large world to their parents in the control tree (relay.h).
 * Until all are connected, each rank reports to rank 0 over its own connection, so the tree is not
 * needed to report a failure during that time. */
#include "parallel/comm/socket/hub.h"
#include "parallel/comm/socket/world.h"

#include <stdlib.h>
#include <string.h>

bool socket_plant_takes(SocketWorld *world, int rank, int fd)
{
    SocketPlant *plant = world->plant;
    for (int k = 0; plant && k < plant->children; k++) {
        if (plant->rank[k] != rank || plant->fd[k] >= 0) continue;
        plant->fd[k] = fd;
        return true;
    }
    return false;
}

/* Finds out which connections of the tree this rank must make. The connections between rank 0 and
 * its children exist already. */
static void prepare(SocketPlant *plant, const SocketLinks *links, int rank)
{
    *plant = (SocketPlant){.parent = {.fd = -1, .control = true}};
    plant->rank = must_calloc((size_t)links->ranks, sizeof *plant->rank);
    plant->fd = must_calloc((size_t)links->ranks, sizeof *plant->fd);
    if (rank > 0) plant->parent.rank = socket_links_parent(links, rank);
    if (plant->parent.rank == 0) plant->parent.gone = true; /* no connection is needed */
    for (int i = rank + 1; rank > 0 && i < links->ranks; i++) {
        if (socket_links_parent(links, i) != rank) continue;
        plant->fd[plant->children] = -1;
        plant->rank[plant->children++] = i;
    }
}

static bool expects_nothing(SocketGroup *group, int member)
{
    (void)group, (void)member;
    return false;
}

void socket_plant(Comm *comm)
{
    SocketGroup *group = socket_group(comm);
    SocketWorld *world = group->world;
    SocketService *service = &world->service;
    Tensor none = {0};
    SocketPlant plant;
    if (world->links->parent == NULL) return;
    SocketFrame call = socket_call(comm, CALL_TREE, NULL, none, REDUCE_SUM, -1);
    call.count = -1;
    group->call = call;
    prepare(&plant, world->links, world->rank);
    world->plant = &plant;
    socket_drive(comm, 0, expects_nothing);
    world->plant = NULL;
    if (world->rank > 0)
        socket_relay_plant(service, plant.parent.fd, plant.children, plant.rank, plant.fd);
    free(plant.rank);
    free(plant.fd);
    /* When all ranks have arrived at this meeting, all connections of the tree exist. The meeting
     * is not counted as one of the program's calls. */
    socket_arrive(comm, call, NULL, 0, false);
    if (world->rank == 0) {
        socket_hub_use_tree(service->hub);
        socket_answer_all(group, NULL, 0);
    }
    socket_part(comm);
    socket_relay_stands(service);
    comm->waited = 0;
}

/* test_nccl_messages.c -- messages and groups of the emulated NCCL, first uses, network interfaces,
 * and the device memory that communicators allocate. */
#include "tests/emu/nccl/nccl_runs.h"

#include <sched.h>

/* ---- messages -------------------------------------------------------------------------------- */

static float word(int from, int to, int i)
{
    return (float)(100 * from + 10 * to + i);
}

/* Every rank sends to every rank, including itself. The number of floats is the sum of the two
 * ranks, which may be 0. */
static void everybody_body(Rank *r)
{
    const Nccl *n = r->nccl;
    float got[WORLD_ROOM];
    rank_open(r);
    for (int round = 0; round < 3; round++) {
        for (int to = 0; to < r->ranks; to++)
            for (int i = 0; i < to + r->rank; i++)
                r->host[16 * to + i] = word(r->rank, to, i) + (float)round;
        OK(cudaMemcpyAsync(r->x, r->host, sizeof got, cudaMemcpyDefault, r->stream));
        OK(n->GroupStart());
        for (int peer = 0; peer < r->ranks; peer++) {
            size_t count = (size_t)(peer + r->rank);
            OK(n->Send(r->x + 16 * peer, count, ncclFloat32, peer, r->comm, r->stream));
            OK(n->Recv(r->y + 16 * peer, count, ncclFloat32, peer, r->comm, r->stream));
        }
        OK(n->GroupEnd());
        OK(cudaMemcpyAsync(got, r->y, sizeof got, cudaMemcpyDefault, r->stream));
        OK(cudaStreamSynchronize(r->stream));
        for (int from = 0; from < r->ranks; from++)
            for (int i = 0; i < 16; i++)
                MUST(got[16 * from + i] ==
                     (i < from + r->rank ? word(from, r->rank, i) + (float)round : 0));
    }
    rank_close(r);
}

static void test_messages_of_any_size_between_all_ranks_arrive_intact(void **state)
{
    (void)state;
    runs_well_in_all_modes(everybody_body, 4);
}

/* Messages between two ranks arrive in order, whichever rank groups its calls. */
static void order_body(Rank *r)
{
    const Nccl *n = r->nccl;
    float got[3];
    rank_open(r);
    for (int i = 0; i < WORLD_ROOM; i++)
        r->host[i] = (float)(10 * r->rank + i);
    OK(cudaMemcpyAsync(r->x, r->host, sizeof got, cudaMemcpyDefault, r->stream));
    for (int round = 0; round < 4; round++) {
        bool sends = r->rank == round % 2, groups = r->rank == round / 2;
        if (groups) OK(n->GroupStart());
        for (int i = 0; i < 3 && sends; i++)
            OK(n->Send(r->x + i, 1, ncclFloat32, 1 - r->rank, r->comm, r->stream));
        for (int i = 0; i < 3 && !sends; i++)
            OK(n->Recv(r->y + i, 1, ncclFloat32, 1 - r->rank, r->comm, r->stream));
        if (groups) OK(n->GroupEnd());
        OK(cudaMemcpyAsync(got, r->y, sizeof got, cudaMemcpyDefault, r->stream));
        OK(cudaStreamSynchronize(r->stream));
        for (int i = 0; i < 3 && !sends; i++)
            MUST(got[i] == (float)(10 * (1 - r->rank) + i));
    }
    rank_close(r);
}

static void test_messages_arrive_in_order_whichever_rank_groups_its_calls(void **state)
{
    (void)state;
    runs_well_in_all_modes(order_body, 2);
}

enum { LARGE = 2000000 };

/* Sends more than socket buffers hold, in both directions at once. */
static void large_body(Rank *r)
{
    const Nccl *n = r->nccl;
    float *x, *y, *host, *got;
    rank_open(r);
    OK(cudaMalloc((void **)&x, LARGE * sizeof *x));
    OK(cudaMalloc((void **)&y, LARGE * sizeof *y));
    OK(cudaMallocHost((void **)&host, LARGE * sizeof *host));
    OK(cudaMallocHost((void **)&got, LARGE * sizeof *got));
    for (int i = 0; i < LARGE; i++)
        host[i] = (float)(i + r->rank);
    OK(cudaMemcpyAsync(x, host, LARGE * sizeof *x, cudaMemcpyDefault, r->stream));
    OK(n->GroupStart());
    OK(n->Send(x, LARGE, ncclFloat32, 1 - r->rank, r->comm, r->stream));
    OK(n->Recv(y, LARGE, ncclFloat32, 1 - r->rank, r->comm, r->stream));
    OK(n->GroupEnd());
    OK(cudaMemcpyAsync(got, y, LARGE * sizeof *x, cudaMemcpyDefault, r->stream));
    OK(cudaStreamSynchronize(r->stream));
    for (int i = 0; i < LARGE; i++)
        MUST(got[i] == (float)(i + 1 - r->rank));
    OK(cudaFree(x));
    OK(cudaFree(y));
    OK(cudaFreeHost(host));
    OK(cudaFreeHost(got));
    rank_close(r);
}

static void test_messages_larger_than_socket_buffers_pass_both_ways_at_once(void **state)
{
    (void)state;
    char text[4096];
    runs_well(large_body, 2, "EMU_STREAMS=deferred", text, sizeof text);
}

/* ---- groups ---------------------------------------------------------------------------------- */

/* One group with two streams, two communicators, collectives and messages, and a nested group. */
static void group_calls(Rank *r, ncclComm_t pair)
{
    const Nccl *n = r->nccl;
    int next = (r->rank + 1) % r->ranks, before = (r->rank + r->ranks - 1) % r->ranks;
    OK(n->GroupStart());
    OK(n->Send(r->x, 1, ncclFloat32, next, r->comm, r->stream));
    OK(n->AllReduce(r->x, r->y, 1, ncclFloat32, ncclSum, r->comm, r->side));
    OK(n->GroupStart());
    OK(n->AllReduce(r->x, r->y + 1, 1, ncclFloat32, ncclSum, pair, r->stream));
    OK(n->AllGather(r->x, r->y + 2, 1, ncclFloat32, r->comm, r->stream));
    OK(n->GroupEnd());
    OK(n->Recv(r->y + 6, 1, ncclFloat32, before, r->comm, r->stream));
    OK(n->GroupEnd());
}

/* Checks the results of group_calls, round after round. */
static void group_body(Rank *r)
{
    const Nccl *n = r->nccl;
    float got[7];
    rank_open(r);
    rank_ids(r, 2);
    ncclComm_t pair = rank_join(r, r->rank / 2, 2, r->rank % 2);
    for (int round = 0; round < 5; round++) {
        OK(cudaMemset(r->y, 0, sizeof got));
        OK(cudaDeviceSynchronize());
        group_calls(r, pair);
        rank_wait(r);
        OK(cudaMemcpy(got, r->y, sizeof got, cudaMemcpyDeviceToHost));
        MUST(got[0] == 10 && got[1] == (r->rank < 2 ? 3 : 7));
        for (int i = 0; i < 4; i++)
            MUST(got[2 + i] == (float)(i + 1));
        MUST(got[6] == (float)((r->rank + 3) % 4 + 1));
    }
    OK(n->CommDestroy(pair));
    rank_close(r);
}

/* Synchronizes only one stream. Calls of a communicator run in order on whichever streams. A group
 * starts after all earlier work on its streams, and later work on them waits for the group. */
static void streams_body(Rank *r)
{
    const Nccl *n = r->nccl;
    float got;
    rank_open(r);
    rank_warm(r, r->comm, r->stream);
    OK(n->AllReduce(r->x, r->y, 1, ncclFloat32, ncclSum, r->comm, r->stream));
    OK(n->AllReduce(r->y, r->y + 1, 1, ncclFloat32, ncclSum, r->comm, r->side));
    OK(cudaMemcpyAsync(&got, r->y + 1, sizeof got, cudaMemcpyDefault, r->side));
    OK(cudaStreamSynchronize(r->side));
    MUST(got == 6);
    for (int round = 1; round <= 2; round++) {
        cudaStream_t first = round == 1 ? r->side : r->stream;
        cudaStream_t last = round == 1 ? r->stream : r->side;
        r->host[0] = (float)(10 * round);
        OK(cudaMemcpyAsync(r->x + 1, r->host, sizeof got, cudaMemcpyDefault, first));
        OK(n->GroupStart());
        OK(n->AllReduce(r->x + 1, r->y + 2, 1, ncclFloat32, ncclSum, r->comm, r->stream));
        OK(n->AllReduce(r->x, r->y + 3, 1, ncclFloat32, ncclSum, r->comm, r->side));
        OK(n->GroupEnd());
        OK(cudaMemcpyAsync(&got, r->y + 2, sizeof got, cudaMemcpyDefault, last));
        MUST(got == (float)(20 * round));
    }
    rank_close(r);
}

static void test_a_group_over_streams_and_communicators_keeps_stream_order(void **state)
{
    (void)state;
    runs_well_in_all_modes(group_body, 4);
    runs_well_in_all_modes(streams_body, 2);
}

/* Passes an invalid root, which must be refused. */
static void refused_body(Rank *r)
{
    const Nccl *n = r->nccl;
    rank_open(r);
    MUST(n->Broadcast(r->x, r->y, 1, ncclFloat32, 4, r->comm, r->stream) == ncclInvalidArgument);
    MUST(strstr(n->GetLastError(r->comm), "Broadcast : invalid root 4") != NULL);
    _exit(0); /* nothing more is allowed after an error */
}

static void test_a_broadcast_with_an_invalid_root_is_refused(void **state)
{
    (void)state;
    char text[4096];
    runs_well(refused_body, 1, "", text, sizeof text);
}

/* ---- first uses ------------------------------------------------------------------------------ */

enum { MUCH = 1025 /* floats: more than 4 KiB */ };

/* After a sum of little data, the first sum of much data waits for the peer's host. The second one
 * does not: rank 0 has returned from it and sets the mark before rank 1 makes its call. */
static void much_body(Rank *r)
{
    float *x;
    rank_open(r);
    rank_warm(r, r->comm, r->stream);
    OK(cudaMalloc((void **)&x, MUCH * sizeof *x));
    if (r->rank == 1) {
        MUST(!mark_comes(r->world, 50)); /* without the wait, rank 0 would have returned long ago */
        atomic_store(&r->world->mark, 1);
    }
    OK(r->nccl->AllReduce(x, x, MUCH, ncclFloat32, ncclSum, r->comm, r->stream));
    MUST(atomic_load(&r->world->mark) == 1);
    rank_meet(r);
    while (r->rank == 1 && atomic_load(&r->world->mark) != 2)
        sched_yield();
    OK(r->nccl->AllReduce(x, x, MUCH, ncclFloat32, ncclSum, r->comm, r->stream));
    if (r->rank == 0) atomic_store(&r->world->mark, 2);
    rank_wait(r);
    OK(cudaFree(x));
    rank_close(r);
}

static void test_the_first_large_all_reduce_waits_for_the_peers_host(void **state)
{
    (void)state;
    char text[4096];
    runs_well(much_body, 2, "EMU_STREAMS=deferred", text, sizeof text);
}

/* ---- interfaces and memory ------------------------------------------------------------------- */

static void sum_body(Rank *r)
{
    float got;
    int ranks, rank;
    rank_open(r);
    OK(r->nccl->CommCount(r->comm, &ranks));
    OK(r->nccl->CommUserRank(r->comm, &rank));
    MUST(ranks == r->ranks && rank == r->rank);
    OK(r->nccl->AllReduce(r->x, r->y, 1, ncclFloat32, ncclSum, r->comm, r->stream));
    OK(cudaMemcpyAsync(&got, r->y, sizeof got, cudaMemcpyDefault, r->stream));
    OK(cudaStreamSynchronize(r->stream));
    MUST(got == 3);
    rank_close(r);
}

static void no_interface(void *context)
{
    Nccl nccl;
    ncclUniqueId id;
    const char *missing;
    (void)context;
    setenv("NCCL_SOCKET_IFNAME", "nosuch", 1);
    MUST(nccl_load(&nccl, "libnccl.so.2", &missing));
    MUST(nccl.GetUniqueId(&id) == ncclInvalidUsage);
    MUST(strcmp(nccl.GetLastError(NULL), "Bootstrap : no socket interface found") == 0);
}

static bool has_ipv6(void)
{
    char line[256];
    bool found = false;
    FILE *f = fopen("/proc/net/if_inet6", "r");
    while (f != NULL && fgets(line, sizeof line, f) != NULL)
        found = found || strstr(line, " lo\n") != NULL;
    if (f != NULL) fclose(f);
    return found;
}

static void test_communicators_use_the_interface_of_nccl_socket_ifname(void **state)
{
    (void)state;
    char text[4096];
    runs_well(sum_body, 2, "NCCL_SOCKET_IFNAME==lo", text, sizeof text);
    runs_well(sum_body, 2, "NCCL_SOCKET_IFNAME=nosuch,l", text, sizeof text);
    if (has_ipv6())
        runs_well(sum_body, 2, "NCCL_SOCKET_IFNAME=lo NCCL_SOCKET_FAMILY=AF_INET6", text,
                  sizeof text);
    if (child_run(no_interface, NULL, text, sizeof text) != 0) fail_msg("%s", text);
}

/* Each communicator must allocate the requested device memory and free it when it is destroyed. */
static void reserve_body(Rank *r)
{
    size_t before, after, all;
    rank_open(r);
    rank_meet(r);
    OK(cudaMemGetInfo(&before, &all));
    rank_meet(r);
    OK(r->nccl->CommDestroy(r->other));
    r->other = NULL;
    rank_meet(r);
    OK(cudaMemGetInfo(&after, &all));
    MUST(after == before + (3 << 20));
    rank_meet(r);
    rank_close(r);
}

static void test_a_communicator_holds_the_requested_memory_until_destroyed(void **state)
{
    (void)state;
    char text[4096];
    runs_well(reserve_body, 2, "EMU_NCCL_RESERVE=3145728", text, sizeof text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_messages_of_any_size_between_all_ranks_arrive_intact),
        cmocka_unit_test(test_messages_arrive_in_order_whichever_rank_groups_its_calls),
        cmocka_unit_test(test_messages_larger_than_socket_buffers_pass_both_ways_at_once),
        cmocka_unit_test(test_a_group_over_streams_and_communicators_keeps_stream_order),
        cmocka_unit_test(test_a_broadcast_with_an_invalid_root_is_refused),
        cmocka_unit_test(test_the_first_large_all_reduce_waits_for_the_peers_host),
        cmocka_unit_test(test_communicators_use_the_interface_of_nccl_socket_ifname),
        cmocka_unit_test(test_a_communicator_holds_the_requested_memory_until_destroyed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

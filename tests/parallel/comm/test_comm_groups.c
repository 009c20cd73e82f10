/* test_comm_groups.c -- messages between thread ranks, single and in groups; groups made by splits;
 * and the counts of calls, elements and bytes. */
#include "model/core/check.h"
#include "model/core/clock.h"
#include "parallel/comm/rank_runs.h"
#include "tests/support/grid/thread_ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static void each_world(int first, int last, RankBody body)
{
    for (int ranks = first; ranks <= last; ranks++)
        thread_ranks(ranks, 60, body, NULL);
}

static Tensor numbers(int64_t *x, int64_t n)
{
    return tensor_1d(x, I64, n);
}

static void expect(const Comm *comm, const char *what, int64_t got, int64_t expected)
{
    if (got != expected)
        rank_wrong(comm, "%s: %lld, not %lld", what, (long long)got, (long long)expected);
}

/* ---- messages -------------------------------------------------------------------------------- */

/* Returns a number that identifies the sender, the receiver and the message between them. */
static int64_t letter(int from, int to, int i)
{
    return 10000 * (from + 1) + 100 * (to + 1) + i;
}

/* Without groups: a message goes along the chain of ranks and back, and each rank increments it. */
static void run_chain(Comm *world, void *context)
{
    (void)context;
    int64_t x = 5;
    if (world->rank > 0) comm_receive(world, NULL, numbers(&x, 1), world->rank - 1);
    x++;
    if (world->rank + 1 < world->size) {
        comm_send(world, NULL, numbers(&x, 1), world->rank + 1);
        comm_receive(world, NULL, numbers(&x, 1), world->rank + 1);
    }
    expect(world, "what came back", x, 5 + world->size);
    if (world->rank > 0) comm_send(world, NULL, numbers(&x, 1), world->rank - 1);
}

static void test_single_messages_travel_along_a_chain_and_back(void **state)
{
    (void)state;
    each_world(2, 5, run_chain);
}

enum { EACH = 3 };

/* Every rank sends EACH messages to every other rank. The order of calls differs from rank to rank:
 * sends first, receives first or mixed, with ascending or descending peers. Messages of a pair must
 * match in the order of their calls. */
static void run_crowd(Comm *world, void *context)
{
    (void)context;
    for (int order = 0; order < 6; order++) {
        int64_t out[8][EACH], in[8][EACH] = {{0}};
        int kind = (order + world->rank) % 3, down = (order + world->rank) % 2;
        comm_group_begin(world);
        for (int step = 0; step < 2 * EACH * world->size; step++) {
            int half = step / (EACH * world->size), at = step % (EACH * world->size);
            int i = at / world->size, p = at % world->size;
            int peer = down ? world->size - 1 - p : p;
            bool sends = kind == 0 ? half == 0 : kind == 1 ? half == 1 : (p + half) % 2 == 0;
            if (peer == world->rank) continue;
            out[peer][i] = letter(world->rank, peer, i);
            if (sends)
                comm_send(world, NULL, numbers(&out[peer][i], 1), peer);
            else
                comm_receive(world, NULL, numbers(&in[peer][i], 1), peer);
        }
        comm_group_end(world);
        for (int peer = 0; peer < world->size; peer++)
            for (int i = 0; i < EACH && peer != world->rank; i++)
                expect(world, "message in a crowd", in[peer][i], letter(peer, world->rank, i));
    }
}

static void test_messages_of_a_group_match_whatever_the_order_of_calls(void **state)
{
    (void)state;
    each_world(2, 6, run_crowd);
}

/* Messages of different sizes, one of them empty, go around the ring in both directions at once. */
static void run_ring(Comm *world, void *context)
{
    (void)context;
    enum { MOST = 900 };
    static _Thread_local int64_t up[MOST], down[MOST], from_below[MOST], from_above[MOST];
    int above = (world->rank + 1) % world->size,
        below = (world->rank + world->size - 1) % world->size;
    for (int64_t n = 0; n <= MOST; n = 3 * n + 1) {
        for (int64_t i = 0; i < n; i++) {
            up[i] = letter(world->rank, above, (int)i);
            down[i] = letter(world->rank, below, (int)i);
        }
        comm_group_begin(world);
        comm_receive(world, NULL, numbers(from_below, n), below);
        comm_send(world, NULL, numbers(up, n), above);
        /* With two ranks both neighbours are the same peer, and only the order tells the messages
         * apart. */
        comm_receive(world, NULL, numbers(from_above, n), above);
        comm_send(world, NULL, numbers(down, n), below);
        comm_group_end(world);
        for (int64_t i = 0; i < n; i++) {
            expect(world, "from below", from_below[i], letter(below, world->rank, (int)i));
            expect(world, "from above", from_above[i], letter(above, world->rank, (int)i));
        }
    }
}

static void test_messages_pass_around_a_ring_in_both_directions_at_once(void **state)
{
    (void)state;
    each_world(2, 5, run_ring);
}

/* A receive outside a group takes a message that was sent in a group, and the other way round. */
static void run_mixed(Comm *world, void *context)
{
    (void)context;
    int64_t x[2] = {3, 4}, y[2] = {0, 0};
    if (world->rank == 0) {
        comm_group_begin(world);
        comm_send(world, NULL, numbers(&x[0], 1), 1);
        comm_send(world, NULL, numbers(&x[1], 1), 1);
        comm_group_end(world);
        comm_send(world, NULL, numbers(x, 2), 1);
        return;
    }
    comm_receive(world, NULL, numbers(&y[0], 1), 0);
    comm_receive(world, NULL, numbers(&y[1], 1), 0);
    expect(world, "the first of a group", y[0], 3);
    expect(world, "the second of a group", y[1], 4);
    comm_group_begin(world);
    comm_receive(world, NULL, numbers(y, 2), 0);
    comm_group_end(world);
}

static void test_a_single_receive_takes_a_send_from_a_group_and_vice_versa(void **state)
{
    (void)state;
    each_world(2, 2, run_mixed);
}

/* ---- splits ---------------------------------------------------------------------------------- */

/* Checks that the group consists of these ranks in this order, by gathering their numbers. */
static void expect_members(Comm *comm, const Comm *world, int me, const int *member, int n)
{
    int64_t mine = me, all[8] = {0};
    expect(world, "size of a group", comm->size, n);
    if (comm->size != n) return;
    comm_all_gather(comm, NULL, numbers(all, n), numbers(&mine, 1));
    for (int i = 0; i < n; i++)
        expect(world, "member of a group", all[i], member[i]);
    expect(world, "place in a group", member[comm->rank], me);
}

/* `colors` has two bits per rank, so each rank gets one of four colors. The keys ascend, descend or
 * are equal. */
static void run_splits(Comm *world, void *context)
{
    (void)context;
    for (int colors = 0; colors<1 << (2 * world->size); colors += world->size> 3 ? 37 : 3) {
        int color = colors >> (2 * world->rank) & 3, key = colors % 3 - 1;
        int member[8], n = 0;
        for (int i = 0; i < world->size; i++) {
            int r = key < 0 ? world->size - 1 - i : i;
            if ((colors >> (2 * r) & 3) == color) member[n++] = r;
        }
        Comm part = comm_split(world, "part", color - 2, key * world->rank);
        if (strcmp(part.name, "part") != 0) rank_wrong(world, "a group is called %s", part.name);
        const char *kind = n == 1 ? "self" : ranks_are_processes() ? "socket" : "local";
        if (strcmp(part.ops->name, kind) != 0)
            rank_wrong(world, "a group of %d is %s", n, part.ops->name);
        expect_members(&part, world, world->rank, member, n);
        comm_close(&part);
    }
}

static void test_a_split_groups_ranks_by_color_and_orders_them_by_key(void **state)
{
    (void)state;
    each_world(1, 4, run_splits);
}

/* A cube of 8 ranks is split into planes and the planes into lines. All groups are open at once,
 * and calls in one must not disturb another. */
static void run_nested(Comm *world, void *context)
{
    (void)context;
    int r = world->rank, x = r & 1, y = r >> 1 & 1, z = r >> 2;
    Comm plane = comm_split(world, "plane", z, r), line = comm_split(&plane, "line", y, -x);
    Comm column = comm_split(world, "column", 2 * y + x, z);
    expect_members(&plane, world, r, (int[]){4 * z, 4 * z + 1, 4 * z + 2, 4 * z + 3}, 4);
    expect_members(&line, world, r, (int[]){4 * z + 2 * y + 1, 4 * z + 2 * y}, 2);
    expect_members(&column, world, r, (int[]){2 * y + x, 4 + 2 * y + x}, 2);
    /* After sums along all three axes every rank has the sum over all ranks. */
    int64_t sum = 1 << r;
    comm_all_reduce(&line, NULL, numbers(&sum, 1), REDUCE_SUM);
    Comm across = comm_split(&plane, "across", x, y);
    comm_all_reduce(&across, NULL, numbers(&sum, 1), REDUCE_SUM);
    comm_all_reduce(&column, NULL, numbers(&sum, 1), REDUCE_SUM);
    expect(world, "sum over three axes", sum, 255);
    comm_close(&column);
    comm_close(&across);
    comm_close(&line);
    comm_close(&plane);
}

static void test_groups_split_from_groups_do_not_disturb_each_other(void **state)
{
    (void)state;
    each_world(8, 8, run_nested);
}

/* No rank may pass a barrier before all ranks have reached it. */
static void run_barriers(Comm *world, void *context)
{
    _Atomic int *came = context;
    for (int i = 1; i <= 20; i++) {
        ++*came;
        comm_barrier(world);
        expect(world, "ranks at the barrier", *came >= i * world->size, 1);
        comm_barrier(world);
    }
}

static void test_a_barrier_returns_only_when_all_ranks_have_reached_it(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 5; ranks++) {
        _Atomic int *came = shared_memory(sizeof *came);
        thread_ranks(ranks, 60, run_barriers, came);
    }
}

/* The ranks of a group ascend, descend or are unevenly spaced. `most` 6 forces an all-gather. */
static void run_lists(Comm *world, void *context)
{
    (void)context;
    static const int key[][6] = {{0, 1, 2, 3, 4, 5}, {5, 4, 3, 2, 1, 0}, {0, 2, 1, 5, 4, 3}};
    for (int k = 0; k < 3; k++)
        for (int colors = 1; colors <= 3; colors++)
            for (int most = 0; most <= 6; most += 6) {
                int r = world->rank, listed[6], gathered[6];
                Comm part = comm_split(world, "part", r % colors, key[k][r]);
                rank_runs_gather(&part, r, most, listed);
                rank_runs_gather(&part, r, part.size, gathered);
                for (int i = 0; i < part.size; i++) {
                    int32_t member = r;
                    comm_broadcast(&part, NULL, tensor_1d(&member, I32, 1), i);
                    expect(&part, "listed member", listed[i], member);
                    expect(&part, "gathered member", gathered[i], member);
                }
                expect(&part, "counted", comm_counts(&part)->of[COMM_ALL_GATHER][I32].calls, 0);
                comm_close(&part);
            }
}

static void test_members_of_a_group_list_their_world_ranks(void **state)
{
    (void)state;
    thread_ranks(6, 60, run_lists, NULL);
}

/* 64 ranks on however many cores the machine has. */
static void run_many(Comm *world, void *context)
{
    (void)context;
    for (int i = 0; i < 10; i++) {
        int64_t sum = world->rank;
        comm_all_reduce(world, NULL, numbers(&sum, 1), REDUCE_SUM);
        expect(world, "sum of 64", sum, 63 * 64 / 2);
    }
}

static void test_all_reduce_works_with_the_maximum_number_of_ranks(void **state)
{
    (void)state;
    each_world(LOCAL_MAX_RANKS, LOCAL_MAX_RANKS, run_many);
}

/* ---- counts ---------------------------------------------------------------------------------- */

static void expect_count(const Comm *comm, CommVerb verb, DType dtype, CommCount exact)
{
    CommCount got = comm_counts(comm)->of[verb][dtype];
    if (memcmp(&got, &exact, sizeof got) != 0)
        rank_wrong(comm, "%s of %s: %lld calls, %lld elements, %lld bytes, not %lld, %lld, %lld",
                   comm_verb_name[verb], dtype_name(dtype), (long long)got.calls,
                   (long long)got.elements, (long long)got.bytes, (long long)exact.calls,
                   (long long)exact.elements, (long long)exact.bytes);
}

static void run_counted(Comm *world, void *context)
{
    (void)context;
    int64_t x[12] = {0}, y[12] = {0};
    int32_t small[6] = {0};
    Comm part = comm_split(world, "part", 0, world->rank);
    comm_all_reduce(world, NULL, numbers(x, 5), REDUCE_SUM);
    comm_all_reduce(world, NULL, numbers(x, 7), REDUCE_MAX);
    comm_all_reduce(world, NULL, tensor_1d(small, I32, 3), REDUCE_SUM);
    comm_all_reduce(&part, NULL, numbers(x, 1), REDUCE_SUM);
    comm_reduce_scatter(world, NULL, numbers(y, 6), numbers(x, 12));
    comm_all_gather(world, NULL, numbers(x, 8), numbers(y, 4));
    comm_broadcast(world, NULL, numbers(x, 2), 1);
    comm_group_begin(world);
    comm_send(world, NULL, numbers(x, 9), 1 - world->rank);
    comm_receive(world, NULL, numbers(y, 9), 1 - world->rank);
    comm_group_end(world);
    expect_count(world, COMM_ALL_REDUCE, I64, (CommCount){2, 12, 96});
    expect_count(world, COMM_ALL_REDUCE, I32, (CommCount){1, 3, 12});
    expect_count(world, COMM_REDUCE_SCATTER, I64, (CommCount){1, 12, 96});
    expect_count(world, COMM_ALL_GATHER, I64, (CommCount){1, 8, 64});
    expect_count(world, COMM_BROADCAST, I64, (CommCount){1, 2, 16});
    expect_count(world, COMM_SEND, I64, (CommCount){1, 9, 72});
    expect_count(world, COMM_RECEIVE, I64, (CommCount){1, 9, 72});
    expect_count(world, COMM_ALL_REDUCE, F32, (CommCount){0, 0, 0});
    expect_count(&part, COMM_ALL_REDUCE, I64, (CommCount){1, 1, 8});
    expect_count(&part, COMM_ALL_GATHER, I64, (CommCount){0, 0, 0});
    comm_close(&part);
}

static void test_every_call_is_counted_for_its_group_and_dtype(void **state)
{
    (void)state;
    each_world(2, 2, run_counted);
}

/* Returns how many seconds a group of two messages adds to the counter when group_end carries it
 * out, and stores the duration of group_end in *took. */
static double seconds_of_group(Comm *world, Device *on, double *took)
{
    int64_t x[2] = {0}, y[2] = {0};
    comm_group_begin(world);
    comm_send(world, on, numbers(x, 2), 1 - world->rank);
    comm_receive(world, on, numbers(y, 2), 1 - world->rank);
    double before = comm_counts(world)->seconds, start = seconds_now();
    comm_group_end(world);
    *took = seconds_now() - start;
    return comm_counts(world)->seconds - before;
}

static void run_timed(Comm *world, void *context)
{
    Device dev;
    DeviceOptions options = {.threads = 1, .local_ranks = 2, .blas = BLAS_BUILTIN};
    char err[256];
    double took, seconds;
    Comm all = comm_split(world, "all", 0, world->rank);
    (void)context;
    CHECK(device_open(&dev, "cpu", &options, err, sizeof err), "%s", err);
    for (int i = 0; i < 3; i++) { /* on the host, on the device, and on the host again */
        seconds = seconds_of_group(&all, i == 1 ? &dev : NULL, &took);
        if (i != 1) expect(world, "a group of the host's takes no time", seconds == 0, 1);
        if (i == 1) expect(world, "a group takes time", seconds > 0 && seconds <= took, 1);
    }
    comm_close(&all);
    device_close(&dev);
}

static void test_group_end_counts_the_time_of_device_messages_but_not_of_host_ones(void **state)
{
    (void)state;
    each_world(2, 2, run_timed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_single_messages_travel_along_a_chain_and_back),
        cmocka_unit_test(test_messages_of_a_group_match_whatever_the_order_of_calls),
        cmocka_unit_test(test_messages_pass_around_a_ring_in_both_directions_at_once),
        cmocka_unit_test(test_a_single_receive_takes_a_send_from_a_group_and_vice_versa),
        cmocka_unit_test(test_a_split_groups_ranks_by_color_and_orders_them_by_key),
        cmocka_unit_test(test_groups_split_from_groups_do_not_disturb_each_other),
        cmocka_unit_test(test_a_barrier_returns_only_when_all_ranks_have_reached_it),
        cmocka_unit_test(test_all_reduce_works_with_the_maximum_number_of_ranks),
        cmocka_unit_test(test_members_of_a_group_list_their_world_ranks),
        cmocka_unit_test(test_every_call_is_counted_for_its_group_and_dtype),
        cmocka_unit_test(test_group_end_counts_the_time_of_device_messages_but_not_of_host_ones),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test_socket_tree.c -- meetings of large groups of process ranks over a tree: which member is
 * whose child, how much each process sends and receives, and how the program ends. The tests of
 * this folder run with TEST_FAN_OUT=2, too, and their results are the same. */
#include "model/core/check.h"
#include "parallel/comm/socket/tree.h"
#include "parallel/comm/socket/world.h"
#include "tests/support/grid/process_ends.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- places ---------------------------------------------------------------------------------- */

/* Checks a member's place against its children's. Returns its level. */
static int check_place(int size, int member, int fan_out)
{
    TreePlace at = socket_tree_place(size, member);
    int next = member + 1, level = 0;
    assert_true(at.member == member && at.end > member && at.end <= size);
    assert_true(at.children >= 0 && at.children <= fan_out);
    assert_int_equal(at.parent < 0, member == 0);
    if (member == 0) assert_int_equal(at.end, size);
    for (int k = 0; k < at.children; k++) {
        int child = socket_tree_child(&at, k), range = socket_tree_child_range(&at, k);
        TreePlace of = socket_tree_place(size, child);
        assert_true(child == next && range > 0);
        assert_true(of.parent == member && of.end == child + range);
        assert_int_equal(socket_tree_which_child(&at, child), k);
        next = child + range;
        if (range > 1)
            assert_int_equal(socket_tree_which_child(&at, child + 1), -1 + (at.width == 1));
    }
    assert_int_equal(next, at.end);
    assert_int_equal(socket_tree_which_child(&at, member), -1);
    if (at.end < size) assert_int_equal(socket_tree_which_child(&at, at.end), -1);
    for (int up = at.parent; up >= 0; up = socket_tree_place(size, up).parent) {
        assert_true(up < member);
        level++;
    }
    return level;
}

static void test_the_ranges_of_a_members_children_cover_all_members_below_it(void **state)
{
    const int fan_outs[] = {1, 2, 3, 7, 64}, sizes[] = {1000, 4161, 10000, 65535, 65536};
    (void)state;
    for (int f = 0; f < 5; f++) {
        socket_tree_set_fan_out(fan_outs[f]);
        for (int size = 1; size <= 130; size++)
            for (int member = 0; member < size; member++)
                check_place(size, member, fan_outs[f]);
        for (int i = 0; i < 5 && fan_outs[f] > 1; i++)
            for (int member = 0; member < sizes[i]; member += 1 + member / 50)
                check_place(sizes[i], member, fan_outs[f]);
    }
    socket_tree_set_fan_out(0);
}

static void test_small_groups_use_a_star_around_member_0(void **state)
{
    (void)state;
    for (int size = 1; size <= TREE_FAN_OUT + 1; size++) {
        assert_false(socket_tree_is_deep(size));
        assert_int_equal(socket_tree_place(size, 0).children, size - 1);
        for (int member = 1; member < size; member++)
            assert_int_equal(socket_tree_place(size, member).parent, 0);
    }
    assert_true(socket_tree_is_deep(TREE_FAN_OUT + 2));
}

/* Counts the connections, messages and bytes of a meeting to which each member contributes EACH
 * bytes. */
static void test_connections_and_messages_of_a_process_in_a_tree_are_bounded(void **state)
{
    enum { EACH = 16 };
    const struct {
        int size, levels;
    } worlds[] = {{500, 2}, {10000, 3}, {65536, 3}};
    (void)state;
    for (int w = 0; w < 3; w++) {
        int size = worlds[w].size, connections = 0, levels = 0;
        int64_t messages = 0, received = 0;
        for (int member = 0; member < size; member++) {
            TreePlace at = socket_tree_place(size, member);
            int level = 0, own = at.children + (at.parent >= 0);
            for (int up = at.parent; up >= 0; up = socket_tree_place(size, up).parent)
                level++;
            if (own > connections) connections = own;
            if (level > levels) levels = level;
            messages += at.children;
            if ((int64_t)(at.end - member - 1) * EACH > received)
                received = (int64_t)(at.end - member - 1) * EACH;
        }
        assert_true(connections <= TREE_FAN_OUT + 1);
        assert_int_equal(levels, worlds[w].levels); /* rounds up; there are as many rounds down */
        assert_int_equal(messages, size - 1);       /* messages up; there are as many down */
        assert_true(received <= LARGE_MEETING_BYTES);
    }
}

/* ---- control packets ------------------------------------------------------------------------- */

/* Returns how many children of the rank lead other machines than its own. */
static int other_machines(const int *parent, const int *machine, int ranks, int rank)
{
    int n = 0;
    for (int r = 0; r < ranks; r++)
        n += parent[r] == rank && machine[r] != machine[rank];
    return n;
}

/* Checks a rank's place in the control tree, and the path from the rank up to rank 0. Returns its
 * level. */
static int check_way(const int *parent, const int *machine, int rank)
{
    int level = 0, lowest = 0;
    while (machine[lowest] != machine[rank])
        lowest++;
    if (lowest < rank) assert_int_equal(parent[rank], lowest);
    for (int at = rank; at > 0; at = parent[at], level++) {
        assert_true(parent[at] >= 0 && parent[at] < at);
        assert_int_equal(socket_tree_towards(parent, parent[at], rank), at);
        assert_int_equal(socket_tree_towards(parent, at, parent[at]), -1);
    }
    assert_int_equal(socket_tree_towards(parent, rank, rank), -1);
    return level;
}

/* Makes a world of several machines with random numbers, over which the ranks are distributed at
 * random. Returns the number of machines. */
static int random_machines(unsigned *seed, int ranks, int *machine)
{
    int machines = 1 + rand_r(seed) % ranks, shift = rand_r(seed) % ranks, count = 0;
    bool in_blocks = rand_r(seed) % 2;
    bool *used = must_calloc((size_t)ranks, sizeof *used);
    for (int r = 0; r < ranks; r++) {
        int m = in_blocks ? (int)((int64_t)r * machines / ranks) : rand_r(seed) % machines;
        machine[r] = (m + shift) % ranks;
        count += !used[machine[r]];
        used[machine[r]] = true;
    }
    free(used);
    return count;
}

static void test_the_control_tree_connects_all_ranks_however_machines_are_numbered(void **state)
{
    enum { MOST = 300 };
    const int fan_outs[] = {1, 2, 3, 8, 64};
    int machine[MOST], parent[MOST];
    unsigned seed = 1;
    (void)state;
    for (int time = 0; time < 500; time++) {
        int fan_out = fan_outs[time % 5], ranks = 1 + rand_r(&seed) % MOST;
        int machines = random_machines(&seed, ranks, machine), levels = 0, deepest = 1;
        socket_tree_set_fan_out(fan_out);
        bool deep = socket_tree_parents(ranks, machine, parent);
        assert_int_equal(deep, machines > fan_out);
        assert_int_equal(parent[0], -1);
        for (int r = 1; r < ranks && !deep; r++)
            assert_int_equal(parent[r], 0);
        for (int r = 0; r < ranks && deep; r++) {
            int level = check_way(parent, machine, r);
            levels = level > levels ? level : levels;
            assert_true(other_machines(parent, machine, ranks, r) <= fan_out);
        }
        for (int m = machines - 1; m > 0; m = (m - 1) / fan_out)
            deepest++;
        assert_true(levels <= deepest);
    }
    socket_tree_set_fan_out(0);
}

static void test_the_control_tree_of_65536_ranks_has_at_most_4_levels(void **state)
{
    const struct {
        int on_each, levels; /* on_each: ranks on each machine; levels: levels between rank 0 and
                              * the farthest rank */
    } worlds[] = {{1, 3}, {8, 4}, {128, 3}, {1024, 1}};
    int *machine = must_calloc(COMM_MAX_RANKS, 2 * sizeof *machine),
        *parent = machine + COMM_MAX_RANKS;
    (void)state;
    for (int w = 0; w < 4; w++) {
        int levels = 0, of_rank_0 = 0;
        for (int r = 0; r < COMM_MAX_RANKS; r++)
            machine[r] = r / worlds[w].on_each;
        socket_tree_parents(COMM_MAX_RANKS, machine, parent);
        for (int r = 1; r < COMM_MAX_RANKS; r++) {
            int level = 0;
            for (int at = r; at > 0; at = parent[at])
                level++;
            levels = level > levels ? level : levels;
            of_rank_0 += parent[r] == 0;
        }
        assert_int_equal(levels, worlds[w].levels);
        if (levels > 1) assert_int_equal(of_rank_0, TREE_FAN_OUT + worlds[w].on_each - 1);
    }
    free(machine);
}

/* ---- ends ------------------------------------------------------------------------------------ */

/* Of seven ranks, 1 and 4 are children of rank 0, 2 and 3 of rank 1, 5 and 6 of rank 4. */
enum { RANKS = 7, FAN_OUT = 2 };

static int64_t x[8];

/* Sums a number over all ranks. The ranks in the bit set `odd` wrongly sum two numbers. */
static void sum(Comm *world, unsigned odd)
{
    comm_barrier(world);
    comm_all_reduce(world, NULL, tensor_1d(x, I64, 1 + (odd >> world->rank & 1)), REDUCE_SUM);
}

static void rank_2_is_odd(Comm *world, void *context)
{
    (void)context;
    sum(world, 1u << 2);
}

static void ranks_5_and_6_are_odd(Comm *world, void *context)
{
    (void)context;
    sum(world, 1u << 5 | 1u << 6);
}

static void ranks_3_and_4_are_odd(Comm *world, void *context)
{
    (void)context;
    sum(world, 1u << 3 | 1u << 4);
}

static void rank_4_and_one_below_are_odd(Comm *world, void *context)
{
    (void)context;
    sum(world, 1u << 4 | 1u << 6);
}

static void only_rank_0_is_odd(Comm *world, void *context)
{
    (void)context;
    sum(world, 1u);
}

static void roots_differ(Comm *world, void *context)
{
    (void)context;
    comm_broadcast(world, NULL, tensor_1d(x, I64, 1), world->rank == 6 ? 6 : 2);
}

/* A barrier in which rank 1 waits `seconds` before it forwards the answer to the ranks below it. */
static void barrier_with_delay(Comm *comm, double seconds)
{
    Tensor none = {0};
    comm_barrier(comm); /* now rank 1 is connected with its parent */
    if (comm->rank != 1) {
        comm_barrier(comm);
        return;
    }
    SocketFrame call = socket_call(comm, CALL_BARRIER, NULL, none, REDUCE_SUM, -1);
    call.count = -1;
    socket_arrive(comm, call, NULL, 0, true);
    socket_flush(socket_peer(socket_group(comm), 0));
    usleep((useconds_t)(1e6 * seconds));
    socket_part(comm);
}

/* Rank 0 leaves the group before its answer has reached ranks 2 and 3. */
static void an_answer_is_late(Comm *world, void *context)
{
    (void)context;
    Comm all = comm_split(world, "all", 0, 0);
    barrier_with_delay(&all, 2.5);
    comm_close(&all);
}

static void an_answer_is_never_passed_on(Comm *world, void *context)
{
    (void)context;
    barrier_with_delay(world, 60);
    pause();
}

/* Rank 4's process is killed while rank 5 waits for rank 4 to forward the answer. */
static void a_rank_leaves_with_an_answer(Comm *world, void *context)
{
    (void)context;
    comm_barrier(world);
    if (world->rank == 4) raise(SIGKILL);
    comm_barrier(world);
}

static const ProcessEnd ends[] = {
    {"rank 2 is odd",
     rank_2_is_odd,
     RANKS,
     0,
     EXIT_BUG,
     {"call 2 of group world: rank 0 makes all-reduce of 1 i64 in host memory, rank 2 all-reduce "
      "of "
      "2 i64 in host memory"}},
    {"ranks 5 and 6 are odd", ranks_5_and_6_are_odd, RANKS, 0, EXIT_BUG, {", rank 5 all-reduce"}},
    {"ranks 3 and 4 are odd", ranks_3_and_4_are_odd, RANKS, 0, EXIT_BUG, {", rank 3 all-reduce"}},
    {"rank 4 and one below are odd",
     rank_4_and_one_below_are_odd,
     RANKS,
     0,
     EXIT_BUG,
     {", rank 4 all-reduce"}},
    {"only rank 0 is odd",
     only_rank_0_is_odd,
     RANKS,
     0,
     EXIT_BUG,
     {"rank 0 makes all-reduce of 2 i64 in host memory, rank 1 all-reduce of 1 i64"}},
    {"roots differ",
     roots_differ,
     RANKS,
     0,
     EXIT_BUG,
     {"rank 0 makes broadcast of 1 i64 in host memory from rank 2, rank 6 broadcast of 1 i64 in "
      "host memory from rank 6"}},
    {"an answer is late", an_answer_is_late, RANKS, 5, EXIT_OK, {NULL}},
    {"an answer is never passed on",
     an_answer_is_never_passed_on,
     RANKS,
     1,
     EXIT_HANG,
     {"call 2, barrier: rank ", " has waited 1 s (parallel.timeout) for rank 1",
      ", which has not arrived\n"}},
    {"a rank ends",
     a_rank_leaves_with_an_answer,
     RANKS,
     5,
     EXIT_PEER_LOST,
     {"error[87] rank 4 dp 4: "}},
};

static void expect_ends(ProcessLinks links)
{
    process_links_choose(links);
    socket_tree_set_fan_out(FAN_OUT);
    for (int i = 0; i < (int)(sizeof ends / sizeof *ends); i++)
        process_expect_end(&ends[i], 1);
    socket_tree_set_fan_out(0);
}

static void test_calls_that_differ_or_get_no_answer_in_a_tree_end_the_program(void **state)
{
    (void)state;
    expect_ends(LINKS_IPV4);
}

static void test_ranks_whose_calls_differ_in_a_star_end_the_program(void **state)
{
    (void)state;
    process_links_choose(LINKS_IPV4);
    for (int i = 0; i < 6; i++)
        process_expect_end(&ends[i], 1);
}

static void test_calls_that_differ_or_get_no_answer_over_local_sockets_end_a_run(void **state)
{
    (void)state;
    expect_ends(LINKS_LOCAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_ranges_of_a_members_children_cover_all_members_below_it),
        cmocka_unit_test(test_small_groups_use_a_star_around_member_0),
        cmocka_unit_test(test_connections_and_messages_of_a_process_in_a_tree_are_bounded),
        cmocka_unit_test(test_the_control_tree_connects_all_ranks_however_machines_are_numbered),
        cmocka_unit_test(test_the_control_tree_of_65536_ranks_has_at_most_4_levels),
        cmocka_unit_test(test_calls_that_differ_or_get_no_answer_in_a_tree_end_the_program),
        cmocka_unit_test(test_ranks_whose_calls_differ_in_a_star_end_the_program),
        cmocka_unit_test(test_calls_that_differ_or_get_no_answer_over_local_sockets_end_a_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

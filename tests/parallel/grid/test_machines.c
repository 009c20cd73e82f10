/* test_machines.c -- tests which ranks share a machine: without a launcher all ranks of a world,
 * and under a launcher those that machines_set describes. */
#include "model/core/check.h"
#include "model/core/pool.h"
#include "parallel/comm/counted.h"
#include "parallel/grid/control.h"
#include "parallel/grid/grid.h"
#include "tests/support/grid/made_up_machines.h"
#include "tests/support/grid/rank_ends.h"
#include "tests/support/support.h"

#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void expect(const Comm *world, const char *what, int got, int expected)
{
    if (got != expected) rank_wrong(world, "%s is %d, not %d", what, got, expected);
}

/* Compares what machines.h tells each rank with a simple search through the map. */
static void look(Comm *world, void *context)
{
    const char *map = context;
    Machines own = machines_of(world);
    char seen[64] = "", host[8];
    int before = 0, ranks = 0, first = -1, count = 0;
    for (int r = 0; r < world->size; r++) {
        bool here = map[r] == map[world->rank];
        ranks += here;
        before += here && r < world->rank;
        if (here && first < 0) first = r;
        if (strchr(seen, map[r]) == NULL) seen[count++] = map[r];
    }
    expect(world, "the number of machines", own.count, count);
    expect(world, "the machine", own.own, (int)(strchr(seen, map[world->rank]) - seen));
    expect(world, "the local rank", own.local_rank, before);
    expect(world, "the number of local ranks", own.local_ranks, ranks);
    expect(world, "the lowest local rank", own.first, first);
    expect(world, "joined", own.joined, true);
    /* In a counted world, of which only one rank exists, no rank has joined, however large it is.
     */
    Comm alone = comm_counted(world->rank, world->size);
    expect(world, "the number of counted machines", machines_of(&alone).count, 1);
    expect(world, "joined to a counted world", machines_of(&alone).joined, false);
    comm_close(&alone);
    for (int r = 0; r < world->size; r++) {
        int m = machines_machine(world, r);
        expect(world, "a rank's machine", m, (int)(strchr(seen, map[r]) - seen));
        expect(world, "its lowest rank", map[machines_first(world, m)], map[r]);
        snprintf(host, sizeof host, "host-%c", map[r]);
        if (strcmp(machines_host(world, m), host) != 0)
            rank_wrong(world, "rank %d is on %s", r, machines_host(world, m));
    }
    expect(world, "the ranks of rank 0's machine", machines_ranks(world, 0),
           (int)control_sum(world, own.own == 0));
    Comm here = machines_split(world);
    expect(world, "the size of the machine's group", here.size, ranks);
    expect(world, "the rank in it", here.rank, before);
    expect(world, "the sum over it", (int)control_sum(&here, world->rank == first), 1);
    comm_close(&here);
}

static void test_each_rank_knows_its_machine_and_its_number_there(void **state)
{
    static char maps[][16] = {"aabb", "abab", "aaaa", "abcd", "cbacb", "a", "baabbbba"};
    (void)state;
    for (size_t i = 0; i < sizeof maps / sizeof *maps; i++) {
        made_up_machines(maps[i]);
        thread_ranks((int)strlen(maps[i]), 60, look, maps[i]);
    }
    machines_forget();
}

/* A shard group is spread if two of its ranks are on different machines. */
static void look_at_groups(Comm *world, void *context)
{
    static const struct {
        GridPlace size;
        int shard;
        bool spread;
    } cases[] = {{{1, 8, 1, 1}, 2, false}, {{1, 8, 1, 1}, 4, false}, {{1, 8, 1, 1}, 8, true},
                 {{1, 8, 1, 1}, 1, false}, {{1, 4, 1, 2}, 2, false}, {{1, 4, 1, 2}, 4, true},
                 {{2, 4, 1, 1}, 4, false}, {{4, 2, 1, 1}, 2, false}};
    (void)context;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect(world, "whether a group is spread",
               grid_shard_is_spread(world, cases[i].size, cases[i].shard), cases[i].spread);
}

/* Ranks 4 and 6 are a shard group, on machines a and b. */
static void look_at_uneven_groups(Comm *world, void *context)
{
    (void)context;
    expect(world, "whether a group is spread",
           grid_shard_is_spread(world, (GridPlace){1, 4, 1, 2}, 2), true);
}

static void test_shard_groups_on_several_machines_are_found(void **state)
{
    (void)state;
    made_up_machines("aaaabbbb");
    thread_ranks(8, 60, look_at_groups, NULL);
    made_up_machines("aaaaabbb");
    thread_ranks(8, 60, look_at_uneven_groups, NULL);
    machines_forget();
}

static void look_alone(Comm *world, void *context)
{
    char text[32] = "x";
    (void)context;
    Machines own = machines_of(world);
    expect(world, "the number of machines", own.count, 1);
    expect(world, "the machine", own.own, 0);
    expect(world, "the local rank", own.local_rank, world->rank);
    expect(world, "the number of local ranks", own.local_ranks, world->size);
    expect(world, "the lowest local rank", own.first, 0);
    expect(world, "joined", own.joined, false);
    expect(world, "the last rank's machine", machines_machine(world, world->size - 1), 0);
    expect(world, "the ranks of the machine", machines_ranks(world, 0), world->size);
    if (*machines_place(world, world->rank, text, sizeof text)) rank_wrong(world, "is%s", text);
    Comm here = machines_split(world);
    expect(world, "the size of the machine's group", here.size, world->size);
    comm_close(&here);
}

/* This also holds for a group of another size than the world that machines_set describes. */
static void test_without_a_launcher_all_ranks_are_on_one_machine(void **state)
{
    (void)state;
    thread_ranks(3, 60, look_alone, NULL);
    made_up_machines("aabb");
    thread_ranks(3, 60, look_alone, NULL);
    thread_ranks(1, 60, look_alone, NULL);
    machines_forget();
    thread_ranks(4, 60, look_alone, NULL);
    assert_int_equal(machines_of(NULL).local_ranks, 1);
    assert_int_equal(machines_of(NULL).count, 1);
}

/* Binds this thread to one of the cores that it may run on: core `number` of them, from 0. */
static void bind_to_core(int number)
{
    cpu_set_t all, one;
    CPU_ZERO(&one);
    sched_getaffinity(0, sizeof all, &all);
    for (int c = 0; c < CPU_SETSIZE; c++)
        if (CPU_ISSET(c, &all) && number-- == 0) CPU_SET(c, &one);
    sched_setaffinity(0, sizeof one, &one);
}

/* Compares the number of ranks that share this rank's cores with the rank's digit in `context`. A
 * rank with digit 1 is bound to one core. */
static void share(Comm *world, void *context)
{
    const char *shared = context;
    cpu_set_t before;
    sched_getaffinity(0, sizeof before, &before);
    if (shared[world->rank] == '1') bind_to_core(world->rank % 2);
    expect(world, "the number of ranks on the same cores", machines_share_cores(world),
           shared[world->rank] - '0');
    sched_setaffinity(0, sizeof before, &before);
}

static void test_ranks_share_cores_unless_a_launcher_has_bound_them(void **state)
{
    static char some[] = "2323232", bound[] = "1111", half[] = "1333", all[] = "4444";
    (void)state;
    if (pool_allowed_cores() < 2) skip_because("it needs two cores");
    made_up_machines("ababcbc");
    thread_ranks(7, 60, share, some);
    made_up_machines("aabb");
    thread_ranks(4, 60, share, bound);
    made_up_machines("aaaa");
    thread_ranks(4, 60, share, half);
    thread_ranks(4, 60, share, all);
    machines_forget();
    thread_ranks(4, 60, share, all);
}

static void look_at_places(Comm *world, void *context)
{
    const char *of_last = context;
    char text[32] = "x";
    machines_place(world, world->size - 1, text, sizeof text);
    if (strcmp(text, of_last) != 0) rank_wrong(world, "the last rank is \"%s\"", text);
}

static void test_a_message_names_the_host_if_there_are_several_machines(void **state)
{
    static char two[] = " on host-b", one[] = "";
    (void)state;
    made_up_machines("aab");
    thread_ranks(3, 60, look_at_places, two);
    made_up_machines("bbb");
    thread_ranks(3, 60, look_at_places, one);
    machines_forget();
}

static void compare(Comm *world, void *context)
{
    (void)context;
    control_require_alike(world, "computes on", world->rank == 2 ? "sse2" : "avx2",
                          "set cpu.level");
}

static void test_ranks_with_different_values_are_named_with_their_hosts(void **state)
{
    (void)state;
    made_up_machines("aab");
    rank_end_expect(&(RankEnd){"two levels",
                               compare,
                               3,
                               EXIT_CONFIG,
                               {"error[78] ranks differ: rank 0 on host-a computes on avx2, rank 2 "
                                "on host-b computes on sse2; set cpu.level\n"}},
                    60, NULL);
    machines_forget();
}

/* The numbers of machines that are passed to machines_set may have gaps, as the numbers of a batch
 * system's nodes do. */
static void test_machines_of_5000_ranks_are_numbered_by_their_lowest_ranks(void **state)
{
    enum { RANKS = 5000, EACH = 8 };
    MachineOfRank *of = must_calloc(RANKS, sizeof *of);
    Comm world = {.rank = RANKS - 1, .size = RANKS};
    (void)state;
    for (int r = 0; r < RANKS; r++)
        of[r] = (MachineOfRank){1000000 - r / EACH * 7, "node"};
    machines_set(RANKS, of);
    free(of);
    Machines own = machines_of(&world);
    assert_int_equal(own.count, RANKS / EACH);
    assert_int_equal(own.own, RANKS / EACH - 1);
    assert_int_equal(own.local_rank, EACH - 1);
    assert_int_equal(own.local_ranks, EACH);
    assert_int_equal(own.first, RANKS - EACH);
    for (int r = 0; r < RANKS; r++)
        assert_int_equal(machines_machine(&world, r), r / EACH);
    machines_forget();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_rank_knows_its_machine_and_its_number_there),
        cmocka_unit_test(test_shard_groups_on_several_machines_are_found),
        cmocka_unit_test(test_without_a_launcher_all_ranks_are_on_one_machine),
        cmocka_unit_test(test_ranks_share_cores_unless_a_launcher_has_bound_them),
        cmocka_unit_test(test_a_message_names_the_host_if_there_are_several_machines),
        cmocka_unit_test(test_ranks_with_different_values_are_named_with_their_hosts),
        cmocka_unit_test(test_machines_of_5000_ranks_are_numbered_by_their_lowest_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

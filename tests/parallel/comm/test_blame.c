/* test_blame.c -- tests which rank is blamed in worlds of up to 65,536 ranks that do not exist: the
 * search through waits that the test makes up, watched groups of a whole grid, and lists of ranks
 * in messages. */
#include "model/core/check.h"
#include "parallel/comm/rank_list.h"
#include "parallel/comm/watched.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

enum { RANKS = COMM_MAX_RANKS };

/* Seconds of CPU time that a whole test may take. A search that looked at all ranks once for each
 * rank would take minutes. */
static const double MOST_SECONDS = 2;

static void expect_quick(clock_t begun)
{
    double seconds = (double)(clock() - begun) / CLOCKS_PER_SEC;
    if (seconds > MOST_SECONDS) fail_msg("it takes %.1f s", seconds);
}

/* ---- hosts ----------------------------------------------------------------------------------- */

/* Each rank waits for the next one, and the last rank for rank 0. Only rank `idle` waits for
 * nobody; -1: all ranks wait. */
typedef struct {
    int ranks, idle;
} Ring;

static const void *ring_waits_in(void *of, int rank)
{
    const Ring *ring = of;
    return rank == ring->idle ? NULL : ring;
}

static bool ring_lacks(void *of, const void *group, int rank, BlameWait *wait)
{
    const Ring *ring = of;
    (void)group;
    wait->lack = BLAME_HOSTS;
    wait->who[0] = (rank + 1) % ring->ranks;
    wait->n = 1;
    return true;
}

static void ring_describe(void *of, const void *group, int rank, char *text, size_t n)
{
    (void)of, (void)group;
    snprintf(text, n, "the call of %d", rank);
}

static const BlameTransport ring_transport = {
    .waits_in = ring_waits_in, .lacks = ring_lacks, .describe = ring_describe};

static void test_a_search_finds_the_end_or_the_cycle_of_a_long_chain_of_waits(void **state)
{
    (void)state;
    static const int sizes[] = {2, 65, RANKS};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        Ring ring = {sizes[s], -1};
        BlameRoom *room = blame_room_create(ring.ranks);
        const BlameWaits waits = {.room = room, .hosts = {&ring_transport, &ring}};
        BlameWait wait = {.rank = 0, .who = blame_room_who(room)};
        Blame blame;
        const int *reached;
        clock_t begun = clock();
        ring_lacks(&ring, &ring, 0, &wait);
        blame_find(&waits, &wait, &blame);
        assert_int_equal(blame.kind, BLAME_CIRCLE);
        assert_int_equal(blame_reach(&waits, &wait, &reached), ring.ranks - 1);
        for (int i = 0; i < ring.ranks - 1; i++)
            assert_int_equal(reached[i], i + 1);
        assert_false(blame_only(&waits, &wait, 1));
        ring.idle = ring.ranks - 1;
        blame_find(&waits, &wait, &blame);
        assert_int_equal(blame.kind, ring.ranks == 2 ? BLAME_THEMSELVES : BLAME_RANK);
        assert_int_equal(blame.rank, ring.idle);
        assert_int_equal(blame.by, ring.idle - 1);
        assert_true(blame_only(&waits, &wait, ring.idle));
        blame_room_destroy(room);
        expect_quick(begun);
    }
}

/* All odd ranks wait at a meeting of all ranks for the even ones. Each even rank is in one of four
 * groups, where it waits for the lowest rank of the group, which waits for nobody. */
enum { PARTS = 8 };
typedef struct {
    bool keyed; /* the transport can tell which ranks wait in the same call (BlameTransport.key) */
    int looks;  /* how often all members of a group have been looked at */
} Crowd;
static const int crowd_group[2 * PARTS];

static const void *crowd_waits_in(void *of, int rank)
{
    (void)of;
    if (rank % 2 == 1) return &crowd_group[1];
    return rank < PARTS ? NULL : &crowd_group[rank % PARTS];
}

static bool crowd_lacks(void *of, const void *group, int rank, BlameWait *wait)
{
    Crowd *crowd = of;
    int part = (int)((const int *)group - crowd_group);
    wait->lack = BLAME_HOSTS;
    wait->n = 0;
    wait->alike = crowd->keyed;
    crowd->looks++;
    for (int i = 0; i < RANKS; i++)
        if (part == 1 ? i % 2 == 0 : i == part) wait->who[wait->n++] = i;
    return rank >= 0;
}

static uint64_t crowd_key(void *of, const void *group, int rank)
{
    (void)rank;
    return ((const Crowd *)of)->keyed ? 1 + (uint64_t)((const int *)group - crowd_group) : 0;
}

static const BlameTransport crowd_transport = {
    .waits_in = crowd_waits_in, .lacks = crowd_lacks, .key = crowd_key, .describe = ring_describe};

/* Half of the ranks wait for the other half. A search must look at the members of each call once,
 * not once for each rank that waits in it. */
static void test_a_search_examines_each_call_only_once(void **state)
{
    (void)state;
    BlameRoom *room = blame_room_create(RANKS);
    Crowd crowd = {.keyed = true};
    const BlameWaits waits = {.room = room, .hosts = {&crowd_transport, &crowd}};
    BlameWait wait = {.rank = 1, .who = blame_room_who(room)};
    const int *reached;
    Blame blame;
    clock_t begun = clock();
    crowd_lacks(&crowd, &crowd_group[1], 1, &wait);
    for (int search = 0; search < 3; search++) {
        crowd.looks = 0;
        assert_int_equal(blame_reach(&waits, &wait, &reached), RANKS / 2);
        assert_int_equal(crowd.looks, PARTS / 2);
    }
    blame_find(&waits, &wait, &blame);
    assert_int_equal(blame.kind, BLAME_THEMSELVES); /* rank 0, which is in the `who` of the first
                                                     * wait */
    assert_int_equal(blame.rank, 0);
    assert_false(blame_only(&waits, &wait, 0));
    expect_quick(begun);
    blame_room_destroy(room);
}

/* ---- watched groups of a grid ---------------------------------------------------------------- */

enum { PP = 16, DP = 512, TP = 8, GROUPS = 3, STUCK = 40001 };

/* The group of a rank on an axis: evenly spaced ranks. */
static WatchedMembers members_on(int axis, int rank)
{
    static const int stride[] = {DP * TP, TP, 1}, size[] = {PP, DP, TP};
    int at = rank / stride[axis] % size[axis];
    return (WatchedMembers){.size = size[axis],
                            .runs = 1,
                            .run = {{rank - at * stride[axis], stride[axis], size[axis]}}};
}

/* Rank STUCK has not made its next call of its tp group. The other ranks of that group wait for it
 * there. All other ranks of STUCK's pipeline stage, whose dp groups each contain a rank of that tp
 * group, wait in their dp group, and the ranks of the other stages wait in their pp group. */
static int waits_on(int axis, int rank)
{
    bool same_dp = rank / TP % DP == STUCK / TP % DP,
         same_pp = rank / (DP * TP) == STUCK / (DP * TP);
    int at = same_pp ? same_dp ? 2 : 1 : 0;
    return rank != STUCK && at == axis;
}

static WatchedCall *calls_of_grid(void)
{
    WatchedCall *call = must_calloc((size_t)RANKS * GROUPS, sizeof *call);
    for (int i = 0; i < RANKS * GROUPS; i++) {
        int rank = i / GROUPS, axis = i % GROUPS;
        WatchedMembers members = members_on(axis, rank);
        call[i] = (WatchedCall){.id = (uint64_t)members.run[0].first * GROUPS + (uint64_t)axis,
                                .rank = rank,
                                .members = members,
                                .begun = 7 + waits_on(axis, rank),
                                .reached = 7 + waits_on(axis, rank),
                                .finished = 7,
                                .timeout = 1};
        snprintf(call[i].call, sizeof call[i].call, "axis %d, rank %d", axis, rank);
    }
    return call;
}

static void test_watched_groups_of_a_large_grid_are_searched_quickly(void **state)
{
    (void)state;
    WatchedCall *call = calls_of_grid();
    int *first = must_calloc(RANKS, sizeof *first),
        *next = must_calloc((size_t)RANKS * GROUPS, sizeof *next);
    BlameRoom *room = blame_room_create(RANKS);
    clock_t begun = clock();
    WatchedCalls calls = watched_link(call, RANKS * GROUPS, RANKS, first, next);
    const BlameWaits waits = {.room = room, .devices = {&watched_waits, &calls}};
    BlameWait wait = {.rank = 5, .devices = true, .who = blame_room_who(room)};
    const int *reached;
    Blame blame;
    assert_true(watched_waits.lacks(&calls, watched_waits.waits_in(&calls, 5), 5, &wait));
    assert_int_equal(wait.lack, BLAME_HOSTS);
    assert_int_equal(wait.n, 1); /* the rank of the stuck stage with the same dp and tp */
    assert_int_equal(wait.who[0], STUCK / (DP * TP) * (DP * TP) + 5);
    blame_find(&waits, &wait, &blame);
    assert_int_equal(blame.kind, BLAME_RANK);
    assert_int_equal(blame.rank, STUCK);
    assert_int_equal(blame.by, STUCK / TP * TP + 5);
    assert_string_equal(blame.call, "axis 2, rank 40005");
    assert_int_equal(blame_reach(&waits, &wait, &reached), 3);
    assert_int_equal(reached[2], STUCK);
    assert_true(blame_only(&waits, &wait, STUCK));
    assert_false(blame_only(&waits, &wait, 0));
    /* Half of a group of all ranks has not arrived. */
    for (int i = 0; i < RANKS; i++) {
        call[i] = (WatchedCall){.id = 1,
                                .rank = i,
                                .members = {RANKS, 1, {{0, 1, RANKS}}},
                                .begun = 1 + i % 2,
                                .reached = 2,
                                .finished = 1};
    }
    calls = watched_link(call, RANKS, RANKS, first, next);
    assert_true(watched_waits.lacks(&calls, &call[1], 1, &wait));
    assert_int_equal(wait.n, RANKS / 2);
    for (int i = 0; i < RANKS / 2; i++)
        assert_int_equal(wait.who[i], 2 * i);
    assert_int_equal(blame_reach(&waits, &wait, &reached), 1); /* a search follows only the first
                                                                * rank that a device waits for */
    blame_room_destroy(room);
    free(first);
    free(next);
    free(call);
    expect_quick(begun);
}

/* ---- lists of ranks -------------------------------------------------------------------------- */

static void test_any_list_of_ranks_can_be_stored_as_runs_in_its_order(void **state)
{
    (void)state;
    uint64_t seed = 9;
    int rank[100];
    RankRun run[50];
    for (int i = 0; i < 3000; i++) {
        int n = 1 + i % 100, at = 0, runs;
        for (int k = 0; k < n; k++) {
            seed = seed * 6364136223846793005U + 1442695040888963407U;
            /* Mostly, rank k is as far from rank k - 1 as that is from rank k - 2. */
            int even = k > 1 ? 2 * rank[k - 1] - rank[k - 2] : -1;
            rank[k] =
                seed >> 60 < 12 && even >= 0 && even < RANKS ? even : (int)(seed >> 40 & 0xffff);
        }
        memset(run, 0, sizeof run);
        runs = rank_runs(rank, n, run, 0);
        assert_true(runs <= (n + 1) / 2 && run[0].count == 0);
        assert_int_equal(rank_runs(rank, n, run, runs), runs);
        for (int r = 0; r < runs; r++)
            for (int k = 0; k < run[r].count; k++)
                assert_int_equal(rank_run_at(&run[r], k), rank[at++]);
        assert_int_equal(at, n);
    }
    for (int k = 0; k < 100; k++)
        rank[k] = 65000 - 8 * k;
    assert_int_equal(rank_runs(rank, 100, run, 1), 1);
    assert_int_equal(watched_members(rank, 100).size, 100);
}

static void expect_list(const int *rank, int n, const char *expected)
{
    char text[RANK_LIST_BYTES];
    assert_string_equal(rank_list(rank, n, text, sizeof text), expected);
}

/* A list of up to 64 ranks is complete, however long their numbers are. Of more ranks, only the
 * first ones are listed. */
static void test_messages_list_only_the_first_ranks_of_a_long_list(void **state)
{
    (void)state;
    static int rank[RANKS];
    char text[RANK_LIST_BYTES];
    for (int i = 0; i < RANKS; i++)
        rank[i] = i;
    expect_list(rank + 3, 1, "rank 3");
    expect_list(rank + 3, 2, "ranks 3, 4");
    expect_list(rank + 3, 56, "ranks 3-58");
    expect_list(rank, RANKS, "ranks 0-65535");
    rank[1] = 3;
    expect_list(rank, 3, "ranks 0, 3, 2");
    for (int i = 0; i < RANKS; i++)
        rank[i] = 2 * i;
    expect_list(rank, 65, "ranks 0, 2, 4, 6, 8, 10, 12, 14, 16, 18 and 55 more");
    rank_list(rank, 64, text, sizeof text);
    assert_string_equal(text + strlen(text) - 5, ", 126");
    for (int i = 0; i < 64; i++)
        rank[i] = 65535 - 7 * i;
    rank_list(rank, 64, text, sizeof text);
    assert_string_equal(text + strlen(text) - 7, ", 65094");
    assert_true(strlen(text) < sizeof text - 1);
}

/* Eight ranks are on each machine. */
static const char *host_of_eight(const void *of, int rank)
{
    static const char *const host[] = {"n1", "n2", "n3", "n4", "n5"};
    assert_ptr_equal(of, NULL);
    return host[rank / 8];
}

static void expect_hosts(int first, int n, int step, const char *expected)
{
    const RankHosts hosts = {.name = host_of_eight}, none = {0};
    char text[RANK_HOSTS_BYTES];
    int rank[40];
    for (int i = 0; i < n; i++)
        rank[i] = first + step * i;
    assert_string_equal(rank_hosts(&hosts, rank, n, text, sizeof text), expected);
    assert_string_equal(rank_hosts(&none, rank, n, text, sizeof text), "");
}

static void test_messages_name_at_most_three_machines(void **state)
{
    (void)state;
    expect_hosts(9, 1, 1, "on n2");
    expect_hosts(8, 8, 1, "on n2");
    expect_hosts(15, 2, -8, "on n2, n1");
    expect_hosts(0, 24, 1, "on n1, n2, n3");
    expect_hosts(0, 25, 1, "on n1, n2, n3 and others");
    expect_hosts(0, 40, 1, "on n1, n2, n3 and others");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_search_finds_the_end_or_the_cycle_of_a_long_chain_of_waits),
        cmocka_unit_test(test_a_search_examines_each_call_only_once),
        cmocka_unit_test(test_watched_groups_of_a_large_grid_are_searched_quickly),
        cmocka_unit_test(test_any_list_of_ranks_can_be_stored_as_runs_in_its_order),
        cmocka_unit_test(test_messages_list_only_the_first_ranks_of_a_long_list),
        cmocka_unit_test(test_messages_name_at_most_three_machines),
    };
    return cmocka_run_group_tests_name("who is blamed in large worlds", tests, NULL, NULL);
}

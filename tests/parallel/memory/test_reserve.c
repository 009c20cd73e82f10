/* test_reserve.c -- tests NCCL's memory in the plan: the estimate for each communicator that a grid
 * opens, and the measured value that replaces it. */
#include "parallel/comm/nccl/nccl.h"
#include "parallel/memory/memory_plan.h"
#include "tests/support/files/child.h"
#include "tests/support/files/config_support.h"
#include "tests/support/grid/thread_ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MIB ((size_t)1 << 20)

static const NcclUse silent = {0}, line = {NCCL_IN_LINE, 0}, ring = {NCCL_IN_RING, 0};

/* With two ranks, the next and the previous rank are the same; multicast is used from three ranks
 * on, with 16 channels on Hopper. In a line the ranks at the ends have one neighbour. */
static void test_the_nccl_estimate_of_a_communicator_has_the_expected_size(void **state)
{
    (void)state;
    assert_int_equal(nccl_reserve(0, 1, silent), 0);
    assert_int_equal(nccl_reserve(0, 1, ring), 0);
    assert_int_equal(nccl_reserve(0, 2, silent), (8 + 24 * 12) * MIB);
    assert_int_equal(nccl_reserve(0, 2, ring), (8 + 24 * 12 + 32 * 12) * MIB);
    assert_int_equal(nccl_reserve(1, 2, line), (8 + 24 * 12 + 32 * 12) * MIB);
    assert_int_equal(nccl_reserve(0, 8, silent), 842 * MIB);
    assert_int_equal(nccl_reserve(7, 8, silent), (8 + 2 * 24 * 12 + 16 * 2 * 8 + 2) * MIB);
    /* However many machines there are, multicast is within one. */
    assert_int_equal(nccl_reserve(7, 9, silent), nccl_reserve(7, 8, silent));
    assert_int_equal(nccl_reserve(65535, 65536, silent), nccl_reserve(7, 8, silent));
    for (int r = 0; r < 8; r++) {
        size_t each = 32 * 12 * MIB, neighbours = r == 0 || r == 7 ? 1 : 2;
        assert_int_equal(nccl_reserve(r, 8, ring), 842 * MIB + 2 * each);
        assert_int_equal(nccl_reserve(r, 8, line), 842 * MIB + neighbours * each);
    }
}

/* A limit of CTAs (thread blocks) limits the channels of rings, multicast and messages; for
 * messages their number is a power of two. With 8 of them a stage between two others has 192 MiB
 * for messages instead of 768. */
static void test_a_limit_of_ctas_reduces_the_estimate(void **state)
{
    (void)state;
    assert_int_equal(nccl_reserve(1, 4, (NcclUse){NCCL_IN_LINE, 8}),
                     (8 + 2 * 8 * 12 + 8 * 2 * 4 + 2 + 192) * MIB);
    assert_int_equal(nccl_reserve(0, 8, (NcclUse){NCCL_NO_MESSAGES, 16}),
                     (8 + 2 * 16 * 12 + 16 * 2 * 8 + 2) * MIB);
    assert_int_equal(nccl_reserve(0, 4, (NcclUse){NCCL_NO_MESSAGES, 20}),
                     (8 + 2 * 20 * 12 + 16 * 2 * 4 + 2) * MIB);
    assert_int_equal(nccl_reserve(0, 2, (NcclUse){NCCL_IN_LINE, 5}), (8 + 5 * 12 + 8 * 12) * MIB);
    assert_int_equal(nccl_reserve(0, 2, (NcclUse){NCCL_IN_LINE, 64}), nccl_reserve(0, 2, line));
}

/* The user's settings reduce the estimate as they reduce NCCL's memory. Invalid settings are
 * ignored, since NCCL itself checks them. As in NCCL, the environment replaces a communicator's own
 * limit, also by a larger one. */
static void test_nccl_environment_settings_reduce_the_estimate(void **state)
{
    (void)state;
    setenv("NCCL_MAX_CTAS", "8", 1);
    assert_int_equal(nccl_reserve(0, 2, silent), (8 + 8 * 12) * MIB);
    assert_int_equal(nccl_reserve(0, 2, (NcclUse){NCCL_NO_MESSAGES, 4}), (8 + 8 * 12) * MIB);
    assert_int_equal(nccl_reserve(0, 2, (NcclUse){NCCL_NO_MESSAGES, 16}), (8 + 8 * 12) * MIB);
    assert_int_equal(nccl_reserve(0, 4, ring), (8 + 2 * 8 * 12 + 8 * 2 * 4 + 2 + 2 * 8 * 12) * MIB);
    setenv("NCCL_BUFFSIZE", "1048576", 1); /* 6.2 MiB of buffers are rounded up to 8 */
    assert_int_equal(nccl_reserve(0, 2, silent), (8 + 8 * 10) * MIB);
    setenv("NCCL_MAX_CTAS", "64", 1);
    assert_int_equal(nccl_reserve(0, 2, ring), (8 + (24 + 32) * 10) * MIB);
    setenv("NCCL_MAX_CTAS", "many", 1);
    setenv("NCCL_BUFFSIZE", "-1", 1);
    assert_int_equal(nccl_reserve(0, 2, silent), (8 + 24 * 12) * MIB);
    assert_int_equal(nccl_reserve(0, 2, (NcclUse){NCCL_NO_MESSAGES, 4}), (8 + 4 * 12) * MIB);
    unsetenv("NCCL_MAX_CTAS");
    unsetenv("NCCL_BUFFSIZE");
}

/* Only a smaller number of channels than the grid's groups have is suggested. */
static void test_fewer_channels_are_suggested_only_if_a_group_has_more(void **state)
{
    (void)state;
    const Config *given = config_test_set("seed=1337");
    Config c = *given;
    assert_int_equal(c.parallel.nccl.pp_max_ctas, 8);
    assert_int_equal(c.parallel.nccl.dp_max_ctas, 16);
    assert_int_equal(c.parallel.nccl.replicate_max_ctas, 16);
    assert_int_equal(c.parallel.nccl.tp_max_ctas, 0);
    assert_int_equal(c.parallel.nccl.kv_max_ctas, 4);
    assert_int_equal(c.parallel.nccl.tie_max_ctas, 4);
    c.parallel.pipeline = 2;
    assert_int_equal(grid_fewer_channels(&c), 0);
    c.parallel.data = 2;
    assert_int_equal(grid_fewer_channels(&c), 8);
    c.parallel.nccl.dp_max_ctas = 8;
    assert_int_equal(grid_fewer_channels(&c), 0);
    /* Two data-parallel ranks: with shard groups of one rank they are a group of replicas; with a
     * shard group of two there are no replicas. */
    c.zero_optimization.stage = 3;
    c.parallel.shard = 1;
    assert_int_equal(grid_fewer_channels(&c), 8);
    c.parallel.shard = 2;
    assert_int_equal(grid_fewer_channels(&c), 0);
    c.parallel.tensor = 2;
    assert_int_equal(grid_fewer_channels(&c), 8);
    c.parallel.nccl.tp_max_ctas = 8;
    assert_int_equal(grid_fewer_channels(&c), 0);
    c.parallel.nccl.kv_max_ctas = 16;
    assert_int_equal(grid_fewer_channels(&c), 8);
    c.parallel.nccl.kv_max_ctas = 4;
    c.parallel.nccl.tie_max_ctas = 16;
    assert_int_equal(grid_fewer_channels(&c), 8);
    setenv("NCCL_MAX_CTAS", "8", 1);
    assert_int_equal(grid_fewer_channels(&c), 0);
    unsetenv("NCCL_MAX_CTAS");
    config_free(given);
}

/* ---- of a grid ------------------------------------------------------------------------------- */

/* A grid, and the groups of several ranks to which its rank `rank` belongs: their sizes and limits
 * of CTAs. */
typedef struct {
    GridPlace size;
    GridGroups groups;
    int rank;
    struct {
        int ranks, max_ctas;
    } silent[4]; /* all groups except that of the pipeline stages */
} GridComms;

enum { PP = 8, DP = 16, REPLICATE = 12, TP = 20, KV = 5, TIE = 4 };

static const GridComms grids[] = {
    {{1, 4, 1, 1}, {4, true, 0}, 0, {{4, DP}}}, /* a dp group of four: it is the shard group, too */
    {{1, 4, 1, 1}, {4, true, 2}, 1, {{4, DP}, {2, DP}, {2, REPLICATE}}}, /* two shard groups */
    {{1, 4, 1, 1}, {4, true, 1}, 1, {{4, DP}, {4, REPLICATE}}}, /* shard groups of one rank */
    {{1, 1, 1, 4}, {4, true, 0}, 3, {{4, TP}}},                 /* a tp group of four */
    {{1, 1, 1, 4}, {2, true, 0}, 3, {{4, TP}, {2, KV}}},        /* and two ranks share heads */
    {{2, 1, 1, 1}, {4, false, 0}, 1, {{0}}},                    /* two stages */
    {{2, 1, 1, 1}, {4, true, 0}, 1, {{2, TIE}}}, /* two stages that share a tied table */
    {{4, 1, 1, 1}, {4, true, 0}, 0, {{2, TIE}}}, /* first of four stages, shares the tied table */
    {{4, 1, 1, 1}, {4, true, 0}, 2, {{0}}},      /* third of four stages, shares no table */
    {{2, 2, 1, 2}, {4, true, 0}, 5, {{2, DP}, {2, TP}, {2, TIE}}},
    {{1, 2, 1, 4}, {1, false, 0}, 6, {{2, DP}, {4, TP}, {4, KV}}},
};

static void add_up(Comm *world, void *context)
{
    const GridComms *g = context;
    Grid grid = grid_open(world, g->size, &g->groups);
    GridNccl nccl = {.pp = PP, .dp = DP, .replicate = REPLICATE, .tp = TP, .kv = KV, .tie = TIE};
    for (int chunks = 0; chunks < 2; chunks++) {
        nccl.chunks = chunks;
        NcclUse stages = {chunks ? NCCL_IN_RING : NCCL_IN_LINE, PP};
        size_t bytes = nccl_reserve(grid.at.pp, g->size.pp, stages);
        for (int i = 0; i < 4; i++)
            bytes += nccl_reserve(0, g->silent[i].ranks,
                                  (NcclUse){NCCL_NO_MESSAGES, g->silent[i].max_ctas});
        if (world->rank == g->rank && grid_reserve(&grid, &nccl) != bytes)
            rank_wrong(world, "%zu MiB in a grid of %d x %d x %d, by hand %zu",
                       grid_reserve(&grid, &nccl) / MIB, g->size.pp, g->size.dp, g->size.tp,
                       bytes / MIB);
    }
    comm_barrier(world);
    grid_close(&grid);
}

static void test_the_reserve_of_a_grid_is_the_sum_over_its_communicators(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof grids / sizeof *grids; i++) {
        GridPlace size = grids[i].size;
        thread_ranks(size.pp * size.dp * size.tp, 60, add_up, (void *)&grids[i]);
    }
}

/* ---- what a run measures --------------------------------------------------------------------- */

enum { RANKS = 3, PLANNED = 300, OWN = 50, BESIDE = 2000 };

/* The memory that NCCL and kernels take on each rank's device, in MiB. */
typedef struct {
    size_t taken[RANKS];
    size_t freed; /* memory that other processes free on each device */
    bool reserve, breakdown;
} Measured;

/* On each rank, the program itself allocates another OWN MiB. The plan has BESIDE MiB in addition
 * to the reserve. */
static void measure(Comm *world, void *context)
{
    const Measured *m = context;
    const Config config = {.memory_breakdown = m->breakdown};
    size_t planned = m->reserve ? PLANNED * MIB : 0, taken = m->taken[world->rank] * MIB,
           weights = BESIDE * MIB;
    MemoryPlan plan = {.weights = weights, .reserve = planned, .total = weights + planned};
    MemoryMark before = {.available = 9000 * MIB, .held = 7},
               after = {.available = 9000 * MIB - taken - OWN * MIB + m->freed * MIB,
                        .held = 7 + OWN * MIB};
    taken = taken > m->freed * MIB ? taken - m->freed * MIB : 0;
    memory_measure_reserve(world, &config, &plan, before, after);
    if (!m->reserve) taken = 0;
    if (plan.reserve != taken || plan.total != weights + taken || plan.weights != weights)
        rank_wrong(world, "a reserve of %zu bytes in a plan of %zu, %zu were taken", plan.reserve,
                   plan.total, taken);
}

static void measure_all(void *context)
{
    thread_ranks(RANKS, 60, measure, context);
}

static const char warning[] =
    "warning: NCCL and the code of kernels take 557.0 MiB of the memory of rank 1's GPU, and the "
    "plan had 300.0 MiB for NCCL and 256.0 MiB for code: ";
static const char measured[] =
    "memory  reserve: NCCL and the code of kernels take 557.0 MiB of rank 1's GPU,\n"
    "        the most of any, plan 300.0 MiB";

static void check(Measured m, bool tells, bool warns)
{
    char said[4096];
    if (child_run(measure_all, &m, said, sizeof said) != 0) fail_msg("%s", said);
    if ((strstr(said, measured) != NULL) != tells || (strstr(said, warning) != NULL) != warns ||
        (!tells && !warns && said[0]))
        fail_msg("says:\n%s", said);
}

/* A run warns if NCCL and code take more than was planned for both. A plan without a reserve is not
 * changed. Memory that other processes free at the same time hides the same amount of NCCL's
 * memory, and the result is never negative. */
static void test_the_measured_reserve_replaces_the_estimate_and_warns_if_larger(void **state)
{
    (void)state;
    check((Measured){{300, 557, 12}, 0, true, true}, true, true);
    check((Measured){{300, 557, 12}, 0, true, false}, false, true);
    check((Measured){{300, 556, 12}, 0, true, false}, false, false);
    check((Measured){{0, 0, 0}, 0, true, false}, false, false);
    check((Measured){{300, 557, 12}, 0, false, true}, false, false);
    check((Measured){{300, 657, 12}, 100, true, true}, true, true);
    check((Measured){{40, 0, 12}, 100, true, false}, false, false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_nccl_estimate_of_a_communicator_has_the_expected_size),
        cmocka_unit_test(test_a_limit_of_ctas_reduces_the_estimate),
        cmocka_unit_test(test_nccl_environment_settings_reduce_the_estimate),
        cmocka_unit_test(test_fewer_channels_are_suggested_only_if_a_group_has_more),
        cmocka_unit_test(test_the_reserve_of_a_grid_is_the_sum_over_its_communicators),
        cmocka_unit_test(test_the_measured_reserve_replaces_the_estimate_and_warns_if_larger),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

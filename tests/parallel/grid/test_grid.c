/* test_grid.c -- tests a rank's place in the grid: of which parameters it counts the elements in
 * the gradient norm, the groups of its axes, and the beginning and end of its tensor-parallel
 * region. */
#include "model/core/check.h"
#include "parallel/comm/counted.h"
#include "parallel/grid/tp.h"
#include "tests/support/grid/thread_ranks.h"
#include "tests/support/model/model_fixture.h"
#include "tests/support/model/param_rows.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* Each element counts once in the gradient norm. If a parameter is divided among tensor-parallel
 * ranks, every rank counts its part. If all of them hold the whole parameter, the first rank of the
 * group counts it, whatever its coordinates on the other axes. */
static void test_an_undivided_parameter_is_counted_only_by_the_first_tp_rank(void **state)
{
    (void)state;
    Fixture f;
    GptShape s = fixture_llama_shape();
    GridPlace size = {2, 2, 1, 2}, first = {.pp = 1}, second = {.tp = 1};
    fixture_open(&f, &s, 1, 2, 1, 1, 0);
    int cut = param_find(&f.table, "block.0.attn.q.weight"),
        whole = param_find(&f.table, "block.0.attn.q_norm.weight");
    assert_true(param_owned_here(&f.table, cut, &size, &first));
    assert_true(param_owned_here(&f.table, cut, &size, &second));
    assert_true(param_owned_here(&f.table, whole, &size, &first));
    assert_false(param_owned_here(&f.table, whole, &size, &second));
    fixture_close(&f);
}

/* A tied table (the embedding, which is also the head) is on the first and the last stage, and only
 * the first one counts it. */
static void test_a_tied_table_is_counted_only_on_the_first_stage(void **state)
{
    (void)state;
    Fixture f;
    GptShape s = fixture_shape();
    GridPlace size = {3, 1, 1, 1};
    fixture_open(&f, &s, 1, 2, 1, 1, 0);
    int table = param_find(&f.table, "token.weight");
    f.table.unit[f.table.param[table].unit].home = (Home){.stage = {0, 2}, .n = 2};
    for (int pp = 0; pp < 3; pp++)
        assert_int_equal(param_owned_here(&f.table, table, &size, &(GridPlace){.pp = pp}), pp == 0);
    fixture_close(&f);
}

/* For PURPOSE_COUNT, both ranks of a tensor-parallel group get a parameter that is divided between
 * them, and only rank 0 gets one that both hold. For PURPOSE_UPDATE both ranks get all shards that
 * they hold. */
static void test_the_store_counts_undivided_parameters_only_on_tp_rank_0(void **state)
{
    (void)state;
    Fixture f;
    GptShape s = fixture_shape();
    Shard shards[128];
    fixture_open(&f, &s, 1, 2, 1, 1, 0);
    int all = f.params->shards(f.params, PURPOSE_UPDATE, NULL, 0);
    for (int rank = 0; rank < 2; rank++) {
        f.grid.size = (GridPlace){1, 1, 1, 2};
        f.grid.at = (GridPlace){.tp = rank};
        assert_int_equal(f.params->shards(f.params, PURPOSE_UPDATE, NULL, 0), all);
        int n = f.params->shards(f.params, PURPOSE_COUNT, shards, 128);
        for (int p = 0; p < f.table.n_params; p++) {
            const Param *row = &f.table.param[p];
            int found = 0;
            for (int i = 0; i < n; i++)
                found += shards[i].unit == row->unit && row->offset >= shards[i].offset &&
                         row->offset < shards[i].offset + shards[i].count;
            if (found != (rank == 0 || row->tp_dim >= 0))
                fail_msg("rank %d counts %s %d times", rank, row->name, found);
        }
    }
    fixture_close(&f);
}

/* ---- the region of one rank ------------------------------------------------------------------ */

static int exit_of_border(int border, Tensor dst, Tensor src)
{
    Comm comm = comm_self("tp");
    Region region = tp_region_open(&comm, NULL, false);
    void (*const borders[])(const Region *, Tensor, Tensor) = {
        region_enter_forward, region_exit_forward, region_enter_backward, region_exit_backward};
    int status = 0;
    pid_t pid = fork();
    if (pid == 0) {
        if (freopen("/dev/null", "w", stderr) == NULL) _exit(1);
        borders[border](&region, dst, src);
        region_reduce(&region, src, REDUCE_MAX);
        _exit(0);
    }
    comm_close(&comm);
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* In a group of one rank nothing is sent or copied, so the output of an operator must be its input
 * tensor. If they are two tensors, or have two shapes, that is a bug and ends the program. */
static void test_a_region_of_one_rank_refuses_an_output_that_is_not_its_input(void **state)
{
    (void)state;
    double a[6] = {1, 2, 3, 4, 5, 6}, b[6];
    for (int border = 0; border < 4; border++) {
        Tensor x = tensor_2d(a, F64, 2, 3);
        assert_int_equal(exit_of_border(border, x, x), 0);
        assert_int_equal(exit_of_border(border, tensor_2d(b, F64, 2, 3), x), EXIT_BUG);
        assert_int_equal(exit_of_border(border, tensor_2d(a, F64, 3, 2), x), EXIT_BUG);
    }
}

/* ---- many ranks ------------------------------------------------------------------------------ */

/* Returns the rank's coordinate on axis a. */
static int on_axis(GridPlace at, int a)
{
    return a == 0 ? at.pp : a == 1 ? at.dp : a == 2 ? at.cp : at.tp;
}

static bool same_line(GridPlace a, GridPlace b, int axis)
{
    for (int i = 0; i < 4; i++)
        if (i != axis && on_axis(a, i) != on_axis(b, i)) return false;
    return true;
}

typedef struct {
    GridPlace size;
    GridGroups groups;
} GridCase;

enum { PP, DP, CP, TP, SHARD, REPLICATE, KV, TIE };
static const struct {
    const char *name;
    int axis; /* the axis along which the group's members differ */
} group_of[GRID_COMMS] = {
    {"pp", PP},    {"dp", DP},        {"cp", CP}, {"tp", TP},
    {"shard", DP}, {"replicate", DP}, {"kv", TP}, {"tie", PP},
};

static bool at_an_end(GridPlace at, GridPlace size)
{
    return at.pp == 0 || at.pp == size.pp - 1;
}

/* Returns whether two ranks are in the same group g. If there are at least as many key/value heads
 * G as tp ranks, the heads are divided among the ranks; otherwise tp / G neighbours share a head.
 * Neighbours on the dp axis are a shard group; the k-th members of all shard groups replicate each
 * other. */
static bool together(const GridCase *c, int g, GridPlace a, GridPlace b)
{
    bool same = memcmp(&a, &b, sizeof a) == 0;
    int shard = c->groups.shard > 0 ? c->groups.shard : c->size.dp;
    if (same || !same_line(a, b, group_of[g].axis)) return same;
    if (g == SHARD) return a.dp / shard == b.dp / shard;
    if (g == REPLICATE) return a.dp % shard == b.dp % shard;
    if (g == KV)
        return c->groups.kv > 0 && c->groups.kv < c->size.tp &&
               a.tp * c->groups.kv / c->size.tp == b.tp * c->groups.kv / c->size.tp;
    if (g == TIE) return c->groups.tied && at_an_end(a, c->size) && at_an_end(b, c->size);
    return true;
}

/* Checks that the group has the right members, in the order of their ranks. */
static void check_group(Comm *world, const GridCase *c, int g, Comm *comm, const GridPlace *place)
{
    int64_t mine = world->rank, all[16] = {0};
    int members = 0, before = 0;
    for (int r = 0; r < world->size; r++) {
        bool member = together(c, g, place[world->rank], place[r]);
        members += member;
        before += member && r < world->rank;
    }
    if (comm->size != members || comm->rank != before || strcmp(comm->name, group_of[g].name) != 0)
        rank_wrong(world, "group %s: %s, rank %d of %d, not %d of %d", group_of[g].name, comm->name,
                   comm->rank, comm->size, before, members);
    comm_all_gather(comm, NULL, tensor_1d(all, I64, comm->size), tensor_1d(&mine, I64, 1));
    for (int r = 0, i = 0; r < world->size; r++)
        if (together(c, g, place[world->rank], place[r]) && all[i++] != r)
            rank_wrong(world, "member %d of group %s is rank %lld, not %d", i - 1, comm->name,
                       (long long)all[i - 1], r);
}

/* A rank of a counted world, in which no other rank exists, has the same groups as a rank of a real
 * world: the same ranks, in the same order. */
static void check_counted(Comm *world, const GridCase *c, const Grid *grid)
{
    const Comm *group[GRID_COMMS], *counted[GRID_COMMS];
    Comm alone = comm_counted(world->rank, world->size);
    Grid same = grid_open(&alone, c->size, c->groups.kv ? &c->groups : NULL);
    grid_comms(grid, group);
    grid_comms(&same, counted);
    for (int g = 0; g < GRID_COMMS; g++) {
        const Comm *a = group[g], *b = counted[g];
        int64_t mine = world->rank, all[16] = {0};
        if (strcmp(a->name, b->name) != 0 || a->rank != b->rank || a->size != b->size ||
            memcmp(&a->line, &b->line, sizeof a->line) != 0)
            rank_wrong(world, "group %s: rank %d of %d; counted, %s: rank %d of %d", a->name,
                       a->rank, a->size, b->name, b->rank, b->size);
        comm_all_gather((Comm *)a, NULL, tensor_1d(all, I64, a->size), tensor_1d(&mine, I64, 1));
        for (int i = 0; i < a->size && a->size > 1; i++)
            if (all[i] != b->line.first + i * b->line.stride)
                rank_wrong(world, "member %d of group %s is rank %lld, counted %d", i, a->name,
                           (long long)all[i], b->line.first + i * b->line.stride);
        if (comm_is_counted(b) != (b->size > 1))
            rank_wrong(world, "group %s by %s", b->name, b->ops->name);
    }
    grid_close(&same);
    comm_close(&alone);
}

/* Checks that the coordinates count up with the rank, tp fastest. */
static void run_grid(Comm *world, void *context)
{
    const GridCase *c = context;
    const GridPlace size = c->size;
    GridPlace place[16] = {{0}}, at = {0};
    for (int r = 0; r < world->size; r++) {
        place[r] = at;
        if (++at.tp == size.tp) at.tp = 0, at.cp++;
        if (at.cp == size.cp) at.cp = 0, at.dp++;
        if (at.dp == size.dp) at.dp = 0, at.pp++;
    }
    Grid grid = grid_open(world, size, c->groups.kv ? &c->groups : NULL);
    const GridPlace me = place[world->rank];
    for (int i = 0; i < 4; i++)
        if (on_axis(grid.at, i) != on_axis(me, i) || on_axis(grid.size, i) != on_axis(size, i))
            rank_wrong(world, "coordinate %d is %d of %d, not %d of %d", i, on_axis(grid.at, i),
                       on_axis(grid.size, i), on_axis(me, i), on_axis(size, i));
    const Comm *listed[GRID_COMMS];
    Comm *group[] = {&grid.pp,    &grid.dp,        &grid.cp, &grid.tp,
                     &grid.shard, &grid.replicate, &grid.kv, &grid.tie};
    grid_comms(&grid, listed);
    for (int g = 0; g < GRID_COMMS; g++) {
        if (listed[g] != group[g]) rank_wrong(world, "communicator %d is %s", g, listed[g]->name);
        check_group(world, c, g, group[g], place);
    }
    check_counted(world, c, &grid);
    grid_close(&grid);
}

/* Tests without the model's groups (0), and for every number of key/value heads that tp ranks can
 * share or divide: the divisors of tp, and twice tp. Then tests shard groups of each size below
 * dp. */
static int run_grids_of(GridPlace size, int ranks)
{
    int cases = 0;
    for (int kv = 0; kv <= 2 * size.tp; kv++) {
        if (kv > 0 && size.tp % kv != 0 && kv != 2 * size.tp) continue;
        GridCase c = {size, {.kv = kv, .tied = kv > 0 && kv % 2 == size.dp % 2}};
        thread_ranks(ranks, 60, run_grid, &c);
        cases++;
    }
    for (int shard = 1; shard < size.dp; shard++) {
        if (size.dp % shard != 0) continue;
        thread_ranks(ranks, 60, run_grid, &(GridCase){size, {.kv = 1, .shard = shard}});
        cases++;
    }
    return cases;
}

static void test_groups_contain_the_expected_ranks_on_all_grids_up_to_16_ranks(void **state)
{
    (void)state;
    int grids = 0, cases = 0;
    for (int n = 1; n <= 16; n++)
        for (int pp = 1; pp <= n; pp++)
            for (int dp = 1; dp <= n / pp; dp++)
                for (int cp = 1; cp <= n / pp / dp; cp++) {
                    GridPlace size = {pp, dp, cp, n / pp / dp / cp};
                    if (size.pp * size.dp * size.cp * size.tp != n) continue;
                    cases += run_grids_of(size, n);
                    grids++;
                }
    assert_int_equal(grids, 204);
    assert_int_equal(cases, 886);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_undivided_parameter_is_counted_only_by_the_first_tp_rank),
        cmocka_unit_test(test_a_tied_table_is_counted_only_on_the_first_stage),
        cmocka_unit_test(test_the_store_counts_undivided_parameters_only_on_tp_rank_0),
        cmocka_unit_test(test_a_region_of_one_rank_refuses_an_output_that_is_not_its_input),
        cmocka_unit_test(test_groups_contain_the_expected_ranks_on_all_grids_up_to_16_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

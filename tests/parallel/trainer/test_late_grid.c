/* test_late_grid.c -- training by grids of ranks on "late devices"
 * (tests/support/device/late_device.h), which delay all work until somebody waits for it. Sums
 * inside layers, tensors between stages and the store's collectives each have a stream. The results
 * must have the same bits as on the CPU in every order that the events allow, and must change if
 * any wait is left out.
 *
 * In a single configuration a missing wait may have no effect, because other waits preserve the
 * order. So each place in the program that waits must matter in at least one configuration, as in
 * test_late_trainer.c. */
#include "tests/support/device/late_run.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { CONFIGURATIONS = 40, SETS = 4 };

typedef struct {
    int ranks;
    bool stages;
    const char *sets[SETS];
} GridOfRanks;

static const GridOfRanks grids[] = {
    {2, false, {"parallel.tensor=2"}},
    {2, false, {"parallel.tensor=2", "parallel.sequence_parallel=true"}},
    {2, true, {"parallel.pipeline=2"}},
    {4, true, {"parallel.tensor=2", "parallel.pipeline=2"}},
    {4, false, {"parallel.tensor=4"}},
    {4, false, {"parallel.tensor=2", "parallel.sequence_parallel=true"}},
    {3, true, {"parallel.pipeline=3"}},
    {4, true, {"parallel.pipeline=2"}},
    {4, true, {"parallel.tensor=2", "parallel.pipeline=2", "parallel.sequence_parallel=true"}},
    {8, true, {"parallel.tensor=2", "parallel.pipeline=2", "parallel.sequence_parallel=true"}},
};
enum { GRIDS = sizeof grids / sizeof *grids };

/* Models with heads that tensor-parallel ranks share, with tables that stages share, and with
 * neither. */
static const char *const models[][SETS] = {
    {"model.norm=layernorm", "model.position=learned"},
    {"model.num_key_value_heads=1", "model.qk_norm=true", "model.activation=swiglu"},
    {"model.tie_word_embeddings=false", "model.num_key_value_heads=2", "model.bias=false"},
};

static const char *const schedules[][SETS] = {
    {"parallel.schedule=1f1b"},
    {"parallel.schedule=gpipe"},
    {"parallel.schedule=interleaved", "parallel.pipeline_chunks=2"},
    {"parallel.schedule=1f1b", "zero_optimization.reduce_bucket_size=1"},
};
static const char *const accumulations[] = {"gradient_accumulation_steps=2",
                                            "gradient_accumulation_steps=4"};
static const char *const recomputes[] = {"activation_checkpointing.policy=none",
                                         "activation_checkpointing.policy=full",
                                         "activation_checkpointing.policy=selective"};
static const char *const stages[] = {"zero_optimization.stage=0", "zero_optimization.stage=1",
                                     "zero_optimization.stage=2", "zero_optimization.stage=3"};

static int add(const char **to, const char *const *sets)
{
    int n = 0;
    while (n < SETS && sets[n]) {
        to[n] = sets[n];
        n++;
    }
    return n;
}

/* Runs configuration `i`. The rounds combine every grid with every ZeRO stage. */
static int run_configuration(const Folder *folder, int i, LateSites *sites)
{
    const GridOfRanks *grid = &grids[i % GRIDS];
    int round = i / GRIDS, n = 0;
    const char *sets[8 * SETS] = {"model.num_layers=4", "model.num_attention_heads=4",
                                  i % 8 == 7 ? "zero_optimization.overlap_comm=false"
                                             : "zero_optimization.overlap_comm=true",
                                  "zero_optimization.stage3_param_persistence_threshold=0"};
    n = 4;
    sets[n++] = stages[(i + round) % 4];
    sets[n++] = recomputes[(i / 2 + round) % 3];
    sets[n++] = accumulations[(i + round) % 3 == 0];
    n += add(sets + n, grid->sets);
    n += add(sets + n, models[(i + round * 2) % 3]);
    /* Four blocks are too few for three stages of two chunks. */
    if (grid->stages) n += add(sets + n, schedules[grid->ranks == 3 ? round % 2 : round]);
    return late_run_both(folder, grid->ranks, sets, sites);
}

static void test_bug_31_grids_with_delayed_streams_train_the_same_bits_as_the_cpu(void **state)
{
    static LateSites sites = {.every = 3, .enough = 20};
    int by = getenv("TEST_SAMPLE") ? 11 : 1;
    for (int i = 0; i < CONFIGURATIONS; i += by)
        run_configuration(*state, i, &sites);
    late_sites_check(&sites, by == 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bug_31_grids_with_delayed_streams_train_the_same_bits_as_the_cpu),
    };
    return cmocka_run_group_tests_name("late grid", tests, trainer_folder_setup,
                                       trainer_folder_teardown);
}

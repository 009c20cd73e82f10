/* test_late_trainer.c -- training by several ranks on "late devices"
 * (tests/support/device/late_device.h), which delay all work until somebody waits for it. The
 * results must have the same bits as on the CPU in every order that the streams' events allow. If
 * any wait of the store, the step or the communicator is left out, the results must change.
 *
 * In a single configuration a missing wait may have no effect. When collectives follow each other,
 * the waits of the later ones preserve the order of the earlier ones. An all-gather waits until the
 * peers have read this rank's shard; the waits of the next step's reduction have the same effect,
 * because the shard is not updated before. If a rank's share of a unit is only padding, no rank
 * notices a wrong sum, or a gather into a buffer that is still in use. Without overlap_comm, the
 * compute stream waits for each reduction at once, and this has the same effect as the wait at the
 * step's end.
 *
 * So with overlap_comm, every place in the program that waits must matter in at least one
 * configuration. Without overlap_comm, the order itself is checked: no work of the compute stream
 * may come before collectives that were issued earlier. */
#include "tests/support/device/late_run.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char *const stages[] = {"zero_optimization.stage=0", "zero_optimization.stage=1",
                                     "zero_optimization.stage=2", "zero_optimization.stage=3"};

/* Keys that decide how collectives are grouped, and how far ahead weights are gathered. At ZeRO
 * stage 3 no parameters are stored whole unless a key says so. */
enum { STAGES = sizeof stages / sizeof *stages, KEYS = 5, SETS = 6, RESTS = 4 };
static const char *const keys[KEYS][SETS] = {
    {"zero_optimization.overlap_comm=true", "zero_optimization.reduce_bucket_size=1",
     "zero_optimization.allgather_bucket_size=1",
     "zero_optimization.stage3_param_persistence_threshold=0",
     "zero_optimization.stage3_max_reuse_distance=0",
     "zero_optimization.stage3_max_live_parameters=10240"},
    {"zero_optimization.overlap_comm=true",
     "zero_optimization.stage3_param_persistence_threshold=0",
     "zero_optimization.stage3_max_reuse_distance=0"},
    {"zero_optimization.overlap_comm=false", "zero_optimization.reduce_bucket_size=1",
     "zero_optimization.allgather_bucket_size=1",
     "zero_optimization.stage3_param_persistence_threshold=0",
     "zero_optimization.stage3_max_reuse_distance=0"},
    {"zero_optimization.overlap_comm=true", "zero_optimization.reduce_scatter=false",
     "zero_optimization.reduce_bucket_size=5000", "zero_optimization.stage3_prefetch_bucket_size=0",
     "zero_optimization.stage3_param_persistence_threshold=0"},
    {"zero_optimization.overlap_comm=true", "zero_optimization.reduce_bucket_size=5000",
     "zero_optimization.stage3_param_persistence_threshold=200",
     "zero_optimization.stage3_prefetch_bucket_size=1500"}};
static const char *const rest[RESTS] = {"gradient_accumulation_steps=1",
                                        "gradient_accumulation_steps=2",
                                        "communication_data_type=bf16", "bf16.enabled=true"};

/* Combines every stage with all keys, and each such pair with two entries of `rest`, on two or
 * three ranks. */
static void test_bug_31_ranks_with_delayed_streams_train_the_same_bits_as_the_cpu(void **state)
{
    static LateSites sites;
    int all = STAGES * KEYS * 2, by = getenv("TEST_SAMPLE") ? 9 : 1, overlapping = 0;
    for (int i = 0; i < all; i += by) {
        const char *sets[SETS + 3] = {stages[i % STAGES],
                                      rest[(i / STAGES + i % STAGES * 2) % RESTS]};
        for (int k = 0; k < SETS; k++)
            sets[2 + k] = keys[i / STAGES % KEYS][k];
        overlapping += late_run_both(*state, 2 + i % 3 / 2, sets, &sites);
    }
    assert_true(overlapping > 0);
    late_sites_check(&sites, by == 1);
}

/* Two shard groups of two ranks, at every stage that divides anything: the sums and gathers between
 * the groups follow those within them on the same stream. In every second configuration the update
 * runs on a stream of its own, for which the gathers between the groups wait. */
static void test_shard_groups_with_delayed_streams_train_the_same_bits_as_the_cpu(void **state)
{
    static LateSites sites = {.every = 2, .enough = 10};
    int all = (STAGES - 1) * KEYS, by = getenv("TEST_SAMPLE") ? 7 : 1, overlapping = 0;
    for (int i = 0; i < all; i += by) {
        const char *sets[SETS + 5] = {stages[1 + i % (STAGES - 1)], rest[(i / 3 + i) % RESTS],
                                      "parallel.shard=2",
                                      i % 2 ? "zero_optimization.offload_optimizer.device=cpu"
                                            : "zero_optimization.offload_optimizer.device=none"};
        for (int k = 0; k < SETS; k++)
            sets[4 + k] = keys[i / (STAGES - 1)][k];
        overlapping += late_run_both(*state, 4, sets, &sites);
    }
    assert_true(overlapping > 0);
    late_sites_check(&sites, by == 1);
}

/* The models and optimizers together call all ops, also in doubles. This checks that a late device,
 * which runs ops later, has stored the arguments of each call correctly. */
static void test_one_rank_with_delayed_streams_trains_the_same_bits_as_the_cpu(void **state)
{
    static const char *const models[][4] = {
        {"gradient_accumulation_steps=2"},
        {"model.norm=layernorm", "model.position=learned", "model.activation=gelu",
         "fp64.enabled=true"},
        {"model.activation=swiglu", "model.qk_norm=true", "optimizer.type=SGD",
         "optimizer.params={\"lr\":0.1,\"momentum\":0.9}"},
        {"model.norm=layernorm", "model.position=learned", "bf16.enabled=true"}};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        const char *sets[5] = {NULL};
        memcpy(sets, models[i], sizeof models[i]);
        assert_int_equal(late_run_both(*state, 1, sets, NULL), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_rank_with_delayed_streams_trains_the_same_bits_as_the_cpu),
        cmocka_unit_test(test_shard_groups_with_delayed_streams_train_the_same_bits_as_the_cpu),
        cmocka_unit_test(test_bug_31_ranks_with_delayed_streams_train_the_same_bits_as_the_cpu),
    };
    return cmocka_run_group_tests_name("late trainer", tests, trainer_folder_setup,
                                       trainer_folder_teardown);
}

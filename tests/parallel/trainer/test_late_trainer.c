/* test_late_trainer.c -- training by several ranks on devices that put off their work
 * (tests/support/device/late_device.h): the bits of the CPU in every order that the streams' events
 * allow, and not without each of the waits that the store, the step and the communicator ask for.
 *
 * In a single configuration a missing wait may have no effect. Of collectives that follow each
 * other the waits of the later ones keep the order of the earlier ones; the wait of an all-gather
 * until the peers have read this rank's shard is covered by those of the next step's reduction, for
 * the shard is not updated before; where a rank's share of a unit is padding alone nobody sees its
 * sum, nor that a buffer is gathered into too early with the unit that it held; and without
 * overlap_comm the compute stream waits for each reduction at once, which the wait at the step's
 * end covers. So with overlap_comm each place in the program that waits must show, in one
 * configuration at least, and without it the order itself is looked at: no work of the compute
 * stream may come before collectives that were asked for earlier. */
#include "tests/support/device/late_run.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char *const stages[] = {"zero_optimization.stage=0", "zero_optimization.stage=1",
                                     "zero_optimization.stage=2", "zero_optimization.stage=3"};

/* How collectives are grouped and how far ahead weights are gathered; of stage 3 nothing persists
 * unless said. */
enum { STAGES = sizeof stages / sizeof *stages, KEYS = 5, SETS = 6, RESTS = 4 };
static const char *const keys[KEYS][SETS] = {
    {"zero_optimization.overlap_comm=true", "zero_optimization.reduce_bucket_size=1",
     "zero_optimization.allgather_bucket_size=1",
     "zero_optimization.stage3_param_persistence_threshold=0",
     "zero_optimization.stage3_max_reuse_distance=0",
     "zero_optimization.stage3_max_live_parameters=10000"},
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

/* Every stage with all keys, each pair with two of the rest, in ranks of two or three. */
static void test_bug_31_ranks_on_late_devices(void **state)
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

/* Models and optimizers that call all ops, in doubles too: what the device notes of a call is what
 * the call was. */
static void test_one_rank_on_a_late_device(void **state)
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
        cmocka_unit_test(test_one_rank_on_a_late_device),
        cmocka_unit_test(test_bug_31_ranks_on_late_devices),
    };
    return cmocka_run_group_tests_name("late trainer", tests, trainer_folder_setup,
                                       trainer_folder_teardown);
}

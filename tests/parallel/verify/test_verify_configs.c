/* test_verify_configs.c -- tests what `./train verify` proves about optimizer states on the host
 * and shard groups: the grid has them as the config says, whichever of the alternative keys the
 * config uses, and the single rank with which it is compared has none. */
#include "model/core/check.h"
#include "parallel/verify/verify_configs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#define OFFLOAD "zero_optimization.offload_optimizer."

enum { SETS = 5, RANKS = 4 };

static const struct {
    const char *sets[SETS];
    double ratio; /* 0: states are on the device */
    int shard;
} rows[] = {
    {{"zero_optimization.stage=2"}, 0, 4},
    {{"zero_optimization.stage=0", OFFLOAD "device=cpu"}, 1, 4},
    {{"zero_optimization.stage=1", OFFLOAD "device=cpu", OFFLOAD "ratio=0.5"}, 0.5, 4},
    {{"zero_optimization.stage=3", "zero_optimization.cpu_offload=true"}, 1, 4},
    {{"zero_optimization.stage=3", OFFLOAD "device=cpu", "parallel.shard=2"}, 1, 2},
    {{"zero_optimization.stage=3", "zero_optimization.mics_shard_size=2"}, 0, 2},
    {{"zero_optimization.stage=3", "zero_optimization.zero_hpz_partition_size=2",
      "bf16.enabled=true", OFFLOAD "device=cpu"},
     1,
     2},
};

static void expect_alone(const Config *c)
{
    assert_int_equal(c->zero_optimization.offload_optimizer.device, OFFLOAD_NONE);
    assert_int_equal(config_grid(c, 1).dp, 1);
    assert_int_equal(config_shard(c, 1), 1);
}

static void the_single_rank_has_neither_states_on_the_host_nor_shard_groups(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *sets[SETS];
        VerifyConfigs c;
        VerifyOptions options = {.config = "configs/demo.json",
                                 .set = {.item = sets},
                                 .ranks = RANKS,
                                 .dtype = VERIFY_CONFIG};
        int code = 0;
        for (; options.set.count < SETS && rows[i].sets[options.set.count]; options.set.count++)
            sets[options.set.count] = rows[i].sets[options.set.count];
        if (!verify_configs_load(&c, &options, &code)) fail_msg("row %zu: code %d", i, code);
        const OffloadConfig *offload = &c.grid->zero_optimization.offload_optimizer;
        assert_int_equal(offload->device, rows[i].ratio > 0 ? OFFLOAD_CPU : OFFLOAD_NONE);
        if (rows[i].ratio > 0) assert_true(offload->ratio == rows[i].ratio);
        assert_int_equal(config_shard(c.grid, RANKS), rows[i].shard);
        expect_alone(c.single);
        assert_int_equal(c.exact != NULL, dtype_size(config_dtype(c.single)) == 2);
        if (c.exact) expect_alone(c.exact);
        verify_configs_free(&c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_single_rank_has_neither_states_on_the_host_nor_shard_groups),
    };
    return cmocka_run_group_tests_name("verify's configs", tests, NULL, NULL);
}

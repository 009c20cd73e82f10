/* test_places.c -- tests where optimizer states are: which shards have theirs on the host for each
 * ratio of offload_optimizer, how many bytes the states take on the device and on the host, and
 * with which event each unit is published. The updates must have the same bits wherever the states
 * are. */
#include "optim/optimizer.h"

#include "model/core/check.h"
#include "tests/support/model/fake_store.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

static Config config_of(OffloadDevice device, double ratio)
{
    Config c = {0};
    c.optimizer.type = OPTIMIZER_ADAMW;
    c.optimizer.params.betas[0] = 0.9;
    c.optimizer.params.betas[1] = 0.95;
    c.optimizer.params.eps = 1e-8;
    c.optimizer.params.bias_correction = true;
    c.zero_optimization.offload_optimizer.device = device;
    c.zero_optimization.offload_optimizer.ratio = ratio;
    return c;
}

/* The states of a shard of AdamW in f32 take 8 bytes an element: 3072, 1024, 3072 and 1024 bytes.
 * The ratio is the least fraction of these bytes that must be on the host. Shards are tried in the
 * order in which the store updates their units, and each one that still fits stays on the device.
 * So a small shard may stay there after a larger one did not fit. */
static const struct {
    OffloadDevice device;
    double ratio;
    bool host[UNITS][2];
} rows[] = {
    {OFFLOAD_NONE, 1, {{false, false}, {false, false}}},
    {OFFLOAD_CPU, 0, {{false, false}, {false, false}}},
    {OFFLOAD_CPU, 0.1, {{false, false}, {false, true}}},
    {OFFLOAD_CPU, 0.4, {{false, false}, {true, true}}},
    {OFFLOAD_CPU, 0.5, {{false, false}, {true, true}}},
    {OFFLOAD_CPU, 0.51, {{false, true}, {true, true}}},
    {OFFLOAD_CPU, 0.75, {{true, false}, {true, false}}},
    {OFFLOAD_CPU, 0.9, {{true, true}, {true, true}}},
    {OFFLOAD_CPU, 1, {{true, true}, {true, true}}},
    /* In these two rows (from LATE on), unit 0 is used, and so updated, after unit 1. */
    {OFFLOAD_CPU, 0.51, {{true, true}, {false, true}}},
    {OFFLOAD_CPU, 1, {{true, true}, {true, true}}},
};
enum { ROWS = sizeof rows / sizeof *rows, LATE = ROWS - 2 };

/* The weights after two updates. */
typedef struct {
    float weight[UNITS][SIZE];
} Updated;

static void check_bytes(int row, const OptimizerBytes *bytes, const size_t *units)
{
    size_t host[UNITS] = {0}, all = 0;
    for (int u = 0; u < UNITS; u++)
        for (int r = 0; r < 2; r++) {
            size_t own = 2 * sizeof(float) * (size_t)(r == 0 ? SPLIT : SIZE - SPLIT);
            all += own;
            if (rows[row].host[u][r]) host[u] += own;
        }
    for (int u = 0; u < UNITS; u++)
        assert_int_equal(units[u], host[u]);
    assert_int_equal(bytes->host, host[0] + host[1]);
    assert_int_equal(bytes->device + bytes->host, all);
    assert_int_equal(bytes->device_slots, bytes->device);
    if (rows[row].device == OFFLOAD_CPU)
        assert_true((double)bytes->device <= (1 - rows[row].ratio) * (double)all);
}

static void update(int row, Updated *out)
{
    static const int order[UNITS] = {1, 0};
    Store *s = store_open(F32, F32);
    Config c = config_of(rows[row].device, rows[row].ratio);
    StepDecision d = {.apply = 1, .update = 1, .lr = 0.1, .grad_scale = 1};
    size_t units[UNITS];
    Arena host[UNITS];
    Optimizer o;
    if (row >= LATE) s->base.order = order;
    OptimizerBytes bytes = optimizer_bytes_of_units(&c, &s->base, units);
    check_bytes(row, &bytes, units);
    void *memory = must_alloc(bytes.device + 1);
    Arena arena = arena_over(memory, bytes.device);
    for (int u = 0; u < UNITS; u++)
        host[u] = arena_over(must_alloc(units[u] + 1), units[u]);
    optimizer_plan(&o, &c, &s->base, &arena, host);
    optimizer_init(&o, &s->dev);
    for (int u = 0; u < UNITS; u++)
        fill_numbers(s->grad[u], 7 + (uint64_t)u, 1);
    for (int overlaps = 0; overlaps < 2; overlaps++, d.update++) {
        s->base.publish_overlaps = overlaps;
        s->n_published = 0;
        optimizer_step(&o, &s->dev, &s->base, &d);
        assert_int_equal(s->n_published, UNITS);
        for (int i = 0; i < UNITS; i++) {
            int u = row >= LATE ? order[i] : i;
            bool any = rows[row].host[u][0] || rows[row].host[u][1];
            assert_int_equal(s->published[i], u);
            assert_ptr_equal(s->updated[i], any ? &o.updated[u] : NULL);
        }
    }
    optimizer_await(&o);
    device_synchronize(&s->dev);
    for (int u = 0; u < UNITS; u++)
        memcpy(out->weight[u], s->weight[u].data, sizeof out->weight[u]);
    optimizer_free(&o);
    for (int u = 0; u < UNITS; u++)
        free(host[u].base);
    free(memory);
    store_close(s);
}

static void test_an_offload_ratio_moves_whole_shards_and_changes_no_bit(void **state)
{
    static Updated first, other;
    (void)state;
    update(0, &first);
    for (int row = 1; row < ROWS; row++) {
        update(row, &other);
        assert_memory_equal(&first, &other, sizeof first);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_offload_ratio_moves_whole_shards_and_changes_no_bit),
    };
    return cmocka_run_group_tests_name("places", tests, NULL, NULL);
}

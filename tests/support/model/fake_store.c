/* fake_store.c -- implements fake_store.h: a parameter store of two small units for tests of the
 * optimizer. */
#include "tests/support/model/fake_store.h"

#include "model/core/check.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>

static int fake_shards(ParamStore *base, Purpose purpose, Shard *shards, int max)
{
    Store *s = (Store *)base;
    int n = 0;
    for (int u = 0; u < UNITS; u++) {
        for (int r = 0; r < 2; r++) {
            if (purpose == PURPOSE_COUNT && u == 0 && r == 0) continue;
            const Range *range = &s->range[u][r];
            if (n < max) {
                shards[n] = (Shard){.unit = u,
                                    .offset = range->offset,
                                    .count = range->count,
                                    .group = range->group};
                shards[n].weight = tensor_slice_rows(s->weight[u], range->offset, range->count);
                shards[n].grad = tensor_slice_rows(s->grad[u], range->offset, range->count);
            }
            n++;
        }
    }
    return n;
}

static void fake_publish(ParamStore *base, int unit, Event *updated)
{
    Store *s = (Store *)base;
    assert_true(s->n_published < 8);
    s->updated[s->n_published] = updated;
    s->published[s->n_published++] = unit;
}

static void add_param(Store *s, int index, const char *name, int64_t offset, bool matrix)
{
    Param *p = &s->param[index];
    *p = (Param){.unit = index / 2, .ndim = matrix ? 2 : 1, .sharers = 1, .offset = offset};
    snprintf(p->name, sizeof p->name, "%s.%d", name, index / 2);
    p->dim[0] = matrix ? A_ROWS : B_COUNT;
    p->dim[1] = matrix ? A_COLS : 1;
    p->padded[0] = p->local[0] = matrix ? A_PADDED : B_COUNT;
    p->padded[1] = p->local[1] = p->dim[1];
    p->group = matrix ? GROUP_DECAY : GROUP_NO_DECAY;
}

/* Returns the i-th of a fixed sequence of numbers in [-1, 1). */
static double number(uint64_t i)
{
    uint64_t x = (i + 1) * 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 31)) * 0xbf58476d1ce4e5b9u;
    return (double)(x >> 11) * 0x1p-52 - 1.0;
}

/* Returns whether element i of a unit belongs to a parameter and is not padding. */
static bool valid(int i)
{
    return i < A_ROWS * A_COLS || (i >= SPLIT && i < SPLIT + B_COUNT);
}

void fill_numbers(Tensor x, uint64_t stream, double factor)
{
    for (int i = 0; i < SIZE; i++) {
        double value = valid(i) ? factor * number(stream * 1000 + (uint64_t)i) : 0.0;
        dtype_set(x.dtype, x.data, i, value);
    }
}

Store *store_open(DType storage, DType grad)
{
    Store *s = must_calloc(1, sizeof *s);
    char err[256];
    DeviceOptions options = {.threads = 1, .local_ranks = 1};
    if (!device_open(&s->dev, "cpu", &options, err, sizeof err)) fail_msg("%s", err);
    s->block = must_calloc(UNITS * 2 * SIZE, sizeof(double));
    s->base.table = &s->table;
    s->base.shards = fake_shards;
    s->base.publish = fake_publish;
    s->table =
        (ParamTable){.param = s->param, .n_params = 2 * UNITS, .unit = s->unit, .n_units = UNITS};
    for (int u = 0; u < UNITS; u++) {
        double *memory = (double *)s->block + 2 * SIZE * u;
        s->weight[u] = tensor_1d(memory, storage, SIZE);
        s->grad[u] = tensor_1d(memory + SIZE, grad, SIZE);
        fill_numbers(s->weight[u], (uint64_t)u, 0.5);
        s->range[u][0] = (Range){.offset = 0, .count = SPLIT, .group = GROUP_DECAY};
        s->range[u][1] = (Range){.offset = SPLIT, .count = SIZE - SPLIT, .group = GROUP_NO_DECAY};
        s->unit[u] = (Unit){.first = 2 * u,
                            .count = 2,
                            .dtype = storage,
                            .size = SIZE,
                            .range = s->range[u],
                            .n_ranges = 2};
        add_param(s, 2 * u, "a", 0, true);
        add_param(s, 2 * u + 1, "b", SPLIT, false);
    }
    return s;
}

void store_close(Store *s)
{
    device_close(&s->dev);
    free(s->block);
    free(s);
}

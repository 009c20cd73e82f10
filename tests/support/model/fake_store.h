/* fake_store.h -- a ParamStore of two small units for tests of the optimizer: shards, groups and
 * publishing without a grid.
 *
 * Each unit: a (10, 30) with decay, padded to 12 rows, and b (7) without, in ranges of 384 and 128
 * elements with gaps; unit 0's first range is not ours to count, so that the purpose matters. */
#ifndef TESTS_SUPPORT_MODEL_FAKE_STORE_H
#define TESTS_SUPPORT_MODEL_FAKE_STORE_H

#include "model/core/device.h"
#include "model/param/store.h"

enum { UNITS = 2, A_ROWS = 10, A_COLS = 30, A_PADDED = 12, B_COUNT = 7, SPLIT = 384, SIZE = 512 };

typedef struct {
    ParamStore base;
    ParamTable table;
    Param param[2 * UNITS];
    Unit unit[UNITS];
    Range range[UNITS][2];
    Device dev;
    Tensor weight[UNITS], grad[UNITS];
    int published[8], n_published;
    void *block;
} Store;

/* Opens a CPU device of one thread and fills the weights with fixed numbers. */
Store *store_open(DType storage, DType grad);
void store_close(Store *store);

/* The valid part of both parameters = factor x fixed numbers in [-1, 1), a stream's own; gaps and
 * padding zero. x has SIZE elements. */
void fill_numbers(Tensor x, uint64_t stream, double factor);

#endif

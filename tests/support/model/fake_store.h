/* fake_store.h -- a ParamStore of two small units for tests of the optimizer: it has shards and
 * groups and records what is published, without a grid.
 *
 * Each unit has a (10, 30) with weight decay, padded to 12 rows, and b (7) without, in ranges of
 * 384 and 128 elements with gaps. This rank does not count the first range of unit 0, so that the
 * shards to count and the shards to update differ. */
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
    Event *updated[8]; /* with each unit that is published */
    void *block;
} Store;

/* Opens a CPU device with one thread and fills the weights with fixed numbers. */
Store *store_open(DType storage, DType grad);
void store_close(Store *store);

/* Sets the elements of both parameters to factor x fixed numbers in [-1, 1), which differ between
 * streams; gaps and padding become zero. x has SIZE elements. */
void fill_numbers(Tensor x, uint64_t stream, double factor);

#endif

/* loader_fixture.h -- a data set in which the value of each token is its position, and loaders that
 * make batches of it. */
#ifndef TESTS_SUPPORT_FILES_LOADER_FIXTURE_H
#define TESTS_SUPPORT_FILES_LOADER_FIXTURE_H

#include "data/dataset.h"
#include "data/loader.h"

/* A data set of shards with consecutive numbers: token i has the value i. */
typedef struct {
    char *folder;
    DataSet data;
} CountingSet;

/* Opens a data set with so many tokens. The training tokens are in three files, one of which has a
 * single token. Close it with counting_close. */
CountingSet counting_open(int64_t train_tokens, int64_t val_tokens);
void counting_close(CountingSet *set);
/* Create a loader over the set, and load a batch. An error fails the test. If vocab_size, dp_size
 * or micros is 0 in `options`, the loader gets a vocabulary of 60000, one rank or one micro-batch.
 */
Loader *counting_loader(const CountingSet *set, LoaderOptions options);
Batch counting_next(Loader *loader, int64_t samples, int64_t micro);

#endif

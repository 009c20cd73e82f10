/* loader_fixture.h -- a data set in which every token is its own number, and batches of it. */
#ifndef TESTS_SUPPORT_FILES_LOADER_FIXTURE_H
#define TESTS_SUPPORT_FILES_LOADER_FIXTURE_H

#include "data/dataset.h"
#include "data/loader.h"

/* Over shards of consecutive numbers: token i is i. */
typedef struct {
    char *folder;
    DataSet data;
} CountingSet;

/* The training tokens lie in three files, one with a single token. counting_close is due. */
CountingSet counting_open(int64_t train_tokens, int64_t val_tokens);
void counting_close(CountingSet *set);
/* A loader over it, and its batch; what they are refused fails the test. Of the options a
 * vocabulary, ranks and micro-batches of 0 mean 60000, one and one. */
Loader *counting_loader(const CountingSet *set, LoaderOptions options);
Batch counting_next(Loader *loader, int64_t samples, int64_t micro);

#endif

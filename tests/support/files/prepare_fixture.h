/* prepare_fixture.h -- a text, a cache folder, and a config that names both, for the tests of
 * preparing text (tokenizing it and caching the tokens). */
#ifndef TESTS_SUPPORT_FILES_PREPARE_FIXTURE_H
#define TESTS_SUPPORT_FILES_PREPARE_FIXTURE_H

#include "data/dataset.h"

/* A temporary folder with one text, and a config that names the text. */
typedef struct {
    char *folder, *cache, *text_path;
    char *text;
    char **items; /* the list config.data.text */
    Config config;
} PrepareFixture;

PrepareFixture prepare_fixture_open(void);
void prepare_fixture_close(PrepareFixture *f);
/* Opens the config's data. A failure ends the test program. */
DataSet prepare_fixture_data(const PrepareFixture *f);

#endif

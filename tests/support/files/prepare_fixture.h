/* prepare_fixture.h -- what the tests of prepared text share: a text, a cache, and a config that
 * names both. */
#ifndef TESTS_SUPPORT_FILES_PREPARE_FIXTURE_H
#define TESTS_SUPPORT_FILES_PREPARE_FIXTURE_H

#include "data/dataset.h"

/* A folder with one text and a config that names it. */
typedef struct {
    char *folder, *cache, *text_path;
    char *text;
    char **items; /* of config.data.text */
    Config config;
} PrepareFixture;

PrepareFixture prepare_fixture_open(void);
void prepare_fixture_close(PrepareFixture *f);
/* The config's data; a failure ends the test. */
DataSet prepare_fixture_data(const PrepareFixture *f);

#endif

/* config_support.h -- makes configs for tests in one call. A config that must be valid but is not
 * ends the test program with the config reader's error message. */
#ifndef TESTS_SUPPORT_FILES_CONFIG_SUPPORT_H
#define TESTS_SUPPORT_FILES_CONFIG_SUPPORT_H

#include "configs/config.h"

/* Returns the text of a file; the caller frees it. */
char *config_test_file(const char *path);
/* Parses a config that must be valid; its messages call it c.json. */
const Config *config_test_parse(const char *text, int n_sets, const char *const *sets);
/* Parse {"data": {"text": "x"}, "train_batch_size": 8}, the first with further keys on a second
 * line, the other with one --set option. */
const Config *config_test_keys(const char *keys);
const Config *config_test_set(const char *set);

/* Parses the same config on one rank with gradient_clipping and these keys, and with one --set
 * option unless `set` is NULL. The config must be valid and give exactly this notice ("": none). */
const Config *config_test_says(const char *keys, const char *set, const char *notice);

/* Returns the number of errors of a config in which `key` has the JSON value `value`, and sets
 * *n_notices. */
int config_test_errors(const char *key, const char *value, int *n_notices);

/* Runs `./train config ...` with its output discarded and returns its exit code. argv[0] is
 * "config"; NULL ends the list. */
int config_test_command(char **argv);

#endif

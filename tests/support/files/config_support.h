/* config_support.h -- configs for tests: a good one in one line, with the loader's own sentence
 * when it is not. */
#ifndef TESTS_SUPPORT_FILES_CONFIG_SUPPORT_H
#define TESTS_SUPPORT_FILES_CONFIG_SUPPORT_H

#include "configs/config.h"

/* The text of a file; the caller frees. */
char *config_test_file(const char *path);
/* A config that must be good, as the file c.json. */
const Config *config_test_parse(const char *text, int n_sets, const char *const *sets);
/* {"data": {"text": "x"}, "train_batch_size": 8} with more keys on its second line; with one --set.
 */
const Config *config_test_keys(const char *keys);
const Config *config_test_set(const char *set);

/* The same with these keys and gradient_clipping, under at most one --set, on one rank; it must be
 * good and say exactly this notice ("": none). */
const Config *config_test_says(const char *keys, const char *set, const char *notice);

/* How many errors and notices a config has in which this key has this value, of JSON. */
int config_test_errors(const char *key, const char *value, int *n_notices);

/* Runs `./train config ...`: argv[0] is "config", NULL ends it. What it says goes nowhere; its exit
 * code. */
int config_test_command(char **argv);

#endif

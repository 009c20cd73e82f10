/* fuzz_model.h -- the fuzz target of what a config leads to, by name, for replay in
 * tests/configs/test_config_runs.c. */
#ifndef TESTS_FUZZ_FUZZ_MODEL_H
#define TESTS_FUZZ_FUZZ_MODEL_H

#include "configs/config.h"

/* Values of a model and run as small as they get, or as large as the option table lets them be. */
typedef enum { MODEL_SMALL, MODEL_LARGE } ModelSize;

/* A config whose values the bytes choose, over the option table; NULL where rules between keys
 * refuse it. `shown`, of `size` bytes, is what would say the same on a command line. */
const Config *fuzz_model_config(const uint8_t *data, size_t n, ModelSize model, char *shown,
                                size_t size);

/* Any bytes as the choices of a small config: where it is accepted, its plan is what a trainer over
 * drawn tokens takes, and steps and a few generated tokens end. Returns 1 if it was accepted. */
int fuzz_model(const uint8_t *data, size_t n);

#endif

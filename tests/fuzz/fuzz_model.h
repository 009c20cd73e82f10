/* fuzz_model.h -- the fuzz target of whole runs of a config, by name, for replay in
 * tests/configs/test_config_runs.c. */
#ifndef TESTS_FUZZ_FUZZ_MODEL_H
#define TESTS_FUZZ_FUZZ_MODEL_H

#include "configs/config.h"

/* Values as small as a model and a run can have, or as large as the option table allows. */
typedef enum { MODEL_SMALL, MODEL_LARGE } ModelSize;

/* A config whose values the bytes choose, over the option table; NULL where rules between keys
 * refuse it. `shown`, of `size` bytes, is what would say the same on a command line. */
const Config *fuzz_model_config(const uint8_t *data, size_t n, ModelSize model, char *shown,
                                size_t size);

/* Any bytes as the choices of a small config: where it is accepted, its plan is what a trainer over
 * drawn tokens takes, and steps and a few generated tokens end. Returns 1 if it was accepted. */
int fuzz_model(const uint8_t *data, size_t n);

#endif

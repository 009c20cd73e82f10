/* fuzz_model.h -- declares the fuzz target that runs whole configs, so that
 * tests/configs/test_config_runs.c can replay inputs. */
#ifndef TESTS_FUZZ_FUZZ_MODEL_H
#define TESTS_FUZZ_FUZZ_MODEL_H

#include "configs/config.h"

/* MODEL_SMALL draws values of small models and runs; MODEL_LARGE draws values up to the limits of
 * the option table. */
typedef enum { MODEL_SMALL, MODEL_LARGE } ModelSize;

/* Returns a config whose values are chosen by the bytes, from the rows of the option table; NULL if
 * rules between keys refuse it. Writes the same settings as command-line arguments to `shown`,
 * which has `size` bytes. */
const Config *fuzz_model_config(const uint8_t *data, size_t n, ModelSize model, char *shown,
                                size_t size);

/* Runs a small config that is chosen by the bytes. If it is accepted, the memory plan must equal
 * what a trainer over random tokens allocates, and steps and the generation of a few tokens must
 * end. Returns 1 if it was accepted. */
int fuzz_model(const uint8_t *data, size_t n);

#endif

/* exact_gradients.h -- helpers for tests that compare the gradients of whole models on CUDA with
 * exact ones: those of the same weights in f64 on the CPU. */
#ifndef TESTS_SUPPORT_MODEL_EXACT_GRADIENTS_H
#define TESTS_SUPPORT_MODEL_EXACT_GRADIENTS_H

#include "tests/support/model/model_fixture.h"

/* Copies all weights from one model to another, whose type may differ. */
void gradients_copy_weights(Fixture *to, Fixture *from);
/* Fails unless the error of each gradient of `cuda` is at most `factor` times the error that `cpu`,
 * another way to compute the same, has. `name` begins the message. */
void gradients_check(Fixture *cuda, Fixture *cpu, Fixture *exact, double factor, DType dtype,
                     const char *name);
/* Fails unless both losses are within one rounding of the exact loss `want`. */
void gradients_check_loss(double there, double here, double want, DType dtype, const char *name);

#endif

/* gradcheck.h -- checks the gradients of a function's backward pass against finite differences of
 * its forward pass: the derivative of a weighted sum of outputs along a random unit direction, by a
 * five-point formula in f64. With steps h = 1e-3 the formula's error is h^4 / 30 times a fifth
 * derivative, and rounding adds 1e-16 |L| / h; a bound of 1e-9 of the numbers' size leaves three
 * digits above both. */
#ifndef TESTS_SUPPORT_MODEL_GRADCHECK_H
#define TESTS_SUPPORT_MODEL_GRADCHECK_H

#include <stdint.h>

enum { MOST = 4096, INPUTS = 6 };

/* A differentiable function: its inputs, the gradients that backward computes, and the forward
 * pass. */
typedef struct Function Function;
struct Function {
    int count;
    struct {
        const char *name;
        int64_t n;
        double *x, *dx;
    } input[INPUTS];
    double (*loss)(const Function *);
    const void *options;
    /* Weights of the outputs in the sum, and so also the outputs' gradient dy. */
    double *weight;
    double *scratch[6];
    int32_t index[MOST];
};

/* Creates a function. loss runs forward on the function's inputs and returns the sum. weight is
 * random, scratch is zero. */
Function *function_create(double (*loss)(const Function *), const void *options);
/* Adds an input of n random numbers; its gradient starts as NaN. */
double *function_input(Function *f, const char *name, int64_t n);
/* Fails the test unless the gradient dx of every input agrees with finite differences; frees the
 * function. */
void function_check(Function *f, const char *name);

#endif

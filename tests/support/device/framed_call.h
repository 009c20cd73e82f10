/* framed_call.h -- a call of an op on the CUDA device with strided operands, each inside a larger
 * block that is NaN outside the elements, and the oracle's result. For tests that call a kernel
 * directly, by a function of their own. */
#ifndef TESTS_SUPPORT_DEVICE_FRAMED_CALL_H
#define TESTS_SUPPORT_DEVICE_FRAMED_CALL_H

#include "model/core/device.h"
#include "tests/support/oracle/oracle.h"

/* A tensor inside a larger block, on the host and on the device. `start` is the block before a run.
 */
typedef struct {
    Tensor here, there;
    unsigned char *block, *start, *far;
    size_t bytes;
} Framed;

typedef struct {
    OpCase c;
    DType storage;
    int count;
    OperandSpec spec[CASE_OPERANDS];
    OracleCall oracle;
    Framed t[CASE_OPERANDS];
    char name[256];
} FramedCall;

/* For attention with first keys: a distance of the documents' starts, of which each query sees the
 * keys of its own, or a first key of its own for each query: random, or 1 for odd queries. */
enum { FIRST_RANDOM = -1, FIRST_ODD = -2 };

/* Draws the operands of a case, with rows that are `gap` elements and more apart, uploads them, and
 * computes the oracle's result. `documents` is read if the case has first keys. */
void framed_call_make(FramedCall *t, const OpCase *c, DType storage, int64_t gap,
                      int64_t documents);
void framed_call_free(FramedCall *t);

/* Calls the op on the device with these operands. */
typedef void (*FramedRun)(Device *dev, const OpCase *c, const Tensor *operand);
/* Sets all outputs to their initial values (NaN if they are only written), runs, and fetches them.
 */
void framed_call_run(FramedCall *t, FramedRun run);
/* Fails the test if a byte outside an output's elements has changed, or an element differs from the
 * oracle's by more than the test of all ops allows, where rows of zeros do not count in the rms. */
void framed_call_check(FramedCall *t);
/* The same for the outputs of the last run beside those of `other`, except sums of other outputs:
 * these are sums of differently rounded elements. */
void framed_call_compare(FramedCall *t, FramedRun other, const char *name);
/* Runs again and fails the test if any bit differs from the last run. */
void framed_call_repeat(FramedCall *t, FramedRun run);

#endif

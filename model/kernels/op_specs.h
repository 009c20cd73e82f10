/* op_specs.h -- helpers with which op_cases.c and op_cases_step.c build the operands of test and
 * benchmark cases. Private to those two files. */
#ifndef MODEL_KERNELS_OP_SPECS_H
#define MODEL_KERNELS_OP_SPECS_H

#include "model/kernels/op_cases.h"

#include <math.h>
#include <string.h>

static inline OperandSpec matrix(const char *name, Role role, int64_t rows, int64_t cols)
{
    return (OperandSpec){.name = name,
                         .role = role,
                         .type = TYPE_STORAGE,
                         .ndim = 2,
                         .dim = {rows, cols},
                         .fill = FILL_NORMAL,
                         .high = 1,
                         .roundings = 1,
                         .depth = 4};
}

static inline OperandSpec shaped(OperandSpec s, int ndim, int64_t d0, int64_t d1, int64_t d2)
{
    const int64_t dim[3] = {d0, d1, d2};
    s.ndim = ndim;
    memcpy(s.dim, dim, sizeof dim);
    return s;
}

static inline OperandSpec vector(const char *name, Role role, int64_t n)
{
    OperandSpec s = shaped(matrix(name, role, 1, n), 1, n, 0, 0);
    s.dense = true;
    return s;
}

static inline OperandSpec cube(const char *name, Role role, int64_t batch, int64_t rows,
                               int64_t cols)
{
    return shaped(matrix(name, role, rows, cols), 3, batch, rows, cols);
}

static inline OperandSpec typed(OperandSpec s, TypeClass type)
{
    s.type = type;
    return s;
}

static inline OperandSpec deep(OperandSpec s, double roundings, double depth)
{
    s.roundings = roundings;
    s.depth = depth;
    return s;
}

static inline OperandSpec filled(OperandSpec s, FillKind fill, double low, double high)
{
    s.fill = fill;
    s.low = low;
    s.high = high;
    return s;
}

static inline OperandSpec derived(OperandSpec s, double low, double high)
{
    s = filled(s, FILL_UNIFORM, low, high);
    s.derived = true;
    return s;
}

static inline OperandSpec integers(const char *name, int64_t n, int64_t low, int64_t high)
{
    OperandSpec s = typed(vector(name, ROLE_IN, n), TYPE_I32);
    return filled(s, FILL_INTEGER, (double)low, (double)high);
}

static inline OperandSpec optional(OperandSpec s, bool present)
{
    s.role = present ? s.role : ROLE_ABSENT;
    return s;
}

/* Returns the error allowed for a sum of k terms, in units of the unit roundoff u. */
static inline double sum_depth(int64_t k)
{
    return 4 * sqrt((double)k);
}

static inline Role output(bool accumulate)
{
    return accumulate ? ROLE_UPDATE : ROLE_OUT;
}

/* Fill s with the operands of a loss op or of an optimizer op; return their number. */
int op_case_loss_operands(const OpCase *c, OperandSpec *s);
int op_case_optimizer_operands(const OpCase *c, OperandSpec *s);

#endif

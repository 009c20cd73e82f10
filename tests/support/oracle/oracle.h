/* oracle.h -- what every op should answer, in double, by the slowest and plainest loops: written
 * from the formulas in ops.h and sharing nothing with the kernels. All arrays are dense; operands
 * as op_cases.h orders them. */
#ifndef TESTS_SUPPORT_ORACLE_ORACLE_H
#define TESTS_SUPPORT_ORACLE_ORACLE_H

#include "model/kernels/op_cases.h"

typedef struct {
    const OpCase *c;
    DType storage;
    double *v[CASE_OPERANDS]; /* NULL: absent; updates hold their start, outputs are written */
    double magnitude[CASE_OPERANDS]; /* of terms that cancel in an output, where that matters; else
                                        0 */
} OracleCall;

/* Writes what forward ops would have left (stats, o, lse; 0 for losses without a target) from the
 * other inputs. */
void oracle_derive(OracleCall *call);
/* Writes every output. */
void oracle_run(OracleCall *call);

/* sums (C) = column sums of x (N, C) in host memory: what an operand with `sums_of` should hold
 * once that output is there. The oracle's own output would not do: it may be rounded the other way.
 */
void oracle_column_sums(double *sums, Tensor x);

/* x rounded to the type and back. */
double oracle_round(DType type, double x);

/* x, a finite number, as bf16: the smaller neighbour in magnitude, or the larger one if the 16
 * random bits of this element and update say so. */
double oracle_stochastic(double x, uint64_t seed, uint64_t stream, int64_t update, int64_t element);
/* The same for place i of a range with these segments. */
double oracle_stochastic_at(double x, uint64_t seed, const Segment *segment, int segments,
                            int64_t update, int64_t i);

/* The pieces, one file each. */
void oracle_memory(OracleCall *call);
void oracle_sum(OracleCall *call);
void oracle_normal(OracleCall *call);
void oracle_embedding(OracleCall *call);
void oracle_norm_stats(const OpCase *c, const double *x, double *stats);
void oracle_norm(OracleCall *call);
void oracle_linear(OracleCall *call);
void oracle_activation(OracleCall *call);
void oracle_rope(OracleCall *call);
void oracle_attention(OracleCall *call);
void oracle_attention_derive(OracleCall *call);
void oracle_maximum(OracleCall *call);
void oracle_loss(OracleCall *call);
/* The losses of logits that are cut by columns, and what op_loss_max and op_loss_terms leave. */
void oracle_cut_loss(OracleCall *call);
void oracle_cut_loss_derive(OracleCall *call);
void oracle_optimizer(OracleCall *call);

/* gelu (tanh form) and its derivative. */
double oracle_gelu(double x);
double oracle_gelu_slope(double x);

#endif

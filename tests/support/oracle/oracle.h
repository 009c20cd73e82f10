/* oracle.h -- computes the expected result of every op in double precision, with simple loops. They
 * follow the formulas in ops.h and share no code with the kernels. All arrays are dense; the
 * operands have the order of op_cases.h. */
#ifndef TESTS_SUPPORT_ORACLE_ORACLE_H
#define TESTS_SUPPORT_ORACLE_ORACLE_H

#include "model/kernels/op_cases.h"

typedef struct {
    const OpCase *c;
    DType storage;
    double *v[CASE_OPERANDS]; /* operands; NULL: absent. In-out operands hold their initial value */
    double magnitude[CASE_OPERANDS]; /* of terms that may cancel in an output; 0: irrelevant */
} OracleCall;

/* Computes the inputs that earlier ops would have produced from the other inputs: norm statistics,
 * attention's o and lse, and a loss of 0 where there is no target. */
void oracle_derive(OracleCall *call);
/* Computes all outputs of the op. */
void oracle_run(OracleCall *call);

/* Computes sums (C) = start (C; NULL: 0) + the column sums of x (N, C) in host memory. This is the
 * expected value of an operand with `sums_of`, and x must be the kernel's output: the oracle's own
 * may be rounded differently. */
void oracle_column_sums(double *sums, const double *start, Tensor x);

/* Returns x rounded to the dtype and converted back. */
double oracle_round(DType type, double x);

/* Returns the finite number x rounded stochastically to bf16: to the neighbour of larger magnitude
 * if the fraction between the neighbours plus 16 random bits overflows, else to the other one. The
 * random bits are determined by the seed, the stream, the update and the element. */
double oracle_stochastic(double x, uint64_t seed, uint64_t stream, int64_t update, int64_t element);
/* Does the same for position i of a range that consists of these segments. */
double oracle_stochastic_at(double x, uint64_t seed, const Segment *segment, int segments,
                            int64_t update, int64_t i);

/* The oracles of groups of ops, in the files oracle*.c. */
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
/* oracle_cut_loss computes the loss ops for logits whose columns are split over ranks.
 * oracle_cut_loss_derive computes what op_loss_max and op_loss_terms would have produced on all
 * ranks together. */
void oracle_cut_loss(OracleCall *call);
void oracle_cut_loss_derive(OracleCall *call);
void oracle_optimizer(OracleCall *call);

/* GELU in its tanh approximation, and its derivative. */
double oracle_gelu(double x);
double oracle_gelu_slope(double x);

#endif

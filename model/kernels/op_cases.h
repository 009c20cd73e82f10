/* op_cases.h -- descriptions of op calls for tests and benchmarks: the op, its shapes and options,
 * its operands with types and roles, the error allowed in the result, and its cost.
 * tests/kernels/test_ops.c compares every op with its oracle over such cases; `./train bench ops`
 * times the large ones. */
#ifndef MODEL_KERNELS_OP_CASES_H
#define MODEL_KERNELS_OP_CASES_H

#include "model/kernels/ops.h"

enum { CASE_OPERANDS = 13 };

typedef enum {
    ROLE_ABSENT, /* NO_TENSOR */
    ROLE_IN,     /* read, never written */
    ROLE_OUT,    /* "=": the previous content does not matter */
    ROLE_UPDATE  /* "+=" or in place: read and written */
} Role;

/* TYPE_GRAD is the gradient type of the call: the storage or the compute type. */
typedef enum { TYPE_STORAGE, TYPE_COMPUTE, TYPE_GRAD, TYPE_I32, TYPE_I64, TYPE_F64 } TypeClass;

typedef enum {
    FILL_NORMAL,    /* low + high * normal */
    FILL_UNIFORM,   /* [low, high) */
    FILL_INTEGER,   /* low .. high - 1 */
    FILL_FIRST_KEY, /* per query: a first key between 0 and the last key it sees */
    FILL_SEGMENTS   /* a table of CASE_SEGMENTS segments, which the caller chooses */
} FillKind;

/* One tensor operand. With u = unit roundoff, the error allowed on an output element is
 *
 * (roundings * u(its type) + depth * u(compute)) * max(|exact|, rms of the tensor).
 *
 * `roundings` counts how often a value is rounded to the operand's type before or when it is
 * stored. `depth` bounds the errors made in the compute type. The error of a sum of k terms grows
 * like a random walk, as sqrt(k) u, and the largest error of thousands of elements is within 4
 * times this. Each of the few further operations of a formula counts 1, and the program's own exp
 * and tanh count 4. */
typedef struct {
    const char *name;
    Role role;
    TypeClass type;
    bool dense;
    int ndim;
    int64_t dim[3];
    FillKind fill;
    double low, high;
    bool derived; /* true: an input that a forward op computes: stats, o, lse, losses */
    int alias_of; /* 1 + number of the operand whose memory it shares; 0: none */
    int sums_of;  /* 1 + number of the output whose stored columns it sums; 0: none */
    double roundings, depth;
    double factors; /* further roundings if factors of products are rounded to 16 bits, as tensor
                       cores require for attention weights and their gradients */
} OperandSpec;

/* A call of an op. Fields that the op does not use are zero. */
typedef struct {
    OpId op;
    int64_t n, cols;       /* rows and columns of the main operand; linear: N and I */
    int64_t outputs;       /* linear: number of outputs (O) */
    int64_t groups;        /* norm, rope: K, so that cols = K * width; sum: number of sources */
    int64_t table;         /* rows of the embedding or rope table */
    int64_t first;         /* token ops: first_row; losses of logits split among ranks: first_col */
    Segment part;          /* normal: the part of the parameter */
    int64_t batch, tq, tk; /* attention */
    Attention attention;
    int64_t vocab_size; /* loss */
    NormKind norm;
    ActivationKind activation;
    Epilogue epilogue;
    bool accumulate, accumulate_dx, accumulate_db;
    bool bias;    /* the optional vector is present; attention_backward: dbq, dbk and dbv */
    bool option;  /* true: the op's other optional operand is present, or its flag is set (pre,
                     first_key, inverse, backward, master, columns); sum: the sources, not dst, have
                     the gradient's type */
    bool variant; /* true: adamw is not decoupled and has no bias correction; sgd uses nesterov */
    bool stochastic; /* true: adamw or sgd rounds weights stochastically, so bf16 storage only */
    bool moments;    /* true: adamw's exp_avg and exp_avg_sq are bf16, so bf16 storage only */
    int alias;       /* 0: no operands share memory; else the number, from 1, of a permitted way of
                        sharing */
    double value;    /* fill: the value; losses: spread of the logits; normal: std; sgd: momentum */
} OpCase;

/* Writes the descriptions of the operands in the order of the op's tensor arguments; returns their
 * number. */
int op_case_operands(const OpCase *c, OperandSpec spec[CASE_OPERANDS]);
/* Returns the type of an operand of class `type` in a call with this storage and gradient type. */
DType op_case_dtype(TypeClass type, DType storage, DType grad);
/* Calls the op with these operands; `decision` is op_case_decision() in device memory. */
void op_case_run(Device *dev, const OpCase *c, const Tensor t[CASE_OPERANDS],
                 const StepDecision *decision);
/* Returns the smallest possible memory traffic of a call in bytes: every operand is read or written
 * once. An operand that is both read and written counts twice, and a table counts at most one row
 * per index. The number is computed from the roles of the operands; op_cost.h computes the same
 * number from a call's arguments. */
double op_case_bytes(const OpCase *c, DType storage, DType grad);
/* Returns the number of multiplications and additions in matrix multiplications and attention; 0
 * for other ops. */
double op_case_flops(const OpCase *c);
/* Writes a description such as "norm_backward n 17 cols 48 k 3 acc" for messages. Returns buf. */
const char *op_case_describe(const OpCase *c, char *buf, size_t n);

/* Return the step decision and the hyperparameters of adamw and sgd cases. */
StepDecision op_case_decision(void);
AdamW op_case_adamw(const OpCase *c);
Sgd op_case_sgd(const OpCase *c);
/* The seed of stochastic cases, and the number of segments in their table. */
enum { CASE_SEED = 4242, CASE_SEGMENTS = 3 };
/* Returns word number `word` of the table of segments that timed calls use. Each segment is a whole
 * parameter that begins at a multiple of 128. */
int64_t op_bench_segment_word(const OpCase *c, int64_t word);
/* Returns the gradient type with which a case is timed: the compute type, or the storage type if
 * there are no master weights. */
DType op_case_grad(const OpCase *c, DType storage);

/* Sets *cases to the calls of a GPT-2 124M step at 1024 tokens, for timing; returns their number.
 */
int op_cases_bench(const OpCase **cases);
/* Returns call c of op_cases_bench scaled to another number of tokens. The number of rows, of
 * logits too, is proportional to it. Above 1024 tokens the number of attention's sequences grows in
 * proportion. Below 1024 tokens sequence lengths, large tables and parameter ranges shrink in
 * proportion instead, so all cases can be tried quickly. */
OpCase op_case_at(const OpCase *c, int64_t tokens);
/* Returns the size `at_1024`, which is for 1024 tokens, scaled down for fewer tokens; at least
 * 1. */
int64_t op_bench_scaled(int64_t at_1024, int64_t tokens);

#endif

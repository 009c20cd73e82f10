/* ops.h -- the list of ops: every computation of the program, on typed tensors, behind one front
 * door.
 *
 * The front door (ops.c) checks shapes and dtypes, keeps time when asked, and dispatches to the
 * device's table; the CPU table says what is true, other tables are held to it.
 *
 * Letters: B batch, T sequence, N = B*T rows, L blocks, C hidden, H query heads, G key/value heads,
 * D head size, F mlp size, V vocabulary, Vp the same padded, V' the rows of a token table that a
 * rank holds, P positions, I and O the inputs and outputs of a linear layer, K groups (heads) of W
 * elements in a row that is normalised. Gradients are dx, dw. "storage": f64, f32, bf16 or f16, the
 * same for all storage operands of a call. "compute": f64 for f64 storage, else f32; all arithmetic
 * and accumulation happens in it. "grad": dtype of the gradient buffers, storage or compute. All
 * sums run in an order fixed by shapes and thread count: no atomics. Rows may be strided (ld)
 * unless an operand says dense; outputs do not alias inputs unless said. */
#ifndef MODEL_KERNELS_OPS_H
#define MODEL_KERNELS_OPS_H

#include "model/core/device.h"
#include "model/core/kinds.h"
#include "model/kernels/step.h"

typedef struct {
    NormKind kind;
    double epsilon;
} Norm;

/* What a forward product does to x w^T + bias before it is stored; see op_linear_forward. */
typedef enum { EPILOGUE_NONE, EPILOGUE_GELU, EPILOGUE_GELU_OF_SUM } Epilogue;

typedef struct {
    int64_t heads, kv_heads,
        head_size; /* H, G, D; G divides H, query head h reads kv head h / (H / G) */
    int64_t
        causal_offset; /* query t sees keys 0 .. t + causal_offset (Tk - Tq: the usual alignment) */
    double scale;      /* of the scores, 1 / sqrt(D) */
} Attention;

typedef struct {
    double beta1, beta2, epsilon, weight_decay;
    bool decoupled, bias_correction;
} AdamW;

typedef struct {
    double momentum, dampening, weight_decay;
    bool nesterov;
} Sgd;

/* Where a parameter lies in a flat range of weights. The segment holds elements i >= start of the
 * range, up to the next segment's start. With k = i - start, element i is row k / cols and column
 * k % cols of this rank's part of the parameter, and element first + row * whole_cols + column of
 * the whole parameter (segment_rule.h). Where cols == whole_cols that is first + k; both may be 0
 * then. start is negative where the range begins inside the parameter. A gap belongs to the segment
 * before it. */
typedef struct {
    uint64_t stream; /* rng_stream of the parameter's name */
    int64_t start;
    int64_t first; /* element of the whole parameter at which this rank's part begins */
    int64_t cols, whole_cols;
} Segment;

#define SEGMENT_WORDS ((int64_t)(sizeof(Segment) / sizeof(int64_t)))

/* Stochastic rounding of a range's weights to bf16, by random bits that are a function of (seed,
 * stream, element of the whole parameter, update) alone: however parameters are packed, cut or
 * sharded, they round alike. The rule is in rounding_rule.h. */
typedef struct {
    uint64_t seed;
    Tensor segments; /* (S, SEGMENT_WORDS) i64 dense: Segments in ascending order of start */
} Rounding;

typedef struct OpTable {
#define OP(name, arguments) void(*name) arguments;
#define OP_WITHOUT_CUDA     OP
#include "model/kernels/oplist.h"
#undef OP
#undef OP_WITHOUT_CUDA
} OpTable;

typedef enum {
#define OP(name, arguments) OP_##name,
#define OP_WITHOUT_CUDA     OP
#include "model/kernels/oplist.h"
#undef OP
#undef OP_WITHOUT_CUDA
    OP_COUNT
} OpId;

extern const char *const op_name[OP_COUNT];

/* One matrix product as it was asked for; `./train bench step` replays the list of a step. */
typedef struct {
    OpId op; /* linear_forward, linear_backward_input, linear_backward_weight */
    int64_t n, inputs, outputs;
    bool accumulate;
} Product;

/* One call on the device's time line. */
typedef struct {
    Event from, to;
    OpId op;
} OpMark;

/* Filled by the front door while dev->profile is set. The device marks where each call begins and
 * ends and nobody waits, except when the marks are used up. */
typedef struct Profile {
    double seconds[OP_COUNT]; /* of the device's time, of what has been collected */
    int64_t calls[OP_COUNT];
    Product *product; /* capacity max_products; NULL: not recorded */
    int64_t n_products, max_products;
    OpMark *mark; /* max_marks > 0 of them, zeroed */
    int64_t n_marks, max_marks;
} Profile;

/* Waits for the calls marked so far and adds up their seconds. */
void profile_collect(Device *dev, Profile *profile);
/* Gives the marks' events back. */
void profile_close(Device *dev, Profile *profile);

/* ---- memory ---------------------------------------------------------------------------------- */

/* x = value, any dtype on every device, any shape. */
void op_fill(Device *dev, Tensor x, double value);
/* y = x, converted (round to nearest even). Any float dtypes, equal shapes. */
void op_copy(Device *dev, Tensor y, Tensor x);
/* y = a + b, storage; y may be a or b. */
void op_add(Device *dev, Tensor y, Tensor a, Tensor b);
/* Most tensors that op_sum and op_maximum take. */
enum { SUM_SOURCES = 64 };
/* dst = src[0] + src[1] + ... + src[n - 1], added in this order: the only sum over ranks. Any float
 * types, all sources of one; dense, equal counts. Accumulated in f64 where dst or the sources are
 * f64, else in f32, and rounded once (from f64 to 16 bits by way of f32, as op_copy). f64 to f64 on
 * every device, for a step's sums; with another type where there are ops for f64 alone. 1 <= n <=
 * SUM_SOURCES; dst may be one of the sources if it has their type. The same bits on every CPU
 * level, device, thread count and cut of the tensors. */
void op_sum(Device *dev, Tensor dst, const Tensor *src, int n);
/* dst = the largest of src[0], src[1], ..., src[n - 1], element by element; of equal ones (0 and
 * -0) the first, and a NaN where any source has one. All of one float type, dense, equal counts;
 * f64 on every device. 1 <= n <= SUM_SOURCES; dst may be one of the sources. */
void op_maximum(Device *dev, Tensor dst, const Tensor *src, int n);
/* columns (C) compute = the column sums of x (N, C) storage: the gradient of a bias added to each
 * row, for linear_backward_weight, with the bits of those which that op makes itself. */
void op_column_sum(Device *dev, Tensor columns, Tensor x);
/* x[i] = std * normal(seed, stream, element), where `part` says stream and element of the whole
 * parameter at each place i of x: all of x lies in it, so part->start <= 0. x dense, any float
 * dtype. Box-Muller over Philox in double with own logarithm and sine (no library, no contraction):
 * the same bits on every CPU level and device, however a parameter is cut. */
void op_normal(Device *dev, Tensor x, uint64_t seed, const Segment *part, double std);

/* ---- embedding ------------------------------------------------------------------------------- */

/* x (N, C) = table (V', C) row tokens[n] - first_row, or 0 where that row is not in the table.
 * tokens (N) i32. */
void op_token_forward(Device *dev, Tensor x, Tensor table, Tensor tokens, int64_t first_row);
/* dtable (V', C) grad =/+= rows of dx (N, C) summed per token in ascending n. "=" zeroes rows
 * without a token. */
void op_token_backward(Device *dev, Tensor dtable, Tensor dx, Tensor tokens, int64_t first_row,
                       bool accumulate);
/* x (N, C) += table (P, C) row positions[n]. positions (N) i32. */
void op_position_add(Device *dev, Tensor x, Tensor table, Tensor positions);
/* dtable (P, C) grad =/+= rows of dx (N, C) summed per position in ascending n. */
void op_position_backward(Device *dev, Tensor dtable, Tensor dx, Tensor positions, bool accumulate);

/* ---- norm ------------------------------------------------------------------------------------ */

/* y (N, K*W) = normalised x (N, K*W), each group of W = w's length by itself (K = 1: the row;
 * QK-norm: K heads), times w (W), plus b (W) if present. LayerNorm: Ba, Kiros, Hinton,
 * arXiv:1607.06450 (biased variance); RMSNorm: Zhang, Sennrich, arXiv:1910.07467. stats (N*K, 2)
 * compute = mean (0 for rms) and 1/std, for backward. y may be x. */
void op_norm_forward(Device *dev, Tensor y, Tensor stats, Tensor x, Tensor w, Tensor b, Norm norm);
/* sum (N, C) = x + a + bias (C, if present), rounded to storage; then y, stats as norm_forward of
 * sum. sum may be x. */
void op_residual_norm_forward(Device *dev, Tensor sum, Tensor y, Tensor stats, Tensor x, Tensor a,
                              Tensor bias, Tensor w, Tensor b, Norm norm);
/* dx (N, K*W) storage =/+= as accumulate_dx; columns (W, if present; then K = 1) compute = the
 * column sums of dx as it is now in storage: the gradient of a bias that was added to x, for
 * linear_backward_weight. dw, db (W) grad =/+= as accumulate (db absent without a bias). x and
 * stats as forward had them. With "=" dx may be dy. */
void op_norm_backward(Device *dev, Tensor dx, bool accumulate_dx, Tensor columns, Tensor dw,
                      Tensor db, bool accumulate, Tensor dy, Tensor x, Tensor stats, Tensor w,
                      Norm norm);
/* y (N, C) = x + a + bias (C, if present); y may be x or a. */
void op_bias_residual(Device *dev, Tensor y, Tensor a, Tensor bias, Tensor x);

/* ---- linear ---------------------------------------------------------------------------------- */

/* y (N, O) = f(x (N, I) w (O, I)^T + bias (O, if present)), f as the epilogue; pre (N, O, if
 * present) = the value before f, rounded to storage. EPILOGUE_GELU applies gelu to the rounded
 * value: the bits of this op with EPILOGUE_NONE and op_activation_forward after it.
 * EPILOGUE_GELU_OF_SUM applies it to the sum in the compute type and rounds only y, as a product
 * and gelu in one kernel can: other bits in 16-bit storage. Where storage is the compute type the
 * two are one, bit for bit. */
void op_linear_forward(Device *dev, Tensor y, Tensor x, Tensor w, Tensor bias, Epilogue epilogue,
                       Tensor pre);
/* dx (N, I) = dy (N, O) w (O, I), or += as `accumulate`, rounded once; with EPILOGUE_GELU, and "="
 * alone, times gelu'(pre (N, I)). That is also the backward of EPILOGUE_GELU_OF_SUM: pre is the sum
 * as rounded to storage, and nobody keeps the unrounded one. */
void op_linear_backward_input(Device *dev, Tensor dx, Tensor dy, Tensor w, Epilogue epilogue,
                              Tensor pre, bool accumulate);
/* dw (O, I) grad =/+= dy (N, O)^T x (N, I); db (O, if present) grad =/+= column sums of dy: those
 * in columns (O) compute where the caller has them, else made here by reading dy once more. */
void op_linear_backward_weight(Device *dev, Tensor dw, Tensor db, Tensor dy, Tensor x,
                               Tensor columns, bool accumulate);

/* ---- activation ------------------------------------------------------------------------------ */

/* gelu (tanh form: Hendrycks, Gimpel, arXiv:1606.08415) and relu2 (max(x,0)^2: So et al.,
 * arXiv:2109.08668): y, x (N, F). swiglu (Shazeer, arXiv:2002.05202): y (N, F) = silu(x[:, :F]) *
 * x[:, F:], x (N, 2F) = gate | up. */
void op_activation_forward(Device *dev, Tensor y, Tensor x, ActivationKind kind);
/* dx = dy * f'(x); gelu and relu2: dx may be dy. swiglu: dx (N, 2F), may be x. */
void op_activation_backward(Device *dev, Tensor dx, Tensor dy, Tensor x, ActivationKind kind);

/* ---- attention ------------------------------------------------------------------------------- */

/* Rotates x (N, K*D) in place, half-split pairs (i, i + D/2): Su et al., arXiv:2104.09864. table
 * (P, D) compute: cosines of the D/2 angles, then sines, of each position; positions (N) i32;
 * inverse: the transpose, for backward. */
void op_rope(Device *dev, Tensor x, Tensor table, Tensor positions, bool inverse);
/* o (B, Tq, H*D) = softmax(scale q k^T, causal) v; q (B, Tq, H*D), k and v (B, Tk, G*D), each
 * strided by ld. lse (B, H, Tq) compute dense = log sum exp of the scores. first_key (B*Tq) i32, if
 * present: query t sees no key before it (documents, windows). Every query must see a key. T x T is
 * never stored, masked blocks are not computed: Dao et al., arXiv:2205.14135. */
void op_attention_forward(Device *dev, Tensor o, Tensor lse, Tensor q, Tensor k, Tensor v,
                          Attention attention, Tensor first_key);
/* dq, dk, dv =/+= as `accumulate`, of shapes and strides of their own; dout (B, Tq, H*D); o and lse
 * from forward. */
void op_attention_backward(Device *dev, Tensor dq, Tensor dk, Tensor dv, bool accumulate,
                           Tensor dout, Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse,
                           Attention attention, Tensor first_key);

/* ---- loss ------------------------------------------------------------------------------------ */

/* losses (n) compute = -log softmax(logits[0 .. vocab_size))[target]; 0 where the target is -1.
 * logits (n, Vp) storage; columns >= vocab_size are padding and take no part. With backward, logits
 * become their gradient in place: scale[0] * (softmax - onehot), 0 in padding and in rows with
 * target -1. targets (n) i32; scale (1) f64 on the device. */
void op_loss(Device *dev, Tensor losses, Tensor logits, Tensor targets, int64_t vocab_size,
             Tensor scale, bool backward);
/* The same of logits whose columns are cut among ranks: columns first_col, first_col + 1, ... of
 * the vocabulary are this rank's logits (n, Vl) storage, and those from vocab_size on are padding,
 * for a rank perhaps all. Every rank calls, in this order: op_loss_max, and `most` becomes its
 * maximum over the ranks (op_maximum); op_loss_terms, and `terms` becomes its sum over them
 * (op_sum); op_loss_finish. Losses are then alike on all ranks. Ranks agree on vocab_size, targets,
 * scale. */

/* most (n) compute = the largest of the row's logits in this rank's columns of the vocabulary;
 * -infinity where there are none. */
void op_loss_max(Device *dev, Tensor most, Tensor logits, int64_t first_col, int64_t vocab_size);
/* terms (n, 2) compute dense = {sum of exp(logit - most) over this rank's columns of the
 * vocabulary, logit of the target - most, or 0 where that is not among them}; {0, 0} where the
 * target is -1. most (n): over all ranks. targets (n) i32: columns of the whole vocabulary. */
void op_loss_terms(Device *dev, Tensor terms, Tensor logits, Tensor targets, Tensor most,
                   int64_t first_col, int64_t vocab_size);
/* losses (n) compute and, with backward, logits as op_loss has them: losses = log(sum) - (logit of
 * the target - most), logits = scale[0] * (exp(logit - most) / sum - onehot) in this rank's
 * columns, 0 in padding and in rows with target -1. most (n), terms (n, 2): over all ranks. */
void op_loss_finish(Device *dev, Tensor losses, Tensor logits, Tensor targets, Tensor most,
                    Tensor terms, int64_t first_col, int64_t vocab_size, Tensor scale,
                    bool backward);
/* stats (2) f64 += {sum of losses, number of targets >= 0}, in ascending order. */
void op_loss_sum(Device *dev, Tensor stats, Tensor losses, Tensor targets);

/* ---- optimizer ------------------------------------------------------------------------------- */

/* Elements per partial sum of sq_norm: a sum that is continued at their multiples has the bits of
 * one over the whole. Cut elsewhere, as shards are, it has those of every rank that is cut so. */
#define SQ_NORM_BLOCK 4096
/* stats (1) f64 += sum of x^2: double partials of SQ_NORM_BLOCK elements, added in ascending order.
 * x dense. */
void op_sq_norm(Device *dev, Tensor stats, Tensor x);
/* Turns the step's sums into a decision and advances the state: overflow or non-finite gradients
 * skip the update (lr and t do not advance, samples do), the loss scale moves as DeepSpeed's, clip
 * = max_norm / (norm + 1e-6) when below 1. lr_table (n) f64: lr of update i (the last one serves
 * for all later). Clears stats. */
void op_step_decide(Device *dev, StepState *state, StepStats *stats, StepDecision *decision,
                    Tensor lr_table, const StepConstants *constants);
/* One pass over a range, all tensors flat, dense and of n elements: g = grad *
 * decision->grad_scale; AdamW (Loshchilov, Hutter, arXiv:1711.05101), or Adam with L2 when not
 * decoupled; master (compute dtype) is updated and rounded into weight (storage); without a master
 * the weight is its own. Weights are rounded to nearest even; with `rounding` (NULL: without),
 * which goes with bf16 weights that have no master, up or down at random, so that the mean of a
 * rounding is what was rounded (rounding_rule.h). Nothing happens when !decision->apply. The same
 * bits on every backend, thread count and cut of a range. */
void op_adamw(Device *dev, Tensor weight, Tensor grad, Tensor master, Tensor exp_avg,
              Tensor exp_avg_sq, const StepDecision *decision, const AdamW *hyper,
              const Rounding *rounding);
/* torch.optim.SGD's rule over a range: momentum (compute, absent when 0), dampening from the second
 * update on, nesterov; the rest as op_adamw. */
void op_sgd(Device *dev, Tensor weight, Tensor grad, Tensor master, Tensor momentum,
            const StepDecision *decision, const Sgd *hyper, const Rounding *rounding);

#endif

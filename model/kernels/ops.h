/* ops.h -- the list of ops: every computation of the program on typed tensors, with its contract.
 *
 * Each op_ function (ops.c, ops_model.c) checks shapes and dtypes, measures time if a profile is
 * attached, and calls the implementation in the device's table of functions. The CPU's
 * implementation is the reference against which those of other devices are tested.
 *
 * Letters: B batch, T sequence, N = B*T rows, L blocks, C hidden, H query heads, G key/value heads,
 * D head size, F mlp size, V vocabulary, Vp padded vocabulary, V' the rows of a token table on one
 * rank, P positions, I and O the inputs and outputs of a linear layer, K groups (heads) of W
 * elements in a row that is normalised. Gradients are dx, dw. "storage": f64, f32, bf16 or f16, the
 * same for all storage operands of a call. "compute": f64 for f64 storage, else f32; all arithmetic
 * and accumulation uses this type. "grad": dtype of the gradient buffers, storage or compute.
 *
 * The order of every sum depends only on shapes and thread count: there are no atomics. Rows may be
 * strided (ld) unless an operand is described as dense. Outputs must not alias inputs unless the
 * contract allows it. */
#ifndef MODEL_KERNELS_OPS_H
#define MODEL_KERNELS_OPS_H

#include "model/core/device.h"
#include "model/core/kinds.h"
#include "model/kernels/step.h"

typedef struct {
    NormKind kind;
    double epsilon;
} Norm;

/* Function that op_linear_forward applies to x w^T + bias before y is stored. */
typedef enum { EPILOGUE_NONE, EPILOGUE_GELU, EPILOGUE_GELU_OF_SUM } Epilogue;

typedef struct {
    int64_t heads, kv_heads,
        head_size;         /* H, G, D; G divides H, query head h reads kv head h / (H / G) */
    int64_t causal_offset; /* query t attends to keys 0 .. t + causal_offset; with the usual value
                              Tk - Tq, the last query attends to all keys */
    double scale;          /* factor of the scores, 1 / sqrt(D) */
} Attention;

/* The tensors of op_attention_backward. */
typedef struct {
    Tensor dq, dk, dv;    /* gradients of q, k and v, the results */
    Tensor dout, q, k, v; /* dout: the gradient of o */
    Tensor o, lse;        /* results of the forward op */
    Tensor first_key;     /* NO_TENSOR: every query attends to keys from 0 on */
    /* The gradients of biases that were added to the rows of q, k and v. All three or none. */
    Tensor dbq, dbk, dbv;
    bool accumulate_db; /* dbq, dbk and dbv: += if true, else = */
} AttentionTensors;

typedef struct {
    double beta1, beta2, epsilon, weight_decay;
    bool decoupled, bias_correction;
} AdamW;

typedef struct {
    double momentum, dampening, weight_decay;
    bool nesterov;
} Sgd;

/* Tells where a parameter lies in a flat range of weights. The segment covers elements i >= start
 * of the range, up to the next segment's start. With k = i - start, element i is at row k / cols
 * and column k % cols of this rank's part of the parameter, and is element first + row * whole_cols
 * + column of the whole parameter (segment_rule.h). If cols == whole_cols, this is first + k, and
 * cols and whole_cols may both be 0. start is negative if the range begins inside the parameter. A
 * gap after a parameter belongs to the parameter's segment. */
typedef struct {
    uint64_t stream; /* rng_stream of the parameter's name */
    int64_t start;
    int64_t first; /* element of the whole parameter at which this rank's part begins */
    int64_t cols, whole_cols;
} Segment;

#define SEGMENT_WORDS ((int64_t)(sizeof(Segment) / sizeof(int64_t)))

/* Stochastic rounding of the values that a range keeps in bf16 between updates: its weights, if
 * they have no master, and adamw's running averages of squared gradients. The random bits depend
 * only on (seed, stream, element of the whole parameter, update), so the rounding is the same
 * however parameters are packed, split or sharded. The rule is in rounding_rule.h. */
typedef struct {
    uint64_t seed;
    Tensor segments; /* (S, SEGMENT_WORDS) i64 dense: Segments in ascending order of start */
} Rounding;

/* A range of weights for op_adamw and op_sgd, with its gradient and the state of the optimizer:
 * flat, dense tensors of equal length. */
typedef struct {
    Tensor weight, grad;
    Tensor master; /* absent: the weight itself is updated */
    /* adamw: running averages of the gradient and of its square, in the compute dtype; for bf16
     * weights, both may be bf16. sgd: momentum, in the compute dtype */
    Tensor slot[2];
    Rounding rounding; /* without segments, weights are rounded to nearest even */
    int group;         /* index into the call's array of hyperparameters, below UPDATE_GROUPS */
} UpdateRange;

/* Largest number of different sets of hyperparameters in a call of op_adamw or op_sgd. */
enum { UPDATE_GROUPS = 2 };

/* Returns how many sets of hyperparameters a call with these ranges reads: the largest group plus
 * 1. */
static inline int update_groups(const UpdateRange *range, int n)
{
    int groups = 0;
    for (int i = 0; i < n; i++)
        if (range[i].group >= groups) groups = range[i].group + 1;
    return groups;
}

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

/* One matrix multiplication; `./train bench step` repeats the matrix multiplications of a step. */
typedef struct {
    OpId op; /* linear_forward, linear_backward_input, linear_backward_weight */
    int64_t n, inputs, outputs;
    bool accumulate;
    DType result; /* dtype of the result: the storage type; a weight's gradient may also be f32 */
} Product;

/* Start and end of one call on the device's time line. */
typedef struct {
    Event from, to;
    OpId op;
} OpMark;

/* Times and counts of ops, recorded by the op_ functions while dev->profile is set. The start and
 * end of each call are marked on the device without waiting. Only when all marks are in use does
 * the next call wait and collect them (profile_collect). */
typedef struct Profile {
    double seconds[OP_COUNT]; /* seconds of device time, of the calls collected so far */
    int64_t calls[OP_COUNT];
    Product *product; /* array of max_products, or NULL: products are not recorded */
    int64_t n_products, max_products;
    OpMark *mark; /* array of max_marks > 0 marks, zeroed by the caller */
    int64_t n_marks, max_marks;
} Profile;

/* Waits for the calls marked so far and adds their durations to `seconds`. */
void profile_collect(Device *dev, Profile *profile);
/* Destroys the events of all marks. */
void profile_close(Device *dev, Profile *profile);

/* ---- memory ---------------------------------------------------------------------------------- */

/* Sets x = value: any dtype on every device, any shape. */
void op_fill(Device *dev, Tensor x, double value);
/* Computes y = x, converted (round to nearest even). Any float dtypes, equal shapes. */
void op_copy(Device *dev, Tensor y, Tensor x);
/* Computes y = a + b. All three have the same shape and the same storage type; y may be a or b. */
void op_add(Device *dev, Tensor y, Tensor a, Tensor b);
/* The number of tensors that op_sum and op_maximum read at a time. With more, CUDA needs scratch
 * memory. */
enum { SUM_SOURCES = 64 };
/* Computes dst = src[0] + src[1] + ... + src[n - 1], added in this order; every sum over ranks uses
 * it. Any float types, the same for all sources; dense, equal counts. n >= 1; dst may be one of the
 * sources if it has their type.
 *
 * The sum is accumulated in f64 if dst or the sources are f64, else in f32, and rounded once (from
 * f64 to 16 bits through f32, as in op_copy). A sum of f64 sources to f64 works on every device,
 * because the sums of a step need it; conversion from or to f64 requires a device with f64 ops. The
 * bits are the same on every CPU level and device, for every thread count and however the tensors
 * are divided. */
void op_sum(Device *dev, Tensor dst, const Tensor *src, int n);
/* Sets dst to the largest of src[0], src[1], ..., src[n - 1], element by element. Among equal
 * values (0 and -0) the first is taken; a NaN in any source gives a NaN. dst and all sources have
 * one float type, are dense and have equal counts; f64 works on every device. n >= 1; dst may be
 * one of the sources. */
void op_maximum(Device *dev, Tensor dst, const Tensor *src, int n);
/* Computes columns (C) compute = the column sums of x (N, C) storage. If x is the gradient of rows
 * to which a bias was added, this is the bias's gradient. The sums can be passed to
 * linear_backward_weight and have the same bits as the sums that op computes itself. */
void op_column_sum(Device *dev, Tensor columns, Tensor x);
/* Sets x[i] = std * normal(seed, stream, element), where `part` gives the stream and the element of
 * the whole parameter for each index i of x. All of x lies in `part`, so part->start <= 0. x dense,
 * any float dtype. Uses Box-Muller over Philox in double with its own logarithm and sine (no
 * library, no contraction): the bits are the same on every CPU level and device, however a
 * parameter is split. */
void op_normal(Device *dev, Tensor x, uint64_t seed, const Segment *part, double std);

/* ---- embedding ------------------------------------------------------------------------------- */

/* Sets x (N, C) = row tokens[n] - first_row of table (V', C), or 0 if the table has no such row.
 * tokens (N) i32. */
void op_token_forward(Device *dev, Tensor x, Tensor table, Tensor tokens, int64_t first_row);
/* Computes dtable (V', C) grad =/+= rows of dx (N, C) summed per token in ascending n. "=" zeroes
 * rows without a token. The sums are in the compute type and rounded once. If a token occurs more
 * than 256 times, a CUDA device first adds its rows in parts of 256 (the last part is shorter), and
 * then the sums of the parts, in ascending order. So each device always gives the same bits, but
 * for such tokens CUDA gives other bits than the CPU. */
void op_token_backward(Device *dev, Tensor dtable, Tensor dx, Tensor tokens, int64_t first_row,
                       bool accumulate);
/* Computes x (N, C) += row positions[n] of table (P, C). positions (N) i32. */
void op_position_add(Device *dev, Tensor x, Tensor table, Tensor positions);
/* Computes dtable (P, C) grad =/+= rows of dx (N, C) summed per position, as op_token_backward. */
void op_position_backward(Device *dev, Tensor dtable, Tensor dx, Tensor positions, bool accumulate);

/* ---- norm ------------------------------------------------------------------------------------ */

/* Computes y (N, K*W) = normalised x (N, K*W), times w (W), plus b (W) if present. Each group of W
 * elements is normalised separately (K = 1: the whole row; QK-norm: K heads). LayerNorm: Ba, Kiros,
 * Hinton, arXiv:1607.06450 (biased variance); RMSNorm: Zhang, Sennrich, arXiv:1910.07467. stats
 * (N*K, 2) compute = mean (0 for rms) and 1/std, for backward. y may be x. */
void op_norm_forward(Device *dev, Tensor y, Tensor stats, Tensor x, Tensor w, Tensor b, Norm norm);
/* Computes sum (N, C) = x + a + bias (C, if present), rounded to storage, then y and stats of sum
 * as in norm_forward. sum may be x. */
void op_residual_norm_forward(Device *dev, Tensor sum, Tensor y, Tensor stats, Tensor x, Tensor a,
                              Tensor bias, Tensor w, Tensor b, Norm norm);
/* Computes dx (N, K*W) storage, = or += by accumulate_dx, and dw, db (W) grad, = or += by
 * accumulate (db absent without a bias). x and stats are those of forward. With "=" dx may be dy.
 * columns (W), if present, requires K = 1; it becomes, in the compute type, the column sums of dx
 * as stored. They are the gradient of a bias that was added to x, for linear_backward_weight. */
void op_norm_backward(Device *dev, Tensor dx, bool accumulate_dx, Tensor columns, Tensor dw,
                      Tensor db, bool accumulate, Tensor dy, Tensor x, Tensor stats, Tensor w,
                      Norm norm);
/* Computes y (N, C) = x + a + bias (C, if present); y may be x or a. */
void op_bias_residual(Device *dev, Tensor y, Tensor a, Tensor bias, Tensor x);

/* ---- linear ---------------------------------------------------------------------------------- */

/* Computes y (N, O) = f(x (N, I) w (O, I)^T + bias (O, if present)), where f is the epilogue; pre
 * (N, O, if present) = the value before f, rounded to storage. EPILOGUE_GELU applies gelu to the
 * rounded value and gives the same bits as EPILOGUE_NONE followed by op_activation_forward.
 * EPILOGUE_GELU_OF_SUM applies gelu to the sum in the compute type and rounds only y, as a fused
 * kernel can; its bits differ in 16-bit storage. If storage is the compute type, both give the same
 * bits. */
void op_linear_forward(Device *dev, Tensor y, Tensor x, Tensor w, Tensor bias, Epilogue epilogue,
                       Tensor pre);
/* Computes y (N, O) = residual (N, O) + x (N, I) w (O, I)^T + bias (O, if present). The device
 * chooses whether 16-bit storage rounds once or twice. The CPU rounds the product and then the sum,
 * which gives the same bits as linear_forward without a bias followed by bias_residual. CUDA rounds
 * only the sum, unless its library refuses to add the residual. Backward is that of linear_forward,
 * and the gradient of residual is dy. */
void op_linear_residual_forward(Device *dev, Tensor y, Tensor x, Tensor w, Tensor bias,
                                Tensor residual);
/* Computes dx (N, I) = dy (N, O) w (O, I), or += with `accumulate`, rounded once. EPILOGUE_GELU,
 * allowed only with "=", multiplies by gelu'(pre (N, I)). It is also used for the backward pass of
 * EPILOGUE_GELU_OF_SUM: pre is then the sum as rounded to storage, because the unrounded sum is not
 * stored. */
void op_linear_backward_input(Device *dev, Tensor dx, Tensor dy, Tensor w, Epilogue epilogue,
                              Tensor pre, bool accumulate);
/* Computes dw (O, I) grad =/+= dy (N, O)^T x (N, I) and db (O, if present) grad =/+= the column
 * sums of dy. The sums are taken from columns (O) compute if present, else computed here by reading
 * dy again. */
void op_linear_backward_weight(Device *dev, Tensor dw, Tensor db, Tensor dy, Tensor x,
                               Tensor columns, bool accumulate);

/* ---- activation ------------------------------------------------------------------------------ */

/* Computes y = f(x). gelu (tanh form: Hendrycks, Gimpel, arXiv:1606.08415) and relu2 (max(x,0)^2:
 * So et al., arXiv:2109.08668): y, x (N, F). swiglu (Shazeer, arXiv:2002.05202): y (N, F) =
 * silu(x[:, :F]) * x[:, F:], x (N, 2F) = gate | up. */
void op_activation_forward(Device *dev, Tensor y, Tensor x, ActivationKind kind);
/* Computes dx = dy * f'(x). gelu and relu2: dx may be dy. swiglu: dx (N, 2F) may be x. */
void op_activation_backward(Device *dev, Tensor dx, Tensor dy, Tensor x, ActivationKind kind);

/* ---- attention ------------------------------------------------------------------------------- */

/* Rotates the pairs (i, i + D/2) of each head of x (N, K*D) in place (Su et al., arXiv:2104.09864).
 * table (P, D), compute dtype: for each position the cosines of the D/2 angles, then the sines;
 * positions (N) i32. inverse: applies the transpose, for backward. */
void op_rope(Device *dev, Tensor x, Tensor table, Tensor positions, bool inverse);
/* Computes o (B, Tq, H*D) = softmax(scale q k^T, causal) v; q (B, Tq, H*D), k and v (B, Tk, G*D),
 * each strided by ld. lse (B, H, Tq) compute dense = log sum exp of the scores. first_key (B*Tq)
 * i32, if present, is the first key that a query may attend to (documents, windows). Every query
 * must have at least one key. The T x T scores are never stored, and masked blocks are not
 * computed: Dao et al., arXiv:2205.14135. */
void op_attention_forward(Device *dev, Tensor o, Tensor lse, Tensor q, Tensor k, Tensor v,
                          Attention attention, Tensor first_key);
/* Computes dq, dk, dv, = or += by `accumulate`, each with the shape of q, k or v and its own
 * strides; dout (B, Tq, H*D); o and lse are those of forward.
 *
 * dbq (H*D), dbk and dbv (G*D), if present: grad, dense, = or += by t->accumulate_db the column
 * sums of dq, dk and dv as stored, that is, rounded to storage and, with `accumulate`, including
 * their previous values. op_linear_backward_weight computes the same sums as db from dq, dk or dv,
 * on a CPU with the same bits. Each column is added in parts, and then the parts are added, both in
 * a fixed order. */
void op_attention_backward(Device *dev, const AttentionTensors *t, bool accumulate,
                           Attention attention);

/* ---- loss ------------------------------------------------------------------------------------ */

/* Computes losses (n) compute = -log softmax(logits[0 .. vocab_size))[target]; 0 if the target is
 * -1. logits (n, Vp) storage; columns >= vocab_size are padding and are ignored. With backward,
 * logits are overwritten by their gradient: scale[0] * (softmax - onehot), 0 in padding and in rows
 * with target -1. targets (n) i32; scale (1) f64 on the device. */
void op_loss(Device *dev, Tensor losses, Tensor logits, Tensor targets, int64_t vocab_size,
             Tensor scale, bool backward);
/* The next three ops compute the loss of logits whose columns are split among ranks. A rank's
 * logits (n, Vl) storage are the columns first_col, first_col + 1, ... of the vocabulary; columns
 * from vocab_size on are padding, on some ranks perhaps all of them. Every rank calls op_loss_max
 * and replaces `most` by its maximum over the ranks (op_maximum); then op_loss_terms, and replaces
 * `terms` by its sum over the ranks (op_sum); then op_loss_finish. The losses are then equal on all
 * ranks. All ranks pass the same vocab_size, targets and scale. */

/* Computes most (n) compute = the largest logit of the row in this rank's columns of the
 * vocabulary; -infinity if it has none. */
void op_loss_max(Device *dev, Tensor most, Tensor logits, int64_t first_col, int64_t vocab_size);
/* Computes terms (n, 2) compute dense = {sum of exp(logit - most) over this rank's columns of the
 * vocabulary, logit of the target - most, or 0 if the target is on another rank}; {0, 0} if the
 * target is -1. most (n): maximum over all ranks. targets (n) i32: columns of the whole vocabulary.
 */
void op_loss_terms(Device *dev, Tensor terms, Tensor logits, Tensor targets, Tensor most,
                   int64_t first_col, int64_t vocab_size);
/* Computes losses (n) compute and, with backward, the gradient in place of logits, as in op_loss:
 * losses = log(sum) - (logit of the target - most), logits = scale[0] * (exp(logit - most) / sum -
 * onehot) in this rank's columns, 0 in padding and in rows with target -1. most (n), terms (n, 2):
 * reduced over all ranks. */
void op_loss_finish(Device *dev, Tensor losses, Tensor logits, Tensor targets, Tensor most,
                    Tensor terms, int64_t first_col, int64_t vocab_size, Tensor scale,
                    bool backward);
/* Computes stats (2) f64 += {sum of losses, number of targets >= 0}, in ascending order. */
void op_loss_sum(Device *dev, Tensor stats, Tensor losses, Tensor targets);

/* ---- optimizer ------------------------------------------------------------------------------- */

/* Elements per partial sum of sq_norm. If a range is divided at multiples of this number and its
 * parts are summed in several calls, the bits are those of one call over the whole range. If it is
 * cut elsewhere, as shards are, the bits depend on the cuts; all ranks with the same cuts get the
 * same bits. */
#define SQ_NORM_BLOCK 4096
/* Computes stats (1) f64 += sum of the squares of all elements of x[0], x[1], ..., x[n - 1]: double
 * partial sums of SQ_NORM_BLOCK elements, which start again with every tensor, added in ascending
 * order. So the bits are the same as with n calls with one tensor each. All of one storage type,
 * dense; n >= 0. */
void op_sq_norm(Device *dev, Tensor stats, const Tensor *x, int n);
/* Computes sum (1) i64 += a hash of the bytes of x, which may have any dtype. The hash is the sum,
 * modulo 2^64, of one number for each 64-bit word of x, computed from the word and its index
 * (hash_rule.h). Word 0 of x has the index `first` >= 0. If the size of x is not a multiple of 8
 * bytes, zeros fill the last word. x is dense, at an address that is a multiple of 8.
 *
 * A single changed word always changes the hash. The bits are the same on every CPU level and
 * device, for every thread count, and however x is divided into parts of whole words, each hashed
 * with the index of its first word. Works on every type on every device. */
void op_hash(Device *dev, Tensor sum, Tensor x, int64_t first);
/* Turns the step's sums into a decision, advances the state, and clears stats. Overflow or
 * non-finite gradients skip the update: the learning rate and t do not advance, but the count of
 * samples does. The loss scale changes as in DeepSpeed, and clip = max_norm / (norm + 1e-6) if that
 * is below 1. A loss far above earlier losses is a spike; the update is then skipped if
 * constants->skip_spikes is true. lr_table (n) f64: element i is the learning rate of update i; the
 * last element is used for all later updates. */
void op_step_decide(Device *dev, StepState *state, StepStats *stats, StepDecision *decision,
                    Tensor lr_table, const StepConstants *constants);
/* Updates n >= 0 ranges of weights in one pass, with g = grad * decision->grad_scale, by AdamW
 * (Loshchilov, Hutter, arXiv:1711.05101), or by Adam with L2 if not decoupled. A range uses the
 * hyperparameters hyper[range.group]. master (compute dtype) is updated and rounded into weight
 * (storage); without a master the weight itself is updated. All ranges have the same types, the
 * same operands and the same seed. Does nothing if !decision->apply.
 *
 * Weights are rounded to nearest even, unless the ranges have `rounding`. It is allowed for bf16
 * weights without a master, and required for running averages in bf16. Such weights and averages of
 * squares are then rounded up or down at random so that the expected value is exact
 * (rounding_rule.h); averages of gradients are rounded to nearest. A weight's update uses the
 * averages before they are rounded.
 *
 * The bits are the same on every backend, for every thread count and however weights are divided
 * into ranges. CUDA moves four elements at once only if in all ranges every tensor starts on a
 * boundary of four elements and its length is a multiple of four; a single range for which this is
 * false makes the whole call slower. */
void op_adamw(Device *dev, const UpdateRange *range, int n, const StepDecision *decision,
              const AdamW *hyper);
/* Updates ranges by torch.optim.SGD's rule: momentum (slot[0], compute, absent if the momentum is
 * 0), dampening from the second update on, nesterov; otherwise as op_adamw. */
void op_sgd(Device *dev, const UpdateRange *range, int n, const StepDecision *decision,
            const Sgd *hyper);

#endif

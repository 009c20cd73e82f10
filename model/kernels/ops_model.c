/* ops_model.c -- the public, checking functions of the activation, attention, loss and optimizer
 * ops; the other ops are in ops.c. */
#include "model/core/check.h"
#include "model/kernels/ops.h"
#include "model/kernels/ops_check.h"

/* ---- activation -------------------------------------------------------------------------------
 */

/* Checks y (N, F) against x (N, F), or against x (N, 2F) for swiglu. */
static void check_activation(OpId op, Operand y, Operand x, ActivationKind kind)
{
    expect_argument(op, kind >= ACTIVATION_GELU && kind <= ACTIVATION_SWIGLU,
                    "the activation is gelu, relu2 or swiglu", kind);
    int64_t rows = tensor_rows(x.tensor), cols = tensor_cols(x.tensor);
    expect_matrix(op, x, rows, cols, x);
    expect(op, kind != ACTIVATION_SWIGLU || cols % 2 == 0, "x is gate | up", x, y);
    expect_matrix(op, y, rows, kind == ACTIVATION_SWIGLU ? cols / 2 : cols, x);
    expect_storage(op, y, x);
}

void op_activation_forward(Device *dev, Tensor y, Tensor x, ActivationKind kind)
{
    check_activation(OP_activation_forward, OPERAND(y), OPERAND(x), kind);
    if (kind == ACTIVATION_SWIGLU) expect_apart(OP_activation_forward, OPERAND(y), OPERAND(x));
    RUN(activation_forward, x.dtype, dev, y, x, kind);
}

void op_activation_backward(Device *dev, Tensor dx, Tensor dy, Tensor x, ActivationKind kind)
{
    OpId op = OP_activation_backward;
    check_activation(op, OPERAND(dy), OPERAND(x), kind);
    expect_matrix(op, OPERAND(dx), tensor_rows(x), tensor_cols(x), OPERAND(x));
    expect_storage(op, OPERAND(dx), OPERAND(x));
    if (kind == ACTIVATION_SWIGLU) expect_apart(op, OPERAND(dx), OPERAND(dy));
    RUN(activation_backward, x.dtype, dev, dx, dy, x, kind);
}

/* ---- attention --------------------------------------------------------------------------------
 */

void op_rope(Device *dev, Tensor x, Tensor table, Tensor positions, bool inverse)
{
    int64_t d = tensor_cols(table);
    expect_matrix(OP_rope, OPERAND(x), tensor_rows(x), tensor_cols(x), OPERAND(x));
    expect_matrix(OP_rope, OPERAND(table), tensor_rows(table), d, OPERAND(x));
    expect(OP_rope, d > 0 && d % 2 == 0 && tensor_cols(x) % d == 0,
           "the table is even in columns and they divide x's", OPERAND(table), OPERAND(x));
    expect(OP_rope, dtype_is_float(x.dtype) && table.dtype == dtype_compute(x.dtype),
           "the table has the compute type", OPERAND(table), OPERAND(x));
    expect_typed(OP_rope, OPERAND(positions), I32, tensor_rows(x), OPERAND(x));
    RUN(rope, x.dtype, dev, x, table, positions, inverse);
}

/* Requires that t has shape (B, T, heads * D) and the storage type of `like`, with B and T equal to
 * those of `like`. */
static void check_heads(OpId op, Operand t, int64_t heads, Attention a, Operand like)
{
    expect(op, t.tensor.ndim == 3 && like.tensor.ndim == 3, "both are (B, T, columns)", t, like);
    expect(op, t.tensor.dim[0] == like.tensor.dim[0] && t.tensor.dim[1] == like.tensor.dim[1],
           "B and T are the same", t, like);
    expect_matrix(op, t, tensor_rows(like.tensor), heads * a.head_size, like);
    expect_storage(op, t, like);
}

static void check_attention(OpId op, Operand q, Operand k, Operand v, Operand o, Operand lse,
                            Attention a, Operand first_key)
{
    expect_argument(op, a.heads > 0 && a.kv_heads > 0 && a.heads % a.kv_heads == 0,
                    "kv heads divide heads", a.kv_heads);
    expect_argument(op, a.head_size > 0, "the head size is positive", a.head_size);
    expect_argument(op, a.causal_offset >= 0, "query 0 sees a key", a.causal_offset);
    check_heads(op, q, a.heads, a, q);
    check_heads(op, k, a.kv_heads, a, k);
    check_heads(op, v, a.kv_heads, a, k);
    check_heads(op, o, a.heads, a, q);
    expect(op, k.tensor.dim[0] == q.tensor.dim[0] && k.tensor.dim[1] > 0, "B is the same and T > 0",
           k, q);
    expect_storage(op, k, q);
    expect_typed(op, lse, dtype_compute(q.tensor.dtype), a.heads * tensor_rows(q.tensor), q);
    if (tensor_present(first_key.tensor))
        expect_typed(op, first_key, I32, tensor_rows(q.tensor), q);
}

void op_attention_forward(Device *dev, Tensor o, Tensor lse, Tensor q, Tensor k, Tensor v,
                          Attention attention, Tensor first_key)
{
    OpId op = OP_attention_forward;
    check_attention(op, OPERAND(q), OPERAND(k), OPERAND(v), OPERAND(o), OPERAND(lse), attention,
                    OPERAND(first_key));
    expect_apart(op, OPERAND(o), OPERAND(q));
    expect_apart(op, OPERAND(o), OPERAND(k));
    expect_apart(op, OPERAND(o), OPERAND(v));
    RUN(attention_forward, q.dtype, dev, o, lse, q, k, v, attention, first_key);
}

/* Checks the gradients of the biases of q, k and v: all three, of one type, or none. */
static void check_attention_biases(OpId op, const AttentionTensors *t, Attention a)
{
    Operand dbq = {"dbq", t->dbq}, dbk = {"dbk", t->dbk}, dbv = {"dbv", t->dbv};
    bool present = tensor_present(t->dbq);
    expect(op, tensor_present(t->dbk) == present, "dbq, dbk and dbv go together", dbk, dbq);
    expect(op, tensor_present(t->dbv) == present, "dbq, dbk and dbv go together", dbv, dbq);
    if (!present) return;
    expect_gradient(op, dbq, (Operand){"q", t->q});
    expect_typed(op, dbq, t->dbq.dtype, a.heads * a.head_size, (Operand){"q", t->q});
    expect_typed(op, dbk, t->dbq.dtype, a.kv_heads * a.head_size, (Operand){"k", t->k});
    expect_typed(op, dbv, t->dbq.dtype, a.kv_heads * a.head_size, (Operand){"v", t->v});
}

void op_attention_backward(Device *dev, const AttentionTensors *t, bool accumulate,
                           Attention attention)
{
    OpId op = OP_attention_backward;
    Operand q = {"q", t->q}, k = {"k", t->k}, v = {"v", t->v}, dout = {"dout", t->dout};
    Operand dq = {"dq", t->dq}, dk = {"dk", t->dk}, dv = {"dv", t->dv};
    Operand o = {"o", t->o}, lse = {"lse", t->lse}, first_key = {"first_key", t->first_key};
    check_attention(op, q, k, v, o, lse, attention, first_key);
    check_heads(op, dout, attention.heads, attention, q);
    check_heads(op, dq, attention.heads, attention, q);
    check_heads(op, dk, attention.kv_heads, attention, k);
    check_heads(op, dv, attention.kv_heads, attention, k);
    expect_apart(op, dq, q);
    expect_apart(op, dk, k);
    expect_apart(op, dv, v);
    expect_apart(op, dq, dout);
    check_attention_biases(op, t, attention);
    RUN(attention_backward, t->q.dtype, dev, t, accumulate, attention);
}

/* ---- loss -------------------------------------------------------------------------------------
 */

void op_loss(Device *dev, Tensor losses, Tensor logits, Tensor targets, int64_t vocab_size,
             Tensor scale, bool backward)
{
    int64_t n = tensor_rows(logits);
    expect_matrix(OP_loss, OPERAND(logits), n, tensor_cols(logits), OPERAND(logits));
    expect_storage(OP_loss, OPERAND(logits), OPERAND(logits));
    expect_typed(OP_loss, OPERAND(losses), dtype_compute(logits.dtype), n, OPERAND(logits));
    expect_typed(OP_loss, OPERAND(targets), I32, n, OPERAND(logits));
    expect_argument(OP_loss, vocab_size > 0 && vocab_size <= tensor_cols(logits),
                    "the vocabulary fits the columns of logits", vocab_size);
    if (backward || tensor_present(scale))
        expect_typed(OP_loss, OPERAND(scale), F64, 1, OPERAND(logits));
    RUN(loss, logits.dtype, dev, losses, logits, targets, vocab_size, scale, backward);
}

/* Checks logits (n, Vl), whose column 0 is column first_col of the vocabulary, and the row maxima
 * `most` (n). */
static void check_cut_logits(OpId op, Operand logits, Operand most, int64_t first_col,
                             int64_t vocab_size)
{
    int64_t n = tensor_rows(logits.tensor);
    expect_matrix(op, logits, n, tensor_cols(logits.tensor), logits);
    expect_storage(op, logits, logits);
    expect_typed(op, most, dtype_compute(logits.tensor.dtype), n, logits);
    expect_argument(op, vocab_size > 0, "there is a vocabulary", vocab_size);
    expect_argument(op, first_col >= 0, "the first column is not negative", first_col);
}

void op_loss_max(Device *dev, Tensor most, Tensor logits, int64_t first_col, int64_t vocab_size)
{
    check_cut_logits(OP_loss_max, OPERAND(logits), OPERAND(most), first_col, vocab_size);
    RUN(loss_max, logits.dtype, dev, most, logits, first_col, vocab_size);
}

void op_loss_terms(Device *dev, Tensor terms, Tensor logits, Tensor targets, Tensor most,
                   int64_t first_col, int64_t vocab_size)
{
    OpId op = OP_loss_terms;
    int64_t n = tensor_rows(logits);
    check_cut_logits(op, OPERAND(logits), OPERAND(most), first_col, vocab_size);
    expect_typed(op, OPERAND(terms), dtype_compute(logits.dtype), 2 * n, OPERAND(logits));
    expect_typed(op, OPERAND(targets), I32, n, OPERAND(logits));
    RUN(loss_terms, logits.dtype, dev, terms, logits, targets, most, first_col, vocab_size);
}

void op_loss_finish(Device *dev, Tensor losses, Tensor logits, Tensor targets, Tensor most,
                    Tensor terms, int64_t first_col, int64_t vocab_size, Tensor scale,
                    bool backward)
{
    OpId op = OP_loss_finish;
    int64_t n = tensor_rows(logits);
    check_cut_logits(op, OPERAND(logits), OPERAND(most), first_col, vocab_size);
    expect_typed(op, OPERAND(losses), dtype_compute(logits.dtype), n, OPERAND(logits));
    expect_typed(op, OPERAND(terms), dtype_compute(logits.dtype), 2 * n, OPERAND(logits));
    expect_typed(op, OPERAND(targets), I32, n, OPERAND(logits));
    if (backward || tensor_present(scale))
        expect_typed(op, OPERAND(scale), F64, 1, OPERAND(logits));
    RUN(loss_finish, logits.dtype, dev, losses, logits, targets, most, terms, first_col, vocab_size,
        scale, backward);
}

void op_loss_sum(Device *dev, Tensor stats, Tensor losses, Tensor targets)
{
    expect_typed(OP_loss_sum, OPERAND(stats), F64, 2, OPERAND(stats));
    expect_typed(OP_loss_sum, OPERAND(losses), dtype_compute(losses.dtype), tensor_count(losses),
                 OPERAND(losses));
    expect_typed(OP_loss_sum, OPERAND(targets), I32, tensor_count(losses), OPERAND(losses));
    RUN(loss_sum, losses.dtype, dev, stats, losses, targets);
}

/* ---- optimizer --------------------------------------------------------------------------------
 */

void op_sq_norm(Device *dev, Tensor stats, const Tensor *x, int n)
{
    expect_argument(OP_sq_norm, n >= 0, "the number of tensors is not negative", n);
    expect_typed(OP_sq_norm, OPERAND(stats), F64, 1, OPERAND(stats));
    if (n == 0) return;
    Operand first = {.name = "the first x", .tensor = x[0]};
    for (int i = 0; i < n; i++) {
        Operand each = {.name = "an x", .tensor = x[i]};
        expect_vector(OP_sq_norm, each, tensor_count(x[i]), each);
        expect_storage(OP_sq_norm, each, first);
    }
    RUN(sq_norm, x[0].dtype, dev, stats, x, n);
}

void op_hash(Device *dev, Tensor sum, Tensor x, int64_t first)
{
    expect_typed(OP_hash, OPERAND(sum), I64, 1, OPERAND(sum));
    expect_vector(OP_hash, OPERAND(x), tensor_count(x), OPERAND(x));
    expect_argument(OP_hash, (uintptr_t)x.data % 8 == 0, "x begins at a multiple of 8 bytes",
                    (long long)((uintptr_t)x.data % 8));
    expect_argument(OP_hash, first >= 0, "the index of the first word is not negative", first);
    /* op_hash treats x as bytes, whatever its type. The F32 table is used because every device has
     * it, also one without f64 ops. */
    RUN_FROM(hash, F32, x.dtype, dev, sum, x, first);
}

void op_step_decide(Device *dev, StepState *state, StepStats *stats, StepDecision *decision,
                    Tensor lr_table, const StepConstants *constants)
{
    OpId op = OP_step_decide;
    int64_t n = tensor_count(lr_table);
    expect_argument(op, state && stats && decision && constants, "all four records are there", 0);
    expect_typed(op, OPERAND(lr_table), F64, n, OPERAND(lr_table));
    expect_argument(op, n > 0, "the table has a learning rate", n);
    /* The numbers of op_step_decide are double by contract, but it must also run on a device
     * without f64 ops, so the F32 table is used. */
    RUN_FROM(step_decide, F32, F64, dev, state, stats, decision, lr_table, constants);
}

/* Checks an optimizer slot: it has the given type and as many elements as the weight. */
static void check_slot(OpId op, Operand slot, DType dtype, bool required, Operand weight)
{
    if (!required && !tensor_present(slot.tensor)) return;
    expect_typed(op, slot, dtype, tensor_count(weight.tensor), weight);
    expect_apart(op, slot, weight);
}

/* Returns the type that both slots of a range must have: bf16 if the first slot has this type and
 * the op allows it, else the compute type. */
static DType slots_dtype(OpId op, const UpdateRange *range)
{
    bool bf16 = op == OP_adamw && range->weight.dtype == BF16 && range->slot[0].dtype == BF16;
    return bf16 ? BF16 : dtype_compute(range->weight.dtype);
}

/* Checks the operands of stochastic rounding. Allowed are bf16 weights without master weights, and
 * running averages in bf16; both need a table of segments. */
static void check_rounding(OpId op, Tensor segments, Operand weight, Operand master, Operand square)
{
    bool averages = tensor_present(square.tensor) && square.tensor.dtype == BF16;
    if (averages)
        expect(op, tensor_present(segments), "averages in bf16 are rounded stochastically", square,
               OPERAND(segments));
    if (!tensor_present(segments)) return;
    expect(op, weight.tensor.dtype == BF16 && (averages || !tensor_present(master.tensor)),
           "only bf16 without a master is rounded stochastically", weight, master);
    expect(op, segments.ndim == 2 && segments.dim[0] > 0 && segments.dim[1] == SEGMENT_WORDS,
           "segments are rows of SEGMENT_WORDS words", OPERAND(segments), weight);
    expect_typed(op, OPERAND(segments), I64, segments.dim[0] * SEGMENT_WORDS, weight);
}

/* Requires that both tensors have one type, or that both are absent. */
static void expect_alike(OpId op, const char *name, Tensor each, Tensor first)
{
    bool alike = tensor_present(each) == tensor_present(first) && each.dtype == first.dtype;
    expect(op, alike, "all ranges have the same operands and types", (Operand){name, each},
           (Operand){"that of the first range", first});
}

static void check_range(OpId op, const UpdateRange *range, const UpdateRange *first)
{
    Operand weight = {"weight", range->weight}, grad = {"grad", range->grad},
            master = {"master", range->master};
    expect_vector(op, weight, tensor_count(range->weight), weight);
    expect_storage(op, weight, weight);
    expect_vector(op, grad, tensor_count(range->weight), weight);
    expect_gradient(op, grad, weight);
    expect_apart(op, grad, weight);
    Operand square = {"slot[1]", range->slot[1]};
    DType slots = slots_dtype(op, range);
    check_slot(op, master, dtype_compute(weight.tensor.dtype), false, weight);
    check_slot(op, (Operand){"slot[0]", range->slot[0]}, slots, op == OP_adamw, weight);
    check_slot(op, square, slots, op == OP_adamw, weight);
    check_rounding(op, range->rounding.segments, weight, master, square);
    expect_alike(op, "weight", range->weight, first->weight);
    expect_alike(op, "grad", range->grad, first->grad);
    expect_alike(op, "master", range->master, first->master);
    expect_alike(op, "slot[0]", range->slot[0], first->slot[0]);
    expect_alike(op, "segments", range->rounding.segments, first->rounding.segments);
    expect_argument(op, range->rounding.seed == first->rounding.seed, "all ranges have one seed",
                    (long long)range->rounding.seed);
    expect_argument(op, range->group >= 0 && range->group < UPDATE_GROUPS,
                    "the group is less than UPDATE_GROUPS", range->group);
}

static void check_update(OpId op, const UpdateRange *range, int n, const StepDecision *decision,
                         const void *hyper)
{
    expect_argument(op, n >= 0, "the number of ranges is not negative", n);
    expect_argument(op, decision && hyper, "the decision and the hyperparameters are there", 0);
    for (int i = 0; i < n; i++)
        check_range(op, &range[i], range);
}

void op_adamw(Device *dev, const UpdateRange *range, int n, const StepDecision *decision,
              const AdamW *hyper)
{
    check_update(OP_adamw, range, n, decision, hyper);
    if (n > 0) RUN(adamw, range->weight.dtype, dev, range, n, decision, hyper);
}

void op_sgd(Device *dev, const UpdateRange *range, int n, const StepDecision *decision,
            const Sgd *hyper)
{
    check_update(OP_sgd, range, n, decision, hyper);
    for (int i = 0; i < n; i++)
        expect_argument(OP_sgd,
                        hyper[range[i].group].momentum == 0 || tensor_present(range[i].slot[0]),
                        "momentum has a slot", i);
    if (n > 0) RUN(sgd, range->weight.dtype, dev, range, n, decision, hyper);
}

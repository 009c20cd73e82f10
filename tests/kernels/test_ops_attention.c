/* test_ops_attention.c -- tests op_attention_backward: compares its gradients, those of the biases
 * of q, k and v included, with numerical derivatives of the forward op in f64 (gradcheck.h), and
 * the bits of the biases' gradients with those of a linear layer. */
#include "model/core/check.h"
#include "model/kernels/ops.h"
#include "tests/support/device/op_devices.h"
#include "tests/support/model/gradcheck.h"
#include "tests/support/support.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static Device *cpu(void)
{
    return &devices.item[0].device;
}

/* ---- gradients --------------------------------------------------------------------------------
 */

typedef struct {
    int64_t batch, tq, tk;
    Attention a;
    bool first_key;
} AttentionCase;

static Tensor heads(double *x, int64_t batch, int64_t t, int64_t cols)
{
    return tensor_3d(x, F64, batch, t, cols);
}

static Tensor first_keys(const Function *f)
{
    const AttentionCase *s = f->options;
    return s->first_key ? tensor_1d((void *)f->index, I32, s->batch * s->tq) : NO_TENSOR;
}

/* Returns q, k or v (operand 0, 1, 2): its input plus its bias, which is input 3 + operand. Kept in
 * scratch. */
static Tensor biased(const Function *f, int operand)
{
    const AttentionCase *s = f->options;
    int64_t t = operand == 0 ? s->tq : s->tk, cols = f->input[3 + operand].n;
    double *sum = f->scratch[2 + operand];
    for (int64_t i = 0; i < f->input[operand].n; i++)
        sum[i] = f->input[operand].x[i] + f->input[3 + operand].x[i % cols];
    return heads(sum, s->batch, t, cols);
}

static double attention_loss(const Function *f)
{
    const AttentionCase *s = f->options;
    int64_t hd = s->a.heads * s->a.head_size;
    op_attention_forward(cpu(), heads(f->scratch[0], s->batch, s->tq, hd),
                         heads(f->scratch[1], s->batch, s->a.heads, s->tq), biased(f, 0),
                         biased(f, 1), biased(f, 2), s->a, first_keys(f));
    double sum = 0;
    for (int64_t i = 0; i < s->batch * s->tq * hd; i++)
        sum += f->weight[i] * f->scratch[0][i];
    return sum;
}

static void attention_backward_matches_finite_differences(void **state)
{
    (void)state;
    static const AttentionCase shape[] = {
        {2, 7, 7, {3, 3, 5, 0, 0.45}, false},   {1, 9, 9, {4, 2, 8, 0, 0.35}, false},
        {2, 9, 9, {4, 1, 4, 0, 0.5}, true},     {1, 3, 11, {4, 2, 8, 8, 0.35}, false},
        {1, 5, 9, {2, 1, 3, 2, 0.6}, true},     {2, 6, 4, {2, 2, 5, 6, 0.4}, false},
        {1, 70, 70, {2, 1, 16, 0, 0.25}, true},
    };
    for (size_t i = 0; i < sizeof shape / sizeof *shape; i++) {
        const AttentionCase *s = &shape[i];
        int64_t hd = s->a.heads * s->a.head_size, gd = s->a.kv_heads * s->a.head_size;
        Function *f = function_create(attention_loss, s);
        function_input(f, "q", s->batch * s->tq * hd);
        function_input(f, "k", s->batch * s->tk * gd);
        function_input(f, "v", s->batch * s->tk * gd);
        function_input(f, "bias of q", hd);
        function_input(f, "bias of k", gd);
        function_input(f, "bias of v", gd);
        for (int64_t query = 0; query < s->batch * s->tq; query++)
            f->index[query] = (int32_t)(query % s->tq * 2 / 3);
        attention_loss(f);
        AttentionTensors t = {.q = biased(f, 0), .k = biased(f, 1), .v = biased(f, 2)};
        t.dq = heads(f->input[0].dx, s->batch, s->tq, hd);
        t.dk = heads(f->input[1].dx, s->batch, s->tk, gd);
        t.dv = heads(f->input[2].dx, s->batch, s->tk, gd);
        t.dout = heads(f->weight, s->batch, s->tq, hd);
        t.o = heads(f->scratch[0], s->batch, s->tq, hd);
        t.lse = heads(f->scratch[1], s->batch, s->a.heads, s->tq);
        t.first_key = first_keys(f);
        t.dbq = tensor_1d(f->input[3].dx, F64, hd);
        t.dbk = tensor_1d(f->input[4].dx, F64, gd);
        t.dbv = tensor_1d(f->input[5].dx, F64, gd);
        op_attention_backward(cpu(), &t, false, s->a);
        function_check(f, "attention");
    }
}

/* ---- bits -------------------------------------------------------------------------------------
 */

enum { BATCH = 2, TOKENS = 70, HEADS = 4, KV_HEADS = 2, SIZE = 8, IN = 3 };
enum {
    ROWS = BATCH * TOKENS,
    Q_COLS = HEADS * SIZE,
    KV_COLS = KV_HEADS * SIZE,
    COLS = Q_COLS + 2 * KV_COLS
};

/* Returns random numbers of this type in memory of their own. */
static Tensor drawn(DType type, uint64_t stream, int64_t rows, int64_t cols)
{
    double *data = must_calloc((size_t)(rows * cols), sizeof *data);
    for (int64_t i = 0; i < rows * cols; i++)
        dtype_set(type, data, i, drawn_normal(stream, i));
    return tensor_2d(data, type, rows, cols);
}

static Tensor in_rows(Tensor t, int64_t first, int64_t cols)
{
    return tensor_as_3d(tensor_slice_cols(t, first, cols), BATCH, TOKENS);
}

/* Computes dqkv (N, q | k | v) and the gradient db (q | k | v) of its bias. */
static void backward_of(Device *dev, Tensor dqkv, Tensor db, bool accumulate)
{
    DType type = dqkv.dtype;
    Attention a = {HEADS, KV_HEADS, SIZE, 0, 0.35};
    Tensor qkv = drawn(type, 1, ROWS, COLS), dout = drawn(type, 2, ROWS, Q_COLS),
           o = drawn(type, 3, ROWS, Q_COLS),
           lse = drawn(dtype_compute(type), 4, BATCH * HEADS, TOKENS);
    lse = tensor_as_3d(lse, BATCH, HEADS);
    AttentionTensors t = {.dq = in_rows(dqkv, 0, Q_COLS),
                          .dk = in_rows(dqkv, Q_COLS, KV_COLS),
                          .dv = in_rows(dqkv, Q_COLS + KV_COLS, KV_COLS),
                          .dout = in_rows(dout, 0, Q_COLS),
                          .q = in_rows(qkv, 0, Q_COLS),
                          .k = in_rows(qkv, Q_COLS, KV_COLS),
                          .v = in_rows(qkv, Q_COLS + KV_COLS, KV_COLS),
                          .o = in_rows(o, 0, Q_COLS),
                          .lse = lse,
                          .dbq = tensor_slice_rows(db, 0, Q_COLS),
                          .dbk = tensor_slice_rows(db, Q_COLS, KV_COLS),
                          .dbv = tensor_slice_rows(db, Q_COLS + KV_COLS, KV_COLS),
                          .accumulate_db = accumulate};
    op_attention_forward(dev, t.o, lse, t.q, t.k, t.v, a, NO_TENSOR);
    op_attention_backward(dev, &t, false, a);
    free(qkv.data);
    free(dout.data);
    free(o.data);
    free(lse.data);
}

static void check_bits(TestDevice *d, DType type, DType grad, bool accumulate)
{
    Device *dev = &d->device;
    Tensor dqkv = drawn(type, 5, ROWS, COLS), x = drawn(type, 6, ROWS, IN),
           dw = drawn(grad, 7, COLS, IN), db[2];
    for (int i = 0; i < 2; i++)
        db[i] = tensor_flat(drawn(grad, 8, 1, COLS));
    backward_of(dev, dqkv, db[0], accumulate);
    op_linear_backward_weight(dev, dw, db[1], dqkv, x, NO_TENSOR, accumulate);
    if (memcmp(db[0].data, db[1].data, tensor_bytes(db[0])) != 0)
        fail_msg("%s, %s, gradients in %s%s: not the bits of linear_backward_weight", d->name,
                 dtype_name(type), dtype_name(grad), accumulate ? ", +=" : "");
    free(dqkv.data);
    free(x.data);
    free(dw.data);
    free(db[0].data);
    free(db[1].data);
}

/* q, k and v are columns of one matrix, as in a block. */
static void gradients_of_biases_have_the_same_bits_as_linear_backward_on_the_cpu(void **state)
{
    (void)state;
    for (int i = 0; i < devices.count; i++)
        for (DType type = F64; type <= F16 && !devices.item[i].cuda; type++)
            for (int accumulate = 0; accumulate < 2; accumulate++) {
                check_bits(&devices.item[i], type, type, accumulate);
                check_bits(&devices.item[i], type, dtype_compute(type), accumulate);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_backward_matches_finite_differences),
        cmocka_unit_test(gradients_of_biases_have_the_same_bits_as_linear_backward_on_the_cpu),
    };
    return cmocka_run_group_tests_name("gradients of attention", tests, devices_setup,
                                       devices_teardown);
}

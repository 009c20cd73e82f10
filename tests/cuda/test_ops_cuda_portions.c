/* test_ops_cuda_portions.c -- tests ops that work in several portions when the scratch memory
 * cannot hold everything: pairs of attention backward, slices of rows after a product, and partial
 * sums. A device with little scratch memory must give the same results as one with enough, which
 * test_ops.c compares with an exact reference. The bits must be equal if the order of the sums is
 * the same. Skipped if there is no CUDA device or the program is built without CUDA. */
#include "model/core/check.h"
#include "model/kernels/op_cases.h"
#include "tests/support/device/cuda_pair.h"
#include "tests/support/device/op_devices.h"
#include "tests/support/support.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

/* Larger than any correct result. Values from uninitialised memory exceed it, so two wrong results
 * cannot pass by being equal. */
#define MODEST 1e4

/* A case with operands in host memory. */
typedef struct {
    const OpCase *c;
    DType storage;
    int count;
    OperandSpec spec[CASE_OPERANDS];
    Tensor start[CASE_OPERANDS];
} Call;

static double drawn_operand(const Call *call, int operand, int64_t i)
{
    const OperandSpec *s = &call->spec[operand];
    uint64_t stream = 80 + (uint64_t)operand;
    double u = drawn_uniform(stream, i);
    switch (s->fill) {
    case FILL_NORMAL: return s->low + s->high * drawn_normal(stream, i);
    case FILL_UNIFORM: return s->low + (s->high - s->low) * u;
    default: /* FILL_FIRST_KEY: at most the query's own key, the last one that it sees */
        return (double)(int64_t)((double)(i % call->c->tq + 1) * u);
    }
}

static Call call_drawn(const OpCase *c, DType storage)
{
    Call call = {.c = c, .storage = storage};
    call.count = op_case_operands(c, call.spec);
    for (int i = 0; i < call.count; i++) {
        const OperandSpec *s = &call.spec[i];
        int64_t n = 1;
        if (s->role == ROLE_ABSENT) continue;
        for (int d = 0; d < s->ndim; d++)
            n *= s->dim[d];
        DType type = op_case_dtype(s->type, storage, F32);
        Tensor t = tensor_1d(must_calloc((size_t)n, dtype_size(type)), type, n);
        for (int64_t k = 0; k < n; k++)
            dtype_set(type, t.data, k, drawn_operand(&call, i, k));
        call.start[i] = s->ndim == 1   ? t
                        : s->ndim == 2 ? tensor_2d(t.data, type, s->dim[0], s->dim[1])
                                       : tensor_3d(t.data, type, s->dim[0], s->dim[1], s->dim[2]);
    }
    return call;
}

static void call_free(Call *call)
{
    for (int i = 0; i < call->count; i++)
        free(call->start[i].data);
}

/* Runs the op and copies each operand as it is afterwards to left[i]; the caller frees these. */
static void call_run(Device *dev, const Call *call, Tensor *left)
{
    StepDecision decision = op_case_decision();
    Tensor far[CASE_OPERANDS] = {{0}};
    for (int i = 0; i < call->count; i++) {
        left[i] = pair_copy(call->start[i]);
        far[i] = device_put(dev, left[i]);
    }
    op_case_run(dev, call->c, far, &decision);
    for (int i = 0; i < call->count; i++)
        device_take(dev, left[i], far[i]);
}

/* Compares results whose sums have a different order. Allows the roundings of both, plus the error
 * that the case allows for its sums. */
static void check_close(const Call *call, int i, Tensor enough, Tensor little, const char *what)
{
    int64_t n = tensor_count(enough);
    double *exact = must_calloc((size_t)n, sizeof *exact);
    char err[512];
    for (int64_t k = 0; k < n; k++)
        exact[k] = dtype_get(enough.dtype, enough.data, k);
    double tolerance = 2 * call->spec[i].roundings * dtype_info[enough.dtype].roundoff +
                       call->spec[i].depth * dtype_info[F32].roundoff;
    if (!tensor_close(little, exact, tolerance, 0, err, sizeof err))
        fail_msg("%s: %s %s", what, call->spec[i].name, err);
    free(exact);
}

static void check_portions(const OpCase *c, DType storage, size_t scratch, bool same_bits)
{
    char err[512], text[160], what[256];
    DeviceOptions options = {.threads = 1, .local_ranks = 1, .scratch = scratch};
    Device small;
    Call call = call_drawn(c, storage);
    Tensor enough[CASE_OPERANDS], little[CASE_OPERANDS];
    if (!device_open(&small, "cuda", &options, err, sizeof err)) fail_msg("%s", err);
    call_run(&pair_cuda, &call, enough);
    call_run(&small, &call, little);
    device_close(&small);
    snprintf(what, sizeof what, "%s %s in %zu bytes", op_case_describe(c, text, sizeof text),
             dtype_name(storage), scratch);
    for (int i = 0; i < call.count; i++) {
        for (int64_t k = 0; tensor_present(enough[i]) && k < tensor_count(enough[i]); k++)
            assert_true(fabs(dtype_get(enough[i].dtype, enough[i].data, k)) < MODEST);
        if (same_bits)
            pair_same_bits(enough[i], little[i], what);
        else if (tensor_present(enough[i]) && call.spec[i].role != ROLE_IN)
            check_close(&call, i, enough[i], little[i], what);
        free(enough[i].data);
        free(little[i].data);
    }
    call_free(&call);
}

/* Six (batch row, kv head) pairs, processed one at a time, two at a time, and as four and two. The
 * first case has f32 and heads of an odd size, which do not use the tensor cores. */
static void test_attention_backward_in_portions_has_the_same_bits(void **state)
{
    enum { T = 33, GROUP = 2, EACH = GROUP * T * sizeof(float) };
    static const size_t scratch[] = {EACH, 2 * EACH + 4, 4 * EACH};
    static const OpCase cases[] = {
        {OP_attention_backward, .batch = 2, .tq = T, .tk = T, .option = true, .accumulate = true,
         .attention = {.heads = 6, .kv_heads = 3, .head_size = 9, .scale = 0.35}},
        {OP_attention_backward, .batch = 2, .tq = T, .tk = T, .option = true,
         .attention = {.heads = 6, .kv_heads = 3, .head_size = 16, .scale = 0.35}}};
    (void)state;
    pair_needed();
    for (int i = 0; i < 3; i++) {
        check_portions(&cases[0], i == 1 ? BF16 : F32, scratch[i], true);
        check_portions(&cases[1], i == 1 ? F16 : BF16, scratch[i], true);
    }
}

/* `pre` has rows of an odd length, which the library's epilogues refuse. The product is then
 * computed in slices: as many rows as half of the scratch memory holds, or 128 at a time. */
static void test_gelu_after_products_in_slices_has_the_same_bits(void **state)
{
    enum { COLS = 33, ROW = COLS * sizeof(float) };
    static const struct {
        int64_t rows;
        size_t scratch;
    } sizes[] = {{37, 2 * 512 * (10 * ROW / 512 + 1)}, {300, 2 * 512 * (200 * ROW / 512 + 1)}};
    (void)state;
    pair_needed();
    for (int i = 0; i < 2; i++) {
        OpCase forward = {OP_linear_forward, .n = sizes[i].rows, .cols = 17,
                          .outputs = COLS,   .bias = true,       .epilogue = EPILOGUE_GELU_OF_SUM,
                          .option = true};
        OpCase backward = {OP_linear_backward_input, .n = sizes[i].rows, .cols = COLS,
                           .outputs = 17, .epilogue = EPILOGUE_GELU};
        check_portions(&forward, i ? F16 : BF16, sizes[i].scratch, true);
        check_portions(&backward, i ? BF16 : F16, sizes[i].scratch, true);
    }
}

/* The scratch memory holds one, two or five rows of partial sums, so fewer blocks run, and each
 * processes several sets of rows. Covers norms whose groups share a warp, have a block each, or are
 * wide, and the column sums of a bias gradient. */
static void test_partial_sums_are_right_with_little_scratch_memory(void **state)
{
    static const OpCase cases[] = {
        {OP_norm_backward, .n = 61, .cols = 72, .bias = true, .option = true,
         .accumulate_dx = true},
        {OP_norm_backward, .n = 13, .cols = 1032, .norm = NORM_RMSNORM, .accumulate = true},
        {OP_norm_backward, .n = 7, .cols = 2056, .bias = true, .accumulate_dx = true},
        {OP_linear_backward_weight, .n = 400, .cols = 3, .outputs = 40, .bias = true}};
    static const size_t rows[] = {1, 2, 5};
    (void)state;
    pair_needed();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int k = 0; k < 3; k++) {
            const OpCase *c = &cases[i];
            size_t outputs = c->outputs ? 1 : (size_t)(1 + c->bias + c->option);
            size_t row = outputs * sizeof(float) * (size_t)(c->outputs ? c->outputs : c->cols);
            check_portions(c, k == 1 ? BF16 : F32, rows[k] * row, false);
        }
}

/* Writes the sum (or, unless `sum`, the maximum) of RANKS tensors to got[0..n). The tensors have
 * the same values on every device. */
static void combine_ranks(Device *dev, DType type, bool sum, void *got, int64_t n)
{
    enum { RANKS = 2 * SUM_SOURCES + 3 };
    Tensor src[RANKS], here = tensor_1d(must_calloc((size_t)n, dtype_size(type)), type, n);
    for (int r = 0; r < RANKS; r++) {
        for (int64_t k = 0; k < n; k++)
            dtype_set(type, here.data, k, drawn_normal(90, r * n + k));
        src[r] = device_put(dev, here);
    }
    (sum ? op_sum : op_maximum)(dev, src[RANKS - 1], src, RANKS);
    device_take(dev, tensor_1d(got, type, n), src[RANKS - 1]);
    for (int r = 0; r < RANKS - 1; r++)
        device_drop(dev, src[r]);
    free(here.data);
}

/* If there are more ranks than a kernel takes, the sum of the first ranks is kept in the scratch
 * memory. */
static void test_sums_of_many_ranks_in_pieces_have_the_same_bits(void **state)
{
    enum { N = 333 };
    char err[512];
    (void)state;
    pair_needed();
    for (DType type = F64; type <= F16; type++)
        for (int sum = 0; sum < 2; sum++) {
            DeviceOptions options = {
                .threads = 1, .local_ranks = 1, .scratch = 100 * sizeof(double)};
            double enough[N] = {0}, little[N] = {0};
            Device small;
            if (!device_open(&small, "cuda", &options, err, sizeof err)) fail_msg("%s", err);
            combine_ranks(&pair_cuda, type, sum, enough, N);
            combine_ranks(&small, type, sum, little, N);
            device_close(&small);
            assert_memory_equal(enough, little, N * dtype_size(type));
            assert_true(dtype_get(type, little, N - 1) != 0);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attention_backward_in_portions_has_the_same_bits),
        cmocka_unit_test(test_gelu_after_products_in_slices_has_the_same_bits),
        cmocka_unit_test(test_partial_sums_are_right_with_little_scratch_memory),
        cmocka_unit_test(test_sums_of_many_ranks_in_pieces_have_the_same_bits),
    };
    return cmocka_run_group_tests_name("portions on cuda", tests, pair_setup, pair_teardown);
}

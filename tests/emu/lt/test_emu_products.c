/* test_emu_products.c -- tests how lt_product.c handles the library's responses: refusals at any
 * time, ever-changing shapes, tf32. Uses the emulated cuBLASLt, whose responses a test can choose.
 */
#include "model/core/check.h"
#include "model/kernels/cuda/lt.h"
#include "parallel/trainer/session.h"
#include "tests/support/device/op_devices.h"
#include "tests/support/files/config_support.h"
#include "tests/support/oracle/oracle.h"
#include "tests/support/support.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { ROWS = 37, TERMS = 40, COLS = 24 };

/* Operands x (ROWS, TERMS), w (COLS, TERMS), bias (COLS) and residual (ROWS, COLS) on a device, and
 * their exact values as stored. */
typedef struct {
    Device dev;
    DType dtype;
    Tensor x, w, bias, residual, y, pre;
    double exact_x[ROWS * TERMS], exact_w[COLS * TERMS], exact_bias[COLS];
    double exact_residual[ROWS * COLS];
} Bench;

static Tensor put_drawn(Bench *b, double *exact, int64_t rows, int64_t cols, uint64_t stream)
{
    Tensor t = tensor_2d(must_calloc((size_t)(rows * cols), 4), b->dtype, rows, cols);
    for (int64_t i = 0; i < rows * cols; i++) {
        dtype_set(b->dtype, t.data, i, exact ? drawn_normal(stream, i) : 0);
        if (exact) exact[i] = dtype_get(b->dtype, t.data, i);
    }
    Tensor far = device_put(&b->dev, t);
    free(t.data);
    return far;
}

static Bench *bench_open(DType dtype, bool tf32)
{
    Bench *b = must_calloc(1, sizeof *b);
    const Config *c = config_test_keys(tf32 ? "\"device\": \"cuda\", \"cuda\": {\"tf32\": true}"
                                            : "\"device\": \"cuda\"");
    char err[256];
    if (!session_open_device(&b->dev, c, NULL, err, sizeof err)) fail_msg("%s", err);
    config_free(c);
    b->dtype = dtype;
    b->x = put_drawn(b, b->exact_x, ROWS, TERMS, 1);
    b->w = put_drawn(b, b->exact_w, COLS, TERMS, 2);
    b->bias = tensor_flat(put_drawn(b, b->exact_bias, 1, COLS, 3));
    b->residual = put_drawn(b, b->exact_residual, ROWS, COLS, 4);
    b->y = put_drawn(b, NULL, ROWS, COLS, 0);
    b->pre = put_drawn(b, NULL, ROWS, COLS, 0);
    return b;
}

static void bench_close(Bench *b)
{
    Tensor list[] = {b->x, b->w, b->bias, b->residual, b->y, b->pre};
    for (int i = 0; i < 6; i++)
        device_drop(&b->dev, list[i]);
    device_close(&b->dev);
    free(b);
}

static double itself(double x)
{
    return x;
}

/* Returns element (n, o) of x w^T + bias + residual in double. */
static double exact_sum(const Bench *b, int n, int o)
{
    double sum = b->exact_bias[o] + b->exact_residual[n * COLS + o];
    for (int k = 0; k < TERMS; k++)
        sum += b->exact_x[n * TERMS + k] * b->exact_w[o * TERMS + k];
    return sum;
}

/* Runs op_linear_residual_forward and returns the number of elements of y that are not their exact
 * sum, rounded. */
static int misrounded(Bench *b, Tensor residual)
{
    Tensor y = tensor_2d(must_calloc(ROWS * COLS, 4), b->dtype, ROWS, COLS);
    int wrong = 0;
    op_fill(&b->dev, b->y, NAN);
    op_linear_residual_forward(&b->dev, b->y, b->x, b->w, b->bias, residual);
    device_copy(&b->dev, y, b->y);
    device_synchronize(&b->dev);
    for (int i = 0; i < ROWS * COLS; i++)
        wrong += dtype_get(b->dtype, y.data, i) !=
                 oracle_round(b->dtype, exact_sum(b, i / COLS, i % COLS));
    free(y.data);
    return wrong;
}

/* Returns the largest error of got (ROWS, COLS) relative to f(x w^T + bias), in units of the sum of
 * the terms' magnitudes; infinity if an element is NaN. */
static double worst(Bench *b, Tensor got, double (*f)(double))
{
    Tensor y = tensor_2d(must_calloc(ROWS * COLS, 4), b->dtype, ROWS, COLS);
    double most = 0;
    device_copy(&b->dev, y, got);
    device_synchronize(&b->dev);
    for (int n = 0; n < ROWS; n++)
        for (int o = 0; o < COLS; o++) {
            double sum = b->exact_bias[o], size = fabs(sum);
            for (int k = 0; k < TERMS; k++) {
                double term = b->exact_x[n * TERMS + k] * b->exact_w[o * TERMS + k];
                sum += term;
                size += fabs(term);
            }
            double error = fabs(dtype_get(b->dtype, y.data, n * COLS + o) - f(sum)) / size;
            most = isnan(error) ? INFINITY : fmax(most, error);
        }
    free(y.data);
    return most;
}

/* Runs op_linear_forward and returns the largest error of y and, with a GELU, of pre. Both are NaN
 * before the call. */
static double forward(Bench *b, Epilogue epilogue)
{
    bool gelu = epilogue != EPILOGUE_NONE;
    op_fill(&b->dev, b->y, NAN);
    op_fill(&b->dev, b->pre, NAN);
    op_linear_forward(&b->dev, b->y, b->x, b->w, b->bias, epilogue, gelu ? b->pre : NO_TENSOR);
    return gelu ? fmax(worst(b, b->y, oracle_gelu), worst(b, b->pre, itself))
                : worst(b, b->y, itself);
}

/* ---- refusals -------------------------------------------------------------------------------- */

static char *given; /* how the environment lets the emulated library respond */

/* Selects how the emulated library responds from now on; NULL means normally. */
static void answer(const char *word)
{
    if (word) setenv("EMU_LT", word, 1);
    if (!word) unsetenv("EMU_LT");
}

/* The library returns an algorithm, but then refuses to run it. The product must then be computed
 * without the epilogue, or without the library, in this call and all later ones. */
static void test_a_product_is_right_even_if_the_library_refuses_to_run_it(void **state)
{
    (void)state;
    static const char *const answers[] = {NULL, "invalid", "plain", "none", NULL};
    for (DType t = F32; t <= F16; t++) {
        Bench *b = bench_open(t, false);
        double bound = dtype_info[t].roundoff + 16 * dtype_info[F32].roundoff;
        for (int i = 0; i < 5; i++) {
            answer(answers[i]);
            assert_true(forward(b, EPILOGUE_NONE) <= bound);
            assert_true(forward(b, EPILOGUE_GELU_OF_SUM) <= bound);
        }
        bench_close(b);
    }
    answer(given);
}

/* The residual is the library's C, with its own stride and alignment, and y is rounded once: the
 * only sums that may be misrounded are those so near to a tie that the error of f32 moves them
 * across it. Once the library has refused C, a kernel adds the residual to the rounded product, in
 * that call and all later ones: a fifth of the elements or more are then misrounded. */
static void test_the_residual_is_added_by_the_library_or_by_a_kernel(void **state)
{
    (void)state;
    static const char *const answers[] = {NULL, "in_place", NULL};
    for (DType t = BF16; t <= F16; t++) {
        Bench *b = bench_open(t, false);
        Tensor wide = put_drawn(b, NULL, ROWS, COLS + 16, 0);
        for (int i = 0; i < 9; i++) { /* dense, strided, strided and less aligned */
            Tensor sliced = tensor_slice_cols(wide, i % 3 == 1 ? 0 : 3, COLS);
            Tensor residual = i % 3 ? sliced : b->residual;
            if (i % 3) op_copy(&b->dev, residual, b->residual);
            answer(answers[i / 3]);
            int wrong = misrounded(b, residual), few = ROWS * COLS / 50, many = ROWS * COLS / 5;
            assert_true(i < 3 ? wrong <= few : wrong >= many && wrong <= 3 * many);
        }
        device_drop(&b->dev, wide);
        bench_close(b);
    }
    answer(given);
}

static bool asked_with(Bench *b, Tensor c, Tensor bias, Tensor aux, LtEpilogue epilogue)
{
    LtProduct p = {.d = b->y,
                   .c = c,
                   .a = b->x,
                   .b = b->w,
                   .b_transposed = true,
                   .epilogue = epilogue,
                   .bias = bias,
                   .aux = aux,
                   .workspace = cuda_workspace(&b->dev, 1 << 16),
                   .workspace_bytes = 1 << 16};
    bool done = lt_product(&b->dev, &p);
    device_synchronize(&b->dev); /* the caller may change the emulated library's responses after
                                  * this */
    return done;
}

static bool asked(Bench *b, Tensor bias, Tensor aux, LtEpilogue epilogue)
{
    return asked_with(b, NO_TENSOR, bias, aux, epilogue);
}

/* If the library calls an epilogue or c invalid, from the start or only later, lt_product returns
 * false. A product without them still works. */
static void test_lt_product_returns_false_for_an_invalid_epilogue(void **state)
{
    (void)state;
    for (int late = 0; late < 2; late++) {
        Bench *b = bench_open(BF16, false);
        answer(NULL);
        if (late) assert_true(asked(b, b->bias, NO_TENSOR, LT_PLAIN));
        if (late) assert_true(asked(b, NO_TENSOR, b->pre, LT_DGELU));
        answer("invalid");
        for (int again = 0; again < 2; again++) {
            assert_false(asked(b, b->bias, NO_TENSOR, LT_PLAIN));
            assert_false(asked(b, NO_TENSOR, b->pre, LT_DGELU));
            assert_true(asked(b, NO_TENSOR, NO_TENSOR, LT_PLAIN));
        }
        answer("all_invalid");
        assert_false(asked_with(b, b->residual, NO_TENSOR, NO_TENSOR, LT_PLAIN));
        bench_close(b);
    }
    answer(given);
}

/* A library that adds parts of sums in the result may do so in f32 results, but not in others. */
static void test_split_k_sums_are_added_in_the_result_only_if_it_is_f32(void **state)
{
    (void)state;
    answer("split");
    for (DType t = F32; t <= F16; t++) {
        Bench *b = bench_open(t, false);
        assert_true(asked(b, NO_TENSOR, NO_TENSOR, LT_PLAIN) == (t == F32));
        bench_close(b);
    }
    answer(given);
}

/* The epilogue with the derivative of GELU is used only from compute capability 9.0 on. On older
 * devices the product is computed in f32 without it: a kind that the device has no plan for yet. */
static void test_gelu_backward_uses_the_epilogue_where_it_is_fast(void **state)
{
    (void)state;
    static const struct {
        const char *capability;
        int more; /* plans */
    } cases[] = {{"80", 1}, {"89", 1}, {"90", 0}, {"100", 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        setenv("EMU_CAPABILITY", cases[i].capability, 1);
        Bench *b = bench_open(BF16, false);
        unsetenv("EMU_CAPABILITY");
        Tensor w = tensor_2d(b->w.data, BF16, TERMS, COLS);
        LtProduct p = {.d = b->y,
                       .a = b->x,
                       .b = w,
                       .epilogue = LT_DGELU,
                       .aux = b->pre,
                       .workspace = cuda_workspace(&b->dev, cuda_device(&b->dev)->workspace_bytes),
                       .workspace_bytes = cuda_device(&b->dev)->workspace_bytes};
        bool offered = lt_product(&b->dev, &p);
        int plans = cuda_device(&b->dev)->lt->n_plans;
        op_linear_backward_input(&b->dev, b->y, b->x, w, EPILOGUE_GELU, b->pre, false);
        device_synchronize(&b->dev);
        if (offered) assert_int_equal(cuda_device(&b->dev)->lt->n_plans, plans + cases[i].more);
        bench_close(b);
    }
}

/* If the library calls a product without an epilogue invalid, the program ends with an error
 * message that describes the product. */
static void test_an_invalid_product_without_epilogue_ends_the_program(void **state)
{
    (void)state;
    char words[1024] = "";
    int ends[2], status = 0;
    Bench *b = bench_open(BF16, false);
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) {
        setenv("EMU_FORK", "allow", 1);
        dup2(ends[1], 2);
        answer("all_invalid");
        asked(b, NO_TENSOR, NO_TENSOR, LT_PLAIN);
        _exit(0);
    }
    close(ends[1]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(read(ends[0], words, sizeof words - 1) > 0);
    close(ends[0]);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), EXIT_SYSTEM);
    assert_non_null(strstr(words, "calls the product of (37, 40) by (40, 24) in bf16 invalid"));
    bench_close(b);
}

/* aux must have rows of a multiple of 8 elements and be aligned to 16 bytes, and the bias must be
 * aligned to 16 bytes. Otherwise lt_product returns false and creates no plan. */
static void test_a_misaligned_bias_or_aux_is_refused_without_a_plan(void **state)
{
    (void)state;
    bool epilogues = getenv("EMU_LT") == NULL;
    Bench *b = bench_open(BF16, false);
    Tensor wide = put_drawn(b, NULL, ROWS, COLS + 9, 0), odd = tensor_slice_cols(wide, 0, COLS);
    Tensor even = put_drawn(b, NULL, ROWS, COLS + 8, 0), moved = tensor_slice_cols(even, 4, COLS);
    Tensor rows[] = {b->pre, tensor_slice_cols(even, 0, COLS), tensor_slice_cols(even, 8, COLS)};
    Tensor line = tensor_slice_rows(even, 0, 1);
    for (LtEpilogue e = LT_GELU; e <= LT_DGELU; e++)
        for (int i = 0; i < 3; i++)
            assert_true(asked(b, NO_TENSOR, rows[i], e) == epilogues);
    assert_true(asked(b, tensor_flat(tensor_slice_cols(line, 8, COLS)), NO_TENSOR, LT_PLAIN) ==
                epilogues);
    int plans = cuda_device(&b->dev)->lt->n_plans;
    for (LtEpilogue e = LT_GELU; e <= LT_DGELU; e++) {
        assert_false(asked(b, NO_TENSOR, moved, e));
        assert_false(asked(b, NO_TENSOR, odd, e));
    }
    assert_false(asked(b, tensor_flat(tensor_slice_cols(line, 4, COLS)), NO_TENSOR, LT_PLAIN));
    assert_false(asked(b, tensor_flat(tensor_slice_cols(line, 4, COLS)), NO_TENSOR, LT_GELU));
    assert_int_equal(cuda_device(&b->dev)->lt->n_plans, plans);
    device_drop(&b->dev, wide);
    device_drop(&b->dev, even);
    bench_close(b);
}

/* ---- plans ----------------------------------------------------------------------------------- */

/* More kinds of products than LT_PLANS: every result is right, and the number of plans stays within
 * the limit. */
static void test_with_more_shapes_than_plans_results_are_right_and_plans_limited(void **state)
{
    (void)state;
    enum { SHAPES = LT_PLANS + 100, SIDE = 40 };
    Bench *b = bench_open(F32, false);
    Lt *lt = cuda_device(&b->dev)->lt;
    int most = 0;
    for (int i = 0; i < SHAPES; i++) {
        int64_t n = 1 + i % ROWS, terms = 1 + i / ROWS % SIDE, cols = 1 + i / ROWS / SIDE;
        Tensor y = tensor_slice_cols(tensor_slice_rows(b->y, 0, n), 0, cols);
        op_linear_forward(&b->dev, y, tensor_slice_cols(tensor_slice_rows(b->x, 0, n), 0, terms),
                          tensor_slice_cols(tensor_slice_rows(b->w, 0, cols), 0, terms), NO_TENSOR,
                          EPILOGUE_NONE, NO_TENSOR);
        if (lt->n_plans > most) most = lt->n_plans;
    }
    assert_int_equal(most, LT_PLANS);
    assert_int_equal(lt->n_plans, SHAPES - LT_PLANS);
    assert_true(forward(b, EPILOGUE_NONE) <= 16 * dtype_info[F32].roundoff);
    bench_close(b);
}

/* ---- tf32 ------------------------------------------------------------------------------------ */

/* f32 factors are rounded to 11 bits if tf32 is requested; all others keep all their bits. */
static void test_tf32_is_used_only_for_f32_and_only_on_request(void **state)
{
    (void)state;
    bool library = getenv("EMU_LT") == NULL || strcmp(getenv("EMU_LT"), "none") != 0;
    for (DType t = F32; t <= F16; t++)
        for (int tf32 = 0; tf32 < 2; tf32++) {
            Bench *b = bench_open(t, tf32);
            double error = forward(b, EPILOGUE_NONE);
            bool rough = t == F32 && tf32 && library;
            assert_true(error <= (rough ? 0x1p-10 : dtype_info[t].roundoff + 0x1p-20));
            if (rough) assert_true(error > 0x1p-16);
            bench_close(b);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_product_is_right_even_if_the_library_refuses_to_run_it),
        cmocka_unit_test(test_the_residual_is_added_by_the_library_or_by_a_kernel),
        cmocka_unit_test(test_lt_product_returns_false_for_an_invalid_epilogue),
        cmocka_unit_test(test_split_k_sums_are_added_in_the_result_only_if_it_is_f32),
        cmocka_unit_test(test_gelu_backward_uses_the_epilogue_where_it_is_fast),
        cmocka_unit_test(test_an_invalid_product_without_epilogue_ends_the_program),
        cmocka_unit_test(test_a_misaligned_bias_or_aux_is_refused_without_a_plan),
        cmocka_unit_test(test_with_more_shapes_than_plans_results_are_right_and_plans_limited),
        cmocka_unit_test(test_tf32_is_used_only_for_f32_and_only_on_request),
    };
    given = getenv("EMU_LT") ? must_strdup(getenv("EMU_LT")) : NULL;
    int failed = cmocka_run_group_tests_name("products by cuBLASLt", tests, NULL, NULL);
    free(given);
    return failed;
}

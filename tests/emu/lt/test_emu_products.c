/* test_emu_products.c -- what lt_product.c makes of the library's answers: refusals at any time,
 * ever new shapes, tf32. Over the stand-in, whose answers can be chosen. */
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

/* x (ROWS, TERMS), w (COLS, TERMS), bias (COLS) on a device, exact values as stored beside them. */
typedef struct {
    Device dev;
    DType dtype;
    Tensor x, w, bias, y, pre;
    double exact_x[ROWS * TERMS], exact_w[COLS * TERMS], exact_bias[COLS];
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
    b->y = put_drawn(b, NULL, ROWS, COLS, 0);
    b->pre = put_drawn(b, NULL, ROWS, COLS, 0);
    return b;
}

static void bench_close(Bench *b)
{
    Tensor list[] = {b->x, b->w, b->bias, b->y, b->pre};
    for (int i = 0; i < 5; i++)
        device_drop(&b->dev, list[i]);
    device_close(&b->dev);
    free(b);
}

static double itself(double x)
{
    return x;
}

/* The largest error of got (ROWS, COLS) against f(x w^T + bias), in units of the sum of the terms'
 * sizes; infinite where it has no number. */
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

/* What one call makes of y and, after a gelu, of pre; both held NaN before. */
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

/* What the stand-in answers from now on; NULL: what it can. */
static void answer(const char *word)
{
    if (word) setenv("EMU_LT", word, 1);
    if (!word) unsetenv("EMU_LT");
}

/* An algorithm was found, and then the library does not run it: the product is made without its
 * epilogue, then without the library, now and whenever it is asked for again. */
static void test_a_product_refused_when_it_is_to_run(void **state)
{
    (void)state;
    static const char *const answers[] = {NULL, "invalid", "plain", "none", NULL};
    const char *before = getenv("EMU_LT");
    char *kept = before ? must_strdup(before) : NULL;
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
    answer(kept);
    free(kept);
}

static bool asked(Bench *b, Tensor bias, Tensor aux, LtEpilogue epilogue)
{
    LtProduct p = {.d = b->y,
                   .a = b->x,
                   .b = b->w,
                   .b_transposed = true,
                   .epilogue = epilogue,
                   .bias = bias,
                   .aux = aux,
                   .workspace = cuda_workspace(&b->dev, 1 << 16),
                   .workspace_bytes = 1 << 16};
    bool done = lt_product(&b->dev, &p);
    device_synchronize(&b->dev); /* the stand-in's answers may change from here on */
    return done;
}

/* An epilogue that the library calls invalid, from the first or from now on, is not had; a product
 * without one that it calls so ends the run with a sentence. */
static void test_an_epilogue_is_invalid(void **state)
{
    (void)state;
    const char *before = getenv("EMU_LT");
    char *kept = before ? must_strdup(before) : NULL;
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
        bench_close(b);
    }
    answer(kept);
    free(kept);
}

static void test_a_product_is_invalid(void **state)
{
    (void)state;
    char words[1024] = "";
    int ends[2], status = 0;
    Bench *b = bench_open(BF16, false);
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) {
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

/* The second matrix of an epilogue lies in whole packs of 8 elements and 16 bytes, a bias in whole
 * packs of 16 bytes, or the library is not asked. */
static void test_what_does_not_fit_is_not_asked_for(void **state)
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

/* More kinds of products than are remembered: each is right, and the memory does not grow. */
static void test_more_shapes_than_plans(void **state)
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

/* Factors of 11 bits where f32 is asked to be fast, all bits elsewhere. */
static void test_tf32_is_for_f32_alone_and_when_asked(void **state)
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
        cmocka_unit_test(test_a_product_refused_when_it_is_to_run),
        cmocka_unit_test(test_an_epilogue_is_invalid),
        cmocka_unit_test(test_a_product_is_invalid),
        cmocka_unit_test(test_what_does_not_fit_is_not_asked_for),
        cmocka_unit_test(test_more_shapes_than_plans),
        cmocka_unit_test(test_tf32_is_for_f32_alone_and_when_asked),
    };
    return cmocka_run_group_tests_name("products by cuBLASLt", tests, NULL, NULL);
}

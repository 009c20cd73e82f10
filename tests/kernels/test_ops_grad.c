/* test_ops_grad.c -- compares every backward op with numerical derivatives of its forward op, in
 * f64 (gradcheck.h). Attention is in test_ops_attention.c. */
#include "model/core/check.h"
#include "model/kernels/ops.h"
#include "tests/support/model/gradcheck.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static Device cpu;

static Tensor matrix(double *x, int64_t rows, int64_t cols)
{
    return tensor_2d(x, F64, rows, cols);
}

static Tensor vector(double *x, int64_t n)
{
    return tensor_1d(x, F64, n);
}

static double weighted(const Function *f, const double *y, int64_t n, int64_t from)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += f->weight[from + i] * y[i];
    return sum;
}

/* ---- norm -------------------------------------------------------------------------------------
 */

typedef struct {
    Norm norm;
    int64_t n, cols, groups;
} NormShape;

static double norm_loss(const Function *f)
{
    const NormShape *s = f->options;
    int64_t width = s->cols / s->groups;
    double *y = f->scratch[0];
    Tensor b = s->norm.kind == NORM_LAYERNORM ? vector(f->input[2].x, width) : NO_TENSOR;
    op_norm_forward(&cpu, matrix(y, s->n, s->cols), matrix(f->scratch[1], s->n * s->groups, 2),
                    matrix(f->input[0].x, s->n, s->cols), vector(f->input[1].x, width), b, s->norm);
    return weighted(f, y, s->n * s->cols, 0);
}

static void norm_backward_matches_finite_differences(void **state)
{
    (void)state;
    static const NormShape shape[] = {
        {{NORM_LAYERNORM, 1e-5}, 5, 17, 1}, {{NORM_LAYERNORM, 1e-5}, 4, 24, 3},
        {{NORM_LAYERNORM, 0.5}, 3, 8, 1},   {{NORM_RMSNORM, 1e-6}, 5, 17, 1},
        {{NORM_RMSNORM, 1e-5}, 7, 32, 4},   {{NORM_RMSNORM, 0.5}, 3, 1, 1},
    };
    for (size_t i = 0; i < sizeof shape / sizeof *shape; i++) {
        const NormShape *s = &shape[i];
        bool bias = s->norm.kind == NORM_LAYERNORM;
        int64_t width = s->cols / s->groups;
        Function *f = function_create(norm_loss, s);
        Tensor x = matrix(function_input(f, "x", s->n * s->cols), s->n, s->cols);
        Tensor w = vector(function_input(f, "w", width), width);
        if (bias) function_input(f, "b", width);
        norm_loss(f);
        op_norm_backward(&cpu, matrix(f->input[0].dx, s->n, s->cols), false, NO_TENSOR,
                         vector(f->input[1].dx, width),
                         bias ? vector(f->input[2].dx, width) : NO_TENSOR, false,
                         matrix(f->weight, s->n, s->cols), x,
                         matrix(f->scratch[1], s->n * s->groups, 2), w, s->norm);
        function_check(f, "norm");
    }
}

/* The loss is a weighted sum of y and of the residual stream. The gradient that the residual stream
 * gets directly is added to that of norm_backward, and the column sums of the total are the
 * gradient of the bias. */
static double residual_norm_loss(const Function *f)
{
    const NormShape *s = f->options;
    int64_t n = s->n * s->cols;
    op_residual_norm_forward(&cpu, matrix(f->scratch[2], s->n, s->cols),
                             matrix(f->scratch[0], s->n, s->cols), matrix(f->scratch[1], s->n, 2),
                             matrix(f->input[0].x, s->n, s->cols),
                             matrix(f->input[1].x, s->n, s->cols), vector(f->input[2].x, s->cols),
                             vector(f->input[3].x, s->cols), NO_TENSOR, s->norm);
    return weighted(f, f->scratch[0], n, 0) + weighted(f, f->scratch[2], n, n);
}

static void residual_norm_backward_matches_finite_differences(void **state)
{
    (void)state;
    static const NormShape shape[] = {{{NORM_LAYERNORM, 1e-5}, 5, 17, 1},
                                      {{NORM_RMSNORM, 1e-5}, 6, 19, 1}};
    for (int i = 0; i < 2; i++) {
        const NormShape *s = &shape[i];
        int64_t n = s->n * s->cols;
        Function *f = function_create(residual_norm_loss, s);
        function_input(f, "x", n);
        function_input(f, "a", n);
        function_input(f, "bias", s->cols);
        function_input(f, "w", s->cols);
        residual_norm_loss(f);
        memcpy(f->input[0].dx, f->weight + n, (size_t)n * sizeof(double));
        op_norm_backward(&cpu, matrix(f->input[0].dx, s->n, s->cols), true,
                         vector(f->input[2].dx, s->cols), vector(f->input[3].dx, s->cols),
                         NO_TENSOR, false, matrix(f->weight, s->n, s->cols),
                         matrix(f->scratch[2], s->n, s->cols), matrix(f->scratch[1], s->n, 2),
                         vector(f->input[3].x, s->cols), s->norm);
        memcpy(f->input[1].dx, f->input[0].dx, (size_t)n * sizeof(double));
        function_check(f, "residual_norm");
    }
}

/* ---- linear and activation --------------------------------------------------------------------
 */

enum { ROWS = 7, IN = 11, MIDDLE = 13, OUT = 5 };

/* Returns the loss for y = gelu(x w^T + b) v^T. Its gradients need both epilogues and all three
 * matrix multiplications. */
static double mlp_loss(const Function *f)
{
    Tensor middle = matrix(f->scratch[0], ROWS, MIDDLE), y = matrix(f->scratch[2], ROWS, OUT);
    op_linear_forward(&cpu, middle, matrix(f->input[0].x, ROWS, IN),
                      matrix(f->input[1].x, MIDDLE, IN), vector(f->input[2].x, MIDDLE),
                      EPILOGUE_GELU, matrix(f->scratch[1], ROWS, MIDDLE));
    op_linear_forward(&cpu, y, middle, matrix(f->input[3].x, OUT, MIDDLE), NO_TENSOR, EPILOGUE_NONE,
                      NO_TENSOR);
    return weighted(f, f->scratch[2], ROWS * OUT, 0);
}

static void linear_backward_matches_finite_differences(void **state)
{
    (void)state;
    Function *f = function_create(mlp_loss, NULL);
    Tensor x = matrix(function_input(f, "x", ROWS * IN), ROWS, IN);
    Tensor w = matrix(function_input(f, "w", MIDDLE * IN), MIDDLE, IN);
    function_input(f, "b", MIDDLE);
    Tensor v = matrix(function_input(f, "v", OUT * MIDDLE), OUT, MIDDLE);
    mlp_loss(f);
    Tensor dy = matrix(f->weight, ROWS, OUT), dpre = matrix(f->scratch[3], ROWS, MIDDLE);
    op_linear_backward_weight(&cpu, matrix(f->input[3].dx, OUT, MIDDLE), NO_TENSOR, dy,
                              matrix(f->scratch[0], ROWS, MIDDLE), NO_TENSOR, false);
    op_linear_backward_input(&cpu, dpre, dy, v, EPILOGUE_GELU, matrix(f->scratch[1], ROWS, MIDDLE),
                             false);
    op_linear_backward_weight(&cpu, matrix(f->input[1].dx, MIDDLE, IN),
                              vector(f->input[2].dx, MIDDLE), dpre, x, NO_TENSOR, false);
    op_linear_backward_input(&cpu, matrix(f->input[0].dx, ROWS, IN), dpre, w, EPILOGUE_NONE,
                             NO_TENSOR, false);
    function_check(f, "linear");
}

/* Returns the loss for y = x w^T + bias + residual. The gradient of the residual is dy itself. */
static double linear_residual_loss(const Function *f)
{
    op_linear_residual_forward(&cpu, matrix(f->scratch[0], ROWS, OUT),
                               matrix(f->input[0].x, ROWS, IN), matrix(f->input[1].x, OUT, IN),
                               vector(f->input[2].x, OUT), matrix(f->input[3].x, ROWS, OUT));
    return weighted(f, f->scratch[0], ROWS * OUT, 0);
}

static void linear_residual_backward_matches_finite_differences(void **state)
{
    (void)state;
    Function *f = function_create(linear_residual_loss, NULL);
    Tensor x = matrix(function_input(f, "x", ROWS * IN), ROWS, IN);
    Tensor w = matrix(function_input(f, "w", OUT * IN), OUT, IN);
    function_input(f, "bias", OUT);
    function_input(f, "residual", ROWS * OUT);
    Tensor dy = matrix(f->weight, ROWS, OUT);
    op_linear_backward_input(&cpu, matrix(f->input[0].dx, ROWS, IN), dy, w, EPILOGUE_NONE,
                             NO_TENSOR, false);
    op_linear_backward_weight(&cpu, matrix(f->input[1].dx, OUT, IN), vector(f->input[2].dx, OUT),
                              dy, x, NO_TENSOR, false);
    memcpy(f->input[3].dx, f->weight, ROWS * OUT * sizeof(double));
    function_check(f, "linear_residual");
}

static double activation_loss(const Function *f)
{
    ActivationKind kind = *(const ActivationKind *)f->options;
    op_activation_forward(&cpu, matrix(f->scratch[0], 6, 9),
                          matrix(f->input[0].x, 6, kind == ACTIVATION_SWIGLU ? 18 : 9), kind);
    return weighted(f, f->scratch[0], 6 * 9, 0);
}

static void activation_backward_matches_finite_differences(void **state)
{
    (void)state;
    static const ActivationKind kind[] = {ACTIVATION_GELU, ACTIVATION_RELU2, ACTIVATION_SWIGLU};
    for (int i = 0; i < 3; i++) {
        int64_t cols = kind[i] == ACTIVATION_SWIGLU ? 18 : 9;
        Function *f = function_create(activation_loss, &kind[i]);
        double *x = function_input(f, "x", 6 * cols);
        /* Arguments away from relu2's kink, because finite differences across it are meaningless.
         */
        for (int64_t k = 0; k < 6 * cols; k++)
            x[k] += x[k] < 0 ? -0.1 : 0.1;
        op_activation_backward(&cpu, matrix(f->input[0].dx, 6, cols), matrix(f->weight, 6, 9),
                               matrix(x, 6, cols), kind[i]);
        function_check(f, "activation");
    }
}

/* ---- rope -------------------------------------------------------------------------------------
 */

static double rope_loss(const Function *f)
{
    double *y = f->scratch[0];
    memcpy(y, f->input[0].x, 8 * 18 * sizeof(double));
    op_rope(&cpu, matrix(y, 8, 18), matrix(f->scratch[1], 10, 6),
            tensor_1d((void *)f->index, I32, 8), false);
    return weighted(f, y, 8 * 18, 0);
}

/* For a table of rotations the inverse is the transpose: dx = inverse(dy), and inverse(rope(x)) =
 * x. */
static void the_inverse_of_rope_is_its_transpose(void **state)
{
    (void)state;
    Function *f = function_create(rope_loss, NULL);
    function_input(f, "x", 8 * 18);
    for (int64_t p = 0; p < 10; p++)
        for (int64_t i = 0; i < 3; i++) {
            double angle = (double)p / pow(100, (double)i / 3);
            f->scratch[1][p * 6 + i] = cos(angle);
            f->scratch[1][p * 6 + 3 + i] = sin(angle);
        }
    for (int i = 0; i < 8; i++)
        f->index[i] = (i * 7 + 2) % 10;
    Tensor table = matrix(f->scratch[1], 10, 6), positions = tensor_1d(f->index, I32, 8);
    memcpy(f->input[0].dx, f->weight, 8 * 18 * sizeof(double));
    op_rope(&cpu, matrix(f->input[0].dx, 8, 18), table, positions, true);
    rope_loss(f);
    op_rope(&cpu, matrix(f->scratch[0], 8, 18), table, positions, true);
    for (int i = 0; i < 8 * 18; i++)
        assert_true(fabs(f->scratch[0][i] - f->input[0].x[i]) <=
                    8 * 0x1p-53 * fmax(1, fabs(f->input[0].x[i])) * 4);
    function_check(f, "rope");
}

/* ---- loss and embedding -----------------------------------------------------------------------
 */

enum { TARGETS = 9, COLUMNS = 24, VOCABULARY = 19 };

/* Returns scale times the sum of losses, which must not depend on padding columns and masked rows.
 */
static double loss_loss(const Function *f)
{
    double sum = 0;
    memcpy(f->scratch[1], f->input[0].x, TARGETS * COLUMNS * sizeof(double));
    op_loss(&cpu, vector(f->scratch[0], TARGETS), matrix(f->scratch[1], TARGETS, COLUMNS),
            tensor_1d((void *)f->index, I32, TARGETS), VOCABULARY, NO_TENSOR, false);
    for (int i = 0; i < TARGETS; i++)
        sum += f->scratch[0][i];
    return 0.3 * sum;
}

static void loss_backward_matches_finite_differences(void **state)
{
    (void)state;
    Function *f = function_create(loss_loss, NULL);
    function_input(f, "logits", TARGETS * COLUMNS);
    for (int i = 0; i < TARGETS; i++)
        f->index[i] = i % 4 == 2 ? -1 : (i * 5) % VOCABULARY;
    double scale = 0.3;
    memcpy(f->input[0].dx, f->input[0].x, TARGETS * COLUMNS * sizeof(double));
    op_loss(&cpu, vector(f->scratch[0], TARGETS), matrix(f->input[0].dx, TARGETS, COLUMNS),
            tensor_1d(f->index, I32, TARGETS), VOCABULARY, vector(&scale, 1), true);
    for (int i = 0; i < TARGETS * COLUMNS; i++)
        if (f->index[i / COLUMNS] < 0 || i % COLUMNS >= VOCABULARY)
            assert_true(f->input[0].dx[i] == 0);
    function_check(f, "loss");
}

static double embedding_loss(const Function *f)
{
    Tensor x = matrix(f->scratch[0], 15, 6), index = tensor_1d((void *)f->index, I32, 15);
    op_token_forward(&cpu, x, matrix(f->input[0].x, 5, 6), index, 2);
    op_position_add(&cpu, x, matrix(f->input[1].x, 9, 6), index);
    return weighted(f, f->scratch[0], 15 * 6, 0);
}

/* Uses rows 2 to 6 of a table as the part that this rank has: indices outside it contribute
 * nothing; positions use all nine rows. */
static void embedding_backward_matches_finite_differences(void **state)
{
    (void)state;
    Function *f = function_create(embedding_loss, NULL);
    function_input(f, "tokens", 5 * 6);
    function_input(f, "positions", 9 * 6);
    for (int i = 0; i < 15; i++)
        f->index[i] = (i * i) % 9;
    Tensor dx = matrix(f->weight, 15, 6), index = tensor_1d(f->index, I32, 15);
    op_token_backward(&cpu, matrix(f->input[0].dx, 5, 6), dx, index, 2, false);
    op_position_backward(&cpu, matrix(f->input[1].dx, 9, 6), dx, index, false);
    function_check(f, "embedding");
}

static int open_cpu(void **state)
{
    (void)state;
    char err[256];
    if (device_open(&cpu, "cpu", &(DeviceOptions){.threads = 2, .local_ranks = 1}, err, sizeof err))
        return 0;
    print_error("%s\n", err);
    return -1;
}

static int close_cpu(void **state)
{
    (void)state;
    device_close(&cpu);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(norm_backward_matches_finite_differences),
        cmocka_unit_test(residual_norm_backward_matches_finite_differences),
        cmocka_unit_test(linear_backward_matches_finite_differences),
        cmocka_unit_test(linear_residual_backward_matches_finite_differences),
        cmocka_unit_test(activation_backward_matches_finite_differences),
        cmocka_unit_test(the_inverse_of_rope_is_its_transpose),
        cmocka_unit_test(loss_backward_matches_finite_differences),
        cmocka_unit_test(embedding_backward_matches_finite_differences),
    };
    return cmocka_run_group_tests_name("gradients of ops", tests, open_cpu, close_cpu);
}

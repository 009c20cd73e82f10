/* test_emu_lt.c -- tests the emulated cuBLASLt: products against sums in double, epilogues, and
 * refusals. It is written in C, like the host code that uses the emulation's headers. */
#include <cublasLt.h>

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/emu/lt/matrices.h"

enum { M = 70, N = 9, K = 33, PAD = 8, WORKSPACE = 1 << 16 };

static cublasLtHandle_t handle;
static void *workspace;

static int setup(void **state)
{
    (void)state;
    return cublasLtCreate(&handle) || cudaMalloc(&workspace, WORKSPACE);
}

static int teardown(void **state)
{
    (void)state;
    return cublasLtDestroy(handle) || cudaFree(workspace);
}

/* ---- a product ------------------------------------------------------------------------------- */

typedef struct {
    DType type, d_type;
    bool transpose_a, transpose_b;
    float alpha, beta;
    cublasLtEpilogue_t epilogue;
    bool aux_misplaced, aux_shifted, no_aux, no_bias, bias_shifted, d_misplaced, little_workspace,
        row_order;
    uint32_t reductions;                                       /* 0: in f32, outside the result */
    enum { C_APART, C_IS_D, C_MISPLACED, C_IN_D, C_NARROW } c; /* where C is, and its type */
    int c_pad;                                                 /* added to C's leading dimension */
} Case;

typedef struct {
    Matrix *a, *b, *c, *d, *bias, *aux;
    cublasLtMatmulDesc_t desc;
    cublasLtMatmulPreference_t wish;
    cublasLtMatmulHeuristicResult_t result;
} Run;

#define SET(which, object, attribute, value)                                                       \
    assert_int_equal(                                                                              \
        cublasLt##which##SetAttribute((object), (attribute), &(value), sizeof(value)), 0)

static void run_describe(Run *r, const Case *t)
{
    int32_t ta = t->transpose_a, tb = t->transpose_b, order = CUBLASLT_ORDER_ROW;
    uint32_t epilogue = (uint32_t)t->epilogue, aligned = 256;
    int64_t aux_ld = r->aux->ld + (t->aux_misplaced ? 1 : 0), ld = N;
    uint64_t bytes = WORKSPACE;
    uint32_t reductions = t->reductions ? t->reductions : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    char *aux = t->no_aux ? NULL : (char *)r->aux->device + (t->aux_shifted ? 8 : 0);
    char *bias = t->no_bias ? NULL : (char *)r->bias->device + (t->bias_shifted ? 8 : 0);
    cublasLtMatmulDescCreate(&r->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    SET(MatmulDesc, r->desc, CUBLASLT_MATMUL_DESC_TRANSA, ta);
    SET(MatmulDesc, r->desc, CUBLASLT_MATMUL_DESC_TRANSB, tb);
    SET(MatmulDesc, r->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
    SET(MatmulDesc, r->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
    SET(MatmulDesc, r->desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, aux);
    SET(MatmulDesc, r->desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, aux_ld);
    if (t->row_order) {
        SET(MatrixLayout, r->c->layout, CUBLASLT_MATRIX_LAYOUT_ORDER, order);
        SET(MatrixLayout, r->c->layout, CUBLASLT_MATRIX_LAYOUT_LD, ld);
        SET(MatrixLayout, r->d->layout, CUBLASLT_MATRIX_LAYOUT_ORDER, order);
        SET(MatrixLayout, r->d->layout, CUBLASLT_MATRIX_LAYOUT_LD, ld);
    }
    cublasLtMatmulPreferenceCreate(&r->wish);
    SET(MatmulPreference, r->wish, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reductions);
    SET(MatmulPreference, r->wish, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, bytes);
    SET(MatmulPreference, r->wish, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, aligned);
}

static void run_open(Run *r, const Case *t)
{
    r->a = t->transpose_a ? matrix(K, M, t->type, 1, PAD) : matrix(M, K, t->type, 1, PAD);
    r->b = t->transpose_b ? matrix(N, K, t->type, 2, PAD) : matrix(K, N, t->type, 2, PAD);
    r->c = matrix(M, N, t->c == C_NARROW ? BF16 : t->d_type, 3, PAD + t->c_pad);
    r->d = matrix(M, N, t->d_type, 4, PAD);
    r->bias = matrix(M, 1, t->d_type, 5, PAD);
    r->aux = matrix(M + 2, N, t->d_type, 6, PAD); /* its leading dimension is a multiple of 8 */
    run_describe(r, t);
}

static void run_close(Run *r)
{
    Matrix *list[] = {r->a, r->b, r->c, r->d, r->bias, r->aux};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        matrix_free(list[i]);
    cublasLtMatmulDescDestroy(r->desc);
    cublasLtMatmulPreferenceDestroy(r->wish);
}

static cublasStatus_t run_find(Run *r)
{
    int n = 0;
    cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(handle, r->desc, r->a->layout, r->b->layout, r->c->layout,
                                       r->d->layout, r->wish, 1, &r->result, &n);
    assert_int_equal(n, status == CUBLAS_STATUS_SUCCESS);
    return status;
}

static cublasStatus_t run_go(Run *r, const Case *t)
{
    char *d = (char *)r->d->device + (t->d_misplaced ? 16 : 0), *c = r->c->device;
    if (t->c == C_IS_D) c = d;
    if (t->c == C_MISPLACED) c += 16;
    if (t->c == C_IN_D) c = d + SHIFT;
    return cublasLtMatmul(handle, r->desc, &t->alpha, r->a->device, r->a->layout, r->b->device,
                          r->b->layout, &t->beta, c, r->c->layout, d, r->d->layout, &r->result.algo,
                          workspace, t->little_workspace ? 0 : WORKSPACE, 0);
}

static double gelu(double x)
{
    return 0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
}

static double exact(const Run *r, const Case *t, int row, int col)
{
    double sum = 0;
    for (int k = 0; k < K; k++)
        sum += (t->transpose_a ? r->a->x[k + row * r->a->ld] : r->a->x[row + k * r->a->ld]) *
               (t->transpose_b ? r->b->x[col + k * r->b->ld] : r->b->x[k + col * r->b->ld]);
    sum = t->alpha * sum + t->beta * r->c->x[row + col * r->c->ld];
    double aux = r->aux->x[row + col * r->aux->ld], h = 1e-5;
    switch (t->epilogue) {
    case CUBLASLT_EPILOGUE_BIAS: return sum + r->bias->x[row];
    case CUBLASLT_EPILOGUE_GELU_BIAS:
    case CUBLASLT_EPILOGUE_GELU_AUX_BIAS: return gelu(sum + r->bias->x[row]);
    case CUBLASLT_EPILOGUE_GELU_AUX:
    case CUBLASLT_EPILOGUE_GELU: return gelu(sum);
    case CUBLASLT_EPILOGUE_DGELU: return sum * (gelu(aux + h) - gelu(aux - h)) / (2 * h);
    default: return sum;
    }
}

static double tolerance(DType type)
{
    return type == F32 ? 1e-5 : type == BF16 ? 1e-2 : 1e-3;
}

static void close_to(double got, double want, DType type)
{
    if (fabs(got - want) > tolerance(type) * fmax(1, fabs(want)))
        fail_msg("%.9g instead of %.9g (%s)", got, want, dtype_name(type));
}

/* Checks aux after an epilogue that writes it: the rounded sum to which GELU is applied. The
 * padding must be unchanged. */
static void check_aux(Run *r, Case t)
{
    static double got[MOST];
    bool bias = t.epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    if (!bias && t.epilogue != CUBLASLT_EPILOGUE_GELU_AUX) return;
    t.epilogue = bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    download(got, r->aux->device, r->aux->ld * N, t.d_type);
    for (int i = 0; i < r->aux->ld * N; i++) {
        int row = i % r->aux->ld;
        close_to(got[i], row >= M ? r->aux->x[i] : exact(r, &t, row, i / r->aux->ld), t.d_type);
    }
}

/* Runs the case and checks every element of D, including the padding. */
static void check_case(Case t)
{
    static double got[MOST];
    Run r;
    run_open(&r, &t);
    assert_int_equal(run_find(&r), CUBLAS_STATUS_SUCCESS);
    assert_int_equal(run_go(&r, &t), CUBLAS_STATUS_SUCCESS);
    download(got, r.d->device, r.d->ld * N, t.d_type);
    for (int i = 0; i < r.d->ld * N; i++) {
        bool gap = i % r.d->ld >= M;
        close_to(got[i], gap ? r.d->x[i] : exact(&r, &t, i % r.d->ld, i / r.d->ld), t.d_type);
    }
    check_aux(&r, t);
    run_close(&r);
}

static void test_products_agree_with_sums_in_double(void **state)
{
    (void)state;
    const DType types[][2] = {{F32, F32}, {BF16, BF16}, {BF16, F32}, {F16, F16}, {F16, F32}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        for (int transposes = 0; transposes < 4; transposes++)
            for (int beta = 0; beta < 2; beta++)
                check_case((Case){.type = types[i][0],
                                  .d_type = types[i][1],
                                  .transpose_a = transposes & 1,
                                  .transpose_b = transposes >> 1,
                                  .alpha = 0.5f,
                                  .beta = (float)beta,
                                  .epilogue = CUBLASLT_EPILOGUE_DEFAULT});
}

static void test_epilogues_agree_with_their_formulas(void **state)
{
    (void)state;
    const cublasLtEpilogue_t list[] = {CUBLASLT_EPILOGUE_BIAS,          CUBLASLT_EPILOGUE_GELU,
                                       CUBLASLT_EPILOGUE_GELU_BIAS,     CUBLASLT_EPILOGUE_GELU_AUX,
                                       CUBLASLT_EPILOGUE_GELU_AUX_BIAS, CUBLASLT_EPILOGUE_DGELU};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        check_case((Case){.type = F32, .d_type = F32, .alpha = 1, .epilogue = list[i]});
        check_case((Case){.type = BF16, .d_type = BF16, .alpha = 1, .epilogue = list[i]});
        check_case((Case){.type = BF16, .d_type = F32, .alpha = 1, .epilogue = list[i]});
    }
}

/* C is another matrix than D, with its own leading dimension, and is added before the bias. */
static void test_matrix_c_is_added_before_the_epilogue(void **state)
{
    (void)state;
    for (DType type = F32; type <= F16; type++)
        for (int pad = 0; pad < 2; pad++)
            for (int bias = 0; bias < 2; bias++)
                check_case(
                    (Case){.type = type,
                           .d_type = type,
                           .alpha = 1,
                           .beta = 1,
                           .c_pad = 3 * pad,
                           .epilogue = bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT});
}

/* A bias gradient overwrites its vector even if the product is added to C. */
static void test_a_bias_gradient_overwrites_its_vector(void **state)
{
    (void)state;
    static double got[MOST];
    Case t = {.type = F32, .d_type = F32, .alpha = 1, .beta = 1};
    Run r;
    t.epilogue = CUBLASLT_EPILOGUE_BGRADA;
    run_open(&r, &t);
    assert_int_equal(run_find(&r), CUBLAS_STATUS_SUCCESS);
    assert_int_equal(run_go(&r, &t), CUBLAS_STATUS_SUCCESS);
    download(got, r.bias->device, M, F32);
    for (int row = 0; row < M; row++) {
        double sum = 0;
        for (int k = 0; k < K; k++)
            sum += r.a->x[row + k * r.a->ld];
        close_to(got[row], sum, F32);
    }
    run_close(&r);
}

/* ---- refusals -------------------------------------------------------------------------------- */

static void refused(Case t, cublasStatus_t at_search, cublasStatus_t at_run)
{
    Run r;
    run_open(&r, &t);
    assert_int_equal(run_find(&r), at_search);
    if (at_search == CUBLAS_STATUS_SUCCESS) assert_int_equal(run_go(&r, &t), at_run);
    run_close(&r);
}

/* Parts of a sum may be added in the result only if that is f32; other types have fewer bits. */
static void test_split_k_sums_in_the_result_are_accepted_only_if_it_is_f32(void **state)
{
    (void)state;
    static const uint32_t in_result[] = {CUBLASLT_REDUCTION_SCHEME_INPLACE,
                                         CUBLASLT_REDUCTION_SCHEME_INPLACE |
                                             CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE,
                                         CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE};
    for (DType type = F32; type <= F16; type++)
        for (int wide = 0; wide < 2; wide++)
            for (size_t i = 0; i < sizeof in_result / sizeof *in_result; i++) {
                Case t = {.type = type,
                          .d_type = wide ? F32 : type,
                          .alpha = 1,
                          .epilogue = CUBLASLT_EPILOGUE_DEFAULT,
                          .reductions = in_result[i]};
                refused(t, CUBLAS_STATUS_SUCCESS,
                        t.d_type == F32 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE);
            }
}

static void test_unsupported_and_invalid_products_are_refused(void **state)
{
    (void)state;
    Case t = {.type = BF16, .d_type = BF16, .alpha = 1, .epilogue = CUBLASLT_EPILOGUE_DEFAULT};
    Case wrong = t;
    wrong.d_type = F16;
    refused(wrong, CUBLAS_STATUS_NOT_SUPPORTED, 0);
    wrong = t;
    wrong.row_order = true;
    wrong.epilogue = CUBLASLT_EPILOGUE_BIAS;
    refused(wrong, CUBLAS_STATUS_NOT_SUPPORTED, 0);
    wrong = t;
    wrong.aux_misplaced = true;
    wrong.epilogue = CUBLASLT_EPILOGUE_DGELU;
    refused(wrong, CUBLAS_STATUS_NOT_SUPPORTED, 0);
    wrong = t;
    wrong.epilogue = CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    wrong.aux_shifted = true;
    refused(wrong, CUBLAS_STATUS_INVALID_VALUE, 0);
    wrong.aux_shifted = false;
    wrong.no_aux = true;
    refused(wrong, CUBLAS_STATUS_INVALID_VALUE, 0);
    wrong.no_aux = false;
    wrong.no_bias = true;
    refused(wrong, CUBLAS_STATUS_INVALID_VALUE, 0);
    wrong.no_bias = false;
    wrong.bias_shifted = true;
    refused(wrong, CUBLAS_STATUS_INVALID_VALUE, 0);
    wrong = t;
    wrong.d_misplaced = true;
    refused(wrong, CUBLAS_STATUS_SUCCESS, CUBLAS_STATUS_INVALID_VALUE);
    wrong = t;
    wrong.reductions = CUBLASLT_REDUCTION_SCHEME_MASK;
    refused(wrong, CUBLAS_STATUS_SUCCESS, CUBLAS_STATUS_INVALID_VALUE);
    wrong = t;
    wrong.little_workspace = true;
    refused(wrong, CUBLAS_STATUS_SUCCESS, CUBLAS_STATUS_INVALID_VALUE);
    setenv("EMU_LT", "plain", 1);
    wrong = t;
    wrong.epilogue = CUBLASLT_EPILOGUE_BIAS;
    refused(wrong, CUBLAS_STATUS_NOT_SUPPORTED, 0);
    check_case(t);
    setenv("EMU_LT", "none", 1);
    refused(t, CUBLAS_STATUS_NOT_SUPPORTED, 0);
    unsetenv("EMU_LT");
}

/* C must have D's type, must be as aligned as the heuristics were told, and must not share elements
 * with D unless it is D. Without beta, nothing reads C. */
static void test_matrix_c_of_wrong_type_or_alignment_or_overlapping_d_is_refused(void **state)
{
    (void)state;
    Case t = {
        .type = BF16, .d_type = BF16, .alpha = 1, .beta = 1, .epilogue = CUBLASLT_EPILOGUE_DEFAULT};
    Case wrong = t;
    wrong.d_type = F32;
    wrong.c = C_NARROW;
    refused(wrong, CUBLAS_STATUS_NOT_SUPPORTED, 0);
    for (int beta = 0; beta < 2; beta++) {
        cublasStatus_t at_run = beta ? CUBLAS_STATUS_INVALID_VALUE : CUBLAS_STATUS_SUCCESS;
        wrong = t;
        wrong.beta = (float)beta;
        wrong.c = C_MISPLACED;
        refused(wrong, CUBLAS_STATUS_SUCCESS, at_run);
        wrong.c = C_IN_D;
        refused(wrong, CUBLAS_STATUS_SUCCESS, at_run);
        wrong.c = C_IS_D;
        refused(wrong, CUBLAS_STATUS_SUCCESS, CUBLAS_STATUS_SUCCESS);
        wrong.c_pad = 1;
        refused(wrong, CUBLAS_STATUS_SUCCESS, at_run);
    }
    setenv("EMU_LT", "in_place", 1);
    refused(t, CUBLAS_STATUS_SUCCESS, CUBLAS_STATUS_NOT_SUPPORTED);
    t.c = C_IS_D;
    refused(t, CUBLAS_STATUS_SUCCESS, CUBLAS_STATUS_SUCCESS);
    unsetenv("EMU_LT");
}

/* An algorithm is accepted only for the product that it was found for. */
static void test_an_algorithm_found_for_another_product_is_refused(void **state)
{
    (void)state;
    Case t = {.type = F32, .d_type = F32, .alpha = 1, .epilogue = CUBLASLT_EPILOGUE_DEFAULT};
    Case other = t;
    Run r, q;
    other.transpose_a = true;
    run_open(&r, &t);
    run_open(&q, &other);
    assert_int_equal(run_find(&r), 0);
    assert_int_equal(run_find(&q), 0);
    r.result = q.result;
    assert_int_equal(run_go(&r, &t), CUBLAS_STATUS_INVALID_VALUE);
    run_close(&r);
    run_close(&q);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products_agree_with_sums_in_double),
        cmocka_unit_test(test_epilogues_agree_with_their_formulas),
        cmocka_unit_test(test_matrix_c_is_added_before_the_epilogue),
        cmocka_unit_test(test_a_bias_gradient_overwrites_its_vector),
        cmocka_unit_test(test_split_k_sums_in_the_result_are_accepted_only_if_it_is_f32),
        cmocka_unit_test(test_unsupported_and_invalid_products_are_refused),
        cmocka_unit_test(test_matrix_c_of_wrong_type_or_alignment_or_overlapping_d_is_refused),
        cmocka_unit_test(test_an_algorithm_found_for_another_product_is_refused),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}

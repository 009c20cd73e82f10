/* lt_compute.cc -- computes the products of the emulated cuBLASLt: sums in f32 in ascending order
 * of k, then the epilogue on the unrounded sums. OS threads compute one column of D at a time. With
 * TF32 the factors keep 10 bits of their mantissas. GELU is the tanh form, with EMU_LT=approximate
 * that of a tanh that is wrong by up to 2^-11, with EMU_LT=erf the form with erf, and with
 * EMU_LT=rounded that of the rounded sum. A bias gradient always overwrites its vector, even if
 * beta is 1. */
#include "tests/emu/lt/lt.h"

#include "tests/emu/include/cuda_bf16.h"
#include "tests/emu/include/cuda_fp16.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { STRIP = 64, MOST_WORKERS = 16 };

size_t emu_lt_size(uint32_t type)
{
    return type == CUDA_R_32F ? 4 : type == CUDA_R_16BF || type == CUDA_R_16F ? 2 : 0;
}

static float get_element(uint32_t type, const void *p, int64_t i)
{
    if (type == CUDA_R_32F) return ((const float *)p)[i];
    if (type == CUDA_R_16BF) return __bfloat162float(((const __nv_bfloat16 *)p)[i]);
    return __half2float(((const __half *)p)[i]);
}

static void set_element(uint32_t type, void *p, int64_t i, float x)
{
    if (type == CUDA_R_32F)
        ((float *)p)[i] = x;
    else if (type == CUDA_R_16BF)
        ((__nv_bfloat16 *)p)[i] = __float2bfloat16_rn(x);
    else
        ((__half *)p)[i] = __float2half_rn(x);
}

static float rounded(uint32_t type, float x)
{
    float bytes;
    set_element(type, &bytes, 0, x);
    return get_element(type, &bytes, 0);
}

static int64_t at(const EmuLtLayout *l, int64_t row, int64_t col, int64_t batch)
{
    return batch * l->batch_stride +
           (l->order == CUBLASLT_ORDER_COL ? row + col * l->ld : row * l->ld + col);
}

static float element(const EmuLtLayout *l, const void *p, int64_t row, int64_t col, int64_t batch)
{
    return get_element(l->type, p, at(l, row, col, batch));
}

/* The form of GELU that the epilogues use. */
enum Form { TANH, APPROXIMATE, ERF, OF_ROUNDED };

static Form form_asked_for(void)
{
    return emu_lt_asked_to_be("approximate") ? APPROXIMATE
           : emu_lt_asked_to_be("erf")       ? ERF
           : emu_lt_asked_to_be("rounded")   ? OF_ROUNDED
                                             : TANH;
}

/* Returns tanh(x), or rounded to 11 bits: as far off as tanh.approx.f32 may be. */
static float tanh_of(float x, Form form)
{
    float t = tanhf(x);
    uint32_t bits;
    if (form != APPROXIMATE) return t;
    memcpy(&bits, &t, sizeof bits);
    bits = (bits + 0x1000) & ~0x1fffu;
    memcpy(&t, &bits, sizeof t);
    return t;
}

static float gelu(float x, Form form)
{
    float inner = 0.7978845608028654f * (x + 0.044715f * x * x * x);
    if (form == ERF) return 0.5f * x * (1.0f + erff(0.70710678f * x));
    return 0.5f * x * (1.0f + tanh_of(inner, form));
}

static float gelu_slope(float x, Form form)
{
    if (form == ERF)
        return 0.5f * (1.0f + erff(0.70710678f * x)) + 0.39894228f * x * expf(-0.5f * x * x);
    float inner = 0.7978845608028654f * (x + 0.044715f * x * x * x), t = tanh_of(inner, form);
    float inner_slope = 0.7978845608028654f * (1.0f + 3.0f * 0.044715f * x * x);
    return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * inner_slope;
}

/* Returns a factor as the product uses it: rounded to TF32 if that is requested. */
static float factor(const EmuLtProblem *problem, float x)
{
    if (problem->product->compute != CUBLAS_COMPUTE_32F_FAST_TF32) return x;
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits = (bits + 0x1000) & ~0x1fffu; /* to nearest, ties away from zero */
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* ---- one product ----------------------------------------------------------------------------- */

/* Data that the OS threads of a product share. op(A) is stored in strips of STRIP rows; within a
 * strip, the STRIP elements of each k are adjacent. */
typedef struct {
    const EmuLtProblem *problem;
    float alpha, beta;
    const void *a, *b, *c;
    void *d;
    int64_t batch, next;
    const float *strips;
    Form form;
} Task;

static float *strips_of(const EmuLtProblem *problem, const void *a, int64_t batch)
{
    const EmuLtLayout *l = problem->layout[LT_A];
    bool transposed = problem->product->transpose_a != CUBLAS_OP_N;
    int64_t n = (problem->m + STRIP - 1) / STRIP;
    float *strips = (float *)calloc((size_t)(n * problem->k * STRIP), sizeof *strips);
    if (strips == NULL) emu_die("no memory for a product");
    for (int64_t row = 0; row < problem->m; row++)
        for (int64_t k = 0; k < problem->k; k++)
            strips[(row / STRIP * problem->k + k) * STRIP + row % STRIP] = factor(
                problem, transposed ? element(l, a, k, row, batch) : element(l, a, row, k, batch));
    return strips;
}

/* Applies alpha, beta and the epilogue to a sum and returns the result. */
static float finish(const Task *task, float sum, int64_t row, int64_t col)
{
    const EmuLtProduct *p = task->problem->product;
    const EmuLtLayout *d = task->problem->layout[LT_D];
    float x = task->alpha * sum;
    if (task->beta != 0)
        x += task->beta * element(task->problem->layout[LT_C], task->c, row, col, task->batch);
    int64_t aux = task->batch * p->aux_stride + col * p->aux_ld + row;
    if (p->epilogue >= 256) return x;
    if ((p->epilogue & CUBLASLT_EPILOGUE_BIAS) != 0)
        x += get_element(d->type, p->bias, task->batch * p->bias_stride + row);
    if ((p->epilogue & CUBLASLT_EPILOGUE_DGELU) == CUBLASLT_EPILOGUE_DGELU)
        return x * gelu_slope(get_element(d->type, p->aux, aux), task->form);
    if ((p->epilogue & CUBLASLT_EPILOGUE_GELU) != 0) {
        if ((p->epilogue & 128) != 0) set_element(d->type, p->aux, aux, x);
        if (task->form == OF_ROUNDED) x = rounded(d->type, x);
        return gelu(x, task->form);
    }
    return (p->epilogue & CUBLASLT_EPILOGUE_RELU) != 0 ? fmaxf(x, 0.0f) : x;
}

static void column_run(const Task *task, int64_t col, float *factors)
{
    const EmuLtProblem *problem = task->problem;
    const EmuLtLayout *b = problem->layout[LT_B], *d = problem->layout[LT_D];
    bool transposed = problem->product->transpose_b != CUBLAS_OP_N;
    for (int64_t k = 0; k < problem->k; k++)
        factors[k] = factor(problem, transposed ? element(b, task->b, col, k, task->batch)
                                                : element(b, task->b, k, col, task->batch));
    for (int64_t row = 0; row < problem->m; row += STRIP) {
        const float *strip = task->strips + row * problem->k;
        float sum[STRIP] = {0};
        for (int64_t k = 0; k < problem->k; k++)
            for (int i = 0; i < STRIP; i++)
                sum[i] += strip[k * STRIP + i] * factors[k];
        int64_t rows = problem->m - row < STRIP ? problem->m - row : (int64_t)STRIP;
        for (int64_t i = 0; i < rows; i++)
            set_element(d->type, task->d, at(d, row + i, col, task->batch),
                        finish(task, sum[i], row + i, col));
    }
}

static void *columns_run(void *argument)
{
    Task *task = (Task *)argument;
    float *factors = (float *)malloc((size_t)task->problem->k * sizeof *factors);
    if (factors == NULL) emu_die("no memory for a product");
    for (;;) {
        int64_t col = __atomic_fetch_add(&task->next, 1, __ATOMIC_RELAXED);
        if (col >= task->problem->n) break;
        column_run(task, col, factors);
    }
    free(factors);
    return NULL;
}

/* ---- bias gradients -------------------------------------------------------------------------- */

/* Writes the bias gradient, a vector of D's type: the sums over k of op(A) or of op(B), or the sums
 * over the columns of D. */
static void bias_gradient(const EmuLtProblem *problem, const void *a, const void *b, const void *d,
                          int64_t batch)
{
    const EmuLtProduct *p = problem->product;
    bool of_d = p->epilogue == CUBLASLT_EPILOGUE_DGELU_BGRAD;
    bool of_b = p->epilogue == CUBLASLT_EPILOGUE_BGRADB;
    const EmuLtLayout *l = problem->layout[of_d ? LT_D : of_b ? LT_B : LT_A];
    const void *from = of_d ? d : of_b ? b : a;
    bool along_cols =
        of_d || (of_b ? p->transpose_b != CUBLAS_OP_N : p->transpose_a == CUBLAS_OP_N);
    int64_t n = of_b ? problem->n : problem->m, length = of_d ? problem->n : problem->k;
    for (int64_t i = 0; i < n; i++) {
        float sum = 0;
        for (int64_t k = 0; k < length; k++)
            sum += along_cols ? element(l, from, i, k, batch) : element(l, from, k, i, batch);
        set_element(problem->layout[LT_D]->type, p->bias, batch * p->bias_stride + i, sum);
    }
}

void emu_lt_compute(const EmuLtProblem *problem, float alpha, const void *a, const void *b,
                    float beta, const void *c, void *d)
{
    const int64_t WORTH_A_WORKER = 1 << 20; /* work of one thread, in multiplications */
    int64_t workers = emu_workers(), work = problem->m * problem->n * problem->k;
    uint32_t epilogue = problem->product->epilogue;
    if (workers > 1 + work / WORTH_A_WORKER) workers = 1 + work / WORTH_A_WORKER;
    if (workers > MOST_WORKERS) workers = MOST_WORKERS;
    for (int64_t batch = 0; batch < problem->layout[LT_D]->batches; batch++) {
        float *strips = strips_of(problem, a, batch);
        Task task = {problem, alpha, beta, a, b, c, d, batch, 0, strips, form_asked_for()};
        pthread_t helper[MOST_WORKERS];
        int helpers = 0;
        while (helpers + 1 < workers &&
               pthread_create(&helper[helpers], NULL, columns_run, &task) == 0)
            helpers++;
        columns_run(&task);
        for (int i = 0; i < helpers; i++)
            pthread_join(helper[i], NULL);
        free(strips);
        if (epilogue == CUBLASLT_EPILOGUE_BGRADA || epilogue == CUBLASLT_EPILOGUE_BGRADB ||
            epilogue == CUBLASLT_EPILOGUE_DGELU_BGRAD)
            bias_gradient(problem, a, b, d, batch);
    }
}

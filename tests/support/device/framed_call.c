/* framed_call.c -- see framed_call.h. */
#include "tests/support/device/framed_call.h"
#include "model/core/check.h"
#include "tests/support/device/cuda_pair.h"
#include "tests/support/device/op_devices.h"
#include "tests/support/support.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Elements before and after a block, a multiple of 16 bytes, and its bytes outside the elements. */
enum { FRAME = 64, FRAME_BYTE = 0xff /* NaN in every type */ };

static int64_t spec_size(const OperandSpec *s)
{
    int64_t n = 1;
    for (int d = 0; d < s->ndim; d++)
        n *= s->dim[d];
    return n;
}

static Framed framed(DType dtype, const OperandSpec *s, int64_t gap)
{
    int64_t cols = s->dim[s->ndim - 1], rows = spec_size(s) / cols;
    size_t size = dtype_size(dtype);
    Framed f = {.bytes = (size_t)(2 * FRAME + rows * (cols + gap)) * size};
    f.start = must_alloc(f.bytes);
    f.block = must_alloc(f.bytes);
    memset(f.start, FRAME_BYTE, f.bytes);
    unsigned char *data = f.block + FRAME * size;
    f.here = s->ndim == 1   ? tensor_1d(data, dtype, cols)
             : s->ndim == 2 ? tensor_2d(data, dtype, rows, cols)
                            : tensor_3d(data, dtype, s->dim[0], s->dim[1], cols);
    f.here.ld = cols + gap;
    return f;
}

/* Returns the byte of element i in the block. */
static size_t element_at(const Framed *f, int64_t i)
{
    int64_t cols = tensor_cols(f->here);
    return (size_t)(FRAME + i / cols * f->here.ld + i % cols) * dtype_size(f->here.dtype);
}

/* Returns the elements of a tensor in this block; the caller frees them. */
static double *elements(const Framed *f, const unsigned char *block)
{
    int64_t n = tensor_count(f->here);
    double *x = must_alloc((size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++)
        x[i] = dtype_get(f->here.dtype, block + element_at(f, i), 0);
    return x;
}

static bool is_output(const FramedCall *t, int i)
{
    return t->spec[i].role != ROLE_ABSENT && t->spec[i].role != ROLE_IN;
}

/* Returns the first key of query t, at most its last key. */
static double first_key(const OpCase *c, int64_t t, int64_t documents, double uniform)
{
    int64_t last = t + c->attention.causal_offset;
    if (last > c->tk - 1) last = c->tk - 1;
    if (documents == FIRST_ODD) return (double)(t % 2 < last ? t % 2 : last);
    return documents == FIRST_RANDOM ? floor((double)(last + 1) * uniform)
                                     : (double)(last - last % documents);
}

static void operands_draw(FramedCall *t, int64_t documents)
{
    for (int i = 0; i < t->count; i++) {
        const OperandSpec *s = &t->spec[i];
        if (s->role == ROLE_ABSENT) continue;
        int64_t n = spec_size(s);
        uint64_t stream = 4000 + (uint64_t)i;
        t->oracle.v[i] = must_calloc((size_t)n, sizeof(double));
        if (s->role == ROLE_OUT || s->derived) continue;
        DType dtype = t->t[i].here.dtype;
        for (int64_t k = 0; k < n; k++) {
            double x = s->fill == FILL_FIRST_KEY
                           ? first_key(&t->c, k % t->c.tq, documents, drawn_uniform(stream, k))
                           : drawn_normal(stream, k);
            t->oracle.v[i][k] = oracle_round(dtype, x);
        }
    }
    oracle_derive(&t->oracle);
}

static void upload(const Framed *f, const unsigned char *bytes)
{
    device_copy(&pair_cuda, tensor_1d(f->far, U8, (int64_t)f->bytes),
                tensor_1d((void *)(uintptr_t)bytes, U8, (int64_t)f->bytes));
}

void framed_call_make(FramedCall *t, const OpCase *c, DType storage, int64_t gap, int64_t documents)
{
    char text[160];
    *t = (FramedCall){.c = *c, .storage = storage};
    t->oracle = (OracleCall){.c = &t->c, .storage = storage};
    t->count = op_case_operands(c, t->spec);
    snprintf(t->name, sizeof t->name, "%s %s gap %lld documents %lld",
             op_case_describe(c, text, sizeof text), dtype_name(storage), (long long)gap,
             (long long)documents);
    for (int i = 0; i < t->count; i++)
        if (t->spec[i].role != ROLE_ABSENT)
            t->t[i] =
                framed(op_case_dtype(t->spec[i].type, storage, dtype_compute(storage)), &t->spec[i],
                       t->spec[i].dense || t->spec[i].ndim == 1 ? 0 : gap * (i + 1));
    operands_draw(t, documents);
    for (int i = 0; i < t->count; i++) {
        Framed *f = &t->t[i];
        if (f->block == NULL) continue;
        DType dtype = f->here.dtype;
        for (int64_t k = 0; t->spec[i].role != ROLE_OUT && k < tensor_count(f->here); k++) {
            t->oracle.v[i][k] = oracle_round(dtype, t->oracle.v[i][k]);
            dtype_set(dtype, f->start + element_at(f, k), 0, t->oracle.v[i][k]);
        }
        f->far = device_put_bytes(&pair_cuda, f->start, f->bytes);
        f->there = f->here;
        f->there.data = f->far + FRAME * dtype_size(dtype);
        f->there.place = pair_cuda.backend->place;
    }
    oracle_run(&t->oracle);
}

void framed_call_free(FramedCall *t)
{
    for (int i = 0; i < t->count; i++) {
        if (t->t[i].block == NULL) continue;
        device_release(&pair_cuda, t->t[i].far, t->t[i].bytes);
        free(t->t[i].block);
        free(t->t[i].start);
        free(t->oracle.v[i]);
    }
}

void framed_call_run(FramedCall *t, FramedRun run)
{
    Tensor operand[CASE_OPERANDS] = {{0}};
    for (int i = 0; i < t->count; i++) {
        if (t->t[i].block == NULL) continue;
        operand[i] = t->t[i].there;
        if (is_output(t, i)) upload(&t->t[i], t->t[i].start);
    }
    run(&pair_cuda, &t->c, operand);
    for (int i = 0; i < t->count; i++)
        if (t->t[i].block)
            device_copy(&pair_cuda, tensor_1d(t->t[i].block, U8, (int64_t)t->t[i].bytes),
                        tensor_1d(t->t[i].far, U8, (int64_t)t->t[i].bytes));
    device_synchronize(&pair_cuda);
}

/* Checks that all bytes of a block outside an output's elements are unchanged, and all bytes of an
 * input. */
static void check_frame(const FramedCall *t, int operand)
{
    const Framed *f = &t->t[operand];
    size_t size = dtype_size(f->here.dtype), at = 0;
    int64_t n = is_output(t, operand) ? tensor_count(f->here) : 0;
    for (int64_t i = 0; i <= n; i++, at += size)
        for (size_t next = i < n ? element_at(f, i) : f->bytes; at < next; at++)
            if (f->block[at] != f->start[at])
                fail_msg("%s: writes outside %s, at byte %zu", t->name, t->spec[operand].name, at);
}

/* Returns the rms of the rows that are not all 0. Gradients of keys that no query sees are 0, which
 * says nothing about the size of the other keys' sums and of their errors. */
static double rms_of_rows(const double *x, int64_t rows, int64_t cols)
{
    double sum = 0;
    int64_t n = 0;
    for (int64_t r = 0; r < rows; r++) {
        double rms = rms_of(x + r * cols, cols);
        sum += rms * rms;
        n += rms > 0;
    }
    return n ? sqrt(sum / (double)n) : 0;
}

/* Checks output i beside the expected values, with the bounds of the test of all ops. */
static void check_output(FramedCall *t, int i, const double *expected, double magnitude,
                         const char *beside)
{
    const OperandSpec *s = &t->spec[i];
    char err[512];
    double tolerance = (s->roundings + s->factors) * dtype_info[t->t[i].here.dtype].roundoff +
                       s->depth * dtype_info[F32].roundoff;
    int64_t cols = tensor_cols(t->t[i].here), rows = tensor_count(t->t[i].here) / cols;
    magnitude = fmax(magnitude, rms_of_rows(expected, rows, cols));
    if (!tensor_close(t->t[i].here, expected, tolerance, magnitude, err, sizeof err))
        fail_msg("%s, beside %s: %s %s", t->name, beside, s->name, err);
}

void framed_call_check(FramedCall *t)
{
    for (int i = 0; i < t->count; i++) {
        if (t->t[i].block == NULL) continue;
        check_frame(t, i);
        if (!is_output(t, i)) continue;
        if (t->spec[i].sums_of) {
            double *start = elements(&t->t[i], t->t[i].start);
            oracle_column_sums(t->oracle.v[i], t->spec[i].role == ROLE_UPDATE ? start : NULL,
                               t->t[t->spec[i].sums_of - 1].here);
            free(start);
        }
        check_output(t, i, t->oracle.v[i], t->oracle.magnitude[i], "the oracle");
    }
}

/* Returns copies of all blocks after the last run; the caller frees them. */
static void blocks_keep(const FramedCall *t, unsigned char **kept)
{
    for (int i = 0; i < t->count; i++) {
        kept[i] = NULL;
        if (t->t[i].block == NULL) continue;
        kept[i] = must_alloc(t->t[i].bytes);
        memcpy(kept[i], t->t[i].block, t->t[i].bytes);
    }
}

void framed_call_compare(FramedCall *t, FramedRun other, const char *name)
{
    unsigned char *kept[CASE_OPERANDS];
    blocks_keep(t, kept);
    framed_call_run(t, other);
    for (int i = 0; i < t->count; i++) {
        if (kept[i] == NULL) continue;
        double *expected = elements(&t->t[i], t->t[i].block);
        memcpy(t->t[i].block, kept[i], t->t[i].bytes);
        if (is_output(t, i) && !t->spec[i].sums_of)
            check_output(t, i, expected, t->oracle.magnitude[i], name);
        free(expected);
        free(kept[i]);
    }
}

void framed_call_repeat(FramedCall *t, FramedRun run)
{
    unsigned char *kept[CASE_OPERANDS];
    blocks_keep(t, kept);
    framed_call_run(t, run);
    for (int i = 0; i < t->count; i++) {
        if (kept[i] && memcmp(kept[i], t->t[i].block, t->t[i].bytes) != 0)
            fail_msg("%s: two runs differ in the bits of %s", t->name, t->spec[i].name);
        free(kept[i]);
    }
}

/* source.c -- implements source.h: functions for all sources of weights. */
#include "model/weights/source.h"

#include "model/core/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int weight_source_find(const WeightSource *source, const char *name)
{
    for (int i = 0; i < source->n_tensors; i++)
        if (strcmp(source->tensor[i].name, name) == 0) return i;
    return -1;
}

int64_t source_row_bytes(const SourceTensor *tensor)
{
    return (tensor->ndim > 1 ? tensor->dim[1] : 1) * (int64_t)dtype_size(tensor->dtype);
}

/* Rounds x to the nearest bf16, ties to even, by way of a float. If x were rounded to the nearest
 * float first, that float could be halfway between two bf16 values although x is not, and the tie
 * could be rounded to the wrong side. So if the float is not exact, x is rounded towards zero and
 * the float's last bit is set ("rounding to odd"); then the float is never halfway. */
static uint16_t bf16_from_f64(double x)
{
    float f = (float)x;
    if ((double)f == x || isnan(f)) return bf16_from_f32(f);
    /* If rounding to nearest increased the magnitude, step back to the neighbour closer to zero. */
    uint32_t bits = f32_bits(f);
    if (fabs((double)f) > fabs(x)) bits--;
    return bf16_from_f32(f32_from_bits(bits | 1u));
}

static uint16_t f16_from_f64(double x)
{
    _Float16 h = (_Float16)x;
    uint16_t bits;
    memcpy(&bits, &h, sizeof bits);
    return bits;
}

#define GET_F64(data, i)  ((const double *)(data))[i]
#define GET_F32(data, i)  ((const float *)(data))[i]
#define GET_BF16(data, i) bf16_to_f32(((const uint16_t *)(data))[i])
#define GET_F16(data, i)  f16_to_f32(((const uint16_t *)(data))[i])

/* Converts each element with `put`, and reads it back with `back` to count the finite elements that
 * became infinite. */
#define CONVERT(FROM, TYPE, TO, put, back)                                                         \
    for (int64_t i = 0; i < count; i++) {                                                          \
        TYPE x = GET_##FROM(in, i);                                                                \
        ((TO *)out)[i] = put(x);                                                                   \
        overflows += isinf((double)back(out, i)) && !isinf((double)x);                             \
    }                                                                                              \
    break

#define AS_IS(x)   (x)
#define AS_F32(x)  (float)(x)
#define PAIR(a, b) ((int)(a)*DTYPE_COUNT + (int)(b))

int64_t weights_convert(void *out, DType to, const void *in, DType from, int64_t count)
{
    int64_t overflows = 0;
    if (to == from) {
        memcpy(out, in, (size_t)count * dtype_size(to));
        return 0;
    }
    switch (PAIR(from, to)) {
    case PAIR(F64, F32): CONVERT(F64, double, float, AS_F32, GET_F32);
    case PAIR(F64, BF16): CONVERT(F64, double, uint16_t, bf16_from_f64, GET_BF16);
    case PAIR(F64, F16): CONVERT(F64, double, uint16_t, f16_from_f64, GET_F16);
    case PAIR(F32, F64): CONVERT(F32, float, double, AS_IS, GET_F64);
    case PAIR(F32, BF16): CONVERT(F32, float, uint16_t, bf16_from_f32, GET_BF16);
    case PAIR(F32, F16): CONVERT(F32, float, uint16_t, f16_from_f32, GET_F16);
    case PAIR(BF16, F64): CONVERT(BF16, float, double, AS_IS, GET_F64);
    case PAIR(BF16, F32): CONVERT(BF16, float, float, AS_IS, GET_F32);
    case PAIR(BF16, F16): CONVERT(BF16, float, uint16_t, f16_from_f32, GET_F16);
    case PAIR(F16, F64): CONVERT(F16, float, double, AS_IS, GET_F64);
    case PAIR(F16, F32): CONVERT(F16, float, float, AS_IS, GET_F32);
    case PAIR(F16, BF16): CONVERT(F16, float, uint16_t, bf16_from_f32, GET_BF16);
    default: CHECK(0, "weights of %s to %s", dtype_name(from), dtype_name(to));
    }
    return overflows;
}

#define COUNT_NOT_FINITE(TYPE)                                                                     \
    for (int64_t i = 0; i < count; i++)                                                            \
        n += !isfinite(GET_##TYPE(x, i));                                                          \
    break

int64_t weights_not_finite(const void *x, DType dtype, int64_t count)
{
    int64_t n = 0;
    switch (dtype) {
    case F64: COUNT_NOT_FINITE(F64);
    case F32: COUNT_NOT_FINITE(F32);
    case BF16: COUNT_NOT_FINITE(BF16);
    case F16: COUNT_NOT_FINITE(F16);
    default: CHECK(0, "weights of %s", dtype_name(dtype));
    }
    return n;
}

void weights_reserve(void **buffer, size_t *has, size_t bytes)
{
    if (bytes <= *has) return;
    free(*buffer);
    *buffer = must_alloc(bytes);
    *has = bytes;
}

/* dtype.c -- the table of element types, and slow conversions for tests and checks. */
#include "model/core/dtype.h"

#include "model/core/check.h"

const DTypeInfo dtype_info[DTYPE_COUNT] = {
#define X(id, bytes, text, st, u)                                                                  \
    [id] = {.size = (bytes), .name = (text), .safetensors = (st), .roundoff = (u)},
    DTYPE_LIST(X)
#undef X
};

double dtype_get(DType t, const void *data, int64_t i)
{
    switch (t) {
    case F64: return ((const double *)data)[i];
    case F32: return ((const float *)data)[i];
    case BF16: return bf16_to_f32(((const uint16_t *)data)[i]);
    case F16: return f16_to_f32(((const uint16_t *)data)[i]);
    case I32: return ((const int32_t *)data)[i];
    case I64: return (double)((const int64_t *)data)[i];
    case U16: return ((const uint16_t *)data)[i];
    case U8: return ((const uint8_t *)data)[i];
    default: CHECK(0, "unknown dtype %d", (int)t);
    }
}

void dtype_set(DType t, void *data, int64_t i, double x)
{
    switch (t) {
    case F64: ((double *)data)[i] = x; break;
    case F32: ((float *)data)[i] = (float)x; break;
    case BF16: ((uint16_t *)data)[i] = bf16_from_f32((float)x); break;
    case F16: ((uint16_t *)data)[i] = f16_from_f32((float)x); break;
    case I32: ((int32_t *)data)[i] = (int32_t)x; break;
    case I64: ((int64_t *)data)[i] = (int64_t)x; break;
    case U16: ((uint16_t *)data)[i] = (uint16_t)x; break;
    case U8: ((uint8_t *)data)[i] = (uint8_t)x; break;
    default: CHECK(0, "unknown dtype %d", (int)t);
    }
}

static bool find_type(const char *name, bool safetensors, DType *out)
{
    for (int t = 0; t < DTYPE_COUNT; t++) {
        const DTypeInfo *info = &dtype_info[t];
        if (strcmp(safetensors ? info->safetensors : info->name, name) == 0) {
            *out = (DType)t;
            return true;
        }
    }
    return false;
}

bool dtype_from_name(const char *name, DType *out)
{
    return find_type(name, false, out);
}

bool dtype_from_safetensors(const char *name, DType *out)
{
    return find_type(name, true, out);
}

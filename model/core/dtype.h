/* dtype.h -- element types of tensors: one table for enum, size and names, and the scalar
 * conversions of 16-bit floats. */
#ifndef MODEL_CORE_DTYPE_H
#define MODEL_CORE_DTYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Columns: enum name, bytes, name in configs and logs, name in safetensors files, unit roundoff (0
 * for integers). */
#define DTYPE_LIST(X)                                                                              \
    X(F64, 8, "f64", "F64", 0x1p-53)                                                               \
    X(F32, 4, "f32", "F32", 0x1p-24)                                                               \
    X(BF16, 2, "bf16", "BF16", 0x1p-8)                                                             \
    X(F16, 2, "f16", "F16", 0x1p-11)                                                               \
    X(I32, 4, "i32", "I32", 0.0)                                                                   \
    X(I64, 8, "i64", "I64", 0.0)                                                                   \
    X(U16, 2, "u16", "U16", 0.0)                                                                   \
    X(U8, 1, "u8", "U8", 0.0)

typedef enum {
#define X(id, size, name, safetensors, roundoff) id,
    DTYPE_LIST(X)
#undef X
        DTYPE_COUNT
} DType;

typedef struct {
    size_t size;             /* size of an element in bytes */
    const char *name;        /* name in configs and logs */
    const char *safetensors; /* name in checkpoint headers */
    double roundoff;         /* largest relative error of rounding to nearest */
} DTypeInfo;

extern const DTypeInfo dtype_info[DTYPE_COUNT];

static inline size_t dtype_size(DType t)
{
    return dtype_info[t].size;
}

static inline const char *dtype_name(DType t)
{
    return dtype_info[t].name;
}

static inline bool dtype_is_float(DType t)
{
    return t <= F16;
}

/* Returns the type in which values of a storage type are computed and accumulated: double for f64,
 * float for every other type. */
static inline DType dtype_compute(DType storage)
{
    return storage == F64 ? F64 : F32;
}

static inline float f32_from_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline uint32_t f32_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float bf16_to_f32(uint16_t b)
{
    return f32_from_bits((uint32_t)b << 16);
}

/* Rounds to nearest even; a NaN becomes a quiet NaN. */
static inline uint16_t bf16_from_f32(float x)
{
    uint32_t u = f32_bits(x);
    uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    uint32_t nan = (u >> 16) | 0x40u;
    return (uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

static inline float f16_to_f32(uint16_t h)
{
    _Float16 x;
    memcpy(&x, &h, sizeof x);
    return (float)x;
}

/* Rounds to nearest even; values that are too large become infinity. */
static inline uint16_t f16_from_f32(float x)
{
    _Float16 h = (_Float16)x;
    uint16_t b;
    memcpy(&b, &h, sizeof b);
    return b;
}

/* Returns element i of a buffer of any type as a double. For tests, printing and checks, not for
 * kernels. */
double dtype_get(DType t, const void *data, int64_t i);
/* Stores x in element i, rounded to the buffer's type. */
void dtype_set(DType t, void *data, int64_t i, double x);
/* Finds the type called `name` ("f32", ...). Returns false if there is none. */
bool dtype_from_name(const char *name, DType *out);
/* Finds the type by its safetensors name ("F32", ...). Returns false if there is none. */
bool dtype_from_safetensors(const char *name, DType *out);

#endif

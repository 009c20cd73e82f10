/* reduce.cc -- element types and reductions. 16-bit types are added in float and rounded at each
 * addition. The maximum of a number and NaN is the number. */
#include "tests/emu/nccl/inside.h"

#include <math.h>
#include <string.h>

typedef struct {
    uint16_t bits;
} Half;

typedef struct {
    uint16_t bits;
} Bfloat;

static const struct {
    const char *name;
    size_t size;
} TYPES[] = {{"int8", 1},   {"uint8", 1},   {"int32", 4},   {"uint32", 4},  {"int64", 8},
             {"uint64", 8}, {"float16", 2}, {"float32", 4}, {"float64", 8}, {"bfloat16", 2}};

static bool is_type(int type)
{
    return type >= 0 && type < (int)(sizeof TYPES / sizeof *TYPES);
}

size_t type_size(int type)
{
    return is_type(type) ? TYPES[type].size : 0;
}

const char *type_name(int type)
{
    return is_type(type) ? TYPES[type].name : "elements of no type";
}

const char *reduction_name(int reduction)
{
    static const char *const names[] = {"sum", "product", "maximum", "minimum", "average"};
    return reduction >= 0 && reduction <= ncclAvg ? names[reduction] : "no reduction";
}

/* ---- 16-bit types ---------------------------------------------------------------------------- */

static float widen(Half x)
{
    _Float16 value;
    memcpy(&value, &x, sizeof value);
    return (float)value;
}

static void narrow(float value, Half *x)
{
    _Float16 rounded = (_Float16)value;
    memcpy(x, &rounded, sizeof *x);
}

static float widen(Bfloat x)
{
    uint32_t bits = (uint32_t)x.bits << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Rounds to nearest, ties to even. */
static void narrow(float value, Bfloat *x)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (value != value)
        x->bits = 0x7fff;
    else
        x->bits = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

template <class T> static T widen(T x)
{
    return x;
}

template <class T> static void narrow(T value, T *x)
{
    *x = value;
}

/* ---- reductions ------------------------------------------------------------------------------ */

static float most(float a, float b)
{
    return fmaxf(a, b);
}

static float least(float a, float b)
{
    return fminf(a, b);
}

static double most(double a, double b)
{
    return fmax(a, b);
}

static double least(double a, double b)
{
    return fmin(a, b);
}

template <class T> static T most(T a, T b)
{
    return a > b ? a : b;
}

template <class T> static T least(T a, T b)
{
    return a < b ? a : b;
}

template <class T> static void reduce_as(T *to, const T *from, size_t count, int reduction)
{
    for (size_t i = 0; i < count; i++) {
        auto a = widen(to[i]), b = widen(from[i]);
        switch (reduction) {
        case ncclProd: a = (decltype(a))(a * b); break;
        case ncclMax: a = most(a, b); break;
        case ncclMin: a = least(a, b); break;
        default: a = (decltype(a))(a + b); break;
        }
        narrow(a, &to[i]);
    }
}

template <class T> static void average_as(T *x, size_t count, int ranks)
{
    for (size_t i = 0; i < count; i++) {
        auto a = widen(x[i]);
        narrow((decltype(a))(a / (decltype(a))ranks), &x[i]);
    }
}

void reduce(void *to, const void *from, size_t count, int type, int reduction)
{
    switch (type) {
    case ncclInt8: reduce_as((int8_t *)to, (const int8_t *)from, count, reduction); break;
    case ncclUint8: reduce_as((uint8_t *)to, (const uint8_t *)from, count, reduction); break;
    case ncclInt32: /* signed sums wrap around, so they are computed as unsigned */
    case ncclUint32:
        if (type == ncclUint32 || reduction == ncclSum)
            reduce_as((uint32_t *)to, (const uint32_t *)from, count, reduction);
        else
            reduce_as((int32_t *)to, (const int32_t *)from, count, reduction);
        break;
    case ncclInt64:
    case ncclUint64:
        if (type == ncclUint64 || reduction == ncclSum)
            reduce_as((uint64_t *)to, (const uint64_t *)from, count, reduction);
        else
            reduce_as((int64_t *)to, (const int64_t *)from, count, reduction);
        break;
    case ncclFloat16: reduce_as((Half *)to, (const Half *)from, count, reduction); break;
    case ncclFloat32: reduce_as((float *)to, (const float *)from, count, reduction); break;
    case ncclFloat64: reduce_as((double *)to, (const double *)from, count, reduction); break;
    default: reduce_as((Bfloat *)to, (const Bfloat *)from, count, reduction); break;
    }
}

void average(void *x, size_t count, int type, int ranks, bool before)
{
    if (before != (type >= ncclFloat16)) return;
    switch (type) {
    case ncclInt8: average_as((int8_t *)x, count, ranks); break;
    case ncclUint8: average_as((uint8_t *)x, count, ranks); break;
    case ncclInt32: average_as((int32_t *)x, count, ranks); break;
    case ncclUint32: average_as((uint32_t *)x, count, ranks); break;
    case ncclInt64: average_as((int64_t *)x, count, ranks); break;
    case ncclUint64: average_as((uint64_t *)x, count, ranks); break;
    case ncclFloat16: average_as((Half *)x, count, ranks); break;
    case ncclFloat32: average_as((float *)x, count, ranks); break;
    case ncclFloat64: average_as((double *)x, count, ranks); break;
    default: average_as((Bfloat *)x, count, ranks); break;
    }
}

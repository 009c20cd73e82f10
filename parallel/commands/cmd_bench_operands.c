/* cmd_bench_operands.c -- the options that `./train bench ops` and `./train bench gemm` share, and
 * the allocation of a call's operands. */
#include "model/core/check.h"
#include "parallel/commands/cmd_bench.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_TOKENS = 1 << 20 };

static bool parse_dtype(const char *text, void *field, char *err, size_t n)
{
    DType dtype;
    if (!dtype_from_name(text, &dtype) || !dtype_is_float(dtype))
        return error_set(err, n, "--dtype is f64, f32, bf16 or f16, not \"%s\"", text);
    *(DType *)field = dtype;
    return true;
}

enum { DTYPE, REPETITIONS, THREADS, TOKENS, DEVICE, ONLY };
const ArgOption bench_options[BENCH_OPS_OPTIONS] = {
    [DTYPE] = {.name = "--dtype",
               .value = "TYPE",
               .help = "f32 (default), f64, bf16 or f16",
               .kind = ARG_OWN,
               .at = offsetof(BenchArguments, dtype),
               .parse = parse_dtype},
    [REPETITIONS] = {.name = "--repetitions",
                     .value = "N",
                     .help = "of which the median is shown; default 9",
                     .kind = ARG_INTEGER,
                     .at = offsetof(BenchArguments, repetitions),
                     .least = 1,
                     .most = BENCH_MOST_REPETITIONS},
    [THREADS] = {.name = "--threads",
                 .value = "N",
                 .help = "of the CPU; default: the cores allowed to this process",
                 .kind = ARG_INTEGER,
                 .at = offsetof(BenchArguments, threads),
                 .least = 1,
                 .most = 4096},
    [TOKENS] = {.name = "--tokens",
                .value = "N",
                .help = "in the step; default 1024",
                .kind = ARG_INTEGER,
                .at = offsetof(BenchArguments, tokens),
                .least = 1,
                .most = MAX_TOKENS},
    [DEVICE] = {.name = "--device",
                .value = "NAME",
                .help = "auto (default), cuda or cpu",
                .kind = ARG_NAME,
                .at = offsetof(BenchArguments, device)},
    [ONLY] = {.name = "--only",
              .value = "TEXT",
              .help = "only the ops whose names contain TEXT: attention",
              .kind = ARG_NAME,
              .at = offsetof(BenchArguments, only)},
};

const BenchArguments bench_defaults = {
    .dtype = F32, .repetitions = 9, .tokens = 1024, .device = "auto"};

/* ---- operands -------------------------------------------------------------------------------- */

static Tensor words_of(StepDecision *decision)
{
    return tensor_1d(decision, I64, sizeof *decision / sizeof(int64_t));
}

/* Fills integers and doubles on the host, which supports every dtype, and copies them to the
 * device. FILL_INTEGER: multiples of a prime modulo their range, so the rows of a table are visited
 * out of order. FILL_SEGMENTS: valid segments. Other integers are 0, and doubles are the middle of
 * their range. */
static void fill_from_host(Device *dev, const OpCase *c, const OperandSpec *s, Tensor t)
{
    int64_t n = tensor_count(t), range = (int64_t)(s->high - s->low);
    void *host = must_calloc((size_t)n, dtype_size(t.dtype));
    for (int64_t i = 0; i < n; i++) {
        if (t.dtype == F64)
            ((double *)host)[i] = 0.5 * (s->low + s->high);
        else if (s->fill == FILL_SEGMENTS)
            ((int64_t *)host)[i] = op_bench_segment_word(c, i);
        else if (s->fill == FILL_INTEGER)
            ((int32_t *)host)[i] = (int32_t)(s->low + (double)(i * 7919 % range));
    }
    device_copy(dev, tensor_flat(t), tensor_1d(host, t.dtype, n));
    device_synchronize(dev);
    free(host);
}

static void fill_operand(Device *dev, const OpCase *c, const OperandSpec *s, DType storage,
                         Tensor t)
{
    if (t.dtype == I32 || t.dtype == I64 || (t.dtype == F64 && storage != F64))
        fill_from_host(dev, c, s, t);
    else if (s->fill == FILL_NORMAL)
        op_normal(dev, tensor_flat(t), 1, &(Segment){.stream = 2}, s->high);
    else
        op_fill(dev, t, 0.5 * (s->low + s->high));
}

Operands operands_create(Device *dev, const OpCase *c, DType storage)
{
    OperandSpec spec[CASE_OPERANDS];
    Operands o = {.count = op_case_operands(c, spec)};
    StepDecision decision = op_case_decision();
    o.decision = device_alloc(dev, sizeof decision, "a decision");
    device_copy(dev, words_of(o.decision), words_of(&decision));
    device_synchronize(dev);
    for (int i = 0; i < o.count; i++) {
        if (spec[i].role == ROLE_ABSENT) continue;
        Tensor t = {.dtype = op_case_dtype(spec[i].type, storage, op_case_grad(c, storage)),
                    .place = dev->backend->place,
                    .ndim = spec[i].ndim,
                    .ld = spec[i].dim[spec[i].ndim - 1]};
        memcpy(t.dim, spec[i].dim, sizeof spec[i].dim);
        t.data = device_alloc(dev, tensor_bytes(t), spec[i].name);
        fill_operand(dev, c, &spec[i], storage, t);
        o.tensor[i] = t;
    }
    return o;
}

void operands_release(Device *dev, Operands *o)
{
    device_release(dev, o->decision, sizeof *o->decision);
    for (int i = 0; i < o->count; i++)
        if (tensor_present(o->tensor[i]))
            device_release(dev, o->tensor[i].data, tensor_bytes(o->tensor[i]));
}

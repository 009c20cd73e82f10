/* ops_check.c -- checks of operands with their error messages, and timing of op calls
 * (ops_check.h). */
#include "model/kernels/ops_check.h"

#include "model/core/check.h"
#include "model/core/flight.h"

const char *const op_name[OP_COUNT] = {
#define OP(name, arguments) [OP_##name] = #name,
#define OP_WITHOUT_CUDA     OP
#include "model/kernels/oplist.h"
#undef OP
#undef OP_WITHOUT_CUDA
};

void expect(OpId op, bool ok, const char *rule, Operand a, Operand b)
{
    if (ok) return;
    char ta[96], tb[96];
    CHECK(ok, "op_%s: %s: %s is %s ld %lld, %s is %s ld %lld", op_name[op], rule, a.name,
          tensor_describe(a.tensor, ta, sizeof ta), (long long)a.tensor.ld, b.name,
          tensor_describe(b.tensor, tb, sizeof tb), (long long)b.tensor.ld);
}

void expect_matrix(OpId op, Operand a, int64_t rows, int64_t cols, Operand like)
{
    Tensor t = a.tensor;
    CHECK(tensor_present(t), "op_%s: %s is absent", op_name[op], a.name);
    bool shape = tensor_rows(t) == rows && tensor_cols(t) == cols;
    if (!shape) {
        char ta[96], tb[96];
        CHECK(shape, "op_%s: %s is %s, not (%lld, %lld) as %s %s asks", op_name[op], a.name,
              tensor_describe(t, ta, sizeof ta), (long long)rows, (long long)cols, like.name,
              tensor_describe(like.tensor, tb, sizeof tb));
    }
    CHECK(t.ld >= cols || rows <= 1, "op_%s: rows of %s have %lld columns but lie %lld apart",
          op_name[op], a.name, (long long)cols, (long long)t.ld);
}

void expect_vector(OpId op, Operand a, int64_t n, Operand like)
{
    Tensor t = a.tensor;
    CHECK(tensor_present(t), "op_%s: %s is absent", op_name[op], a.name);
    if (tensor_count(t) == n && tensor_is_dense(t)) return;
    char ta[96], tb[96];
    CHECK(0, "op_%s: %s is %s ld %lld, not dense with %lld elements as %s %s asks", op_name[op],
          a.name, tensor_describe(t, ta, sizeof ta), (long long)t.ld, (long long)n, like.name,
          tensor_describe(like.tensor, tb, sizeof tb));
}

void expect_typed(OpId op, Operand a, DType dtype, int64_t n, Operand like)
{
    expect_vector(op, a, n, like);
    CHECK(a.tensor.dtype == dtype, "op_%s: %s is %s, not %s", op_name[op], a.name,
          dtype_name(a.tensor.dtype), dtype_name(dtype));
}

void expect_storage(OpId op, Operand a, Operand like)
{
    expect(op, dtype_is_float(like.tensor.dtype) && a.tensor.dtype == like.tensor.dtype,
           "storage operands share one float type", a, like);
}

void expect_gradient(OpId op, Operand a, Operand like)
{
    DType t = a.tensor.dtype, storage = like.tensor.dtype;
    expect(op, dtype_is_float(storage) && (t == storage || t == dtype_compute(storage)),
           "a gradient has the storage or the compute type", a, like);
}

void expect_apart(OpId op, Operand a, Operand b)
{
    expect(op, a.tensor.data == NULL || a.tensor.data != b.tensor.data,
           "an output is not this input", a, b);
}

void expect_argument(OpId op, bool ok, const char *rule, long long value)
{
    CHECK(ok, "op_%s: %s, got %lld", op_name[op], rule, value);
}

void profile_collect(Device *dev, Profile *profile)
{
    for (int64_t i = 0; i < profile->n_marks; i++) {
        OpMark *m = &profile->mark[i];
        profile->seconds[m->op] += device_event_seconds(dev, &m->from, &m->to);
    }
    profile->n_marks = 0;
}

void profile_close(Device *dev, Profile *profile)
{
    for (int64_t i = 0; i < profile->max_marks; i++) {
        device_event_destroy(dev, &profile->mark[i].from);
        device_event_destroy(dev, &profile->mark[i].to);
    }
}

OpCall call_begin(Device *dev, OpId op, DType table, DType storage, int64_t elements)
{
    OpCall call = {.table = table == F64 ? dev->ops_f64 : dev->ops, .op = op};
    CHECK(call.table != NULL, "op_%s: device %s has no ops for %s", op_name[op],
          dev->backend ? dev->backend->name : "(closed)", dtype_name(table));
    if (dev->flight) call.noted = flight_op(dev, (int)op, storage, elements);
    if (dev->backend->range_begin) dev->backend->range_begin(op_name[op]);
    Profile *p = dev->profile;
    if (p == NULL) return call;
    if (p->n_marks == p->max_marks) profile_collect(dev, p);
    p->mark[p->n_marks].op = op;
    device_event_record_timed(dev, &p->mark[p->n_marks].from);
    return call;
}

void call_require(const Device *dev, OpCall call, bool present)
{
    if (present) return;
    fail(EXIT_UNAVAILABLE,
         "the run needs op_%s, which device \"%s\" cannot compute yet; write device \"cpu\"",
         op_name[call.op], dev->backend ? dev->backend->name : "(closed)");
}

void call_end(Device *dev, OpCall call)
{
    if (dev->backend->range_end) dev->backend->range_end();
    flight_end(dev->flight, call.noted);
    Profile *p = dev->profile;
    if (p == NULL) return;
    device_event_record_timed(dev, &p->mark[p->n_marks++].to);
    p->calls[call.op]++;
}

/* test_ops.c -- compares every op on every case of op_cases.h with the oracle: all storage and
 * gradient types, dense and strided rows, every CPU level, both matrix multiplications, one to
 * three threads, and the GPU (or the emulated one). Inputs are rounded to storage before the oracle
 * reads them. Outputs start as NaN, updated tensors with known values. Inputs and the guard bands
 * around and inside buffers must not change. A second run must give the same bits, and so must
 * other numbers of threads if the op promises it. TEST_EVERY=n runs every n-th case of each op;
 * TEST_TURN chooses the first. */
#include "model/core/check.h"
#include "tests/support/device/op_devices.h"
#include "tests/support/oracle/checked_cases.h"
#include "tests/support/oracle/oracle.h"
#include "tests/support/support.h"
#include "tests/support/turns.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* A prepared call: the exact values before and after it, and guarded tensors for its operands. */
typedef struct {
    const OpCase *c;
    DType storage, grad;
    int count;
    OperandSpec spec[CASE_OPERANDS];
    OracleCall oracle;
    double *start[CASE_OPERANDS]; /* exact values before the call; 0 for outputs not read */
    Guarded guarded[CASE_OPERANDS];
    Tensor tensor[CASE_OPERANDS];
    char name[256];
} Trial;

static DType operand_dtype(const Trial *t, int i)
{
    return op_case_dtype(t->spec[i].type, t->storage, t->grad);
}

static int64_t operand_size(const OperandSpec *s)
{
    int64_t n = 1;
    for (int d = 0; d < s->ndim; d++)
        n *= s->dim[d];
    return n;
}

static bool operand_present(const Trial *t, int i)
{
    return i < t->count && t->spec[i].role != ROLE_ABSENT;
}

/* Returns element i of operand `operand` before rounding. */
static double draw(const OpCase *c, const OperandSpec *s, int operand, int64_t i)
{
    uint64_t stream = (uint64_t)(operand + 1) * 1000003u + (uint64_t)c->op;
    double u = drawn_uniform(stream, i);
    switch (s->fill) {
    case FILL_NORMAL: return s->low + s->high * drawn_normal(stream, i);
    case FILL_UNIFORM: return s->low + (s->high - s->low) * u;
    case FILL_INTEGER: return s->low + floor((s->high - s->low) * u);
    case FILL_SEGMENTS: return (double)checked_segment_word(c, i);
    default: {
        int64_t last = i % c->tq + c->attention.causal_offset;
        if (last > c->tk - 1) last = c->tk - 1;
        return floor((double)(last + 1) * u);
    }
    }
}

/* The inputs of a case before rounding; each trial rounds them to its types. */
typedef struct {
    double *v[CASE_OPERANDS];
} Draws;

static Draws draws_make(const OpCase *c)
{
    Draws d = {0};
    OperandSpec spec[CASE_OPERANDS];
    int count = op_case_operands(c, spec);
    for (int i = 0; i < count; i++) {
        if (spec[i].role == ROLE_ABSENT || spec[i].role == ROLE_OUT) continue;
        int64_t n = operand_size(&spec[i]);
        d.v[i] = must_calloc((size_t)n, sizeof(double));
        for (int64_t k = 0; k < n; k++)
            d.v[i][k] = draw(c, &spec[i], i, k);
    }
    return d;
}

static void draws_free(Draws *d)
{
    for (int i = 0; i < CASE_OPERANDS; i++)
        free(d->v[i]);
}

static void round_operand(Trial *t, int i)
{
    DType dtype = operand_dtype(t, i);
    for (int64_t k = 0; k < operand_size(&t->spec[i]); k++)
        t->oracle.v[i][k] = oracle_round(dtype, t->oracle.v[i][k]);
}

/* Rounds the inputs and computes the expected outputs with the oracle. */
static void trial_prepare(Trial *t, const OpCase *c, const Draws *draws, DType storage, DType grad)
{
    *t = (Trial){.c = c, .storage = storage, .grad = grad, .oracle = {.c = c, .storage = storage}};
    t->count = op_case_operands(c, t->spec);
    for (int i = 0; i < t->count; i++) {
        if (!operand_present(t, i)) continue;
        int64_t n = operand_size(&t->spec[i]);
        t->oracle.v[i] = must_calloc((size_t)n, sizeof(double));
        t->start[i] = must_calloc((size_t)n, sizeof(double));
        if (draws->v[i]) memcpy(t->oracle.v[i], draws->v[i], (size_t)n * sizeof(double));
        round_operand(t, i);
    }
    oracle_derive(&t->oracle);
    for (int i = 0; i < t->count; i++) {
        if (!operand_present(t, i)) continue;
        if (t->spec[i].derived) round_operand(t, i);
        memcpy(t->start[i], t->oracle.v[i], (size_t)operand_size(&t->spec[i]) * sizeof(double));
    }
    oracle_run(&t->oracle);
}

static void trial_free(Trial *t)
{
    for (int i = 0; i < t->count; i++) {
        free(t->oracle.v[i]);
        free(t->start[i]);
    }
}

/* Creates guarded buffers with the initial values, with rows `gap` elements apart if allowed. */
static void buffers_create(Trial *t, int64_t gap)
{
    for (int i = 0; i < t->count; i++) {
        const OperandSpec *s = &t->spec[i];
        t->tensor[i] = NO_TENSOR;
        if (!operand_present(t, i) || s->alias_of) continue;
        Guarded *g = &t->guarded[i];
        *g = guarded_create(operand_dtype(t, i), s->ndim, s->dim, s->dense ? 0 : gap);
        for (int64_t k = 0; k < operand_size(s); k++)
            guarded_set(g, k, s->role == ROLE_OUT ? (double)NAN : t->start[i][k]);
        guarded_arm(g);
        t->tensor[i] = g->tensor;
    }
    for (int i = 0; i < t->count; i++)
        if (operand_present(t, i) && t->spec[i].alias_of)
            t->tensor[i] = t->tensor[t->spec[i].alias_of - 1];
}

static void buffers_free(Trial *t)
{
    for (int i = 0; i < t->count; i++)
        if (t->guarded[i].block) guarded_free(&t->guarded[i]);
}

static void buffers_restore(Trial *t)
{
    for (int i = 0; i < t->count; i++)
        if (t->guarded[i].block) guarded_restore(&t->guarded[i]);
}

static bool shared(const Trial *t, int i)
{
    for (int k = 0; k < t->count; k++)
        if (t->spec[k].alias_of == i + 1) return true;
    return false;
}

/* Checks guard bands, inputs and outputs after a run. `factors`: the device may round factors. */
static void check_after(const Trial *t, bool factors)
{
    char err[512];
    for (int i = 0; i < t->count; i++) {
        if (!operand_present(t, i)) continue;
        const OperandSpec *s = &t->spec[i];
        const Guarded *g = &t->guarded[s->alias_of ? s->alias_of - 1 : i];
        if (!guarded_bands_intact(g)) fail_msg("%s: writes outside %s", t->name, s->name);
        if (s->role == ROLE_IN && !shared(t, i) && !guarded_intact(g))
            fail_msg("%s: changes its input %s", t->name, s->name);
        if (s->role == ROLE_IN) continue;
        if (s->sums_of) oracle_column_sums(t->oracle.v[i], t->start[i], t->tensor[s->sums_of - 1]);
        DType dtype = operand_dtype(t, i), compute = dtype_compute(t->storage);
        double unit = dtype_info[s->type == TYPE_F64 ? F64 : compute].roundoff;
        double roundings = s->roundings + (factors ? s->factors : 0);
        double tolerance = roundings * dtype_info[dtype].roundoff + s->depth * unit;
        if (!tensor_close(t->tensor[i], t->oracle.v[i], tolerance, t->oracle.magnitude[i], err,
                          sizeof err))
            fail_msg("%s: %s %s", t->name, s->name, err);
    }
}

/* Returns the bytes of all buffers, one after another; the caller frees them. */
static unsigned char *snapshot(const Trial *t, size_t *bytes)
{
    *bytes = 0;
    for (int i = 0; i < t->count; i++)
        *bytes += t->guarded[i].bytes;
    unsigned char *all = must_alloc(*bytes), *p = all;
    for (int i = 0; i < t->count; i++) {
        if (t->guarded[i].block) memcpy(p, t->guarded[i].block, t->guarded[i].bytes);
        p += t->guarded[i].bytes;
    }
    return all;
}

/* Returns whether the op promises the same bits for every number of threads. */
static bool same_bits_for_all_threads(OpId op)
{
    switch (op) {
    case OP_norm_backward:
    case OP_linear_forward:
    case OP_linear_residual_forward:
    case OP_linear_backward_input:
    case OP_linear_backward_weight:
    case OP_attention_forward:
    case OP_attention_backward: return false;
    default: return true;
    }
}

/* Runs the call on a device with its own memory; copies whole guarded buffers to it and back. */
static void run_far(Trial *t, Device *dev, const StepDecision *decision)
{
    Tensor far[CASE_OPERANDS] = {{0}};
    for (int i = 0; i < t->count; i++) {
        if (!operand_present(t, i) || t->spec[i].alias_of) continue;
        guarded_upload(&t->guarded[i], dev);
        far[i] = guarded_twin(&t->guarded[i]);
    }
    for (int i = 0; i < t->count; i++)
        if (operand_present(t, i) && t->spec[i].alias_of) far[i] = far[t->spec[i].alias_of - 1];
    op_case_run(dev, t->c, far, decision);
    for (int i = 0; i < t->count; i++)
        if (t->guarded[i].block) guarded_download(&t->guarded[i], dev);
}

static void run_on(Trial *t, TestDevice *d, int64_t gap)
{
    StepDecision decision = op_case_decision();
    char text[160];
    snprintf(t->name, sizeof t->name, "%s %s grad %s gap %lld on %s",
             op_case_describe(t->c, text, sizeof text), dtype_name(t->storage), dtype_name(t->grad),
             (long long)gap, d->name);
    buffers_restore(t);
    if (!d->cuda) {
        op_case_run(&d->device, t->c, t->tensor, &decision);
        return;
    }
    void *far = device_put_bytes(&d->device, &decision, sizeof decision);
    run_far(t, &d->device, far);
    device_release(&d->device, far, sizeof decision);
}

/* Frees what run_far allocated. */
static void buffers_release(Trial *t, Device *dev)
{
    for (int i = 0; i < t->count; i++)
        if (t->guarded[i].on_device) guarded_release(&t->guarded[i], dev);
}

/* Returns whether this trial on this device is selected and can differ from the other trials. */
static bool worth_running(const Trial *t, const TestDevice *d)
{
    bool products = op_case_flops(t->c) > 0 && t->c->batch == 0;
    return device_asked_for(d) && (!d->openblas || products) &&
           device_has_storage(&d->device, t->storage);
}

/* Repeats the call, if it is to run twice, and expects the same bits. */
static void run_again(Trial *t, TestDevice *d, int64_t gap, const unsigned char *once)
{
    if (devices_calls() < 2) return;
    run_on(t, d, gap);
    size_t bytes;
    unsigned char *again = snapshot(t, &bytes);
    if (memcmp(once, again, bytes) != 0) fail_msg("%s: two runs differ in bits", t->name);
    free(again);
}

/* Runs on every device that is worth_running and returns how many there were. Buffers with the same
 * bits as those of a run that has passed, guard bands included, pass without further checks. */
static int trial_on_devices(Trial *t, int64_t gap)
{
    unsigned char *passed = NULL, *single = NULL;
    int runs = 0;
    size_t bytes;
    buffers_create(t, gap);
    for (int i = 0; i < devices.count; i++) {
        TestDevice *d = &devices.item[i];
        if (!worth_running(t, d)) continue;
        run_on(t, d, gap);
        runs++;
        unsigned char *once = snapshot(t, &bytes);
        if (passed == NULL || memcmp(once, passed, bytes) != 0)
            check_after(t, d->cuda && gap == 0 && t->storage != F32);
        if (d->threads == 1) {
            free(single);
            single = snapshot(t, &bytes);
        } else if (same_bits_for_all_threads(t->c->op) && memcmp(single, once, bytes) != 0) {
            fail_msg("%s: differs in bits from one thread", t->name);
        }
        run_again(t, d, gap, once);
        buffers_release(t, &d->device);
        free(passed);
        passed = once;
    }
    free(passed);
    free(single);
    buffers_free(t);
    return runs;
}

static bool has_gradients(const OpCase *c)
{
    OperandSpec spec[CASE_OPERANDS];
    int count = op_case_operands(c, spec);
    for (int i = 0; i < count; i++)
        if (spec[i].type == TYPE_GRAD && spec[i].role != ROLE_ABSENT) return true;
    return false;
}

static bool somebody_has(DType storage)
{
    for (int i = 0; i < devices.count; i++)
        if (device_asked_for(&devices.item[i]) &&
            device_has_storage(&devices.item[i].device, storage))
            return true;
    return false;
}

/* Returns whether the case is large. Large cases test loops with several iterations and divided
 * work, not the edges of shapes; each takes as long as all small cases of its op. */
static bool is_large(const OpCase *c)
{
    return op_case_flops(c) > 8e6 || op_case_bytes(c, F32, F32) > 4e5;
}

/* Runs the case with every storage and gradient type that some device has, with dense and strided
 * rows, and returns the number of runs. With TEST_SAMPLE a large case runs with one gradient type
 * and one row distance per storage type; these rotate, so each occurs with some type. */
static int check_case(const OpCase *c, int number)
{
    Draws draws = draws_make(c);
    int runs = 0;
    bool sample = devices_calls() == 1 && is_large(c);
    for (DType storage = F64; storage <= F16; storage++) {
        if (!somebody_has(storage) || ((c->stochastic || c->moments) && storage != BF16)) continue;
        for (int wide = 0; wide < 2; wide++) {
            DType compute = dtype_compute(storage);
            bool has_wide = compute != storage && has_gradients(c);
            int turn = (number + (int)storage) % 2;
            if (wide && !has_wide) continue;
            if (sample && wide != (has_wide && turn)) continue;
            Trial t;
            trial_prepare(&t, c, &draws, storage, wide ? compute : storage);
            if (!sample || turn == 0) runs += trial_on_devices(&t, 0);
            if (!sample || turn == 1) runs += trial_on_devices(&t, 3);
            trial_free(&t);
        }
    }
    draws_free(&draws);
    return runs;
}

static void check_op(void **state)
{
    OpId op = *(const OpId *)*state;
    const OpCase *cases;
    int count = checked_cases(&cases), runs = 0, found = 0, all = 0;
    for (int k = 0; k < count; k++)
        all += cases[k].op == op;
    /* At least one case of each op runs, even if the op has few cases. */
    int64_t every = turns_every(1);
    if (every > all && all > 0) every = all;
    int64_t first = turns_first(every);
    for (int k = 0; k < count; k++)
        if (cases[k].op == op && found++ % every == first) runs += check_case(&cases[k], k);
    if (runs == 0) fail_msg("op_%s has no case, or no device that was asked for", op_name[op]);
}

int main(void)
{
    static OpId id[OP_COUNT];
    struct CMUnitTest tests[OP_COUNT];
    size_t n = 0;
    for (int op = 0; op < OP_COUNT; op++) {
        if (op == OP_step_decide || op == OP_hash) continue; /* test_ops_step.c, test_ops_hash.c */
        id[n] = (OpId)op;
        tests[n] = (struct CMUnitTest){
            .name = op_name[op], .test_func = check_op, .initial_state = &id[n]};
        n++;
    }
    return _cmocka_run_group_tests("ops against the oracle", tests, n, devices_setup,
                                   devices_teardown);
}

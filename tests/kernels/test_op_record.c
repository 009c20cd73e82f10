/* test_op_record.c -- tests that every op tells the recorder what it costs. The costs are computed
 * from a call's arguments (op_cost.c) and compared with those that follow from the roles of the
 * operands (op_cases.h), for all cases that tests and benchmarks have, and with numbers written
 * down here. The device only counts (model/core/device_counted.h), so nothing is computed and sizes
 * do not matter. */
#include "model/core/device_counted.h"
#include "model/core/recorder.h"
#include "model/kernels/op_arguments.h"
#include "model/kernels/op_cost.h"
#include "tests/support/oracle/checked_cases.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* A device that only counts, its recorder, and the graph of the ops that were recorded. */
typedef struct {
    Device dev;
    Recorder recorder;
    Graph graph;
} Recorded;

static void open_recorded(Recorded *r, Place place)
{
    device_counted_open(
        &r->dev, &(CountedFacts){.facts = {.capability = 90, .bytes = 1 << 30}, .place = place});
    recorder_attach(&r->recorder, &r->dev);
    r->graph = (Graph){0};
    recorder_start(&r->recorder, &r->graph);
}

static void close_recorded(Recorded *r)
{
    recorder_stop(&r->recorder);
    graph_free(&r->graph);
    device_close(&r->dev);
}

/* Returns the only node that was recorded, and removes it from the graph. */
static GraphNode taken(Recorded *r)
{
    assert_int_equal(r->graph.issued, 1);
    assert_int_equal(r->graph.n[GRAPH_COMPUTE], 1);
    GraphNode node = r->graph.node[GRAPH_COMPUTE][0];
    graph_clear(&r->graph);
    return node;
}

/* ---- the cases of tests and benchmarks ------------------------------------------------------- */

static void make_operands(Device *dev, const OpCase *c, DType storage, DType grad,
                          Tensor t[CASE_OPERANDS])
{
    OperandSpec spec[CASE_OPERANDS];
    int n = op_case_operands(c, spec);
    for (int i = 0; i < n; i++) {
        t[i] = NO_TENSOR;
        if (spec[i].role == ROLE_ABSENT) continue;
        t[i] = (Tensor){.dtype = op_case_dtype(spec[i].type, storage, grad),
                        .place = dev->backend->place,
                        .ndim = spec[i].ndim,
                        .ld = spec[i].dim[spec[i].ndim - 1]};
        memcpy(t[i].dim, spec[i].dim, sizeof spec[i].dim);
        t[i].data = device_alloc(dev, tensor_bytes(t[i]), spec[i].name);
    }
    for (int i = 0; i < n; i++)
        if (spec[i].alias_of > 0) t[i].data = t[spec[i].alias_of - 1].data;
}

static void check_case(Recorded *r, const OpCase *c, DType storage, DType grad)
{
    static const StepDecision nowhere;
    Tensor t[CASE_OPERANDS] = {0};
    char name[256];
    make_operands(&r->dev, c, storage, grad, t);
    op_case_run(&r->dev, c, t, &nowhere);
    GraphNode node = taken(r);
    op_case_describe(c, name, sizeof name);
    double bytes = op_case_bytes(c, storage, grad), flops = op_case_flops(c);
    if (node.kind != NODE_OP || node.code != (int)c->op || node.group != -1 ||
        node.wait_stream != -1 || node.action != -1)
        fail_msg("%s: node of kind %d, op %d", name, (int)node.kind, node.code);
    if ((double)node.bytes != bytes || node.flops != flops)
        fail_msg("%s, %s: %lld bytes and %.0f flops, not %.0f and %.0f", name, dtype_name(storage),
                 (long long)node.bytes, node.flops, bytes, flops);
}

/* Returns whether cases of this op can be called with this storage and gradient type. */
static bool is_allowed(const OpCase *c, DType storage, DType grad)
{
    if ((c->stochastic || c->moments) && storage != BF16) return false;
    return grad == storage || grad == dtype_compute(storage);
}

static void test_the_recorded_cost_of_every_op_equals_that_computed_from_operand_roles(void **state)
{
    static const DType types[] = {F64, F32, BF16, F16};
    /* The operands of op_step_decide are structs (StepState and so on); its cost has its own test
     * below. */
    bool seen[OP_COUNT] = {[OP_step_decide] = true};
    Recorded r;
    (void)state;
    open_recorded(&r, PLACE_HOST);
    for (int list = 0; list < 2; list++) {
        const OpCase *cases;
        int n = list ? checked_cases(&cases) : op_cases_bench(&cases);
        for (const OpCase *c = cases; c < cases + n; c++)
            for (int s = 0; s < 4; s++)
                for (int g = 0; g < 2; g++) {
                    DType grad = g ? dtype_compute(types[s]) : types[s];
                    if (!is_allowed(c, types[s], grad)) continue;
                    check_case(&r, c, types[s], grad);
                    seen[c->op] = true;
                }
    }
    for (int op = 0; op < OP_COUNT; op++)
        if (!seen[op]) fail_msg("op_%s has no case", op_name[op]);
    close_recorded(&r);
}

/* ---- numbers --------------------------------------------------------------------------------- */

/* Returns the address of tensor i, whose memory nobody reads or writes. */
static char *fake(int64_t i)
{
    return (char *)((uintptr_t)1 << 60) + (i << 32); /* NOLINT(performance-no-int-to-ptr) */
}

static Tensor matrix(int i, DType dtype, int64_t rows, int64_t cols)
{
    return tensor_2d(fake(i), dtype, rows, cols);
}

static Tensor vector(int i, DType dtype, int64_t n)
{
    return tensor_1d(fake(i), dtype, n);
}

static void expect_bytes(Recorded *r, OpId op, int64_t bytes)
{
    GraphNode node = taken(r);
    assert_int_equal(node.code, op);
    if (node.bytes != bytes)
        fail_msg("op_%s: %lld bytes, not %lld", op_name[op], (long long)node.bytes,
                 (long long)bytes);
}

/* 8 tokens pick rows of tables with 100 and with 5 rows of 16 elements. */
static void test_memory_traffic_of_tables_counts_only_the_selected_rows(void **state)
{
    Recorded r;
    (void)state;
    open_recorded(&r, PLACE_DEVICE);
    Device *dev = &r.dev;
    Tensor x = matrix(1, BF16, 8, 16), many = matrix(2, BF16, 100, 16),
           few = matrix(3, BF16, 5, 16), index = vector(4, I32, 8), dmany = matrix(5, F32, 100, 16),
           dfew = matrix(6, F32, 5, 16);
    const int64_t own = 8 * 16 * 2, indices = 8 * 4;
    op_token_forward(dev, x, many, index, 0);
    expect_bytes(&r, OP_token_forward, own + 8 * 16 * 2 + indices);
    op_token_forward(dev, x, few, index, 40);
    expect_bytes(&r, OP_token_forward, own + 5 * 16 * 2 + indices);
    op_position_add(dev, x, many, index);
    expect_bytes(&r, OP_position_add, 2 * own + 8 * 16 * 2 + indices);
    op_token_backward(dev, dmany, x, index, 0, false);
    expect_bytes(&r, OP_token_backward, 100 * 16 * 4 + own + indices);
    op_token_backward(dev, dmany, x, index, 0, true);
    expect_bytes(&r, OP_token_backward, 2 * 8 * 16 * 4 + own + indices);
    op_position_backward(dev, dfew, x, index, true);
    expect_bytes(&r, OP_position_backward, 2 * 5 * 16 * 4 + own + indices);
    op_rope(dev, x, matrix(7, F32, 3, 8), index, false);
    expect_bytes(&r, OP_rope, 2 * own + 3 * 8 * 4 + indices);
    close_recorded(&r);
}

static void test_memory_traffic_of_updates_counts_every_operand_of_every_range(void **state)
{
    Recorded r;
    (void)state;
    open_recorded(&r, PLACE_DEVICE);
    UpdateRange range[2];
    for (int i = 0; i < 2; i++)
        range[i] =
            (UpdateRange){.weight = vector(1 + i, BF16, 100 + i),
                          .grad = vector(3 + i, BF16, 100 + i),
                          .master = vector(5 + i, F32, 100 + i),
                          .slot = {vector(7 + i, F32, 100 + i), vector(9 + i, F32, 100 + i)}};
    static const StepDecision decision;
    static const AdamW adamw[UPDATE_GROUPS];
    static const Sgd sgd[UPDATE_GROUPS];
    /* weight written, gradient read; master and both averages read and written */
    op_adamw(&r.dev, range, 2, &decision, adamw);
    assert_int_equal(r.graph.node[GRAPH_COMPUTE][0].host_bytes, 201 * 3 * 2 * 4);
    expect_bytes(&r, OP_adamw, 201 * (2 + 2 + 3 * 2 * 4));
    range[1].master.place = range[1].slot[0].place = range[1].slot[1].place = PLACE_DEVICE;
    op_adamw(&r.dev, range, 2, &decision, adamw);
    assert_int_equal(r.graph.node[GRAPH_COMPUTE][0].host_bytes, 100 * 3 * 2 * 4);
    expect_bytes(&r, OP_adamw, 201 * (2 + 2 + 3 * 2 * 4));
    for (int i = 0; i < 2; i++) {
        range[i].master = range[i].slot[0] = range[i].slot[1] = NO_TENSOR;
        range[i].rounding.segments = matrix(11 + i, I64, 7, SEGMENT_WORDS);
    }
    /* weight read and written, gradient and segments read */
    op_sgd(&r.dev, range, 2, &decision, sgd);
    expect_bytes(&r, OP_sgd, 201 * (2 * 2 + 2) + 2 * 7 * 5 * 8);
    close_recorded(&r);
}

static void test_memory_traffic_of_a_hash_counts_the_bytes_that_it_reads(void **state)
{
    Recorded r;
    (void)state;
    open_recorded(&r, PLACE_DEVICE);
    /* the sum is read and written */
    op_hash(&r.dev, vector(1, I64, 1), vector(2, BF16, 100), 7);
    expect_bytes(&r, OP_hash, 2 * 8 + 100 * 2);
    close_recorded(&r);
}

static void
test_memory_traffic_of_a_step_decision_counts_its_structs_and_one_learning_rate(void **state)
{
    static StepState at;
    static StepStats stats;
    static StepDecision decision;
    static const StepConstants constants;
    Recorded r;
    (void)state;
    open_recorded(&r, PLACE_DEVICE);
    op_step_decide(&r.dev, &at, &stats, &decision, vector(1, F64, 1000), &constants);
    expect_bytes(&r, OP_step_decide, 2 * (18 + 64) * 8 + 2 * 3 * 8 + 10 * 8 + 8);
    close_recorded(&r);
}

/* The sums of a step are f64, also on a device without f64 ops, whose table for f32 serves them. */
static void test_sums_of_a_step_are_recorded_as_f64(void **state)
{
    static StepState at;
    static StepStats stats;
    static StepDecision decision;
    static const StepConstants constants;
    (void)state;
    for (int place = PLACE_HOST; place <= PLACE_DEVICE; place++) {
        Recorded r;
        open_recorded(&r, (Place)place);
        Tensor x = vector(1, F64, 2), from[] = {x, vector(2, F64, 2)};
        op_fill(&r.dev, x, 0);
        assert_int_equal(taken(&r).dtype, F64);
        op_sum(&r.dev, x, from, 2);
        assert_int_equal(taken(&r).dtype, F64);
        op_maximum(&r.dev, x, from, 2);
        assert_int_equal(taken(&r).dtype, F64);
        op_step_decide(&r.dev, &at, &stats, &decision, vector(3, F64, 10), &constants);
        assert_int_equal(taken(&r).dtype, F64);
        close_recorded(&r);
    }
}

static void expect_shape(Recorded *r, OpId op, int64_t m, int64_t n, int64_t k, double flops)
{
    GraphNode node = taken(r);
    assert_int_equal(node.code, op);
    assert_int_equal(node.dtype, BF16);
    if (node.m != m || node.n != n || node.k != k || node.flops != flops)
        fail_msg("op_%s: %lld x %lld x %lld, %.0f flops", op_name[op], (long long)node.m,
                 (long long)node.n, (long long)node.k, node.flops);
}

/* N 64 rows, I 48 inputs, O 32 outputs. */
static void test_matrix_products_are_recorded_with_rows_columns_and_depth(void **state)
{
    Recorded r;
    (void)state;
    open_recorded(&r, PLACE_DEVICE);
    Device *dev = &r.dev;
    Tensor x = matrix(1, BF16, 64, 48), w = matrix(2, BF16, 32, 48), y = matrix(3, BF16, 64, 32),
           dw = matrix(4, F32, 32, 48), dx = matrix(5, BF16, 64, 48),
           more = matrix(6, BF16, 64, 32);
    const double flops = 2.0 * 64 * 48 * 32;
    op_linear_forward(dev, y, x, w, NO_TENSOR, EPILOGUE_NONE, NO_TENSOR);
    expect_shape(&r, OP_linear_forward, 64, 32, 48, flops);
    op_linear_residual_forward(dev, y, x, w, NO_TENSOR, more);
    expect_shape(&r, OP_linear_residual_forward, 64, 32, 48, flops);
    op_linear_backward_input(dev, dx, y, w, EPILOGUE_NONE, NO_TENSOR, true);
    expect_shape(&r, OP_linear_backward_input, 64, 48, 32, flops);
    op_linear_backward_weight(dev, dw, NO_TENSOR, y, x, NO_TENSOR, true);
    expect_shape(&r, OP_linear_backward_weight, 32, 48, 64, flops);
    close_recorded(&r);
}

/* 3 sequences of 4 queries and 6 keys, 8 query and 2 key heads of 16. With offset 2 the queries see
 * 3, 4, 5 and 6 keys; with offset 4 they see 5 and three times all 6. */
static void test_the_cost_of_attention_counts_the_pairs_that_the_causal_mask_allows(void **state)
{
    Recorded r;
    (void)state;
    open_recorded(&r, PLACE_DEVICE);
    Tensor q = tensor_3d(fake(1), BF16, 3, 4, 128), k = tensor_3d(fake(2), BF16, 3, 6, 32),
           v = tensor_3d(fake(3), BF16, 3, 6, 32), o = tensor_3d(fake(4), BF16, 3, 4, 128),
           lse = tensor_3d(fake(5), F32, 3, 8, 4);
    Attention a = {.heads = 8, .kv_heads = 2, .head_size = 16, .causal_offset = 2, .scale = 0.25};
    AttentionTensors t = {.dq = tensor_3d(fake(6), BF16, 3, 4, 128),
                          .dk = tensor_3d(fake(7), BF16, 3, 6, 32),
                          .dv = tensor_3d(fake(8), BF16, 3, 6, 32),
                          .dout = tensor_3d(fake(9), BF16, 3, 4, 128),
                          .q = q,
                          .k = k,
                          .v = v,
                          .o = o,
                          .lse = lse};
    op_attention_forward(&r.dev, o, lse, q, k, v, a, NO_TENSOR);
    expect_shape(&r, OP_attention_forward, 24, 4, 16, 2 * 2.0 * 18 * 24 * 16);
    op_attention_backward(&r.dev, &t, false, a);
    expect_shape(&r, OP_attention_backward, 24, 4, 16, 5 * 2.0 * 18 * 24 * 16);
    const int64_t wide = 3 * 4 * 128 * 2, narrow = 3 * 6 * 32 * 2;
    op_attention_backward(&r.dev, &t, true, a);
    expect_bytes(&r, OP_attention_backward, 5 * wide + 6 * narrow + 3 * 8 * 4 * 4);
    /* Gradients of biases, which are added to. */
    t.dbq = vector(10, F32, 128);
    t.dbk = vector(11, F32, 32);
    t.dbv = vector(12, F32, 32);
    t.accumulate_db = true;
    op_attention_backward(&r.dev, &t, true, a);
    expect_bytes(&r, OP_attention_backward,
                 5 * wide + 6 * narrow + 3 * 8 * 4 * 4 + 2 * (128 + 32 + 32) * 4);
    a.causal_offset = 4;
    op_attention_forward(&r.dev, o, lse, q, k, v, a, NO_TENSOR);
    expect_shape(&r, OP_attention_forward, 24, 4, 16, 2 * 2.0 * 23 * 24 * 16);
    close_recorded(&r);
}

/* The names in op_arguments.h must be those of the op's parameters in oplist.h, in the same
 * order. */
#define OP(name, parameters) static const char listed_##name[] = #parameters;
#define OP_WITHOUT_CUDA      OP
#include "model/kernels/oplist.h"
#undef OP
#undef OP_WITHOUT_CUDA
#define TEXT_OF(...) #__VA_ARGS__
#define TEXT(...)    TEXT_OF(__VA_ARGS__)

static void check_names(const char *parameters, const char *names)
{
    char name[64];
    const char *at = strchr(parameters, ','); /* after the device */
    int listed = 0, length;
    for (const char *p = names; sscanf(p, " %63[a-z_0-9]%n", name, &length) == 1; listed++) {
        char *found = at ? strstr(at, name) : NULL;
        size_t n = strlen(name);
        while (found && (strchr(" *", found[-1]) == NULL || strchr(",)", found[n]) == NULL))
            found = strstr(found + 1, name);
        if (found == NULL) fail_msg("%s: no %s in order", parameters, name);
        at = found + n;
        p += length;
        p += *p == ',';
    }
    int commas = 0;
    for (const char *p = parameters; *p; p++)
        commas += *p == ',';
    if (listed != commas) fail_msg("%s: %d names", parameters, listed);
}

static void test_op_arguments_have_the_names_and_order_of_the_list_of_ops(void **state)
{
    (void)state;
#define OP(name, parameters) check_names(listed_##name, TEXT(ARGUMENTS_##name));
#define OP_WITHOUT_CUDA      OP
#include "model/kernels/oplist.h"
#undef OP
#undef OP_WITHOUT_CUDA
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(
            test_the_recorded_cost_of_every_op_equals_that_computed_from_operand_roles),
        cmocka_unit_test(test_memory_traffic_of_tables_counts_only_the_selected_rows),
        cmocka_unit_test(test_memory_traffic_of_updates_counts_every_operand_of_every_range),
        cmocka_unit_test(test_memory_traffic_of_a_hash_counts_the_bytes_that_it_reads),
        cmocka_unit_test(
            test_memory_traffic_of_a_step_decision_counts_its_structs_and_one_learning_rate),
        cmocka_unit_test(test_sums_of_a_step_are_recorded_as_f64),
        cmocka_unit_test(test_matrix_products_are_recorded_with_rows_columns_and_depth),
        cmocka_unit_test(test_the_cost_of_attention_counts_the_pairs_that_the_causal_mask_allows),
        cmocka_unit_test(test_op_arguments_have_the_names_and_order_of_the_list_of_ops),
    };
    return cmocka_run_group_tests_name("op record", tests, NULL, NULL);
}

/* test_ops_doors.c -- tests of the op_ functions: rejected operands and their error messages, and
 * what the profile records. */
#include "model/core/check.h"
#include "model/kernels/op_cases.h"
#include "tests/support/device/op_devices.h"
#include "tests/support/support.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- checks of calls ------------------------------------------------------------------------- */

/* Runs the body in a child process, which must end with this code and print `op` and `what`. */
static void expect_end(Device *dev, void (*body)(Device *), int code, const char *op,
                       const char *what)
{
    int pipes[2], status;
    assert_int_equal(pipe(pipes), 0);
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        setenv("EMU_FORK", "allow", 1);
        dup2(pipes[1], 2);
        body(dev);
        _exit(0);
    }
    close(pipes[1]);
    char text[2048];
    size_t n = 0;
    ssize_t got;
    while (n + 1 < sizeof text && (got = read(pipes[0], text + n, sizeof text - 1 - n)) > 0)
        n += (size_t)got;
    text[n] = 0;
    close(pipes[0]);
    waitpid(child, &status, 0);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != code)
        fail_msg("%s: %s was let through (status %d): %s", op, what, status, text);
    if (!strstr(text, op) || !strstr(text, what))
        fail_msg("%s does not name %s: %s", op, what, text);
}

static void expect_refusal(void (*body)(Device *), const char *op, const char *what)
{
    expect_end(&devices.item[0].device, body, EXIT_BUG, op, what);
}

static float spare[2][64];

static Tensor here(int i, int64_t rows, int64_t cols)
{
    return tensor_2d(spare[i], F32, rows, cols);
}

static Tensor row(int i, int64_t n)
{
    return tensor_1d(spare[i], F32, n);
}

static void wrong_shape(Device *dev)
{
    op_add(dev, here(0, 4, 3), here(1, 4, 3), here(1, 4, 2));
}

static void wrong_type(Device *dev)
{
    op_linear_forward(dev, here(0, 2, 2), here(1, 2, 3), tensor_2d(spare[1], BF16, 2, 3), NO_TENSOR,
                      EPILOGUE_NONE, NO_TENSOR);
}

static void absent(Device *dev)
{
    op_norm_forward(dev, here(0, 2, 4), NO_TENSOR, here(1, 2, 4), tensor_1d(spare[1], F32, 4),
                    NO_TENSOR, (Norm){NORM_RMSNORM, 1e-5});
}

static void not_dense(Device *dev)
{
    Tensor x = here(0, 3, 4);
    x.ld = 5;
    double sum = 0;
    op_sq_norm(dev, tensor_1d(&sum, F64, 1), &x, 1);
}

static void overlapping(Device *dev)
{
    op_linear_backward_input(dev, here(0, 3, 3), here(0, 3, 3), here(1, 3, 3), EPILOGUE_NONE,
                             NO_TENSOR, false);
}

static void backward_of_a_sum(Device *dev)
{
    op_linear_backward_input(dev, here(0, 3, 3), here(1, 3, 3), tensor_2d(spare[1] + 9, F32, 3, 3),
                             EPILOGUE_GELU_OF_SUM, tensor_2d(spare[1] + 18, F32, 3, 3), false);
}

static void bad_heads(Device *dev)
{
    Tensor t = tensor_3d(spare[0], F32, 1, 2, 6), u = tensor_3d(spare[1], F32, 1, 2, 4);
    op_attention_forward(dev, u, tensor_3d(spare[1], F32, 1, 3, 2), t, u, u,
                         (Attention){3, 2, 2, 0, 1}, NO_TENSOR);
}

/* Calls attention backward with 2 rows, 3 query heads and 1 kv head of 2, and with these gradients
 * of the biases. */
static void biases_of_attention(Device *dev, Tensor dbq, Tensor dbk, Tensor dbv)
{
    Tensor wide = tensor_3d(spare[0], F32, 1, 2, 6), narrow = tensor_3d(spare[0], F32, 1, 2, 2);
    AttentionTensors t = {.dq = tensor_3d(spare[1], F32, 1, 2, 6),
                          .dk = tensor_3d(spare[1], F32, 1, 2, 2),
                          .dv = tensor_3d(spare[1], F32, 1, 2, 2),
                          .dout = wide,
                          .q = wide,
                          .k = narrow,
                          .v = narrow,
                          .o = wide,
                          .lse = tensor_3d(spare[0], F32, 1, 3, 2),
                          .dbq = dbq,
                          .dbk = dbk,
                          .dbv = dbv};
    op_attention_backward(dev, &t, false, (Attention){3, 1, 2, 0, 1});
}

static void a_bias_of_q_alone(Device *dev)
{
    biases_of_attention(dev, row(1, 6), NO_TENSOR, NO_TENSOR);
}

static void a_bias_of_all_heads(Device *dev)
{
    biases_of_attention(dev, row(1, 6), row(1, 6), row(1, 6));
}

static void biases_of_two_types(Device *dev)
{
    biases_of_attention(dev, row(1, 6), row(1, 2), tensor_1d(spare[1], F64, 2));
}

static void a_rounded_bias(Device *dev)
{
    Tensor two = tensor_1d(spare[1], BF16, 2);
    biases_of_attention(dev, tensor_1d(spare[1], BF16, 6), two, two);
}

static void bad_vocabulary(Device *dev)
{
    int32_t target[2] = {0, 0};
    op_loss(dev, tensor_1d(spare[1], F32, 2), here(0, 2, 5), tensor_1d(target, I32, 2), 6,
            NO_TENSOR, false);
}

static void bad_gradient_type(Device *dev)
{
    int32_t token[2] = {0, 0};
    op_token_backward(dev, tensor_2d(spare[0], F16, 2, 3), tensor_2d(spare[1], BF16, 2, 3),
                      tensor_1d(token, I32, 2), 0, false);
}

/* Column sums of dx are refused if a row has several groups, because they would mix the heads. */
static void columns_of_heads(Device *dev)
{
    op_norm_backward(dev, here(0, 2, 6), false, row(1, 6), row(1, 3), NO_TENSOR, false,
                     here(1, 2, 6), here(1, 2, 6), here(1, 4, 2), row(1, 3),
                     (Norm){NORM_RMSNORM, 1e-5});
}

static void rounded_columns(Device *dev)
{
    Tensor x = tensor_2d(spare[1], BF16, 2, 4), w = tensor_1d(spare[1], BF16, 4);
    op_norm_backward(dev, tensor_2d(spare[0], BF16, 2, 4), false, w, row(1, 4), NO_TENSOR, false, x,
                     x, here(1, 2, 2), w, (Norm){NORM_RMSNORM, 1e-5});
}

static void columns_for_nobody(Device *dev)
{
    op_linear_backward_weight(dev, here(0, 4, 3), NO_TENSOR, here(1, 5, 4), here(1, 5, 3),
                              row(1, 4), false);
}

static void short_columns(Device *dev)
{
    op_linear_backward_weight(dev, here(0, 4, 3), row(0, 4), here(1, 5, 4), here(1, 5, 3),
                              row(1, 3), false);
}

/* Calls an op that the device's table of functions lacks. */
static void missing_op(Device *dev)
{
    OpTable table = *dev->ops;
    Device without = *dev;
    table.add = NULL;
    without.ops = &table;
    op_add(&without, here(0, 2, 2), here(1, 2, 2), here(1, 2, 2));
}

static void no_sources(Device *dev)
{
    const Tensor src[1] = {here(1, 1, 4)};
    op_sum(dev, here(0, 1, 4), src, 0);
}

static void sources_of_two_types(Device *dev)
{
    const Tensor src[2] = {here(1, 1, 4), tensor_2d(spare[1], BF16, 1, 4)};
    op_sum(dev, here(0, 1, 4), src, 2);
}

static void a_shorter_source(Device *dev)
{
    const Tensor src[2] = {here(1, 1, 4), here(1, 1, 3)};
    op_sum(dev, here(0, 1, 4), src, 2);
}

static void a_sum_over_a_wider_source(Device *dev)
{
    const Tensor src[2] = {here(1, 1, 4), here(0, 1, 4)};
    op_sum(dev, tensor_2d(spare[0], BF16, 1, 4), src, 2);
}

static void a_maximum_of_another_type(Device *dev)
{
    const Tensor src[1] = {tensor_2d(spare[1], BF16, 1, 4)};
    op_maximum(dev, here(0, 1, 4), src, 1);
}

static void rounded_column_sums(Device *dev)
{
    op_column_sum(dev, tensor_1d(spare[1], BF16, 3), here(0, 2, 3));
}

static void an_added_slope(Device *dev)
{
    op_linear_backward_input(dev, here(0, 3, 3), here(1, 3, 3), tensor_2d(spare[1] + 9, F32, 3, 3),
                             EPILOGUE_GELU, tensor_2d(spare[1] + 18, F32, 3, 3), true);
}

static void columns_before_the_first(Device *dev)
{
    op_loss_max(dev, tensor_1d(spare[1], F32, 2), here(0, 2, 5), -1, 5);
}

static void terms_of_one_number(Device *dev)
{
    static int32_t target[2];
    op_loss_terms(dev, tensor_1d(spare[1], F32, 2), here(0, 2, 5), tensor_1d(target, I32, 2),
                  tensor_1d(spare[1] + 9, F32, 2), 0, 5);
}

static void a_part_past_its_place(Device *dev)
{
    op_normal(dev, here(0, 1, 4), 1, &(Segment){.start = 1}, 1);
}

static void a_part_wider_than_the_whole(Device *dev)
{
    op_normal(dev, here(0, 1, 4), 1, &(Segment){.cols = 3, .whole_cols = 2}, 1);
}

/* With f32 masters, weights are not rounded stochastically, but running averages in bf16 still are,
 * so a table of segments is required. */
static void averages_without_segments(Device *dev)
{
    static const AdamW hyper[UPDATE_GROUPS];
    StepDecision decision = {.apply = 1, .update = 1};
    UpdateRange range = {.weight = tensor_1d(spare[0], BF16, 8),
                         .grad = tensor_1d(spare[0] + 8, BF16, 8),
                         .master = tensor_1d(spare[0] + 16, F32, 8),
                         .slot = {tensor_1d(spare[1], BF16, 8), tensor_1d(spare[1] + 8, BF16, 8)}};
    op_adamw(dev, &range, 1, &decision, hyper);
}

static void invalid_operands_are_refused_with_a_message_that_names_op_and_operand(void **state)
{
    (void)state;
    expect_refusal(wrong_shape, "op_add", "b is (4, 2) f32");
    expect_refusal(wrong_type, "op_linear_forward", "w is (2, 3) bf16");
    expect_refusal(absent, "op_norm_forward", "stats is absent");
    expect_refusal(not_dense, "op_sq_norm", "not dense");
    expect_refusal(overlapping, "op_linear_backward_input", "dx is (3, 3) f32");
    expect_refusal(backward_of_a_sum, "op_linear_backward_input", "the epilogue is none or gelu");
    expect_refusal(bad_heads, "op_attention_forward", "kv heads divide heads");
    expect_refusal(a_bias_of_q_alone, "op_attention_backward", "dbq, dbk and dbv go together");
    expect_refusal(a_bias_of_all_heads, "op_attention_backward", "dbk is (6) f32");
    expect_refusal(biases_of_two_types, "op_attention_backward", "dbv is f64, not f32");
    expect_refusal(a_rounded_bias, "op_attention_backward", "dbq is (6) bf16");
    expect_refusal(bad_vocabulary, "op_loss", "got 6");
    expect_refusal(bad_gradient_type, "op_token_backward", "dtable is (2, 3) f16");
    expect_refusal(columns_of_heads, "op_norm_backward", "columns go with a w as long as a row");
    expect_refusal(rounded_columns, "op_norm_backward", "columns is bf16, not f32");
    expect_refusal(columns_for_nobody, "op_linear_backward_weight", "columns go with db");
    expect_refusal(no_sources, "op_sum", "at least one source, got 0");
    expect_refusal(sources_of_two_types, "op_sum", "a source is (1, 4) bf16");
    expect_refusal(a_shorter_source, "op_sum", "a source is (1, 3) f32");
    expect_refusal(a_sum_over_a_wider_source, "op_sum", "an output is not this input");
    expect_refusal(a_maximum_of_another_type, "op_maximum", "dst is (1, 4) f32");
    expect_refusal(rounded_column_sums, "op_column_sum", "columns is bf16, not f32");
    expect_refusal(an_added_slope, "op_linear_backward_input", "+= goes without an epilogue");
    expect_refusal(columns_before_the_first, "op_loss_max", "got -1");
    expect_refusal(terms_of_one_number, "op_loss_terms", "not dense with 4 elements");
    expect_refusal(a_part_past_its_place, "op_normal", "got 1");
    expect_refusal(a_part_wider_than_the_whole, "op_normal", "got 3");
    expect_refusal(averages_without_segments, "op_adamw",
                   "averages in bf16 are rounded stochastically: slot[1] is (8) bf16");
    expect_refusal(short_columns, "op_linear_backward_weight", "columns is (3) f32");
}

/* A backend may lack an op: a run that calls it ends with an error message. */
static void calling_an_op_that_the_backend_lacks_ends_the_program_and_names_the_op(void **state)
{
    (void)state;
    for (int i = 0; i < devices.count; i++) {
        char device[64];
        snprintf(device, sizeof device, "device \"%s\" cannot compute yet",
                 devices.item[i].device.backend->name);
        expect_end(&devices.item[i].device, missing_op, EXIT_UNAVAILABLE, "needs op_add", device);
    }
}

/* The profile counts calls and lists matrix multiplications; without a profile nothing is stored.
 */
static void the_profile_counts_calls_and_lists_matrix_multiplications(void **state)
{
    (void)state;
    Product list[2];
    OpMark mark[2] = {{{0}, {0}, OP_fill}};
    Profile profile = {.product = list, .max_products = 2, .mark = mark, .max_marks = 2};
    Device *dev = &devices.item[0].device;
    memset(spare, 0, sizeof spare);
    dev->profile = &profile;
    for (int i = 0; i < 3; i++)
        op_linear_backward_weight(dev, here(0, 4, 3), NO_TENSOR, tensor_2d(spare[1], F32, 5, 4),
                                  tensor_2d(spare[1] + 20, F32, 5, 3), NO_TENSOR, true);
    dev->profile = NULL;
    op_fill(dev, here(0, 2, 2), 0);
    assert_true(profile.calls[OP_linear_backward_weight] == 3 && profile.calls[OP_fill] == 0);
    double collected = profile.seconds[OP_linear_backward_weight];
    assert_true(collected > 0 && profile.n_marks == 1 && profile.n_products == 2);
    profile_collect(dev, &profile);
    assert_true(profile.seconds[OP_linear_backward_weight] > collected && profile.n_marks == 0);
    profile_close(dev, &profile);
    Product p = list[1];
    assert_true(p.op == OP_linear_backward_weight && p.n == 5 && p.inputs == 3 && p.outputs == 4 &&
                p.accumulate && p.result == F32);
}

/* The sizes of the benchmark's calls are proportional to the number of tokens. */
static void benchmark_calls_scale_with_the_number_of_tokens(void **state)
{
    (void)state;
    const OpCase copy = {OP_copy, .n = 1024, .cols = 3072}, adamw = {OP_adamw, .n = 1 << 23},
                 attention = {OP_attention_forward, .batch = 4, .tq = 64, .tk = 64},
                 token = {OP_token_forward, .n = 1024, .cols = 768, .table = 50304};
    assert_int_equal(op_case_at(&copy, 65536).n, 65536);
    assert_int_equal(op_case_at(&copy, 4).n, 4);
    assert_int_equal(op_case_at(&adamw, 65536).n, 1 << 23);
    assert_int_equal(op_case_at(&adamw, 4).n, 1 << 15);
    assert_int_equal(op_case_at(&attention, 65536).batch, 256);
    assert_int_equal(op_case_at(&attention, 65536).tq, 64);
    assert_int_equal(op_case_at(&attention, 512).tk, 32);
    assert_int_equal(op_case_at(&token, 65536).table, 50304);
    assert_int_equal(op_case_at(&token, 4).table, 196);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(invalid_operands_are_refused_with_a_message_that_names_op_and_operand),
        cmocka_unit_test(calling_an_op_that_the_backend_lacks_ends_the_program_and_names_the_op),
        cmocka_unit_test(the_profile_counts_calls_and_lists_matrix_multiplications),
        cmocka_unit_test(benchmark_calls_scale_with_the_number_of_tokens),
    };
    return cmocka_run_group_tests_name("front doors of ops", tests, devices_setup,
                                       devices_teardown);
}

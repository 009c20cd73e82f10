/* test_ops_named.c -- regression tests for known kinds of errors in ops: precision, padding, order
 * of sums, large sizes. */
#include "model/core/check.h"
#include "model/kernels/ops.h"
#include "tests/support/device/op_devices.h"
#include "tests/support/support.h"

#include <dlfcn.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include <cmocka.h>

/* ---- precision --------------------------------------------------------------------------------
 */

/* 1024 equal gradients of 1 in bf16 add up to 1024 in an f32 buffer; a bf16 one would stop at 256.
 */
static void bug_6_many_equal_gradients_are_added_without_loss(void **state)
{
    enum { DW, DB, DTABLE, DNORM_W, DNORM_B, SUMS };
    (void)state;
    uint16_t one = bf16_from_f32(1);
    float stats[2] = {0, 1};
    int32_t token = 0;
    for (int i = 0; i < devices.count; i++) {
        Device *dev = &devices.item[i].device;
        float sum[SUMS] = {0};
        Tensor x = device_put(dev, tensor_2d(&one, BF16, 1, 1)), w = tensor_flat(x);
        Tensor dx = device_put(dev, tensor_2d(&one, BF16, 1, 1));
        Tensor index = device_put(dev, tensor_1d(&token, I32, 1));
        Tensor far_stats = device_put(dev, tensor_2d(stats, F32, 1, 2));
        float *far = device_put_bytes(dev, sum, sizeof sum);
        for (int k = 0; k < 1024; k++) {
            op_linear_backward_weight(dev, tensor_2d(far + DW, F32, 1, 1),
                                      tensor_1d(far + DB, F32, 1), x, x, NO_TENSOR, true);
            op_token_backward(dev, tensor_2d(far + DTABLE, F32, 1, 1), x, index, 0, true);
            op_norm_backward(dev, dx, false, NO_TENSOR, tensor_1d(far + DNORM_W, F32, 1),
                             tensor_1d(far + DNORM_B, F32, 1), true, x, x, far_stats, w,
                             (Norm){NORM_LAYERNORM, 1e-5});
        }
        device_take_bytes(dev, sum, far, sizeof sum);
        device_drop(dev, x);
        device_drop(dev, dx);
        device_drop(dev, index);
        device_drop(dev, far_stats);
        for (int k = 0; k < SUMS; k++)
            assert_true(sum[k] == 1024);
    }
}

/* Calls op_loss with gradients on host tensors. */
static void loss_of(Device *dev, Tensor losses, Tensor logits, Tensor targets, int64_t vocabulary,
                    double scale)
{
    Tensor l = device_put(dev, losses), x = device_put(dev, logits), t = device_put(dev, targets);
    Tensor s = device_put(dev, tensor_1d(&scale, F64, 1));
    op_loss(dev, l, x, t, vocabulary, s, true);
    device_take(dev, losses, l);
    device_take(dev, logits, x);
    device_drop(dev, t);
    device_drop(dev, s);
}

/* With large logits exp overflows unless the maximum is subtracted first. The results are compared
 * with closed forms. */
static void bug_24_large_logits_stay_finite(void **state)
{
    (void)state;
    static const DType type[] = {F64, F32, BF16, F16};
    static const double size[] = {80, 8192};
    static const int32_t target[4] = {0, 1, 2, 0};
    for (int i = 0; i < devices.count; i++)
        for (int t = 0; t < 4; t++)
            for (int s = 0; s < 2; s++) {
                double a = size[s], scale = 1, unit = dtype_info[dtype_compute(type[t])].roundoff;
                double row[4][3] = {{a, -a, -a}, {a, -a, -a}, {-a, -a, -a}, {a, a, -a}};
                double exact[4] = {0, 2 * a, log(3), log(2)};
                uint64_t logits[12], losses[4];
                for (int k = 0; k < 12; k++)
                    dtype_set(type[t], logits, k, row[k / 3][k % 3]);
                Tensor l = tensor_1d(losses, dtype_compute(type[t]), 4);
                Device *dev = &devices.item[i].device;
                if (!device_has_storage(dev, type[t])) continue;
                loss_of(dev, l, tensor_2d(logits, type[t], 4, 3), tensor_1d((void *)target, I32, 4),
                        3, scale);
                for (int k = 0; k < 4; k++)
                    assert_true(fabs(dtype_get(l.dtype, losses, k) - exact[k]) <= 8 * unit * 2 * a);
                /* softmax is exact here: 1, 0, 0; then one third each; then halves */
                double expected[12] = {0, 0, 0, 1, -1, 0, 1. / 3, 1. / 3, -2. / 3, -0.5, 0.5, 0};
                double tolerance = dtype_info[type[t]].roundoff + 8 * unit * 2 * a;
                for (int k = 0; k < 12; k++)
                    assert_true(fabs(dtype_get(type[t], logits, k) - expected[k]) <= tolerance);
            }
}

/* With attention scores of +-80 and more, one key gets all the weight. */
static void bug_24_large_scores_stay_finite(void **state)
{
    (void)state;
    for (int i = 0; i < devices.count; i++)
        for (int s = 0; s < 2; s++) {
            float a = s ? 1e4f : 80, q[3] = {1, 1, -1}, k[3] = {a, -a, 0.5f * a}, v[3] = {1, 2, 3},
                  o[3] = {0}, lse[3] = {0};
            Attention attention = {1, 1, 1, 0, 1};
            Device *dev = &devices.item[i].device;
            Tensor near[5] = {tensor_3d(o, F32, 1, 3, 1), tensor_3d(lse, F32, 1, 1, 3),
                              tensor_3d(q, F32, 1, 3, 1), tensor_3d(k, F32, 1, 3, 1),
                              tensor_3d(v, F32, 1, 3, 1)};
            Tensor far[5];
            for (int t = 0; t < 5; t++)
                far[t] = device_put(dev, near[t]);
            op_attention_forward(dev, far[0], far[1], far[2], far[3], far[4], attention, NO_TENSOR);
            for (int t = 0; t < 5; t++)
                device_take(dev, near[t], far[t]);
            assert_true(o[0] == 1 && o[1] == 1 && o[2] == 2);
            assert_true(lse[0] == a && lse[1] == a && lse[2] == a);
        }
}

/* ---- vocabulary padding -----------------------------------------------------------------------
 */

/* Computes loss and gradient of `rows` rows with `columns` columns; those from `vocabulary` on
 * contain `padding`. */
static void padded_loss(Device *dev, float *losses, float *logits, int64_t rows, int64_t columns,
                        int64_t vocabulary, float padding)
{
    double scale = 0.5;
    int32_t target[4];
    for (int64_t r = 0; r < rows; r++) {
        target[r] = (int32_t)((vocabulary - 1) * r / rows);
        for (int64_t j = 0; j < columns; j++)
            logits[r * columns + j] =
                j < vocabulary ? (float)(2 * drawn_uniform(5, r * vocabulary + j) - 1) : padding;
    }
    loss_of(dev, tensor_1d(losses, F32, rows), tensor_2d(logits, F32, rows, columns),
            tensor_1d(target, I32, rows), vocabulary, scale);
}

/* The contents of the padding, even NaN, change no bit of losses and gradients; the padding's own
 * gradient is 0. */
static void bug_23_padding_of_the_vocabulary_changes_no_bit(void **state)
{
    (void)state;
    enum { ROWS = 2 };
    static const int64_t vocabulary[] = {17, 127, 50257};
    for (int i = 0; i < devices.count; i++)
        for (int s = 0; s < 3; s++) {
            Device *dev = &devices.item[i].device;
            int64_t v = vocabulary[s], columns = (v + 127) / 128 * 128;
            size_t bytes = (size_t)(ROWS * columns) * sizeof(float);
            float *a = must_alloc(bytes), *b = must_alloc(bytes), *c = must_alloc(bytes), la[ROWS],
                  lb[ROWS], lc[ROWS];
            padded_loss(dev, la, a, ROWS, columns, v, NAN);
            padded_loss(dev, lb, b, ROWS, columns, v, 1e30f);
            padded_loss(dev, lc, c, ROWS, v, v, 0);
            assert_memory_equal(a, b, bytes);
            assert_memory_equal(la, lb, sizeof la);
            for (int r = 0; r < ROWS; r++) {
                assert_true(fabsf(la[r] - lc[r]) <= 16 * 0x1p-24f * la[r]);
                for (int64_t j = 0; j < columns; j++) {
                    float got = a[r * columns + j], bare = j < v ? c[r * v + j] : 0;
                    assert_true(fabsf(got - bare) <= 64 * 0x1p-24f * fabsf(bare));
                }
            }
            free(a);
            free(b);
            free(c);
        }
}

/* ---- order of sums ----------------------------------------------------------------------------
 */

/* With few tokens that occur often, 20 runs with any number of threads give the same bits as the
 * first run. */
static void bug_12_embedding_gradients_are_always_added_in_the_same_order(void **state)
{
    (void)state;
    enum { N = 515, C = 67, TOKENS = 5 };
    static float dx[N * C], first[TOKENS * C], again[TOKENS * C];
    static int32_t token[N];
    for (int i = 0; i < N * C; i++)
        dx[i] = (float)drawn_normal(11, i);
    for (int i = 0; i < N; i++)
        token[i] = (int32_t)(drawn_uniform(12, i) * TOKENS);
    Tensor x = tensor_2d(dx, F32, N, C), index = tensor_1d(token, I32, N);
    for (int i = 0; i < devices.count; i++) {
        Device *dev = &devices.item[i].device;
        Tensor far_x = device_put(dev, x), far_index = device_put(dev, index);
        for (int run = 0; run < 20; run++) {
            float *out = i == 0 && run == 0 ? first : again;
            Tensor table = tensor_2d(out, F32, TOKENS, C), far_table = device_put(dev, table);
            if (run % 2)
                op_token_backward(dev, far_table, far_x, far_index, 0, false);
            else
                op_position_backward(dev, far_table, far_x, far_index, false);
            device_take(dev, table, far_table);
            assert_memory_equal(out, first, sizeof first);
        }
        device_drop(dev, far_x);
        device_drop(dev, far_index);
    }
}

/* A norm that is computed in parts, divided at multiples of SQ_NORM_BLOCK, has the bits of one
 * call. */
static void a_gradient_norm_computed_in_parts_has_the_same_bits_as_one_call(void **state)
{
    (void)state;
    enum { N = 5 * SQ_NORM_BLOCK + 77 };
    float *x = must_alloc(N * sizeof *x);
    for (int i = 0; i < N; i++)
        x[i] = (float)drawn_normal(13, i);
    for (int i = 0; i < devices.count; i++) {
        Device *dev = &devices.item[i].device;
        double sums[2] = {0.125, 0.125};
        Tensor far = device_put(dev, tensor_1d(x, F32, N));
        double *far_sums = device_put_bytes(dev, sums, sizeof sums);
        op_sq_norm(dev, tensor_1d(far_sums, F64, 1), &far, 1);
        for (int64_t at = 0; at < N; at += 2 * SQ_NORM_BLOCK) {
            int64_t n = at + 2 * SQ_NORM_BLOCK < N ? 2 * SQ_NORM_BLOCK : N - at;
            Tensor part = tensor_1d((float *)far.data + at, F32, n);
            op_sq_norm(dev, tensor_1d(far_sums + 1, F64, 1), &part, 1);
        }
        device_take_bytes(dev, sums, far_sums, sizeof sums);
        device_drop(dev, far);
        assert_true(sums[0] == sums[1]);
    }
    free(x);
}

/* Squares that overflow f32 are still finite in the norm: clipping must see 1e30, not infinity. */
static void bug_18_the_norm_is_accumulated_in_f64(void **state)
{
    (void)state;
    for (int i = 0; i < devices.count; i++) {
        float x[3] = {1e30f, -1e30f, 1e-30f};
        double sum = 0;
        Device *dev = &devices.item[i].device;
        Tensor far = device_put(dev, tensor_1d(x, F32, 3));
        double *far_sum = device_put_bytes(dev, &sum, sizeof sum);
        op_sq_norm(dev, tensor_1d(far_sum, F64, 1), &far, 1);
        device_take_bytes(dev, &sum, far_sum, sizeof sum);
        device_drop(dev, far);
        assert_true(fabs(sum / (2.0 * (double)x[0] * (double)x[0]) - 1) < 1e-15);
    }
}

/* ---- sizes ------------------------------------------------------------------------------------
 */

enum { ROWS = 3, COLS = 5 };

/* Returns `bytes` of device memory, most of which are never touched; NULL if there is not enough.
 * On the emulated device it calls the runtime directly, because device_alloc would write zeros to
 * all of it. */
static void *memory_far(Device *dev, size_t bytes)
{
    size_t available, total;
    void *p = NULL;
    int (*emulated)(void **, size_t) = (int (*)(void **, size_t))dlsym(RTLD_DEFAULT, "cudaMalloc");
    if (!device_memory(dev, &available, &total)) {
        p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                 -1, 0);
        return p == MAP_FAILED ? NULL : p;
    }
    if (emulated) return emulated(&p, bytes) == 0 ? p : NULL;
    return available > 2 * bytes ? device_alloc(dev, bytes, "rows far apart") : NULL;
}

/* Copies row by row, because the stride exceeds the largest pitch of a two-dimensional copy. */
static void fetch_rows(Device *dev, float *out, Tensor wide)
{
    for (int r = 0; r < ROWS; r++)
        device_copy(dev, tensor_1d(out + r * COLS, F32, COLS),
                    tensor_1d(tensor_row(wide, r), F32, COLS));
    device_synchronize(dev);
}

/* Runs every op that accepts strided rows on rows that are far apart, and compares the result with
 * that of dense rows. */
static void check_far_rows(Device *dev, Tensor wide)
{
    float near[ROWS * COLS], out[ROWS * COLS], direct[ROWS * COLS], ones[COLS] = {1, 1, 1, 1, 1};
    float stats[2 * ROWS] = {0}, losses[ROWS] = {0}, near_losses[ROWS] = {0};
    int32_t token[ROWS] = {2, 0, 1}, zero[ROWS] = {0, 0, 0};
    Norm norm = {NORM_LAYERNORM, 1e-5};
    for (int i = 0; i < ROWS * COLS; i++)
        near[i] = out[i] = (float)drawn_normal(14, i);
    Tensor x = device_put(dev, tensor_2d(near, F32, ROWS, COLS));
    Tensor y = device_put(dev, tensor_2d(out, F32, ROWS, COLS));
    Tensor w = device_put(dev, tensor_1d(ones, F32, COLS));
    Tensor s = device_put(dev, tensor_2d(stats, F32, ROWS, 2));
    Tensor l = device_put(dev, tensor_1d(losses, F32, ROWS));
    Tensor index = device_put(dev, tensor_1d(token, I32, ROWS));
    Tensor target = device_put(dev, tensor_1d(zero, I32, ROWS));
    op_fill(dev, wide, 7);
    fetch_rows(dev, out, wide);
    assert_true(out[ROWS * COLS - 1] == 7);
    op_copy(dev, wide, x);
    fetch_rows(dev, out, wide);
    assert_memory_equal(out, near, sizeof out);
    op_add(dev, y, wide, x);
    fetch_rows(dev, out, y);
    for (int k = 0; k < ROWS * COLS; k++)
        assert_true(out[k] == 2 * near[k]);
    op_token_forward(dev, y, wide, index, 0);
    fetch_rows(dev, out, y);
    assert_memory_equal(out, near + 2 * COLS, COLS * sizeof(float));
    op_norm_forward(dev, y, s, x, w, NO_TENSOR, norm);
    fetch_rows(dev, direct, y);
    op_norm_forward(dev, y, s, wide, w, NO_TENSOR, norm);
    fetch_rows(dev, out, y);
    assert_memory_equal(out, direct, sizeof out);
    op_loss(dev, l, x, target, COLS, NO_TENSOR, false);
    device_copy(dev, tensor_1d(near_losses, F32, ROWS), l);
    op_loss(dev, l, wide, target, COLS, NO_TENSOR, false);
    device_take(dev, tensor_1d(losses, F32, ROWS), l);
    assert_memory_equal(losses, near_losses, sizeof losses);
    op_activation_forward(dev, wide, x, ACTIVATION_RELU2);
    fetch_rows(dev, out, wide);
    for (int k = 0; k < ROWS * COLS; k++)
        assert_true(out[k] == (near[k] > 0 ? near[k] * near[k] : 0));
    Tensor all[] = {x, y, w, s, index, target};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        device_drop(dev, all[i]);
}

/* Reads and writes rows that are 2^31 + 5 elements apart. */
static void bug_48_rows_beyond_2_to_the_31_elements_are_addressed(void **state)
{
    (void)state;
    const int64_t ld = ((int64_t)1 << 31) + 5;
    size_t bytes = (size_t)((ROWS - 1) * ld + COLS) * sizeof(float);
    char *memory = getenv("EMU_MEMORY") ? must_strdup(getenv("EMU_MEMORY")) : NULL;
    setenv("EMU_MEMORY", "65536", 1);
    for (int i = 0; i < devices.count; i++) {
        Device *dev = &devices.item[i].device;
        Tensor wide = tensor_2d(memory_far(dev, bytes), F32, ROWS, COLS);
        wide.ld = ld;
        if (wide.data == NULL)
            print_message("skipped: %s: no %zu bytes\n", devices.item[i].name, bytes);
        else
            check_far_rows(dev, wide);
        device_release(dev, wide.data, bytes);
    }
    if (memory)
        setenv("EMU_MEMORY", memory, 1);
    else
        unsetenv("EMU_MEMORY");
    free(memory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bug_6_many_equal_gradients_are_added_without_loss),
        cmocka_unit_test(bug_24_large_logits_stay_finite),
        cmocka_unit_test(bug_24_large_scores_stay_finite),
        cmocka_unit_test(bug_23_padding_of_the_vocabulary_changes_no_bit),
        cmocka_unit_test(bug_12_embedding_gradients_are_always_added_in_the_same_order),
        cmocka_unit_test(a_gradient_norm_computed_in_parts_has_the_same_bits_as_one_call),
        cmocka_unit_test(bug_18_the_norm_is_accumulated_in_f64),
        cmocka_unit_test(bug_48_rows_beyond_2_to_the_31_elements_are_addressed),
    };
    return cmocka_run_group_tests_name("ops, bugs by name", tests, devices_setup, devices_teardown);
}

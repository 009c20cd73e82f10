/* test_ops_loss.c -- tests the loss of rows in which one logit is NaN or far larger than all
 * others, at every position in turn. Code that searches for the largest logit in vectors, packs or
 * strides must read every position, including the odd ones at the end. If it misses the largest
 * logit, the exponential overflows. A NaN anywhere must give a NaN loss. */
#include "model/core/check.h"
#include "model/kernels/ops.h"
#include "tests/support/device/op_devices.h"
#include "tests/support/support.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

/* exp(SPIKE) overflows even in f64. */
#define SPIKE 1000.0
#define SCALE 0.5

/* Rows of logits (rows, cols), of which the first `vocabulary` columns count; row r has its extreme
 * value at place[r]. */
typedef struct {
    DType storage;
    int64_t rows, cols, vocabulary;
    const int32_t *place;
    double value; /* the extreme value: SPIKE or NaN */
    bool backward;
} Spikes;

/* Returns the row's target. In a third of the rows it is the extreme logit itself. */
static int32_t target_of(const Spikes *s, int64_t row)
{
    return (int32_t)((s->place[row] + 5 * (row % 3)) % s->vocabulary);
}

/* Returns the logit as it is stored. */
static double logit_of(const Spikes *s, int64_t row, int64_t col)
{
    uint64_t rounded;
    if (col == s->place[row]) return s->value;
    dtype_set(s->storage, &rounded, 0, 2 * drawn_uniform(51, row * s->vocabulary + col) - 1);
    return dtype_get(s->storage, &rounded, 0);
}

/* Checks the loss and the gradient of a row. The extreme logit dominates: softmax is 1 there and 0
 * elsewhere. */
static void check_row(const Spikes *s, int64_t row, double loss, const void *gradient,
                      const char *where)
{
    int32_t target = target_of(s, row), spike = s->place[row];
    double roundoff = dtype_info[dtype_compute(s->storage)].roundoff;
    double want = target == spike ? 0 : SPIKE - logit_of(s, row, target);
    bool right = isnan(s->value) ? isnan(loss) : fabs(loss - want) <= 4 * roundoff * SPIKE;
    if (!right)
        fail_msg("%s: a spike at %d of %lld: the loss is %g, not %g", where, spike,
                 (long long)s->vocabulary, loss, isnan(s->value) ? (double)NAN : want);
    for (int64_t col = 0; s->backward && !isnan(s->value) && col < s->cols; col++) {
        double got = dtype_get(s->storage, gradient, row * s->cols + col);
        want = SCALE * ((col == spike) - (col == target));
        if (!(fabs(got - want) <= 4 * roundoff))
            fail_msg("%s: a spike at %d of %lld: gradient %lld is %g, not %g", where, spike,
                     (long long)s->vocabulary, (long long)col, got, want);
    }
    if (s->backward && isnan(s->value))
        assert_true(isnan(dtype_get(s->storage, gradient, row * s->cols + target)));
}

/* Computes the losses on the device and checks all rows. The padding contains values that must not
 * count. */
static void check_spikes(TestDevice *d, const Spikes *s)
{
    Device *dev = &d->device;
    DType compute = dtype_compute(s->storage);
    void *logit = must_calloc((size_t)(s->rows * s->cols), dtype_size(s->storage));
    void *loss = must_calloc((size_t)s->rows, dtype_size(compute));
    int32_t *target = must_calloc((size_t)s->rows, sizeof *target);
    double scale = SCALE;
    char where[320];
    for (int64_t r = 0; r < s->rows; r++) {
        target[r] = target_of(s, r);
        for (int64_t c = 0; c < s->cols; c++)
            dtype_set(s->storage, logit, r * s->cols + c,
                      c < s->vocabulary ? logit_of(s, r, c) : 2 * SPIKE);
    }
    snprintf(where, sizeof where, "%s, %s, %lld columns%s", d->name, dtype_name(s->storage),
             (long long)s->cols, s->backward ? ", backward" : "");
    Tensor x = tensor_2d(logit, s->storage, s->rows, s->cols),
           l = tensor_1d(loss, compute, s->rows);
    Tensor far_x = device_put(dev, x), far_l = device_put(dev, l);
    Tensor far_t = device_put(dev, tensor_1d(target, I32, s->rows));
    Tensor far_scale = device_put(dev, tensor_1d(&scale, F64, 1));
    op_loss(dev, far_l, far_x, far_t, s->vocabulary, s->backward ? far_scale : NO_TENSOR,
            s->backward);
    device_take(dev, x, far_x);
    device_take(dev, l, far_l);
    device_drop(dev, far_t);
    device_drop(dev, far_scale);
    for (int64_t r = 0; r < s->rows; r++)
        check_row(s, r, dtype_get(compute, loss, r), logit, where);
    free(logit);
    free(loss);
    free(target);
}

/* Runs on every selected device in every dtype that it has: with rows as long as the vocabulary and
 * rows padded to whole packs, with and without the gradient. */
static void check_on_devices(int64_t vocabulary, int64_t rows, const int32_t *place, double value)
{
    for (int i = 0; i < devices.count; i++) {
        TestDevice *d = &devices.item[i];
        if (!device_asked_for(d) || d->threads > 1 || d->openblas) continue;
        for (DType storage = F64; storage <= F16; storage++)
            for (int k = 0; k < 4; k++) {
                Spikes s = {.storage = storage,
                            .rows = rows,
                            .cols = k & 1 ? (vocabulary + 8) / 8 * 8 : vocabulary,
                            .vocabulary = vocabulary,
                            .place = place,
                            .value = value,
                            .backward = k & 2};
                if (device_has_storage(&d->device, storage)) check_spikes(d, &s);
            }
    }
}

/* Odd row lengths, near multiples of the vector length of every CPU level and of a pack. */
static void a_very_large_or_NaN_logit_is_found_at_every_position(void **state)
{
    static const int64_t length[] = {1, 7, 31, 33, 71, 133};
    int32_t place[133];
    (void)state;
    for (int32_t i = 0; i < 133; i++)
        place[i] = i;
    for (size_t i = 0; i < sizeof length / sizeof *length; i++) {
        check_on_devices(length[i], length[i], place, SPIKE);
        check_on_devices(length[i], length[i], place, (double)NAN);
    }
}

/* Long rows, which a block of threads reads in several strides: positions around the ends of these.
 */
static void a_very_large_or_NaN_logit_is_found_in_long_rows(void **state)
{
    enum { LONG = 4219, EVERY = 512 };
    int32_t place[3 * (LONG / EVERY + 2)];
    int64_t n = 0;
    (void)state;
    for (int32_t at = 0; at <= LONG / EVERY * EVERY; at += EVERY)
        for (int32_t k = at > 0 ? -1 : 0; k < 2; k++)
            place[n++] = at + k;
    place[n++] = LONG - 1;
    check_on_devices(LONG, n, place, SPIKE);
}

/* On a GPU: if all logits are -infinity, if one is infinity, or if the target is beyond the
 * vocabulary (also beyond the row), the loss is NaN. If the target is beyond the vocabulary, only
 * the loss is NaN: nothing is subtracted from the gradient at the target, so the gradient adds up
 * to the scale, and the padding is 0. */
static void undefined_losses_are_NaN(void **state)
{
    enum { ROWS = 4, COLS = 16, VOCABULARY = 13 };
    (void)state;
    for (int i = 0; i < devices.count; i++) {
        Device *dev = &devices.item[i].device;
        if (!device_asked_for(&devices.item[i]) || !devices.item[i].cuda) continue;
        for (DType storage = F32; storage <= F16; storage++) {
            float logit[ROWS * COLS], loss[ROWS] = {0};
            int32_t target[ROWS] = {1, 1, VOCABULARY, 1000};
            double scale = SCALE;
            for (int k = 0; k < ROWS * COLS; k++)
                dtype_set(storage, logit, k,
                          k < COLS        ? -(double)INFINITY
                          : k == COLS + 9 ? (double)INFINITY
                                          : 2 * drawn_uniform(52, k));
            Tensor x = tensor_2d(logit, storage, ROWS, COLS), l = tensor_1d(loss, F32, ROWS);
            Tensor far_x = device_put(dev, x), far_l = device_put(dev, l),
                   far_t = device_put(dev, tensor_1d(target, I32, ROWS)),
                   far_scale = device_put(dev, tensor_1d(&scale, F64, 1));
            op_loss(dev, far_l, far_x, far_t, VOCABULARY, far_scale, true);
            device_take(dev, x, far_x);
            device_take(dev, l, far_l);
            device_drop(dev, far_t);
            device_drop(dev, far_scale);
            for (int row = 0; row < ROWS; row++) {
                double sum = 0;
                for (int col = 0; col < COLS; col++)
                    sum += dtype_get(storage, logit, row * COLS + col);
                if (!isnan(loss[row]) || (row < 2 ? !isnan(sum) : !(fabs(sum - SCALE) < 0.01)))
                    fail_msg("%s: the loss of row %d is %g, its gradient adds up to %g",
                             dtype_name(storage), row, (double)loss[row], sum);
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_very_large_or_NaN_logit_is_found_at_every_position),
        cmocka_unit_test(a_very_large_or_NaN_logit_is_found_in_long_rows),
        cmocka_unit_test(undefined_losses_are_NaN),
    };
    return cmocka_run_group_tests_name("loss of rows with a spike", tests, devices_setup,
                                       devices_teardown);
}

/* test_ops_loss_cut.c -- tests the loss of logits whose columns are divided among one to four
 * ranks. The three ops, with a maximum and a sum over the ranks between them, give the same as
 * op_loss on whole rows: the losses on every rank, and each rank's columns of the gradient, on
 * every device. The gradient also matches finite differences. */
#include "model/core/check.h"
#include "model/kernels/ops.h"
#include "tests/support/device/op_devices.h"
#include "tests/support/model/gradcheck.h"
#include "tests/support/support.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MOST_RANKS = 4 };
#define SCALE 0.625

/* Rows of logits over a vocabulary, and how the columns are divided. */
typedef struct {
    DType storage;
    int64_t rows, vocabulary, cols; /* cols: of a rank, padding included */
    int ranks;
    double (*logit)(int64_t row, int64_t col, int64_t vocabulary);
    bool backward;
} Cut;

/* One rank's tensors on the device. */
typedef struct {
    Tensor logits, losses, most, terms;
} Part;

/* Returns the row's target. Every fourth row has none, which is -1. */
static int32_t target_of(const Cut *c, int64_t row)
{
    return row % 4 == 3 ? -1 : (int32_t)(row * 7 % c->vocabulary);
}

/* Returns element col of the row as it is stored. The padding contains values that must not count.
 */
static double stored(const Cut *c, int64_t row, int64_t col)
{
    uint64_t cell;
    dtype_set(c->storage, &cell, 0,
              col < c->vocabulary ? c->logit(row, col, c->vocabulary) : 1000.0);
    return dtype_get(c->storage, &cell, 0);
}

/* Copies columns [first, first + cols) to the device. */
static Tensor logits_on(Device *dev, const Cut *c, int64_t first, int64_t cols)
{
    void *host = must_calloc((size_t)(c->rows * cols), dtype_size(c->storage));
    for (int64_t i = 0; i < c->rows * cols; i++)
        dtype_set(c->storage, host, i, stored(c, i / cols, first + i % cols));
    Tensor far = device_put(dev, tensor_2d(host, c->storage, c->rows, cols));
    free(host);
    return far;
}

static Tensor blank_on(Device *dev, DType dtype, int64_t n)
{
    void *host = must_alloc((size_t)n * dtype_size(dtype));
    for (int64_t i = 0; i < n; i++)
        dtype_set(dtype, host, i, (double)NAN);
    Tensor far = device_put(dev, tensor_1d(host, dtype, n));
    free(host);
    return far;
}

static Part part_on(Device *dev, const Cut *c, int64_t first, int64_t cols)
{
    DType compute = dtype_compute(c->storage);
    return (Part){.logits = logits_on(dev, c, first, cols),
                  .losses = blank_on(dev, compute, c->rows),
                  .most = blank_on(dev, compute, c->rows),
                  .terms = blank_on(dev, compute, 2 * c->rows)};
}

static void drop_part(Device *dev, const Part *p)
{
    device_drop(dev, p->logits);
    device_drop(dev, p->losses);
    device_drop(dev, p->most);
    device_drop(dev, p->terms);
}

/* Runs the ops of the ranks one after another and gives the results of the reductions to all. */
static void cut_loss(Device *dev, const Cut *c, Part *part, Tensor targets, Tensor scale)
{
    Tensor most[MOST_RANKS], terms[MOST_RANKS];
    for (int r = 0; r < c->ranks; r++) {
        most[r] = part[r].most;
        terms[r] = part[r].terms;
        op_loss_max(dev, most[r], part[r].logits, r * c->cols, c->vocabulary);
    }
    op_maximum(dev, most[0], most, c->ranks);
    for (int r = 0; r < c->ranks; r++) {
        if (r > 0) op_copy(dev, most[r], most[0]);
        op_loss_terms(dev, terms[r], part[r].logits, targets, most[r], r * c->cols, c->vocabulary);
    }
    op_sum(dev, terms[0], terms, c->ranks);
    for (int r = 0; r < c->ranks; r++) {
        if (r > 0) op_copy(dev, terms[r], terms[0]);
        op_loss_finish(dev, part[r].losses, part[r].logits, targets, most[r], terms[r], r * c->cols,
                       c->vocabulary, c->backward ? scale : NO_TENSOR, c->backward);
    }
}

/* Returns a tensor of the device as doubles; the caller frees it. */
static double *values_of(Device *dev, Tensor far)
{
    int64_t n = tensor_count(far);
    void *host = must_alloc(tensor_bytes(far));
    double *values = must_alloc((size_t)n * sizeof *values);
    device_copy(dev, tensor_1d(host, far.dtype, n), tensor_flat(far));
    device_synchronize(dev);
    for (int64_t i = 0; i < n; i++)
        values[i] = dtype_get(far.dtype, host, i);
    free(host);
    return values;
}

static void expect_near(const Cut *c, const char *where, const char *what, int rank, int64_t i,
                        double got, double want, double bound)
{
    if (got == want || fabs(got - want) <= bound) return;
    fail_msg("%s, %s, vocabulary %lld, rank %d of %d: %s %lld is %.17g, not %.17g: off by %.3g",
             where, dtype_name(c->storage), (long long)c->vocabulary, rank, c->ranks, what,
             (long long)i, got, want, fabs(got - want));
}

/* Compares a rank's losses and its columns of the gradient with those of whole rows. In f64 they
 * may differ by 1e-14 (of the loss, if that is above 1), otherwise by a few rounding errors of the
 * type. Without backward, the logits must be unchanged. */
static void check_rank(Device *dev, const Cut *c, const char *where, const Part *part, int rank,
                       const double *loss, const double *gradient)
{
    double *losses = values_of(dev, part->losses), *got = values_of(dev, part->logits);
    double unit = c->storage == F64 ? 0 : dtype_info[dtype_compute(c->storage)].roundoff;
    double bound = fmax(1e-14, 100 * unit);
    double gradient_bound =
        SCALE * (bound + (c->storage == F64 ? 0 : 2) * dtype_info[c->storage].roundoff);
    int64_t whole = c->cols * c->ranks, first = rank * c->cols;
    for (int64_t i = 0; i < c->rows; i++)
        expect_near(c, where, "loss", rank, i, losses[i], loss[i],
                    target_of(c, i) < 0 ? 0 : bound * fmax(1, fabs(loss[i])));
    for (int64_t i = 0; i < c->rows * c->cols; i++) {
        int64_t row = i / c->cols, col = first + i % c->cols;
        bool counts = c->backward && target_of(c, row) >= 0 && col < c->vocabulary;
        double want = c->backward ? gradient[row * whole + col] : stored(c, row, col);
        expect_near(c, where, c->backward ? "gradient" : "logit", rank, i, got[i], want,
                    counts ? gradient_bound : 0);
    }
    free(losses);
    free(got);
}

static void check_cut(TestDevice *d, const Cut *c)
{
    Device *dev = &d->device;
    int64_t whole = c->cols * c->ranks;
    int32_t *target = must_calloc((size_t)c->rows, sizeof *target);
    double factor = SCALE;
    Part one = part_on(dev, c, 0, whole), part[MOST_RANKS];
    for (int64_t i = 0; i < c->rows; i++)
        target[i] = target_of(c, i);
    Tensor targets = device_put(dev, tensor_1d(target, I32, c->rows)),
           scale = device_put(dev, tensor_1d(&factor, F64, 1));
    op_loss(dev, one.losses, one.logits, targets, c->vocabulary, scale, c->backward);
    for (int r = 0; r < c->ranks; r++)
        part[r] = part_on(dev, c, r * c->cols, c->cols);
    cut_loss(dev, c, part, targets, scale);
    double *loss = values_of(dev, one.losses), *gradient = values_of(dev, one.logits);
    for (int r = 0; r < c->ranks; r++) {
        check_rank(dev, c, d->name, &part[r], r, loss, gradient);
        drop_part(dev, &part[r]);
    }
    drop_part(dev, &one);
    device_drop(dev, targets);
    device_drop(dev, scale);
    free(loss);
    free(gradient);
    free(target);
}

/* Runs on every selected device, in every dtype that it has, on one to four ranks, with and without
 * the gradient. A rank's columns are a multiple of `grain`: if this is 8, 17 columns over four
 * ranks leave none for the last. */
static void check_on_devices(int64_t vocabulary, int64_t rows, int64_t grain,
                             double (*logit)(int64_t, int64_t, int64_t))
{
    for (int i = 0; i < devices.count; i++) {
        TestDevice *d = &devices.item[i];
        if (!device_asked_for(d) || d->threads == 2 || d->openblas) continue;
        /* Very long rows run on GPUs only: they test that a block reads a row in several
         * strides. */
        if (vocabulary > 10000 && !d->cuda) continue;
        for (DType storage = F64; storage <= F16; storage++)
            for (int k = 0; k < 2 * MOST_RANKS; k++) {
                int ranks = 1 + k / 2;
                int64_t cols = ((vocabulary + ranks - 1) / ranks + grain - 1) / grain * grain;
                Cut c = {.storage = storage,
                         .rows = rows,
                         .vocabulary = vocabulary,
                         .cols = cols,
                         .ranks = ranks,
                         .logit = logit,
                         .backward = k % 2};
                if (device_has_storage(&d->device, storage)) check_cut(d, &c);
            }
    }
}

static double spread(int64_t row, int64_t col, int64_t vocabulary)
{
    return 3 * drawn_normal(61, row * vocabulary + col);
}

/* Returns a logit around +80 or -80. The largest logits of two ranks differ by up to 160. */
static double far_apart(int64_t row, int64_t col, int64_t vocabulary)
{
    double sign = (col * 4 / vocabulary + row) % 3 == 0 ? 1 : -1;
    return 80 * sign + drawn_normal(62, row * vocabulary + col);
}

/* Returns a logit. One logit per row is outside the range of exp unless the largest is subtracted
 * first. */
static double spike(int64_t row, int64_t col, int64_t vocabulary)
{
    return row % vocabulary == col ? 1000 : drawn_uniform(63, row * vocabulary + col);
}

/* Returns a logit around 60000. If exponentials are computed as powers of 2, the largest logit is
 * multiplied by log2(e). The rounding of this product, if it is not corrected, changes the sum of
 * exponentials by up to 60000 u, relative to the sum: in f16 this exceeds the bounds. */
static double large(int64_t row, int64_t col, int64_t vocabulary)
{
    return 60000 + 60 * drawn_normal(65, row * vocabulary + col);
}

/* Returns a logit. One logit per row is NaN. */
static double not_a_number(int64_t row, int64_t col, int64_t vocabulary)
{
    return row % vocabulary == col ? (double)NAN : drawn_uniform(64, row * vocabulary + col);
}

static void bug_21_22_losses_and_gradients_of_split_rows_equal_those_of_whole_rows(void **state)
{
    (void)state;
    check_on_devices(17, 19, 8, spread);
    check_on_devices(17, 19, 1, spread);
    check_on_devices(127, 9, 8, spread);
    check_on_devices(4099, 5, 1, spread);
    check_on_devices(40009, 2, 8, spread);
    check_on_devices(17, 0, 8, spread); /* no rows: nothing is launched */
}

static void bug_23_padding_does_not_change_the_loss(void **state)
{
    (void)state;
    check_on_devices(1, 5, 8, spread);
    check_on_devices(17, 9, 128, spread);
    check_on_devices(127, 9, 128, spread);
}

static void bug_24_the_largest_logit_of_all_ranks_is_subtracted(void **state)
{
    (void)state;
    check_on_devices(17, 24, 8, far_apart);
    check_on_devices(601, 12, 8, far_apart);
    check_on_devices(33, 66, 8, spike);
    check_on_devices(127, 9, 8, large);
}

/* If one rank has a NaN in a row, the loss of the row is NaN on all ranks. */
static void a_NaN_logit_of_one_rank_gives_a_NaN_loss_on_all(void **state)
{
    enum { ROWS = 33 };
    (void)state;
    for (int i = 0; i < devices.count; i++) {
        TestDevice *d = &devices.item[i];
        int32_t target[ROWS];
        if (!device_asked_for(d) || d->threads > 1 || d->openblas) continue;
        Cut c = {F32, ROWS, ROWS, 16, 3, not_a_number, true};
        double factor = SCALE;
        Part part[MOST_RANKS];
        for (int64_t row = 0; row < ROWS; row++)
            target[row] = target_of(&c, row);
        Tensor targets = device_put(&d->device, tensor_1d(target, I32, ROWS)),
               scale = device_put(&d->device, tensor_1d(&factor, F64, 1));
        for (int r = 0; r < c.ranks; r++)
            part[r] = part_on(&d->device, &c, r * c.cols, c.cols);
        cut_loss(&d->device, &c, part, targets, scale);
        for (int r = 0; r < c.ranks; r++) {
            double *loss = values_of(&d->device, part[r].losses);
            for (int64_t row = 0; row < ROWS; row++)
                if (target[row] < 0 ? loss[row] != 0 : !isnan(loss[row]))
                    fail_msg("%s, rank %d: the loss of row %lld is %g", d->name, r, (long long)row,
                             loss[row]);
            free(loss);
            drop_part(&d->device, &part[r]);
        }
        device_drop(&d->device, targets);
        device_drop(&d->device, scale);
    }
}

/* ---- backward against forward ---------------------------------------------------------------- */

enum { TARGETS = 9, COLUMNS = 24, VOCABULARY = 19, PARTS = 3, PART_COLUMNS = COLUMNS / PARTS };

/* Returns one rank's columns of the logits. */
static Tensor part_of(double *logits, int part)
{
    Tensor columns = tensor_2d(logits + part * PART_COLUMNS, F64, TARGETS, PART_COLUMNS);
    columns.ld = COLUMNS;
    return columns;
}

/* Computes the losses (TARGETS) of logits of which each of three ranks has a third of the columns.
 * The elements after them in `losses` are scratch. With a scale the logits are replaced by their
 * gradient. */
static void parts_loss(double *losses, double *logits, const Function *f, Tensor scale)
{
    Tensor targets = tensor_1d((void *)f->index, I32, TARGETS), most[PARTS], terms[PARTS];
    Device *cpu = &devices.item[0].device;
    double *free_from = losses + TARGETS;
    for (int p = 0; p < PARTS; p++, free_from += 3 * TARGETS) {
        most[p] = tensor_1d(free_from, F64, TARGETS);
        terms[p] = tensor_2d(free_from + TARGETS, F64, TARGETS, 2);
        op_loss_max(cpu, most[p], part_of(logits, p), p * PART_COLUMNS, VOCABULARY);
    }
    op_maximum(cpu, most[0], most, PARTS);
    for (int p = 0; p < PARTS; p++)
        op_loss_terms(cpu, terms[p], part_of(logits, p), targets, most[0], p * PART_COLUMNS,
                      VOCABULARY);
    op_sum(cpu, terms[0], terms, PARTS);
    for (int p = 0; p < PARTS; p++)
        op_loss_finish(cpu, tensor_1d(losses, F64, TARGETS), part_of(logits, p), targets, most[0],
                       terms[0], p * PART_COLUMNS, VOCABULARY, scale, tensor_present(scale));
}

static double cut_loss_loss(const Function *f)
{
    double sum = 0;
    parts_loss(f->scratch[0], f->input[0].x, f, NO_TENSOR);
    for (int i = 0; i < TARGETS; i++)
        sum += f->scratch[0][i];
    return 0.3 * sum;
}

static void gradients_of_logits_split_over_ranks_match_finite_differences(void **state)
{
    (void)state;
    Function *f = function_create(cut_loss_loss, NULL);
    function_input(f, "logits", TARGETS * COLUMNS);
    for (int i = 0; i < TARGETS; i++)
        f->index[i] = i % 4 == 2 ? -1 : (i * 5) % VOCABULARY;
    double scale = 0.3;
    memcpy(f->input[0].dx, f->input[0].x, TARGETS * COLUMNS * sizeof(double));
    parts_loss(f->scratch[0], f->input[0].dx, f, tensor_1d(&scale, F64, 1));
    function_check(f, "loss of cut logits");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bug_21_22_losses_and_gradients_of_split_rows_equal_those_of_whole_rows),
        cmocka_unit_test(bug_23_padding_does_not_change_the_loss),
        cmocka_unit_test(bug_24_the_largest_logit_of_all_ranks_is_subtracted),
        cmocka_unit_test(a_NaN_logit_of_one_rank_gives_a_NaN_loss_on_all),
        cmocka_unit_test(gradients_of_logits_split_over_ranks_match_finite_differences),
    };
    return cmocka_run_group_tests_name("loss of logits cut by columns", tests, devices_setup,
                                       devices_teardown);
}

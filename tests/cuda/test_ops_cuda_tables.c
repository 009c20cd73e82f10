/* test_ops_cuda_tables.c -- tests the bits of gradients of embedding tables on CUDA. Rows with the
 * same index are added in ascending order, wherever they are, so the bits are the CPU's. Only where
 * more than PART rows have the same index do the bits differ, because then every PART rows are
 * added first and their sums after that: one chain of additions would keep the device waiting. A
 * plain loop here computes both. Skipped if there is no CUDA device or the program is built without
 * CUDA.
 */
#include "model/core/check.h"
#include "model/kernels/ops.h"
#include "tests/support/device/cuda_pair.h"
#include "tests/support/device/op_devices.h"
#include "tests/support/support.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

/* ROWS and MANY exceed the number of threads of a block. Table row FREQUENT occurs so often that it
 * is added in three parts, WHOLE occurs exactly PART times, and OVER PART + 1 times. */
enum {
    PART = 256,
    ROWS = 2100,
    FEW = 61,
    MANY = 300,
    FREQUENT = 3,
    WHOLE = 5,
    OVER = 6,
    ABSENT = 7
};

/* Returns index n for a table of `table` rows that begins at first_row. One in ABSENT of the
 * table's rows never occurs. With `outside`, some indices are before or past the table. */
static int32_t drawn_index(int64_t n, int64_t table, int64_t first_row, bool outside)
{
    int64_t around = outside ? 9 : 0;
    if (n % 8 == 1 && n / 8 < PART) return (int32_t)first_row + WHOLE;
    if (n % 8 == 4 && n / 8 < PART + 1) return (int32_t)first_row + OVER;
    if (drawn_uniform(41, n) < 0.5) return (int32_t)first_row + FREQUENT;
    int64_t row = (int64_t)(drawn_uniform(42, n) * (double)(table + 2 * around)) - around;
    if (row == WHOLE || row == OVER) row = FREQUENT;
    if (row % ABSENT == 2) row -= 1;
    return (int32_t)(first_row + row);
}

typedef struct {
    DType storage, grad;
    int64_t cols, table, first_row;
    bool accumulate, positions;
} Sums;

static void sums_run(Device *dev, const Sums *s, Tensor dtable, Tensor dx, Tensor index)
{
    dtable = tensor_2d(dtable.data, s->grad, s->table, s->cols);
    dx = tensor_2d(dx.data, s->storage, ROWS, s->cols);
    if (s->positions)
        op_position_backward(dev, dtable, dx, index, s->accumulate);
    else
        op_token_backward(dev, dtable, dx, index, s->first_row, s->accumulate);
}

/* Adds rows at[0], ..., at[count - 1] of column c of dx to sum, in this order. */
static float chain(float sum, Tensor dx, const int32_t *at, int count, int64_t c)
{
    for (int i = 0; i < count; i++)
        sum += (float)dtype_get(dx.dtype, dx.data, at[i] * tensor_cols(dx) + c);
    return sum;
}

/* Sets at to the numbers of the rows with this index, in ascending order, and returns how many. */
static int occurrences(int32_t *at, const int32_t *index, int64_t wanted)
{
    int count = 0;
    for (int32_t n = 0; n < ROWS; n++)
        if (index[n] == wanted) at[count++] = n;
    return count;
}

/* Computes the sums that CUDA promises; dx is (ROWS, cols), dtable (table, cols). */
static void sums_promised(const Sums *s, Tensor dtable, Tensor dx, const int32_t *index)
{
    int32_t at[ROWS];
    for (int64_t row = 0; row < s->table; row++) {
        int count = occurrences(at, index, row + s->first_row);
        for (int64_t c = 0; c < s->cols; c++) {
            int64_t i = row * s->cols + c;
            float sum = s->accumulate ? (float)dtype_get(s->grad, dtable.data, i) : 0;
            if (count <= PART) sum = chain(sum, dx, at, count, c);
            for (int k = 0; count > PART && k < count; k += PART)
                sum += chain(0, dx, at + k, count - k < PART ? count - k : PART, c);
            dtype_set(s->grad, dtable.data, i, sum);
        }
    }
}

/* Expects the CPU's bits in table rows that are one chain of additions, and the promised ones in
 * all. */
static void expect_sums(const Sums *s, Tensor cpu, Tensor promised, Tensor found,
                        const int32_t *index, const char *name)
{
    int32_t at[ROWS];
    size_t bytes = (size_t)s->cols * dtype_size(s->grad);
    pair_same_bits(promised, found, name);
    for (int64_t row = 0; row < s->table; row++) {
        int count = occurrences(at, index, row + s->first_row);
        assert_true(row != WHOLE || count == PART);
        assert_true(row != OVER || count == PART + 1);
        assert_true(row != FREQUENT || count > 2 * PART);
        if (count > PART) continue;
        Tensor a = tensor_1d((char *)cpu.data + (size_t)row * bytes, s->grad, s->cols);
        Tensor b = tensor_1d((char *)found.data + (size_t)row * bytes, s->grad, s->cols);
        pair_same_bits(a, b, name);
    }
}

/* Compares the sums on the device with those that CUDA promises. The device may be one that the
 * test has opened itself, with little scratch memory. */
static void check_sums_on(Device *dev, Sums s)
{
    static int32_t at[ROWS];
    char name[160];
    snprintf(name, sizeof name, "%s %s grad %s cols %lld of %lld rows from %lld accumulate %d",
             s.positions ? "positions" : "tokens", dtype_name(s.storage), dtype_name(s.grad),
             (long long)s.cols, (long long)s.table, (long long)s.first_row, s.accumulate);
    for (int64_t n = 0; n < ROWS; n++)
        at[n] = drawn_index(n, s.table, s.first_row, !s.positions);
    Tensor index = tensor_1d(at, I32, ROWS), far_index = device_put(dev, index);
    Tensor dx = pair_drawn(s.storage, ROWS * s.cols, 43, 1, false), far_dx = device_put(dev, dx);
    Tensor dtable = pair_drawn(s.grad, s.table * s.cols, 44, 1, false), back = pair_copy(dtable);
    Tensor promised = pair_copy(dtable), far = device_put(dev, back);
    sums_run(&pair_cpu, &s, dtable, dx, index);
    sums_run(dev, &s, far, far_dx, far_index);
    device_take(dev, back, far);
    sums_promised(&s, promised, tensor_2d(dx.data, s.storage, ROWS, s.cols), at);
    expect_sums(&s, dtable, promised, back, at, name);
    device_drop(dev, far_dx);
    device_drop(dev, far_index);
    free(dx.data);
    free(dtable.data);
    free(promised.data);
    free(back.data);
}

static void check_sums(Sums s)
{
    check_sums_on(&pair_cuda, s);
}

/* Covers every type, rows of single elements and of packs, "=" and "+=", and for tokens also tables
 * that do not begin at row 0. */
static void check_all(bool positions)
{
    const int64_t cols[] = {1, 5, 16};
    for (DType storage = F32; storage <= F16; storage++)
        for (int wide = 0; wide < (storage == F32 ? 1 : 2); wide++)
            for (int k = 0; k < 6; k++)
                check_sums((Sums){.storage = storage,
                                  .grad = wide ? F32 : storage,
                                  .cols = cols[k / 2],
                                  .table = k < 4 ? FEW : MANY,
                                  .first_row = positions || k < 2 ? 0 : 1000,
                                  .accumulate = k % 2,
                                  .positions = positions});
}

static void test_token_table_gradients_have_the_promised_bits(void **state)
{
    (void)state;
    pair_needed();
    check_all(false);
}

static void test_position_table_gradients_have_the_promised_bits(void **state)
{
    (void)state;
    pair_needed();
    check_all(true);
}

/* If the scratch memory cannot hold the sums of the parts of all columns, the columns are processed
 * in portions, with the same bits. */
static void test_table_gradients_with_little_scratch_memory_have_the_same_bits(void **state)
{
    (void)state;
    pair_needed();
    enum { MOST_PARTS = (2 * ROWS + PART - 1) / PART, COLUMNS = 16 };
    char err[512];
    Device small;
    size_t ints = 4 * FEW + 2 + MOST_PARTS + 2 * ROWS, parts = (size_t)MOST_PARTS * COLUMNS;
    DeviceOptions options = {.threads = 1, .local_ranks = 1, .scratch = 4 * (ints + parts + 20)};
    if (!device_open(&small, "cuda", &options, err, sizeof err)) fail_msg("%s", err);
    for (int64_t cols = 40; cols <= 43; cols += 3)
        for (int wide = 0; wide < 2; wide++)
            check_sums_on(&small, (Sums){.storage = BF16,
                                         .grad = wide ? F32 : BF16,
                                         .cols = cols,
                                         .table = FEW,
                                         .accumulate = wide});
    device_close(&small);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_token_table_gradients_have_the_promised_bits),
        cmocka_unit_test(test_position_table_gradients_have_the_promised_bits),
        cmocka_unit_test(test_table_gradients_with_little_scratch_memory_have_the_same_bits),
    };
    return cmocka_run_group_tests_name("tables on cuda", tests, pair_setup, pair_teardown);
}

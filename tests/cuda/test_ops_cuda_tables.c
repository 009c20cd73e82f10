/* test_ops_cuda_tables.c -- tests that gradients of embedding tables on CUDA have the same bits as
 * on the CPU: rows with the same index are added in ascending order, wherever they are. Skipped if
 * there is no CUDA device or the program is built without CUDA. */
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

/* ROWS and MANY exceed the number of threads of a block. */
enum { ROWS = 600, FEW = 61, MANY = 300, FREQUENT = 3, ABSENT = 7 };

/* Returns index n for a table of `table` rows that begins at first_row. Half of the indices are one
 * frequent row. One in ABSENT of the table's rows never occurs. With `outside`, some indices are
 * before or past the table. */
static int32_t drawn_index(int64_t n, int64_t table, int64_t first_row, bool outside)
{
    int64_t around = outside ? 9 : 0;
    if (drawn_uniform(41, n) < 0.5) return (int32_t)first_row + FREQUENT;
    int64_t row = (int64_t)(drawn_uniform(42, n) * (double)(table + 2 * around)) - around;
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

static void check_sums(Sums s)
{
    static int32_t at[ROWS];
    char name[160];
    snprintf(name, sizeof name, "%s %s grad %s cols %lld of %lld rows from %lld accumulate %d",
             s.positions ? "positions" : "tokens", dtype_name(s.storage), dtype_name(s.grad),
             (long long)s.cols, (long long)s.table, (long long)s.first_row, s.accumulate);
    for (int64_t n = 0; n < ROWS; n++)
        at[n] = drawn_index(n, s.table, s.first_row, !s.positions);
    Tensor index = tensor_1d(at, I32, ROWS), far_index = device_put(&pair_cuda, index);
    Tensor dx = pair_drawn(s.storage, ROWS * s.cols, 43, 1, false),
           far_dx = device_put(&pair_cuda, dx);
    Tensor dtable = pair_drawn(s.grad, s.table * s.cols, 44, 1, false), back = pair_copy(dtable);
    Tensor far = device_put(&pair_cuda, back);
    sums_run(&pair_cpu, &s, dtable, dx, index);
    sums_run(&pair_cuda, &s, far, far_dx, far_index);
    device_take(&pair_cuda, back, far);
    pair_same_bits(dtable, back, name);
    device_drop(&pair_cuda, far_dx);
    device_drop(&pair_cuda, far_index);
    free(dx.data);
    free(dtable.data);
    free(back.data);
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

static void test_token_table_gradients_match_the_cpu_bit_for_bit(void **state)
{
    (void)state;
    pair_needed();
    check_all(false);
}

static void test_position_table_gradients_match_the_cpu_bit_for_bit(void **state)
{
    (void)state;
    pair_needed();
    check_all(true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_token_table_gradients_match_the_cpu_bit_for_bit),
        cmocka_unit_test(test_position_table_gradients_match_the_cpu_bit_for_bit),
    };
    return cmocka_run_group_tests_name("tables on cuda", tests, pair_setup, pair_teardown);
}

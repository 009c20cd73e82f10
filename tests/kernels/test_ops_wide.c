/* test_ops_wide.c -- tests a vocabulary of more than 65,536 ids: the embedding's rows, their
 * gradient and the loss of targets whose ids need more than 16 bits, on every device. An id that
 * is cut to 16 bits gives another row's values. */
#include "model/core/check.h"
#include "model/kernels/ops.h"
#include "tests/support/device/op_devices.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { VOCABULARY = 100277, COLUMNS = 100352, WIDTH = 8, TOKENS = 7 };

static const int32_t tokens[TOKENS] = {0, 65535, 65536, 65537, 100276, 34741, 100276};

static float entry(int64_t row, int64_t col)
{
    return (float)(row % 4099) + (float)col / 16;
}

static void embeddings_of_ids_above_65536_read_their_own_rows(void **state)
{
    (void)state;
    float *table = must_alloc(sizeof *table * VOCABULARY * WIDTH), x[TOKENS * WIDTH];
    for (int64_t i = 0; i < (int64_t)VOCABULARY * WIDTH; i++)
        table[i] = entry(i / WIDTH, i % WIDTH);
    int32_t id[TOKENS];
    memcpy(id, tokens, sizeof id);
    for (int i = 0; i < devices.count; i++) {
        Device *dev = &devices.item[i].device;
        if (!device_asked_for(&devices.item[i]) || devices.item[i].threads == 2) continue;
        Tensor far_table = device_put(dev, tensor_2d(table, F32, VOCABULARY, WIDTH)),
               far_id = device_put(dev, tensor_1d(id, I32, TOKENS));
        memset(x, 0, sizeof x);
        Tensor out = tensor_2d(x, F32, TOKENS, WIDTH), far_x = device_put(dev, out);
        op_token_forward(dev, far_x, far_table, far_id, 0);
        op_token_backward(dev, far_table, far_x, far_id, 0, false);
        device_take(dev, out, far_x);
        device_take(dev, tensor_2d(table, F32, VOCABULARY, WIDTH), far_table);
        device_drop(dev, far_id);
        for (int n = 0; n < TOKENS; n++)
            for (int c = 0; c < WIDTH; c++)
                assert_true(x[n * WIDTH + c] == entry(tokens[n], c));
        /* a row's gradient is the sum over its occurrences among the tokens, so 0 for most rows;
         * afterwards the table is restored */
        for (int64_t k = 0; k < (int64_t)VOCABULARY * WIDTH; k++) {
            int times = 0;
            for (int n = 0; n < TOKENS; n++)
                times += tokens[n] == k / WIDTH;
            assert_true(table[k] == (float)times * entry(k / WIDTH, k % WIDTH));
            table[k] = entry(k / WIDTH, k % WIDTH);
        }
    }
    free(table);
}

/* The logit of the target is 4, all others are 0. */
static void the_loss_of_targets_above_65536_reads_their_own_column(void **state)
{
    (void)state;
    float *logits = must_alloc(sizeof *logits * TOKENS * COLUMNS), losses[TOKENS] = {0};
    double one = 1, want = log(exp(4) + VOCABULARY - 1) - 4;
    int32_t id[TOKENS];
    memcpy(id, tokens, sizeof id);
    for (int i = 0; i < devices.count; i++) {
        Device *dev = &devices.item[i].device;
        if (!device_asked_for(&devices.item[i]) || devices.item[i].threads == 2) continue;
        memset(logits, 0, sizeof *logits * TOKENS * COLUMNS);
        for (int64_t n = 0; n < TOKENS; n++)
            logits[n * COLUMNS + tokens[n]] = 4;
        Tensor host = tensor_2d(logits, F32, TOKENS, COLUMNS), far = device_put(dev, host),
               host_losses = tensor_1d(losses, F32, TOKENS),
               far_losses = device_put(dev, host_losses),
               targets = device_put(dev, tensor_1d(id, I32, TOKENS)),
               scale = device_put(dev, tensor_1d(&one, F64, 1));
        op_loss(dev, far_losses, far, targets, VOCABULARY, scale, true);
        device_take(dev, host, far);
        device_take(dev, host_losses, far_losses);
        device_drop(dev, targets);
        device_drop(dev, scale);
        for (int64_t n = 0; n < TOKENS; n++) {
            assert_true(fabs(losses[n] - want) <= 1e-5 * want);
            for (int64_t c = 0; c < COLUMNS; c++) {
                bool target = c == tokens[n];
                double other = c < VOCABULARY ? exp(-want - 4) : 0;
                double gradient = target ? exp(-want) - 1 : other;
                assert_true(fabs(logits[n * COLUMNS + c] - gradient) <= 1e-5 * fabs(gradient));
            }
        }
    }
    free(logits);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(embeddings_of_ids_above_65536_read_their_own_rows),
        cmocka_unit_test(the_loss_of_targets_above_65536_reads_their_own_column),
    };
    return cmocka_run_group_tests_name("wide vocabularies", tests, devices_setup, devices_teardown);
}

/* test_bench_replay.c -- tests that the replay of a step's matrix products, which `./train bench
 * step` compares the step with, makes the same products: shapes, sums and types of the results. */
#include "parallel/commands/cmd_bench.h"
#include "tests/support/support.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

enum { PRODUCTS = 5, WEIGHTS = 24 };

/* The products that a replay of `list` makes, as a profile records them. */
static void replayed(const Profile *list, DType dtype, Product *product)
{
    Device dev;
    char err[256];
    DeviceOptions options = {.threads = 1, .local_ranks = 1};
    const char *name = getenv("TEST_DEVICE") ? getenv("TEST_DEVICE") : "cpu";
    OpMark mark[PRODUCTS] = {{{0}, {0}, OP_fill}};
    Profile made = {
        .product = product, .max_products = PRODUCTS, .mark = mark, .max_marks = PRODUCTS};
    if (!device_open(&dev, name, &options, err, sizeof err)) skip_because("%s: %s", name, err);
    size_t held = dev.held;
    Replay replay = replay_open(&dev, dtype, list, WEIGHTS);
    dev.profile = &made;
    replay_run(&replay, list);
    dev.profile = NULL;
    assert_int_equal(made.n_products, list->n_products);
    profile_collect(&dev, &made);
    profile_close(&dev, &made);
    replay_close(&replay);
    assert_int_equal(dev.held, held);
    device_close(&dev);
}

static void the_replay_executes_the_same_products_as_the_step(void **state)
{
    static const DType types[][2] = {{F32, F32}, {BF16, BF16}, {BF16, F32}};
    (void)state;
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        DType storage = types[t][0], gradient = types[t][1];
        Product list[PRODUCTS] = {{OP_linear_forward, 3, 4, 5, false, storage},
                                  {OP_linear_backward_input, 3, 4, 5, true, storage},
                                  {OP_linear_backward_weight, 3, 4, 5, false, gradient},
                                  {OP_linear_backward_input, 2, 6, 7, false, storage},
                                  {OP_linear_backward_weight, 2, 6, 7, true, gradient}};
        Product made[PRODUCTS];
        replayed(&(Profile){.product = list, .n_products = PRODUCTS}, storage, made);
        for (int i = 0; i < PRODUCTS; i++)
            if (made[i].op != list[i].op || made[i].n != list[i].n ||
                made[i].inputs != list[i].inputs || made[i].outputs != list[i].outputs ||
                made[i].accumulate != list[i].accumulate || made[i].result != list[i].result)
                fail_msg("%s with gradients in %s: product %d is another, in %s",
                         dtype_name(storage), dtype_name(gradient), i, dtype_name(made[i].result));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_replay_executes_the_same_products_as_the_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

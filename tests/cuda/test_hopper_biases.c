/* test_hopper_biases.c -- trains models whose attention for Hopper computes the gradients of the
 * biases of q, k and v, and compares them with the sums of a separate pass. On a GPU it needs
 * compute capability 9.0 and a program with code for sm_90a. */
#include "model/core/check.h"
#include "model/kernels/cuda/attention.h"
#include "tests/support/device/cuda_pair.h"
#include "tests/support/device/hopper_needed.h"
#include "tests/support/model/model_fixture.h"
#include "tests/support/support.h"

#include <dlfcn.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { B = 2, T = 70, MICROS = 2 };

/* Returns how many kernels of column sums an emulated device was given; 0 on a GPU. */
static int64_t passes(void)
{
    int64_t (*of)(const char *) =
        (int64_t(*)(const char *))dlsym(RTLD_DEFAULT, "emu_count_launches_of");
    return of ? of("column_sums") : 0;
}

static bool is_bias_of_heads(const Param *p)
{
    return strstr(p->name, "attn.q.bias") || strstr(p->name, "attn.k.bias") ||
           strstr(p->name, "attn.v.bias");
}

static double length_of(Tensor t)
{
    double sum = 0;
    for (int64_t i = 0; i < tensor_count(t); i++)
        sum += dtype_get(t.dtype, t.data, i) * dtype_get(t.dtype, t.data, i);
    return sqrt(sum);
}

/* Requires that the gradients of the biases of q, k and v are equal but for the order of their
 * sums, and all others bit for bit. The bound is relative to the longest of these bias gradients so
 * far, not to each one: the gradient of k's bias is zero except for rounding errors, although its
 * terms are as large as those of q's. */
static void compare(Fixture *inside, Fixture *outside, const char *name)
{
    double largest = 0;
    for (int p = 0; p < inside->table.n_params; p++) {
        const Param *param = &inside->table.param[p];
        Tensor a = fixture_fetch(inside, fixture_grad(inside, p)),
               b = fixture_fetch(outside, fixture_grad(outside, p));
        if (is_bias_of_heads(param)) largest = fmax(largest, length_of(b));
        for (int64_t i = 0; is_bias_of_heads(param) && i < tensor_count(a); i++) {
            double x = dtype_get(a.dtype, a.data, i), y = dtype_get(b.dtype, b.data, i);
            if (!(fabs(x - y) <= 1e-5 * largest))
                fail_msg("%s: gradient %lld of %s is %g inside and %g outside", name, (long long)i,
                         param->name, x, y);
        }
        if (!is_bias_of_heads(param) && memcmp(a.data, b.data, tensor_bytes(a)) != 0)
            fail_msg("%s: the gradient of %s differs in bits", name, param->name);
        free(a.data);
        free(b.data);
    }
    assert_true(largest > 0);
}

static void check_model(DType dtype, int64_t head_size, int64_t kv_heads)
{
    Fixture inside, outside;
    char *name = text_format("%s, %lld kv heads of %lld", dtype_name(dtype), (long long)kv_heads,
                             (long long)head_size);
    GptShape s = fixture_shape();
    s.D = head_size;
    s.G = kv_heads;
    s.P = T;
    s = fixture_with_dtype(s, dtype);
    fixture_open_on(&inside, "hopper", &s, B, T, MICROS, 1, 0);
    fixture_open_on(&outside, "hopper", &s, B, T, MICROS, 1, 0);
    assert_true(inside.dev.attention_sums_biases);
    outside.dev.attention_sums_biases = false;
    int64_t start = passes();
    fixture_backward(&inside);
    int64_t middle = passes();
    fixture_backward(&outside);
    int64_t end = passes(), saved = end - start > 0 ? s.L * MICROS : 0;
    assert_int_equal((end - middle) - (middle - start), saved);
    compare(&inside, &outside, name);
    fixture_close(&inside);
    fixture_close(&outside);
    free(name);
}

static void test_attention_sums_the_gradients_of_its_biases(void **state)
{
    (void)state;
    hopper_needed();
    check_model(BF16, 64, 4);
    check_model(F16, 128, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attention_sums_the_gradients_of_its_biases)};
    return cmocka_run_group_tests_name("biases in attention for hopper", tests, pair_setup,
                                       pair_teardown);
}

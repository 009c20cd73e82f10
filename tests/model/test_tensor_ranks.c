/* test_tensor_ranks.c -- the model over tensor-parallel ranks, with whole rows and with the
 * stream's rows cut (sequence parallelism): every loss and every gradient is one rank's. */
#include "model/core/check.h"
#include "tests/support/support.h"
#include "tests/support/tensor_ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

/* ---- every combination ----------------------------------------------------------------------- */

/* The i-th of all combinations of ranks and models; digits of a number of mixed radix. */
enum { COMBINATIONS = 3 * 2 * 4 * 3 * 3 * 3 * 2 * 2 * 2 * 2 * 2 };

static int digit(int *i, int radix)
{
    int d = *i % radix;
    *i /= radix;
    return d;
}

static GptShape combination(int i, RankedCase *c)
{
    /* All heads, one for all; between them fewer than ranks, as many, or several on each. */
    static const int kv[3][4] = {{12, 1, 6, 2}, {12, 1, 3, 6}, {12, 1, 2, 4}};
    static const ActivationKind activations[] = {ACTIVATION_GELU, ACTIVATION_RELU2,
                                                 ACTIVATION_SWIGLU};
    static const int vocabulary[] = {17, 127, 300};
    GptShape s = ranked_shape();
    int tp = digit(&i, 3);
    c->tp = 2 + tp;
    c->sequence_parallel = digit(&i, 2);
    s.G = kv[tp][digit(&i, 4)];
    s.activation = activations[digit(&i, 3)];
    s.recompute = (RecomputePolicy)digit(&i, 3);
    s.V = vocabulary[digit(&i, 3)];
    s.position = digit(&i, 2) ? POSITION_ROPE : POSITION_LEARNED;
    s.bias = digit(&i, 2);
    s.qk_norm = digit(&i, 2);
    s.tied = digit(&i, 2);
    s.norm.kind = digit(&i, 2) ? NORM_RMSNORM : NORM_LAYERNORM;
    s.head_chunk = s.bias ? 5 : 0;
    return s;
}

static void test_every_kind_of_model_is_that_of_one_rank(void **state)
{
    (void)state;
    /* 41 has no factor with the radices in common: what is left has every pair of choices. */
    int stride = getenv("TEST_SAMPLE") ? 41 * 11 : 41;
    for (int i = 0; i < COMBINATIONS; i += stride) {
        RankedCase c = {.dp = 1, .B = 2, .T = 6, .micros = 2, .tolerance = 1e-12};
        GptShape s = combination(i, &c);
        char what[96];
        snprintf(what, sizeof what, "%d: tp %d%s, kv %d, recompute %d", i, c.tp,
                 c.sequence_parallel ? " sp" : "", (int)s.G, (int)s.recompute);
        c.what = what;
        check_ranked(&s, &c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_kind_of_model_is_that_of_one_rank),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

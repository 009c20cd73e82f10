/* test_tensor_gradients.c -- compares the gradient of a whole small GPT on tensor-parallel ranks
 * with finite differences of the loss, which do not depend on any backward code. Also compares
 * ranks on the device named by TEST_DEVICE, in f32, with one rank on that device. */
#include "model/core/check.h"
#include "tests/support/model/tensor_ranks.h"
#include "tests/support/support.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

/* ---- finite differences ---------------------------------------------------------------------- */

/* A random direction is drawn by parameter and element, so that copies on several ranks move in the
 * same way. */
typedef struct {
    double step;          /* weights += step * direction */
    double slope, square; /* of this rank's gradients: slope along the direction, squared norm */
} Along;

static double direction(const ParamExtent *extent, int64_t i)
{
    return drawn_normal((uint64_t)extent->param + 500, param_extent_element(extent, i));
}

static void move(Fixture *f, const Shard *shard, const ParamExtent *extent, Tensor values,
                 void *context)
{
    const Along *along = context;
    double *w = (double *)values.data + (extent->offset - shard->offset);
    (void)f;
    for (int64_t i = 0; i < extent->count; i++)
        w[i] += along->step * direction(extent, i);
}

static void add_slope(Fixture *f, const Shard *shard, const ParamExtent *extent, Tensor values,
                      void *context)
{
    Along *along = context;
    const double *g = (double *)values.data + (extent->offset - shard->offset);
    if (!param_owned_here(&f->table, extent->param, &f->grid.size, &f->grid.at)) return;
    for (int64_t i = 0; i < extent->count; i++) {
        along->slope += g[i] * direction(extent, i);
        along->square += g[i] * g[i];
    }
}

static double loss_after(Fixture *f, double step)
{
    Along along = {.step = step};
    visit_extents(f, false, move, &along);
    for (int u = 0; u < f->table.n_units; u++)
        f->params->publish(f->params, u, NULL);
    return fixture_loss(f);
}

typedef struct {
    const RankedCase *c;
    GptShape shape;
} Checked;

static void check_on_rank(Comm *world, void *context)
{
    const Checked *job = context;
    Fixture f;
    Along along = {0};
    double h = 1e-5;
    ranked_open(&f, world, &job->shape, job->c);
    for (int64_t i = 0; i < f.micros * f.B * f.T; i += 5)
        f.targets[i] = -1; /* a masked target has no gradient */
    fixture_backward(&f);
    visit_extents(&f, true, add_slope, &along);
    double sums[] = {along.slope, along.square};
    comm_all_reduce(world, NULL, tensor_1d(sums, F64, 2), REDUCE_SUM);
    /* A fourth-order formula, because the error of the two-point formula would hide small
     * gradients. */
    double plus = loss_after(&f, h), minus = loss_after(&f, -2 * h);
    double plus2 = loss_after(&f, 3 * h), minus2 = loss_after(&f, -4 * h);
    double measured = (8 * (plus - minus) - (plus2 - minus2)) / (12 * h);
    if (!(fabs(measured - sums[0]) <= 1e-8 * (sqrt(sums[1]) + fabs(sums[0]))))
        rank_wrong(world, "%s: slope %.12g, differences say %.12g", job->c->what, sums[0],
                   measured);
    fixture_close(&f);
}

static void test_gradients_on_ranks_match_finite_differences(void **state)
{
    (void)state;
    for (int i = 0; i < 8; i++) {
        RankedCase c = {.dp = 1,
                        .tp = 2 + i / 4,
                        .sequence_parallel = i % 2,
                        .B = 2,
                        .T = 6,
                        .micros = 2,
                        .what = i % 2 ? "sequence parallel" : "whole rows"};
        Checked job = {.c = &c, .shape = ranked_shape()};
        job.shape.V = 300; /* every rank has some columns */
        if (i / 2 % 2) {   /* like Llama; ranks share the kv head */
            job.shape.norm.kind = NORM_RMSNORM;
            job.shape.position = POSITION_ROPE;
            job.shape.activation = ACTIVATION_SWIGLU;
            fixture_set_biases(&job.shape, 0);
            job.shape.tied = false;
            job.shape.qk_norm = true;
            job.shape.G = 1;
        }
        thread_ranks(c.tp, 60, check_on_rank, &job);
    }
}

/* ---- f32 on the device named by TEST_DEVICE -------------------------------------------------- */

static void test_ranks_on_the_tested_device_equal_one_rank(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        RankedCase c = {.dp = 1,
                        .tp = i == 3 ? 4 : 2,
                        .sequence_parallel = i % 2,
                        .B = 2,
                        .T = 6,
                        .micros = 1 + i % 2,
                        .tolerance = 2e-5,
                        .what = "f32"};
        GptShape s = fixture_with_dtype(ranked_shape(), F32);
        s.L = 1;
        s.V = i % 2 ? 300 : 37;
        s.G = i % 2 ? 1 : 12;
        s.qk_norm = i == 1;
        s.tied = i < 2;
        s.activation = i == 2 ? ACTIVATION_SWIGLU : ACTIVATION_GELU;
        s.position = i == 2 ? POSITION_ROPE : POSITION_LEARNED;
        s.recompute = (RecomputePolicy)(i % 3);
        check_ranked(&s, &c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gradients_on_ranks_match_finite_differences),
        cmocka_unit_test(test_ranks_on_the_tested_device_equal_one_rank),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test_rope.c -- tests the table of rotary angles: its frequencies without scaling, and those of
 * Llama 3.1 at its real sizes, which Hugging Face's transformers gives for the same config. */
#include "model/gpt.h"
#include "tests/support/model/model_fixture.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

enum { POSITIONS = 3, PAIRS = 64 };

/* The shape of Llama 3.1 8B as far as the table depends on it, and its scaling. */
static GptShape llama_shape(RopeScalingType type)
{
    GptShape s = fixture_llama_shape();
    s.D = (int64_t)2 * PAIRS;
    s.P = POSITIONS;
    s.rope_theta = 500000;
    s.rope_scaling = (RopeScaling){.type = type,
                                   .factor = 8,
                                   .low_freq_factor = 1,
                                   .high_freq_factor = 4,
                                   .original_max_position_embeddings = 8192};
    return s;
}

/* Fills `frequency` with those of the table for `s`: the angles of position 1, all below pi. Checks
 * that position 0 has no angle, and position 2 twice that of position 1. */
static void table_frequencies(const GptShape *s, double frequency[PAIRS])
{
    Fixture f;
    GptShape small = fixture_shape();
    fixture_open(&f, &small, 1, 2, 1, 1, 0);
    double *angle = calloc((size_t)(POSITIONS * s->D), sizeof *angle);
    rope_table_fill(&f.dev, tensor_2d(angle, F64, POSITIONS, s->D), s);
    for (int i = 0; i < PAIRS; i++) {
        double *cosine = angle + i, *sine = angle + PAIRS + i;
        frequency[i] = atan2(sine[s->D], cosine[s->D]);
        assert_true(cosine[0] == 1 && sine[0] == 0);
        assert_true(fabs(sine[2 * s->D] - sin(2 * frequency[i])) < 1e-15);
        assert_true(fabs(cosine[2 * s->D] - cos(2 * frequency[i])) < 1e-15);
    }
    free(angle);
    fixture_close(&f);
}

static void without_scaling_frequencies_are_powers_of_theta(void **state)
{
    (void)state;
    double frequency[PAIRS];
    GptShape s = llama_shape(ROPE_SCALING_NONE);
    table_frequencies(&s, frequency);
    for (int i = 0; i < PAIRS; i++)
        assert_true(fabs(frequency[i] * pow(500000, (double)i / PAIRS) - 1) < 1e-13);
}

/* Pairs 0 to 28 keep their frequencies, 35 to 63 have an eighth of them, and those in between are
 * interpolated. Computed by the formulas of transformers in f64. */
static void llama_3_scaling_gives_the_frequencies_of_transformers(void **state)
{
    static const struct {
        int pair;
        double frequency;
    } is[] = {{0, 1.0},
              {1, 0.8146172338565447},
              {20, 0.016560440080994446},
              {28, 0.0032114459947525913},
              {29, 0.002166570763503359},
              {30, 0.001371893567761138},
              {31, 0.0008567514129196321},
              {32, 0.0005248461609929547},
              {33, 0.00031269375038406517},
              {34, 0.00017850781276799638},
              {35, 9.556212353964683e-05},
              {36, 7.78465527393245e-05},
              {50, 4.411534674558404e-06},
              {63, 3.068925988914511e-07}};
    (void)state;
    double frequency[PAIRS];
    GptShape s = llama_shape(ROPE_SCALING_LLAMA3);
    table_frequencies(&s, frequency);
    for (size_t i = 0; i < sizeof is / sizeof *is; i++)
        if (!(fabs(frequency[is[i].pair] / is[i].frequency - 1) < 1e-12))
            fail_msg("pair %d: %.17g, not %.17g", is[i].pair, frequency[is[i].pair],
                     is[i].frequency);
}

/* At the two bounds themselves, the interpolation gives the frequency of either side. */
static void scaled_frequencies_have_no_step_at_the_bounds(void **state)
{
    (void)state;
    const double pi = 3.14159265358979323846;
    double near[2], frequency[PAIRS];
    for (int slow = 0; slow < 2; slow++) {
        for (int side = 0; side < 2; side++) {
            GptShape s = llama_shape(ROPE_SCALING_LLAMA3);
            /* Pair 0 makes 8192 / (2 pi) turns. The bound lies just below or above. */
            double bound = 8192 / (2 * pi) * (side ? 1 + 1e-9 : 1 - 1e-9);
            s.rope_scaling.low_freq_factor = slow ? bound : bound / 4;
            s.rope_scaling.high_freq_factor = slow ? bound * 4 : bound;
            table_frequencies(&s, frequency);
            near[side] = frequency[0];
        }
        assert_true(fabs(near[0] / near[1] - 1) < 1e-7);
        assert_true(fabs(near[0] - (slow ? 0.125 : 1)) < 1e-7);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_scaling_frequencies_are_powers_of_theta),
        cmocka_unit_test(llama_3_scaling_gives_the_frequencies_of_transformers),
        cmocka_unit_test(scaled_frequencies_have_no_step_at_the_bounds),
    };
    return cmocka_run_group_tests_name("rope", tests, NULL, NULL);
}

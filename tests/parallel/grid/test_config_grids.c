/* test_config_grids.c -- draws random models on random grids. Most of these configs are refused.
 * For the others it tests that every rank gets its part of the model, that exactly one rank counts
 * each element, and that the schedules of the stages match. */
#include "model/core/check.h"
#include "parallel/trainer/session.h"
#include "tests/support/support.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { DRAWS = 4000 };

/* The current config, printed if a failed check ends the program. */
static char looking_at[1024];

static void say_where(void)
{
    if (*looking_at) fprintf(stderr, "%s\n", looking_at);
}

/* Returns a random number from `least` to `most`. */
static long long draw(int *at, int least, int most)
{
    return least + (int)((most - least + 1) * drawn_uniform(77, (*at)++));
}

/* Returns a random number that is mostly a multiple of `unit`. */
static long long draw_multiple(int *at, long long unit, int most)
{
    return draw(at, 0, 7) ? unit * draw(at, 1, most) : draw(at, 1, most);
}

/* Returns a random config, read with as many ranks as its grid has; NULL if it is refused. */
static const Config *draw_config(int *at)
{
    static const char *const flag[] = {"false", "true"}, *const position[] = {"learned", "rope"},
                             *const activation[] = {"gelu", "swiglu"},
                             *const by[] = {"best", "parameters", "uniform"},
                             *const schedule[] = {"gpipe", "1f1b", "interleaved", "auto"};
    ConfigReport report;
    long long tp = draw(at, 1, 6), pp = draw(at, 1, 4), dp = draw(at, 1, 2),
              heads = draw_multiple(at, tp, 3);
    snprintf(
        looking_at, sizeof looking_at,
        "{\"model\": {\"num_layers\": %lld, \"hidden_size\": %lld, \"num_attention_heads\": "
        "%lld, \"num_key_value_heads\": %lld, \"head_dim\": %lld, \"intermediate_size\": %lld, "
        "\"vocab_size\": %lld, \"position\": \"%s\", \"activation\": \"%s\", \"bias\": %s, "
        "\"qk_norm\": %s, \"tie_word_embeddings\": %s}, \"data\": {\"text\": \"x\", "
        "\"seq_length\": %lld}, \"parallel\": {\"tensor\": %lld, \"pipeline\": %lld, "
        "\"sequence_parallel\": %s, \"pipeline_chunks\": %lld, \"schedule\": \"%s\"}, "
        "\"pipeline\": {\"partition\": \"%s\"}, \"train_micro_batch_size_per_gpu\": %lld, "
        "\"gradient_accumulation_steps\": %lld}",
        draw(at, 1, 9), draw(at, 1, 40), heads, draw(at, 0, 2) ? heads : draw(at, 1, 6),
        2 * draw(at, 1, 3), draw_multiple(at, tp, 20), draw(at, 2, 300), position[draw(at, 0, 1)],
        activation[draw(at, 0, 1)], flag[draw(at, 0, 1)], flag[draw(at, 0, 1)],
        flag[draw(at, 0, 1)], draw(at, 1, 12), tp, pp, flag[draw(at, 0, 1)], draw(at, 1, 3),
        schedule[draw(at, 0, 3)], by[draw(at, 0, 2)], draw(at, 1, 4), draw(at, 1, 6));
    const ConfigContext context = {.world = tp * pp * dp};
    const Config *c =
        config_parse(&context, "c.json", looking_at, strlen(looking_at), 0, NULL, &report);
    config_report_free(&report);
    return c;
}

/* Adds to *counted the elements that this rank counts, and to *layers the layers that it has (only
 * if its tp coordinate is 0). Sets *all to the number of elements of all parameters, with
 * padding. */
static void take_part(const Config *c, GridPlace size, GridPlace at, const int *border,
                      int64_t *counted, int64_t *layers, int64_t *all)
{
    GptShape whole = gpt_shape(c, size.tp);
    GptLayers part;
    ParamTable table = {0};
    LayersPart how = {.size = size,
                      .at = at,
                      .sequence_parallel = c->parallel.sequence_parallel,
                      .chunks = size.pp > 1 ? (int)c->parallel.pipeline_chunks : 1,
                      .border = size.pp > 1 ? border : NULL};
    gpt_layers_build(&part, &table, &whole, &how);
    *all = 0;
    for (int i = 0; i < table.n_params; i++) {
        const Param *p = &table.param[i];
        bool matrix = p->ndim > 1;
        *all += p->padded[0] * (matrix ? p->padded[1] : 1);
        if (home_is(&table.unit[p->unit].home, at.pp) && param_owned_here(&table, i, &size, &at))
            *counted += p->local[0] * (matrix ? p->local[1] : 1);
    }
    for (int chunk = 0; chunk < part.n_chunks; chunk++) {
        LayerRange blocks = layers_blocks(&part, chunk);
        assert_true(blocks.end > blocks.first);
        if (at.tp == 0) *layers += part.chunk[chunk].end - part.chunk[chunk].first;
    }
    StepPlan plan = step_plan_create(c, &part, size, at, c->gradient_accumulation_steps, false);
    assert_true(plan.n_uses > 0 && plan.schedule.batches > 0);
    step_plan_free(&plan);
    gpt_layers_free(&part);
    param_table_free(&table);
}

static void accepted_grids_divide_the_model_among_all_ranks(void **state)
{
    (void)state;
    int at = 0, taken = 0, several = 0, draws = getenv("TEST_SAMPLE") ? DRAWS / 5 : DRAWS;
    for (int i = 0; i < draws; i++) {
        const Config *c = draw_config(&at);
        if (c == NULL) continue;
        GridPlace size = config_grid(c, c->world);
        ScheduleSpec spec = step_spec(c);
        int runs = spec.stages * spec.chunks, *border = session_borders(c, runs);
        int64_t counted = 0, layers = 0, all = 0;
        char err[1024];
        for (int rank = 0; rank < size.pp * size.tp; rank++)
            take_part(c, size, (GridPlace){rank / size.tp, 0, 0, rank % size.tp}, border, &counted,
                      &layers, &all);
        assert_int_equal(counted, all);
        assert_int_equal(layers, c->model.num_layers + 2);
        if (!schedule_check(&spec, err, sizeof err)) fail_msg("%s", err);
        taken++;
        several += size.pp > 1 && size.tp > 1;
        free(border);
        config_free(c);
    }
    *looking_at = '\0';
    print_message("  %d grids, of which %d go together, %d with stages of several ranks\n", draws,
                  taken, several);
    assert_true(taken > draws / 10 && several > draws / 40);
}

int main(void)
{
    atexit(say_where);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(accepted_grids_divide_the_model_among_all_ranks),
    };
    return cmocka_run_group_tests_name("config grids", tests, NULL, NULL);
}

/* planted_run.c -- plants faults in runs. See planted_run.h. */
#include "tests/support/trainer/planted_run.h"

#include "model/core/check.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- faults -----------------------------------------------------------------------------------
 */

/* What goes wrong in the steps that begin at samples from .. to - 1 of the data. */
static struct {
    bool gradients;
    int64_t from, to;
    int rank;
} plant;

void (*planted_act)(Run *run);

static void spoil(Run *run)
{
    if (planted_act) planted_act(run);
    int64_t at = run->trainer.position;
    if (run->world->rank != plant.rank || at < plant.from || at >= plant.to) return;
    StepStats *sums = &run->trainer.state->stats; /* to which the step adds its own */
    if (plant.gradients)
        sums->sq_norm = (double)NAN;
    else
        sums->nats += 1e4;
}

void plant_fault(int64_t step, int64_t count, bool gradients, int ranks, int rank)
{
    plant.from = (step - 1) * PLANTED_SAMPLES;
    plant.to = plant.from + count * PLANTED_SAMPLES;
    plant.gradients = gradients;
    plant.rank = rank;
    disturbance = (Disturbance){.kind = WORK_STEP, .act = spoil, .ranks = ranks, .rank = -1};
}

/* ---- runs -------------------------------------------------------------------------------------
 */

char *planted_run(const char *run, const char *a, const char *b, const char *c, const char *d,
                  int code)
{
    const char *sets[12] = {"train_steps=26",
                            "eval.interval=0",
                            "eval.sample_interval=0",
                            "eval.sample_tokens=1",
                            "checkpoint.save_interval=5",
                            "checkpoint.keep=0"};
    const char *const more[] = {a, b, c, d};
    for (int i = 0, n = 6; i < 4; i++)
        if (more[i]) sets[n++] = more[i];
    return run_expecting(run, sets, code);
}

const PlantedGrid planted_grids[] = {
    {"one", {NULL, NULL}, 1, 0},
    {"dp", {"train_batch_size=4", "gradient_accumulation_steps=1"}, 2, 1},
    {"tp", {"parallel.tensor=2", NULL}, 2, 0},
    {"pp", {"parallel.pipeline=2", "model.num_layers=2"}, 2, 1},
    {"zero3", {"zero_optimization.stage=3", "gradient_accumulation_steps=1"}, 2, 1},
    {"fp16", {"fp16.enabled=true", NULL}, 1, 0},
};

char *planted_name(int grid, const char *what)
{
    return text_format("%s-%s", planted_grids[grid].name, what);
}

char *planted_run_on(int grid, const char *what, int64_t step, int64_t count, bool gradients,
                     const char *policy, int code)
{
    const PlantedGrid *g = &planted_grids[grid];
    char *name = planted_name(grid, what), *set = text_format("health.policy=%s", policy);
    plant_fault(step, count, gradients, g->ranks, g->rank);
    char *said = planted_run(name, g->set[0], g->set[1], set, NULL, code);
    free(set);
    free(name);
    return said;
}

/* ---- losses -----------------------------------------------------------------------------------
 */

char *planted_losses(const char *run, int64_t first)
{
    char *text = events(run, "train"), *out = text, key[32];
    snprintf(key, sizeof key, "\"step\": %lld,", (long long)first);
    char *line = strstr(text, key);
    assert_non_null(line);
    for (line = strtok(line, "\n"); line; line = strtok(NULL, "\n")) {
        char number[32], *step = strstr(line, "\"step\""), *loss = strstr(line, "\"loss\""),
                         *end = strstr(line, ", \"grad_norm\"");
        assert_true(step && loss && end);
        int n = snprintf(number, sizeof number, "%lld ", strtoll(step + 8, NULL, 10));
        size_t rest = (size_t)(end - loss);
        memmove(out + n, loss, rest);
        memcpy(out, number, (size_t)n);
        out += n + (int)rest;
        *out++ = '\n';
    }
    *out = '\0';
    return text;
}

void planted_same_losses(const char *a, const char *b, int64_t first)
{
    char *x = planted_losses(a, first), *y = planted_losses(b, first);
    assert_string_equal(x, y);
    free(x);
    free(y);
}

/* rank_run.c -- see rank_run.h. */
#include "tests/support/trainer/rank_run.h"

#include "model/core/check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { BEFORE = 1, MIDDLE = 3, AFTER = 1, MOST_SETS = 32 };

static const char base[] =
    "{\"model\": {\"num_layers\": 2, \"hidden_size\": 16, \"num_attention_heads\": 2, "
    "\"norm\": \"rmsnorm\", \"position\": \"rope\"},"
    " \"data\": {\"tokenizer_vocab_size\": 270, \"seq_length\": 8}, "
    " \"train_micro_batch_size_per_gpu\": 1, \"train_steps\": 40, \"eval\": {\"sample_tokens\": 2},"
    " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.01, \"weight_decay\": 0.1}},"
    " \"gradient_clipping\": 1.0, \"cpu\": {\"threads\": 1, \"blas\": \"builtin\"}}";

void rank_run_open(RankRun *run, const Folder *folder, int ranks, const char *const *sets)
{
    const char *all[MOST_SETS];
    char *text = text_format("data.text=%s", folder->text),
         *cache = text_format("data.cache=%s", folder->cache), err[1024];
    int n = 0;
    size_t used = (size_t)snprintf(run->name, sizeof run->name, "%d ranks", ranks);
    ConfigContext world = {.world = ranks};
    ConfigReport report = {0};
    ExitCode code;
    CHECK(ranks <= RANK_RUN_MOST, "%d ranks", ranks);
    run->ranks = ranks;
    all[n++] = text;
    all[n++] = cache;
    for (; *sets; sets++) {
        CHECK(n < MOST_SETS, "more than %d settings", n);
        all[n++] = *sets;
        if (used < sizeof run->name)
            used += (size_t)snprintf(run->name + used, sizeof run->name - used, ", %s", *sets);
    }
    run->config = config_parse(&world, "test", base, strlen(base), n, all, &report);
    if (run->config == NULL) {
        config_report_print(&report, true, stderr);
        fail_msg("the config of %s is refused", run->name);
    }
    config_report_free(&report);
    if (!data_open(run->config, &run->data, err, sizeof err, &code)) fail_msg("%s", err);
    ConfigFacts facts = {.vocab_size = run->data.vocab_size, .vocab_of = "test"};
    run->config = config_settle(run->config, &facts, err, sizeof err);
    if (run->config == NULL) fail_msg("%s", err);
    free(text);
    free(cache);
}

static void take_steps(Trainer *t, int64_t n, Trained *out)
{
    for (int64_t i = 0; i < n; i++)
        trainer_step(t);
    out->n += trainer_read_all(t, out->record + out->n);
    device_synchronize(&t->session.dev);
}

static void rank_train(Comm *world, void *context)
{
    RankRun *run = context;
    Trained *result = &run->result[world->rank];
    int64_t ahead = FEED_SLOTS / run->config->gradient_accumulation_steps;
    int64_t middle = ahead < MIDDLE ? ahead : MIDDLE;
    Opened o;
    char err[1024];
    if (!trainer_open(&o.trainer, run->config, world, err, sizeof err) ||
        !trainer_allocate(&o.trainer, run->config, &run->data, err, sizeof err)) {
        rank_wrong(world, "%s", err);
        return;
    }
    trainer_warm_up(&o.trainer);
    take_steps(&o.trainer, BEFORE, result);
    if (run->take_middle) {
        run->take_middle(world, &o.trainer, run, middle);
        middle = 0;
    }
    take_steps(&o.trainer, middle + AFTER, result);
    run->evaluated[world->rank] = trainer_evaluate(&o.trainer, 2).loss;
    run->text[world->rank] = trainer_sample(&o.trainer, run->config->eval.sample_prompt, 2);
    take_steps(&o.trainer, AFTER, result);
    trainer_run_read(&o, result);
    comm_barrier(world);
    trainer_close(&o.trainer);
}

void rank_run_train(RankRun *run)
{
    session_prepare_ranks(run->config, run->ranks);
    thread_ranks(run->ranks, 60, rank_train, run);
}

void rank_run_close(RankRun *run)
{
    for (int r = 0; r < run->ranks; r++) {
        free(run->result[r].bytes);
        free(run->text[r]);
    }
    data_close(&run->data);
    config_free(run->config);
}

void rank_runs_equal(const RankRun *a, const RankRun *b)
{
    assert_int_equal(a->ranks, b->ranks);
    for (int r = 0; r < a->ranks; r++) {
        trained_equal(&a->result[r], &b->result[r], b->name);
        assert_true(a->evaluated[r] > 0 && a->evaluated[r] == b->evaluated[r]);
        assert_string_equal(a->text[r], b->text[r]);
    }
}

/* rank_run.c -- trains a small model on several ranks and keeps the results of each. See
 * rank_run.h. */
#include "tests/support/trainer/rank_run.h"

#include "model/core/check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { BEFORE = 1, MIDDLE = 3, AFTER = 1 };

static const char base[] =
    "{\"model\": {\"num_layers\": 2, \"hidden_size\": 16, \"num_attention_heads\": 2, "
    "\"norm\": \"rmsnorm\", \"position\": \"rope\"},"
    " \"data\": {\"tokenizer_vocab_size\": 270, \"seq_length\": 8}, "
    " \"train_micro_batch_size_per_gpu\": 1, \"train_steps\": 40, \"eval\": {\"sample_tokens\": 2},"
    " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.01, \"weight_decay\": 0.1}},"
    " \"gradient_clipping\": 1.0, \"cpu\": {\"threads\": 1, \"blas\": \"builtin\"}}";

void rank_run_open(RankRun *run, const Folder *folder, int ranks, const char *const *sets)
{
    size_t used = (size_t)snprintf(run->name, sizeof run->name, "%d ranks", ranks);
    CHECK(ranks <= RANK_RUN_MOST, "%d ranks", ranks);
    run->ranks = ranks;
    for (int i = 0; sets[i] && used < sizeof run->name; i++)
        used += (size_t)snprintf(run->name + used, sizeof run->name - used, ", %s", sets[i]);
    training_of_config(&run->training, base, folder, ranks, sets);
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
    int64_t ahead = FEED_SLOTS / run->training.config->gradient_accumulation_steps;
    int64_t middle = ahead < MIDDLE ? ahead : MIDDLE;
    Opened o;
    training_open_rank(&o.trainer, world, &run->training);
    trainer_warm_up(&o.trainer);
    take_steps(&o.trainer, BEFORE, result);
    if (run->take_middle) {
        run->take_middle(world, &o.trainer, run, middle);
        middle = 0;
    }
    take_steps(&o.trainer, middle + AFTER, result);
    run->evaluated[world->rank] = trainer_evaluate(&o.trainer, 2).loss;
    run->text[world->rank] =
        trainer_sample(&o.trainer, run->training.config->eval.sample_prompt, 2);
    take_steps(&o.trainer, AFTER, result);
    trainer_run_read(&o, result);
    comm_barrier(world);
    trainer_close(&o.trainer);
}

void rank_run_train(RankRun *run)
{
    training_run(&run->training, rank_train, run);
}

void rank_run_close(RankRun *run)
{
    for (int r = 0; r < run->ranks; r++) {
        free(run->result[r].bytes);
        free(run->text[r]);
    }
    training_close(&run->training);
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

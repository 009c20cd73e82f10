/* test_score.c -- compares the losses of completions on several grids with a plain computation: a
 * decoder reads one token after the other, and this test adds up its logits in doubles. */
#include "model/core/check.h"
#include "model/generate.h"
#include "parallel/trainer/score.h"
#include "tests/support/files/choice_support.h"
#include "tests/support/trainer/trainer_fixture.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

/* T is shorter than some rows, whose contexts are cut. */
enum { EXAMPLES = 9, LONGEST = 24, B = 3, T = 14 };

typedef struct {
    ChoiceFile file;
    double *want; /* (n_rows) by the plain computation */
} Case;

static void file_make(Case *c, int64_t vocab)
{
    size_t size;
    char err[512];
    uint8_t *bytes = choice_drawn(EXAMPLES, vocab, LONGEST, &size);
    if (!choice_file_parse(&c->file, "drawn", bytes, size, vocab, err, sizeof err))
        fail_msg("%s", err);
    free(bytes);
    int64_t cut = 0;
    if (!choice_file_fits(&c->file, T, &cut, err, sizeof err)) fail_msg("%s", err);
    assert_true(cut > 0 && cut < c->file.n_rows / 2);
    assert_true(c->file.n_rows % B != 0); /* the last micro-batch is not full */
    c->want = must_calloc((size_t)c->file.n_rows, sizeof *c->want);
}

/* Returns -log softmax(logits)[target]. */
static double loss_of(Tensor logits, int32_t target)
{
    double most = -INFINITY, sum = 0;
    for (int64_t v = 0; v < logits.dim[0]; v++)
        most = fmax(most, dtype_get(logits.dtype, logits.data, v));
    for (int64_t v = 0; v < logits.dim[0]; v++)
        sum += exp(dtype_get(logits.dtype, logits.data, v) - most);
    return most + log(sum) - dtype_get(logits.dtype, logits.data, target);
}

/* Computes the losses of all rows, from the file's words. */
static void losses_plain(Case *c, Opened *o)
{
    Session *s = &o->trainer.session;
    for (int64_t i = 0; i < c->file.n_rows; i++) {
        const ChoiceRow *row = &c->file.row[i];
        int64_t context = row->context_tokens, most = T + 1 - row->completion_tokens;
        int64_t skipped = context > most ? context - most : 0;
        Decoder *d =
            decoder_create(&s->dev, &s->layers, s->params, &s->uncut, NULL, s->layers.shape.P);
        Tensor logits = NO_TENSOR;
        for (int64_t k = skipped; k < context; k++)
            logits = decoder_feed(d, &(int32_t){c->file.word[row->context + k]}, 1);
        for (int64_t k = 0; k < row->completion_tokens; k++) {
            int32_t token = c->file.word[row->completion + k];
            c->want[i] += loss_of(logits, token);
            if (k + 1 < row->completion_tokens) logits = decoder_feed(d, &token, 1);
        }
        decoder_destroy(d);
    }
}

/* Scores the file with a rank's model at its initial weights. */
static void score_on(Session *s, Case *c, double *nats)
{
    Feed feed;
    Scoring scoring;
    feed_open(&feed, &s->dev, B * T, s->room.batches);
    scoring_open(&scoring, &feed, s, &c->file, B, T);
    StepStats *stats = device_alloc(&s->dev, sizeof *stats, "the loss");
    Gpt *gpt =
        gpt_create(&s->dev, &s->layers, s->params, &s->tp, B, T, GPT_EVALUATE, s->room.slots);
    gpt_connect(gpt, scoring_batch, &scoring, stats, NULL);
    for (int again = 0; again < 2; again++) /* the second does not add to the first */
        scoring_run(&scoring, gpt, nats);
    gpt_destroy(gpt);
    scoring_close(&scoring);
    device_release(&s->dev, stats, sizeof *stats);
    feed_close(&feed);
}

typedef struct {
    Case *score;
    const Training *training;
    const char *name;
} Body;

static void body(Comm *world, void *context)
{
    Body *b = context;
    Case *c = b->score;
    Trainer trainer;
    double *got = must_calloc((size_t)c->file.n_rows, sizeof *got);
    training_open_rank(&trainer, world, b->training);
    score_on(&trainer.session, c, got);
    for (int64_t i = 0; i < c->file.n_rows; i++)
        if (!(fabs(got[i] - c->want[i]) <= 1e-11 * c->want[i]))
            rank_wrong(world, "%s, row %lld: %.17g, not %.17g", b->name, (long long)i, got[i],
                       c->want[i]);
    trainer_close(&trainer);
    free(got);
}

#define BASE                                                                                       \
    "fp64.enabled=true", "device=cpu", "train_micro_batch_size_per_gpu=3", "data.seq_length=14",   \
        "train_batch_size=null"

static const struct {
    const char *name, *set[3];
    int ranks;
} grids[] = {
    {"one rank", {0}, 1},
    {"dp 2", {0}, 2},
    {"dp 3", {"zero_optimization.stage=3"}, 3},
    {"tp 2", {"parallel.tensor=2"}, 2},
    {"tp 2 with sequence parallelism", {"parallel.tensor=2", "parallel.sequence_parallel=true"}, 2},
    {"pp 2", {"parallel.pipeline=2"}, 2},
    {"tp 2 x pp 2", {"parallel.tensor=2", "parallel.pipeline=2"}, 4},
};

static void test_losses_of_completions_equal_those_of_a_plain_computation(void **state)
{
    Opened o;
    Case c = {0};
    trainer_run_open(&o, *state, (const char *const[]){BASE, NULL});
    file_make(&c, o.config->model.vocab_size);
    losses_plain(&c, &o);
    trainer_run_close(&o);
    for (size_t k = 0; k < sizeof grids / sizeof *grids; k++) {
        Training t;
        training_of_text(&t, *state, grids[k].ranks,
                         (const char *const[]){BASE, grids[k].set[0], grids[k].set[1], NULL});
        training_run(&t, body, &(Body){&c, &t, grids[k].name});
        training_close(&t);
    }
    free(c.want);
    choice_file_close(&c.file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_losses_of_completions_equal_those_of_a_plain_computation),
    };
    return cmocka_run_group_tests_name("score", tests, trainer_folder_setup,
                                       trainer_folder_teardown);
}

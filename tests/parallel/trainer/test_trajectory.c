/* test_trajectory.c -- compares the trainer with an independent training loop over windows that
 * this test cuts itself (tests/support/trainer/own_training.h), and with recorded numbers: first
 * steps, resumes with another batch, the effect of the seed, and steps without targets. */
#include "data/sampler.h"
#include "tests/support/checkpoint/whole_pieces.h"
#include "tests/support/trainer/own_training.h"
#include "tests/support/trainer/trainer_fixture.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { T = 16, STEPS = 5, MOST_ROWS = 8, MAX_SETS = 12 };

/* A trainer in f64 over a short text, and the same model with the same weights in our own loop. */
typedef struct {
    Opened o;
    Fixture model;
    OwnTraining own;
    OwnTokens train, val;
    int64_t windows, samples; /* windows of the training data; samples used by our loop */
} Pair;

/* Writes a text that depends only on this test, because the recorded numbers depend on it. */
static void write_text(const char *path)
{
    static const char *const who[] = {"the king", "a servant", "my brother", "the people"},
                             *const did[] = {"went unto", "looked upon", "remembered"},
                             *const what[] = {"the city", "the river", "his house", "the gates",
                                              "the mountain"};
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    for (int i = 0; i < 22; i++)
        fprintf(f, "%s %s %s.\n", who[i * i % 4], did[(i * 7 + i / 5) % 3],
                what[(i * 3 + i / 7) % 5]);
    fclose(f);
}

/* Opens the fixture's run over the short text, with these settings. */
static void open_short(Opened *o, const Folder *p, const char *const *sets)
{
    const char *all[MAX_SETS] = {"fp64.enabled=true", "data.val_fraction=0.33",
                                 "scheduler.params.warmup_min_lr=0.001"};
    int n = 3;
    char *path = text_format("%s/short.txt", p->folder), *text = text_format("data.text=%s", path);
    write_text(path);
    all[n++] = text;
    while (*sets)
        all[n++] = *sets++;
    all[n] = NULL;
    trainer_run_open(o, p, all);
    free(text);
    free(path);
}

static void open_pair(Pair *p, const Folder *folder, const char *const *sets)
{
    *p = (Pair){0};
    open_short(&p->o, folder, sets);
    Trainer *t = &p->o.trainer;
    fixture_open_on(&p->model, "cpu", &t->session.layers.shape, 1, T, MOST_ROWS, 2, 0);
    for (int i = 0; i < p->model.table.n_params; i++)
        fixture_store(&p->model, fixture_weight(&p->model, i), piece_tensor(&t->weights[i]));
    own_training_open(&p->own, &p->model, p->o.config, p->o.config->train_steps);
    p->train = own_tokens_read(&p->o.data.train);
    p->val = own_tokens_read(&p->o.data.val);
    p->windows = (p->train.n - 1) / T;
}

static void close_pair(Pair *p)
{
    own_tokens_free(&p->train);
    own_tokens_free(&p->val);
    own_training_close(&p->own);
    fixture_close(&p->model);
    trainer_run_close(&p->o);
}

/* Makes a step of our loop: the next `batch` windows in the order of the seed's epochs, each as a
 * micro-batch; the gradient is that of their mean loss. */
static StepDecision own_step(Pair *p, int64_t batch)
{
    uint64_t seed = (uint64_t)p->o.config->seed;
    p->model.micros = batch;
    p->own.constants.nominal_targets = (double)(batch * T);
    p->model.scale = 1.0 / p->own.constants.nominal_targets;
    for (int64_t row = 0; row < batch; row++, p->samples++) {
        int64_t epoch = p->samples / p->windows, i = p->samples % p->windows;
        int64_t w = sampler_permute(seed, (uint64_t)epoch, p->windows, i);
        own_window(&p->model, &p->train, w, row);
    }
    return own_training_step(&p->own);
}

static void check_close(const char *what, int64_t step, double got, double want, double tolerance)
{
    if (!(fabs(got - want) <= tolerance * fabs(want)))
        fail_msg("%s of step %lld is %.17g, not %.17g", what, (long long)step, got, want);
}

static void check_step(const StepRecord *got, const StepDecision *want)
{
    assert_true(got->applied && want->apply);
    assert_true(got->lr == want->lr);
    check_close("the loss", got->step, got->loss, want->loss, 1e-12);
    check_close("the norm", got->step, got->grad_norm, want->grad_norm, 1e-12);
}

/* Evaluates the validation data again, window by window, and compares. */
static void check_evaluation(Pair *p, const EvalRecord *got)
{
    int64_t windows = (p->val.n - 1) / T;
    OwnEvaluation want = own_evaluate(&p->model, &p->val, windows, p->o.data.tokenizer);
    check_close("the validation loss", got->step, got->loss, want.nats / (double)want.targets,
                1e-12);
    check_close("bits per byte", got->step, got->bits_per_byte,
                want.nats / log(2.0) / (double)want.bytes, 1e-12);
}

/* Checks that every parameter has the value of our loop. */
static void check_weights(Pair *p)
{
    const Trainer *t = &p->o.trainer;
    for (int i = 0; i < p->model.table.n_params; i++) {
        Tensor got = fixture_fetch(&p->model, piece_tensor(&t->weights[i])),
               want = fixture_fetch(&p->model, fixture_weight(&p->model, i));
        const double *x = got.data, *y = want.data;
        for (int64_t k = 0; k < tensor_count(got); k++)
            if (!(fabs(x[k] - y[k]) <= 1e-10))
                fail_msg("%s[%lld] is %.17g, not %.17g", t->weights[i].name, (long long)k, x[k],
                         y[k]);
        free(got.data);
        free(want.data);
    }
}

/* ---- the first steps ------------------------------------------------------------------------- */

/* What the trainer computed when this test was written, in agreement with our loop: loss and norm
 * of each step, then validation loss and bits per byte. They depend on the tokenizer, the order of
 * samples, initial weights, model, schedule and optimizer. After an intended change of one of
 * these, copy the numbers that the failing test prints. */
static const double recorded[2 * STEPS + 2] = {
    5.66077961280822,   2.7207475574931688, 5.6026645463291285, 2.74397718667834,
    5.5295697192425086, 2.3360668927706985, 5.2764848964050337, 1.3766697956411855,
    4.9930423551151337, 1.3337685439648004, 4.6668581854312734, 3.5908550190153412};

static void check_recorded(const Trained *out, const EvalRecord *after)
{
    double got[2 * STEPS + 2] = {[2 * STEPS] = after->loss, after->bits_per_byte};
    for (int s = 0; s < STEPS; s++) {
        got[2 * s] = out->record[s].loss;
        got[2 * s + 1] = out->record[s].grad_norm;
    }
    int wrong = 0;
    for (int i = 0; i < 2 * STEPS + 2; i++)
        wrong += !(fabs(got[i] - recorded[i]) <= 1e-12 * recorded[i]);
    for (int i = 0; wrong && i < 2 * STEPS + 2; i++)
        print_message("    %.17g,%s\n", got[i], got[i] == recorded[i] ? "" : " // other");
    if (wrong) fail_msg("%d numbers are not those recorded", wrong);
}

static void test_bug_1_3_the_first_steps_match_an_independent_training_loop(void **state)
{
    Pair p;
    Trained out = {0};
    open_pair(&p, *state, (const char *const[]){NULL});
    /* The steps go beyond the end of an epoch, and the last validation batch is not full. */
    assert_in_range(p.windows, 5, 4 * STEPS - 2);
    assert_int_equal((p.val.n - 1) / T % 2, 1);
    EvalRecord before = trainer_evaluate(&p.o.trainer, 0);
    check_evaluation(&p, &before);
    for (int s = 0; s < STEPS; s++) {
        trainer_run_steps(&p.o, &out, s + 1);
        StepDecision want = own_step(&p, 4);
        check_step(&out.record[s], &want);
        assert_int_equal(out.record[s].samples, 4 * (s + 1));
        assert_int_equal(out.record[s].tokens, 4 * T * (s + 1));
    }
    EvalRecord after = trainer_evaluate(&p.o.trainer, 0);
    check_evaluation(&p, &after);
    check_weights(&p);
    check_recorded(&out, &after);
    close_pair(&p);
}

/* ---- resumed with another batch -------------------------------------------------------------- */

/* Makes three steps with batch size 4, saves, and resumes for three steps with another batch size
 * or micro-batch size. From the first of these on, the gradient is the mean over the new batch, and
 * the data continue where they were. */
static void check_resumed(const Folder *folder, int64_t batch, int64_t micro)
{
    Pair p;
    Trained out = {0};
    char err[1024], *run = text_format("%s/run_%d_%d", folder->folder, (int)batch, (int)micro),
                    *sets[] = {text_format("train_batch_size=%d", (int)batch),
                               text_format("train_micro_batch_size_per_gpu=%d", (int)micro), NULL};
    Checkpoint *checkpoint = NULL;
    open_pair(&p, folder, (const char *const[]){NULL});
    trainer_run_steps(&p.o, &out, 3);
    for (int s = 0; s < 3; s++)
        own_step(&p, 4);
    if (!trainer_save(&p.o.trainer, run, "{}", "{}", err, sizeof err)) fail_msg("%s", err);
    trainer_run_close(&p.o);
    open_short(&p.o, folder, (const char *const *)sets);
    Trainer *t = &p.o.trainer;
    if (!checkpoint_open_newest(&t->io, run, &checkpoint, err, sizeof err) ||
        !trainer_load(t, checkpoint, err, sizeof err))
        fail_msg("%s", err);
    checkpoint_close(checkpoint);
    for (int s = 3; s < 6; s++) {
        assert_true(trainer_state(t).loss_seed == 1.0 / (double)(batch * T));
        trainer_run_steps(&p.o, &out, s + 1);
        StepDecision want = own_step(&p, batch);
        check_step(&out.record[s], &want);
        assert_int_equal(out.record[s].samples, 12 + (s - 2) * batch);
    }
    check_weights(&p);
    free(sets[0]);
    free(sets[1]);
    free(run);
    close_pair(&p);
}

static void test_a_resume_with_another_batch_size_matches_an_independent_loop(void **state)
{
    check_resumed(*state, 4, 1);
    check_resumed(*state, 4, 4);
    check_resumed(*state, 8, 2);
    check_resumed(*state, 6, 3);
    check_resumed(*state, 2, 1);
}

/* ---- what the seed decides ------------------------------------------------------------------- */

/* Opens two trainers with settings `a` and `b`. Their first batches, first weights and first losses
 * must be equal or all differ, as `same` says. */
static void compare_first(const Folder *folder, const char *a, const char *b, bool same)
{
    Opened o[2];
    Trained out[2] = {{0}, {0}};
    Batch batch[2];
    char err[512];
    double weight[2];
    for (int i = 0; i < 2; i++) {
        open_short(&o[i], folder, (const char *const[]){i ? b : a, NULL});
        trainer_run_steps(&o[i], &out[i], 1);
        assert_true(loader_next(o[i].trainer.train, 0, 0, &batch[i], err, sizeof err));
    }
    assert_int_equal(same, memcmp(batch[0].tokens.data, batch[1].tokens.data,
                                  tensor_bytes(batch[0].tokens)) == 0);
    assert_int_equal(same, out[0].record[0].loss == out[1].record[0].loss);
    for (int i = 0; i < 2; i++) {
        trainer_run_close(&o[i]);
        open_short(&o[i], folder, (const char *const[]){i ? b : a, NULL});
        weight[i] = *(double *)o[i].trainer.weights[0].data.data;
        trainer_run_close(&o[i]);
    }
    assert_int_equal(same, weight[0] == weight[1]);
}

static void test_the_seed_determines_initial_weights_and_data_order(void **state)
{
    compare_first(*state, "seed=3", "seed=3", true);
    compare_first(*state, "seed=3", "seed=4", false);
}

/* Finds the window of each sample of an epoch, as the trainer's loader returns them. */
static void windows_of_epoch(Pair *p, int64_t epoch, int64_t *window)
{
    char err[512];
    Batch batch;
    for (int64_t i = 0; i < p->windows; i += 2) {
        assert_true(
            loader_next(p->o.trainer.train, epoch * p->windows + i, 0, &batch, err, sizeof err));
        for (int64_t row = 0; row < 2; row++) {
            const int32_t *tokens = tensor_row(batch.tokens, row);
            int64_t w = 0;
            while (w < p->windows &&
                   memcmp(tokens, p->train.id + w * T, (size_t)T * sizeof *tokens) != 0)
                w++;
            window[i + row] = w;
        }
    }
}

static void test_every_epoch_visits_each_window_once_in_another_order(void **state)
{
    Pair p;
    int64_t window[3][32];
    open_pair(&p, *state, (const char *const[]){NULL});
    assert_true(p.windows % 2 == 0 && p.windows <= 32);
    for (int epoch = 0; epoch < 3; epoch++) {
        int seen[33] = {0};
        windows_of_epoch(&p, epoch, window[epoch]);
        for (int64_t i = 0; i < p.windows; i++)
            seen[window[epoch][i]]++;
        for (int64_t w = 0; w < p.windows; w++)
            assert_int_equal(seen[w], 1);
        for (int before = 0; before < epoch; before++)
            assert_memory_not_equal(window[before], window[epoch],
                                    (size_t)p.windows * sizeof **window);
    }
    close_pair(&p);
}

/* ---- targets that do not count --------------------------------------------------------------- */

/* The trainer's feed, with the targets of some micro-batches removed. */
typedef struct {
    Trainer *trainer;
    bool without[2];
} Masked;

static GptBatch masked_batch(void *context, const Action *action)
{
    Masked *m = context;
    GptBatch batch = feed_batch(&m->trainer->feed, action);
    int32_t none[2 * T];
    memset(none, 0xFF, sizeof none); /* all bits set: -1, which is no target */
    if (m->without[action->micro])
        device_copy(&m->trainer->session.dev, batch.targets, tensor_1d(none, I32, 2 * T));
    return batch;
}

/* A step without any target changes only the position in the data, and causes no NaN. A step with
 * half of its targets uses the mean over those. */
static void test_a_step_averages_over_valid_targets_and_is_skipped_if_there_are_none(void **state)
{
    Pair p;
    Trained out = {0}, before, after;
    open_pair(&p, *state, (const char *const[]){NULL});
    Trainer *t = &p.o.trainer;
    Masked masked = {.trainer = t};
    gpt_connect(t->gpt, masked_batch, &masked, &t->state->stats, &t->state->state.loss_seed);
    trainer_run_steps(&p.o, &out, 1);
    own_step(&p, 4);
    masked.without[0] = masked.without[1] = true;
    trainer_run_read(&p.o, &before);
    trainer_run_steps(&p.o, &out, 2);
    trainer_run_read(&p.o, &after);
    assert_memory_equal(before.bytes, after.bytes, before.size);
    const StepRecord *r = &out.record[1];
    assert_true(!r->applied && !r->stop && r->loss == 0 && r->grad_norm == 0);
    assert_true(r->updates == 1 && r->skipped == 1 && r->skips_in_row == 0 && r->samples == 8);
    assert_true(after.state.loss_seed == before.state.loss_seed);
    masked.without[1] = false;
    trainer_run_steps(&p.o, &out, 3);
    p.samples = 10;
    StepDecision want = own_step(&p, 2);
    check_step(&out.record[2], &want);
    masked.without[0] = false;
    trainer_run_steps(&p.o, &out, 4);
    want = own_step(&p, 4);
    check_step(&out.record[3], &want);
    assert_int_equal(out.record[3].updates, 3);
    check_weights(&p);
    free(before.bytes);
    free(after.bytes);
    close_pair(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bug_1_3_the_first_steps_match_an_independent_training_loop),
        cmocka_unit_test(test_a_resume_with_another_batch_size_matches_an_independent_loop),
        cmocka_unit_test(test_the_seed_determines_initial_weights_and_data_order),
        cmocka_unit_test(test_every_epoch_visits_each_window_once_in_another_order),
        cmocka_unit_test(test_a_step_averages_over_valid_targets_and_is_skipped_if_there_are_none),
    };
    return cmocka_run_group_tests(tests, trainer_folder_setup, trainer_folder_teardown);
}

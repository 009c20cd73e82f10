/* test_evaluation.c -- compares evaluations with an independent sum: this test cuts the windows
 * from the token file itself and adds up logits and text in doubles
 * (tests/support/trainer/own_training.h). */
#include "tests/support/checkpoint/whole_pieces.h"
#include "tests/support/trainer/own_training.h"
#include "tests/support/trainer/trainer_fixture.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

enum { B = 4, T = 16 };

typedef struct {
    Opened o;
    Fixture model;
    OwnTokens tokens; /* tokens of the validation data */
    int64_t windows;
} Bench;

/* Writes short documents, so windows contain ends of documents, which have no text. */
static char *documents_new(const Folder *p)
{
    char *path = text_format("%s/documents.jsonl", p->folder);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    for (int i = 0; i < 150; i++)
        fprintf(f, "{\"text\": \"the %d. light was %s upon the water\"}\n", i * i % 89,
                i % 3 ? "good" : "\303\251t\303\251");
    fclose(f);
    return path;
}

static void bench_open(Bench *b, const Folder *p, const char *set)
{
    char *path = documents_new(p), *text = text_format("data.text=%s", path);
    trainer_run_open(&b->o, p,
                     (const char *const[]){"fp64.enabled=true", "train_micro_batch_size_per_gpu=4",
                                           "data.val_fraction=0.25",
                                           "scheduler.params.warmup_min_lr=0.001", text, set,
                                           NULL});
    fixture_open_on(&b->model, "cpu", &b->o.trainer.session.layers.shape, 1, T, 1, 2, 0);
    b->tokens = own_tokens_read(&b->o.data.val);
    b->windows = (b->tokens.n - 1) / T;
    free(text);
    free(path);
}

static void bench_close(Bench *b)
{
    own_tokens_free(&b->tokens);
    fixture_close(&b->model);
    trainer_run_close(&b->o);
}

static void check_close(const char *what, const char *where, double got, double want)
{
    if (!(fabs(got - want) <= 1e-12 * fabs(want)))
        fail_msg("%s, %s: %.17g, not %.17g", where, what, got, want);
}

/* Compares an evaluation of `batches` batches with our own sum over `windows` windows, at the
 * present weights. */
static void check(Bench *b, const char *where, int64_t batches, int64_t windows)
{
    const Trainer *t = &b->o.trainer;
    for (int i = 0; i < b->model.table.n_params; i++)
        fixture_store(&b->model, fixture_weight(&b->model, i), piece_tensor(&t->weights[i]));
    OwnEvaluation want = own_evaluate(&b->model, &b->tokens, windows, b->o.data.tokenizer);
    EvalRecord got = trainer_evaluate(&b->o.trainer, batches);
    if (got.targets != want.targets || got.bytes != want.bytes)
        fail_msg("%s: %lld targets of %lld bytes, not %lld of %lld", where, (long long)got.targets,
                 (long long)got.bytes, (long long)want.targets, (long long)want.bytes);
    check_close("loss", where, got.loss, want.nats / (double)want.targets);
    check_close("bits per byte", where, got.bits_per_byte,
                want.nats / log(2.0) / (double)want.bytes);
    assert_int_equal(got.step, t->steps);
}

/* Evaluates all data (0), one batch (twice), all batches but one, exactly all batches, and more
 * batches than there are. An effect that an evaluation leaves behind would show in the next one. */
static void check_all(Bench *b, const char *where)
{
    int64_t batches = (b->windows + B - 1) / B;
    check(b, where, 0, b->windows);
    check(b, where, 1, B);
    check(b, where, 1, B);
    check(b, where, batches - 1, (batches - 1) * B);
    check(b, where, batches, b->windows);
    check(b, where, batches + 5, b->windows);
}

static void test_an_evaluation_equals_an_independent_sum_over_its_windows(void **state)
{
    Bench b;
    Trained out = {0};
    bench_open(&b, *state, "seed=1");
    assert_int_not_equal(b.windows % B, 0);
    int32_t end = tokenizer_end_of_text(b.o.data.tokenizer);
    int64_t ends = 0;
    for (int64_t i = 1; i <= b.windows * T; i++)
        ends += b.tokens.id[i] == end;
    assert_true(ends > b.windows / 4);
    check_all(&b, "before the first step");
    trainer_run_steps(&b.o, &out, 3);
    check_all(&b, "after three steps");
    trainer_run_steps(&b.o, &out, 4);
    check_all(&b, "after four");
    bench_close(&b);
}

/* The validation data have fewer windows than a batch has rows. */
static void test_bug_2_an_incomplete_batch_is_evaluated_correctly(void **state)
{
    Bench b;
    bench_open(&b, *state, "data.val_fraction=0.02");
    assert_in_range(b.windows, 1, B - 1);
    check(&b, "all of it", 0, b.windows);
    check(&b, "one batch", 1, b.windows);
    bench_close(&b);
}

/* Stops an evaluation before its third batch. */
static bool stop_after_two(void *context, const Work *work)
{
    (void)context;
    return work->kind != WORK_EVALUATION || work->done < 2;
}

/* An interrupted evaluation has no result, and it affects neither the next evaluation nor later
 * steps. */
static void test_an_interrupted_evaluation_does_not_affect_later_results(void **state)
{
    Bench b, whole;
    Trained out = {0}, want = {0};
    bench_open(&b, *state, "seed=1");
    bench_open(&whole, *state, "seed=1");
    trainer_run_steps(&b.o, &out, 2);
    b.o.trainer.feed.watch = stop_after_two;
    assert_true(trainer_evaluate(&b.o.trainer, 0).cut);
    b.o.trainer.feed.watch = NULL;
    check(&b, "after one that was cut", 0, b.windows);
    b.o.trainer.feed.watch = stop_after_two;
    assert_true(trainer_evaluate(&b.o.trainer, 3).cut);
    assert_false(trainer_evaluate(&b.o.trainer, 2).cut);
    trainer_run_steps(&b.o, &out, 4);
    trainer_run_steps(&whole.o, &want, 4);
    trainer_run_read(&b.o, &out);
    trainer_run_read(&whole.o, &want);
    trained_equal(&want, &out, "evaluations cut");
    free(out.bytes);
    free(want.bytes);
    bench_close(&b);
    bench_close(&whole);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_evaluation_equals_an_independent_sum_over_its_windows),
        cmocka_unit_test(test_bug_2_an_incomplete_batch_is_evaluated_correctly),
        cmocka_unit_test(test_an_interrupted_evaluation_does_not_affect_later_results),
    };
    return cmocka_run_group_tests(tests, trainer_folder_setup, trainer_folder_teardown);
}

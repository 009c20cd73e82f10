/* test_plan_memory.c -- the memory plan knows what a trainer will hold, whatever data it gets and
 * however many micro-batches a step has. */
#include "tests/support/trainer_fixture.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

/* Fails unless the plan of a trainer over these data is what it takes, with a decoder or without.
 * Returns the plan's sum. */
static size_t check_plan(const Config *config, const DataSet *data, bool samples)
{
    char err[1024];
    Trainer t;
    assert_true(trainer_open(&t, config, NULL, err, sizeof err));
    size_t total = memory_plan(&t, data).total;
    assert_true(trainer_allocate(&t, config, data, err, sizeof err));
    trainer_warm_up(&t);
    assert_int_equal(total, t.session.dev.held);
    assert_int_equal(t.decoder != NULL, samples);
    trainer_close(&t);
    return total;
}

/* A decoder for samples is part of both, or of neither: shards without a tokenizer need none, and
 * drawn tokens, which stand for data that a dry run has not got, take the one that the run would.
 */
static void test_a_decoder_is_planned_where_one_is_made(void **state)
{
    Opened o;
    DataSet drawn;
    trainer_run_open(&o, *state, (const char *const[]){NULL});
    const GptShape *s = &o.trainer.session.layers.shape;
    DataSet bare = o.data;
    bare.tokenizer = NULL;
    data_open_random(&drawn, s->V);
    size_t all = check_plan(o.config, &o.data, true);
    assert_int_equal(check_plan(o.config, &bare, false), all - decoder_bytes(s, s->P));
    assert_int_equal(check_plan(o.config, &drawn, true), all);
    data_close(&drawn);
    trainer_run_close(&o);
}

/* Micro-batches on their way take as much memory however many a step has. */
static void test_slots_do_not_grow_with_accumulation(void **state)
{
    size_t held[2];
    for (int i = 0; i < 2; i++) {
        Opened o;
        trainer_run_open(&o, *state,
                         (const char *const[]){i ? "train_batch_size=400" : "seed=1", NULL});
        assert_int_equal(o.config->gradient_accumulation_steps, i ? 200 : 2);
        assert_int_equal(o.plan.host, trainer_run_host_bytes(&o));
        held[i] = o.trainer.session.dev.host_held;
        trainer_run_close(&o);
    }
    assert_int_equal(held[0], held[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_decoder_is_planned_where_one_is_made),
        cmocka_unit_test(test_slots_do_not_grow_with_accumulation),
    };
    return cmocka_run_group_tests(tests, trainer_folder_setup, trainer_folder_teardown);
}

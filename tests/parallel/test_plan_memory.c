/* test_plan_memory.c -- the memory plan knows what a trainer will hold, whatever data it gets and
 * however many micro-batches a step has. */
#include "parallel/plan/memory.h"
#include "tests/support/thread_ranks.h"
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

/* Each rank's own plan: a number of its own in every part. */
static void add_up(Comm *world, void *context)
{
    (void)context;
    size_t r = (size_t)world->rank + 1;
    MemoryPlan own = {.weights = r,
                      .gradients = 10 * r,
                      .buffers = 100 * r,
                      .optimizer = 1000 * r,
                      .activations = 10000 * r,
                      .scratch = 100000 * r,
                      .other = 1000000 * r,
                      .total = r == 2 ? SIZE_MAX : 1111111 * r,
                      .host = 7 * r,
                      .checkpoint = 42,
                      .ranks = 1};
    MemoryPlan all = memory_plan_of_ranks(world, &own, 0);
    MemoryPlan mine = memory_plan_of_ranks(world, &own, world->rank % 2);
    if (all.weights != 6 || all.gradients != 60 || all.buffers != 600 || all.optimizer != 6000 ||
        all.activations != 60000 || all.scratch != 600000 || all.other != 6000000 ||
        all.total != SIZE_MAX || all.host != 42 || all.ranks != 3 || all.checkpoint != 42)
        rank_wrong(world, "all take %zu, %zu on the host", all.total, all.host);
    bool odd = world->rank == 1;
    if (mine.total != (odd ? SIZE_MAX : 4444444) || mine.weights != (odd ? 2 : 4) ||
        mine.ranks != (odd ? 1 : 2))
        rank_wrong(world, "those of its device take %zu", mine.total);
}

/* The ranks of one device share its memory, and no sum wraps around. */
static void test_ranks_of_a_device_add_up(void **state)
{
    (void)state;
    thread_ranks(3, 60, add_up, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_decoder_is_planned_where_one_is_made),
        cmocka_unit_test(test_slots_do_not_grow_with_accumulation),
        cmocka_unit_test(test_ranks_of_a_device_add_up),
    };
    return cmocka_run_group_tests(tests, trainer_folder_setup, trainer_folder_teardown);
}

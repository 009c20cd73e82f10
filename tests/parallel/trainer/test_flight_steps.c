/* test_flight_steps.c -- tests the flight recorders of the ranks in training: each entry says at
 * which place in the step it was made, the entries of all ranks fit together, call by call and
 * message by message, and recording changes no bit. */
#include "tests/support/trainer/trainer_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { RANKS = 8, STEPS = 2 };

/* What a rank's flight recorder contains. */
typedef struct {
    FlightEntry entry[FLIGHT_SNAPSHOT];
    GraphGroup group[FLIGHT_GROUPS];
    int n, units;
} Noted;

static Noted noted[RANKS];
static const Training *training;

static void train_rank(Comm *world, void *context)
{
    static Trainer trainer[RANKS];
    Trainer *t = &trainer[world->rank];
    Noted *own = &noted[world->rank];
    StepRecord records[TRAINER_HISTORY];
    (void)context;
    training_open_rank(t, world, training);
    for (int i = 0; i < STEPS; i++)
        trainer_step(t);
    trainer_read_all(t, records);
    device_synchronize(&t->session.dev);
    own->n = flight_snapshot(t->session.flight, own->entry);
    own->units = t->session.table.n_units;
    flight_groups(t->session.flight, own->group);
    trainer_close(t);
}

static void train(const Folder *folder, int ranks, const char *const *sets)
{
    Training t;
    training_of_text(&t, folder, ranks, sets);
    training = &t;
    training_run(&t, train_rank, NULL);
    training_close(&t);
}

/* Returns the world rank of the group's rank i. */
static int rank_of(const GraphGroup *g, int i)
{
    return (int)(g->first + i * g->stride);
}

static bool same_ranks(const GraphGroup *a, const GraphGroup *b)
{
    return strcmp(a->name, b->name) == 0 && a->size == b->size && a->first == b->first &&
           a->stride == b->stride;
}

/* Returns rank `other`'s entry for the same call: the call with the same number in the same group
 * or, for a message, its other side. NULL: there is none. */
static const FlightEntry *other_side(int from, const FlightEntry *e, int other)
{
    const GraphGroup *g = &noted[from].group[e->group];
    for (int i = 0; i < noted[other].n; i++) {
        const FlightEntry *o = &noted[other].entry[i];
        if (o->kind != e->kind || o->group < 0 || o->call != e->call) continue;
        if (!same_ranks(g, &noted[other].group[o->group])) continue;
        if (e->kind == FLIGHT_COLLECTIVE) return o;
        bool opposite = e->code == COMM_SEND ? o->code == COMM_RECEIVE : o->code == COMM_SEND;
        if (opposite && rank_of(g, o->peer) == from) return o;
    }
    return NULL;
}

/* Compares a collective or a message of a step with those of the other ranks. */
static void check_call(int rank, const FlightEntry *e)
{
    const GraphGroup *g = &noted[rank].group[e->group];
    assert_int_equal(rank_of(g, g->rank), rank);
    for (int i = 0; i < g->size; i++) {
        int other = rank_of(g, i);
        if (other == rank || (e->kind == FLIGHT_EXCHANGE && i != e->peer)) continue;
        const FlightEntry *o = other_side(rank, e, other);
        assert_non_null(o);
        assert_int_equal(o->elements, e->elements);
        assert_int_equal(o->dtype, e->dtype);
        assert_int_equal(o->step, e->step);
        if (e->kind == FLIGHT_COLLECTIVE) assert_int_equal(o->code, e->code);
        if (e->kind == FLIGHT_COLLECTIVE) assert_int_equal(o->action, e->action);
    }
}

/* Checks the entries of a rank's steps. `stages`: there are several stages, so there must be
 * exchanges. */
static void check_rank(int rank, bool stages)
{
    int of_action[FLIGHT_ACTIONS] = {0}, of_kind[FLIGHT_KINDS] = {0}, in_unit = 0;
    for (int i = 0; i < noted[rank].n; i++) {
        const FlightEntry *e = &noted[rank].entry[i];
        assert_int_equal(e->n, noted[rank].entry[0].n + i);
        assert_true(e->finished >= e->issued);
        if (e->step == 0) continue; /* before the first step */
        assert_in_range(e->step, 1, STEPS);
        bool micro = e->action == FLIGHT_FORWARD || e->action == FLIGHT_BACKWARD;
        if (micro) assert_in_range(e->micro_batch, 0, 1);
        assert_true(e->unit >= -1 && e->unit < noted[rank].units);
        in_unit += e->unit >= 0;
        of_action[e->action]++;
        of_kind[e->kind]++;
        if (e->kind == FLIGHT_COLLECTIVE || e->kind == FLIGHT_EXCHANGE) check_call(rank, e);
    }
    assert_true(of_action[FLIGHT_FORWARD] > 0 && of_action[FLIGHT_BACKWARD] > 0);
    assert_true(of_action[FLIGHT_DECIDE] > 0 && of_action[FLIGHT_UPDATE] > 0);
    assert_int_equal(of_action[FLIGHT_TRANSFERS] > 0, stages);
    assert_int_equal(of_kind[FLIGHT_EXCHANGE] > 0, stages);
    assert_true(of_kind[FLIGHT_OP] > 100 && of_kind[FLIGHT_COPY] > 0);
    assert_true(of_kind[FLIGHT_COLLECTIVE] > 0);
    assert_true(in_unit > 50);
}

static void test_the_flight_recorder_entries_of_all_ranks_are_consistent(void **state)
{
    static const char *const grids[][3] = {
        {"parallel.pipeline=2", "parallel.tensor=2"},
        {"zero_optimization.stage=3", "parallel.tensor=2"},
        {"parallel.pipeline=2", "zero_optimization.stage=2"},
    };
    /* Two micro-batches on each of two data-parallel ranks. */
    for (size_t i = 0; i < sizeof grids / sizeof *grids; i++) {
        const char *sets[] = {"train_batch_size=8", "gradient_accumulation_steps=2",
                              "cpu.threads=1",      grids[i][0],
                              grids[i][1],          NULL};
        int ranks = i == 0 ? RANKS : RANKS / 2;
        train(*state, ranks, sets);
        for (int r = 0; r < ranks; r++)
            check_rank(r, i != 1);
    }
}

/* Trains with or without a flight recorder. */
static void train_alone(const Folder *folder, bool with, Trained *out)
{
    static const char *const sets[] = {NULL};
    Training t;
    Opened o = {0};
    *out = (Trained){0};
    training_of_text(&t, folder, 1, sets);
    training_lay_out(&o.trainer, NULL, &t);
    if (!with) {
        Session *s = &o.trainer.session;
        flight_detach(s->flight, &s->dev);
        flight_free(s->flight);
        s->flight = NULL;
    }
    training_allocate(&o.trainer, &t);
    trainer_run_steps(&o, out, 5);
    if (with) assert_true(flight_issued(o.trainer.session.flight) > 500);
    trainer_run_read(&o, out);
    trainer_close(&o.trainer);
    training_close(&t);
}

static void test_the_flight_recorder_changes_no_bit(void **state)
{
    Trained with, without;
    train_alone(*state, true, &with);
    train_alone(*state, false, &without);
    trained_equal(&with, &without, "a flight");
    free(with.bytes);
    free(without.bytes);
}

/* Returns how many finished works of this kind the flight recorder contains. */
static int works(const Flight *f, FlightWork work)
{
    static FlightEntry entry[FLIGHT_SNAPSHOT];
    int n = flight_snapshot(f, entry), found = 0;
    for (int i = 0; i < n; i++)
        found += entry[i].kind == FLIGHT_WORK && entry[i].code == work && entry[i].finished > 0;
    return found;
}

/* There is an entry for the wait for each micro-batch, in steps and in evaluations. */
static void test_the_flight_recorder_records_waits_for_data(void **state)
{
    static const char *const sets[] = {"gradient_accumulation_steps=2", NULL};
    Opened o;
    Trained out = {0};
    trainer_run_open(&o, *state, sets);
    trainer_run_steps(&o, &out, 3);
    assert_int_equal(works(o.trainer.session.flight, FLIGHT_DATA), 6);
    trainer_evaluate(&o.trainer, 2);
    assert_int_equal(works(o.trainer.session.flight, FLIGHT_DATA), 8);
    trainer_run_close(&o);
}

/* A resume calls trainer_load, which must make one entry. */
static void test_the_flight_recorder_records_reading_a_checkpoint(void **state)
{
    static const char *const sets[] = {NULL};
    const Folder *folder = *state;
    Opened o;
    char err[1024];
    Checkpoint *c;
    char *run = text_format("%s/run", folder->folder);
    trainer_run_open(&o, folder, sets);
    assert_int_equal(works(o.trainer.session.flight, FLIGHT_DISK), 0);
    if (!trainer_save(&o.trainer, run, "{}", "{}", err, sizeof err)) fail_msg("%s", err);
    if (!checkpoint_open_newest(&o.trainer.io, run, &c, err, sizeof err) || c == NULL)
        fail_msg("%s", err);
    if (!trainer_load(&o.trainer, c, err, sizeof err)) fail_msg("%s", err);
    assert_int_equal(works(o.trainer.session.flight, FLIGHT_DISK), 1);
    checkpoint_close(c);
    trainer_run_close(&o);
    free(run);
}

/* Each print to the console and each line that is written to a file makes an entry. */
static void test_the_flight_recorder_records_prints_and_writes(void **state)
{
    const Folder *folder = *state;
    char err[512];
    Metrics *m;
    Flight *f = flight_create();
    FILE *to = tmpfile();
    MetricsOptions options = {
        .run_folder = folder->folder, .resumed_step = -1, .to = to, .flight = f};
    if (!metrics_open(&m, &options, err, sizeof err)) fail_msg("%s", err);
    metrics_step(m, &(StepRecord){.step = 1, .applied = true});
    assert_int_equal(works(f, FLIGHT_DISK), 1);
    assert_int_equal(works(f, FLIGHT_CONSOLE), 0);
    metrics_report(m, &(SpeedRecord){.seconds = 1, .steps = 1, .tokens = 1, .forward = -1});
    assert_int_equal(works(f, FLIGHT_DISK), 2);
    assert_int_equal(works(f, FLIGHT_CONSOLE), 1);
    metrics_eval(m, &(EvalRecord){.step = 1, .bits_per_byte = -1}, NULL, 0);
    metrics_saved(m, &(SaveRecord){.path = "checkpoints/step_00000001"});
    assert_int_equal(works(f, FLIGHT_CONSOLE), 3);
    metrics_sample(m, 1, 0.5, "a", "b"); /* also a line of samples.txt */
    assert_int_equal(works(f, FLIGHT_DISK), 6);
    assert_int_equal(works(f, FLIGHT_CONSOLE), 4);
    metrics_close(m);
    fclose(to);
    flight_free(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_flight_recorder_entries_of_all_ranks_are_consistent),
        cmocka_unit_test(test_the_flight_recorder_changes_no_bit),
        cmocka_unit_test(test_the_flight_recorder_records_waits_for_data),
        cmocka_unit_test(test_the_flight_recorder_records_reading_a_checkpoint),
        cmocka_unit_test(test_the_flight_recorder_records_prints_and_writes),
    };
    return cmocka_run_group_tests(tests, trainer_folder_setup, trainer_folder_teardown);
}

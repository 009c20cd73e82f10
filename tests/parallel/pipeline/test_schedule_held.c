/* test_schedule_held.c -- tests how many micro-batches and buffers each stage of a schedule holds
 * at a time, for all kinds and sizes. The test derives these numbers only from the order of
 * actions. */
#include "model/core/check.h"
#include "parallel/trainer/step_plan.h"
#include "tests/support/files/data_support.h"
#include "tests/support/grid/schedule_play.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Returns the number of groups of micro-batches. Each group has at least as many micro-batches as
 * there are stages, unless a step has fewer. */
static int64_t groups_of(const ScheduleSpec *spec)
{
    return spec->micros < spec->stages ? 1 : spec->micros / spec->stages;
}

static int64_t longest_group(const ScheduleSpec *spec)
{
    return (spec->micros + groups_of(spec) - 1) / groups_of(spec);
}

/* Returns the chunks of a stage's forward passes in order; backward passes use them in reverse. The
 * caller frees the result. */
static int *chunks_in_order(const ScheduleSpec *spec)
{
    int64_t m = spec->micros, groups = groups_of(spec), n = 0;
    int *chunk = must_alloc((size_t)(m * spec->chunks) * sizeof *chunk);
    for (int64_t g = 0; g < groups; g++)
        for (int c = 0; c < spec->chunks; c++)
            for (int64_t i = 0; i < m / groups + (g >= groups - m % groups); i++)
                chunk[n++] = c;
    return chunk;
}

/* Returns the largest number of micro-batches of each chunk that a stage holds at a time: it runs
 * forward passes until the first gradient can arrive, then one backward and one forward in turn. */
static void count_slots(const ScheduleSpec *spec, int stage, int64_t *slots)
{
    int64_t all = spec->micros * spec->chunks, held[MOST_CHUNKS] = {0}, forwards = 0,
            ahead = spec->stages - stage + (spec->chunks - 1) * longest_group(spec);
    int *chunk = chunks_in_order(spec);
    if (spec->kind == SCHEDULE_GPIPE) ahead = all;
    for (int c = 0; c < spec->chunks; c++)
        slots[c] = 0;
    for (int64_t backwards = 0; backwards < all; backwards++) {
        for (; forwards < least(all, backwards + ahead); forwards++)
            held[chunk[forwards]]++;
        for (int c = 0; c < spec->chunks; c++)
            if (slots[c] < held[c]) slots[c] = held[c];
        held[spec->chunks - 1 - chunk[backwards]]--;
    }
    free(chunk);
}

/* Returns the largest number of micro-batches that are between their first and their last chunk, in
 * an evaluation. */
static int64_t count_batches(const ScheduleSpec *spec)
{
    int64_t most = 0, held = 0;
    int *chunk = chunks_in_order(spec);
    for (int64_t k = 0; k < spec->micros * spec->chunks; k++) {
        held += chunk[k] == 0;
        if (most < held) most = held;
        held -= chunk[k] == spec->chunks - 1;
    }
    free(chunk);
    return most;
}

/* Checks the slots, batches and buffers of a stage. It holds at most two groups of a chunk, or
 * parts of three if there are more chunks than micro-batches in a group. Of its buffers one is read
 * and one is written; all others of a group may have arrived and wait. */
static void check_stage(const ScheduleSpec *spec, int stage, const Schedule *s)
{
    int64_t p = spec->stages, m = spec->micros, v = spec->chunks, longest = longest_group(spec),
            slots[MOST_CHUNKS];
    count_slots(spec, stage, slots);
    for (int c = 0; c < v; c++) {
        assert_int_equal(s->slots[c], spec->evaluate || p == 1 ? 1 : slots[c]);
        if (v > 1 && v - 1 <= m / groups_of(spec)) assert_true(s->slots[c] <= 2 * longest);
    }
    if (!spec->evaluate && p > 1 && v == 1)
        assert_int_equal(slots[0], spec->kind == SCHEDULE_GPIPE ? m : least(m, p - stage));
    assert_int_equal(s->batches, spec->evaluate ? count_batches(spec) : s->slots[0]);
    assert_true(s->buffers <= (v == 1 || longest < 2 ? 4 : longest + 2));
}

static void check_held(const ScheduleSpec *spec)
{
    Schedule *all = must_calloc((size_t)spec->stages, sizeof *all);
    schedule_create_all(spec, all);
    for (int stage = 0; stage < spec->stages; stage++) {
        check_stage(spec, stage, &all[stage]);
        schedule_free(&all[stage]);
    }
    free(all);
}

static void test_slots_batches_and_buffers_match_the_order_of_actions(void **state)
{
    (void)state;
    schedules_each(check_held);
}

/* The memory for a step's schedule is enough for the schedules of the warm-up (two micro-batches
 * per stage) and of a dry run (one). Other schedules with fewer micro-batches may need more, if the
 * last group of interleaved micro-batches is longer. */
static void check_fewer(const ScheduleSpec *spec, int64_t micros)
{
    ScheduleSpec few = *spec;
    few.micros = micros;
    Schedule *all = must_calloc((size_t)spec->stages, sizeof *all),
             *some = must_calloc((size_t)spec->stages, sizeof *some);
    schedule_create_all(spec, all);
    schedule_create_all(&few, some);
    for (int stage = 0; stage < spec->stages; stage++) {
        bool fits =
            some[stage].batches <= all[stage].batches && some[stage].buffers <= all[stage].buffers;
        for (int c = 0; c < spec->chunks; c++)
            fits = fits && some[stage].slots[c] <= all[stage].slots[c];
        if (!fits)
            fail_msg("kind %d, stage %d of %d, %d chunks: %lld micro-batches need more than %lld",
                     (int)spec->kind, stage, spec->stages, spec->chunks, (long long)micros,
                     (long long)spec->micros);
        schedule_free(&all[stage]);
        schedule_free(&some[stage]);
    }
    free(all);
    free(some);
}

static void check_shorter(const ScheduleSpec *spec)
{
    if (spec->evaluate) return;
    check_fewer(spec, warm_up_micros((GridPlace){.pp = spec->stages}, spec->micros));
    check_fewer(spec, 1);
}

static void test_a_warm_up_needs_no_more_memory_than_a_step(void **state)
{
    (void)state;
    schedules_each(check_shorter);
    for (int p = 2; p <= 5; p++)
        for (int m = 17; m <= 5 * p; m++)
            schedules_of(p, m, 4, check_shorter);
}

/* Writes the room of each stage for evaluations of first to last micro-batches. */
static void room_of(const ScheduleSpec *spec, int64_t first, int64_t last, StepRoom *room)
{
    ScheduleSpec s = *spec;
    Schedule *of = must_calloc((size_t)spec->stages, sizeof *of);
    for (s.micros = first; s.micros <= last; s.micros++) {
        schedule_create_all(&s, of);
        for (int stage = 0; stage < spec->stages; stage++) {
            step_room_include(&room[stage], spec->chunks, &of[stage]);
            schedule_free(&of[stage]);
        }
    }
    free(of);
}

static void check_widest(const ScheduleSpec *spec)
{
    GridPlace size = {.pp = spec->stages};
    int64_t group = evaluate_group(size), widest = widest_evaluation(size);
    StepRoom *all = must_calloc((size_t)spec->stages, sizeof *all),
             *one = must_calloc((size_t)spec->stages, sizeof *one);
    room_of(spec, 1, group, all);
    room_of(spec, widest, widest, one);
    for (int stage = 0; stage < spec->stages; stage++) {
        bool same =
            one[stage].batches == all[stage].batches && one[stage].buffers == all[stage].buffers;
        for (int c = 0; c < spec->chunks; c++)
            same = same && one[stage].slots[c] == all[stage].slots[c];
        if (!same)
            fail_msg("stage %d of %d, %d chunks: %d batches and %d buffers, not %d and %d", stage,
                     spec->stages, spec->chunks, one[stage].batches, one[stage].buffers,
                     all[stage].batches, all[stage].buffers);
        free(all[stage].slots);
        free(one[stage].slots);
    }
    free(all);
    free(one);
}

static void test_no_evaluation_needs_more_memory_than_widest_evaluation_says(void **state)
{
    (void)state;
    for (int stages = 1; stages <= 16; stages++)
        for (int kind = 0; kind <= SCHEDULE_INTERLEAVED; kind++)
            for (int chunks = 1; chunks <= (stages > 1 && kind == SCHEDULE_INTERLEAVED ? 6 : 1);
                 chunks++)
                check_widest(&(ScheduleSpec){(ScheduleKind)kind, stages, chunks, 0, true});
    check_widest(&(ScheduleSpec){SCHEDULE_1F1B, 64, 1, 0, true});
    check_widest(&(ScheduleSpec){SCHEDULE_INTERLEAVED, 48, 2, 0, true});
}

/* Random sizes beyond the range that is tested completely. */
static void test_slots_of_random_schedules_match_the_order_of_actions(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < 30; i++) {
        int p = 1 + (int)(drawn(7, 2 * i) % 64);
        schedules_of(p, 1 + (int64_t)(drawn(7, 2 * i + 1) % 120), 2, check_held);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slots_batches_and_buffers_match_the_order_of_actions),
        cmocka_unit_test(test_slots_of_random_schedules_match_the_order_of_actions),
        cmocka_unit_test(test_a_warm_up_needs_no_more_memory_than_a_step),
        cmocka_unit_test(test_no_evaluation_needs_more_memory_than_widest_evaluation_says),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test_schedule.c -- tests how long schedules of all kinds and sizes take, how they are drawn, and
 * which faults the check at a run's start finds. test_schedule_held tests how much memory stages
 * need, and test_schedule_played tests that schedules complete. */
#include "parallel/pipeline/schedule_order.h"
#include "tests/support/files/data_support.h"
#include "tests/support/grid/schedule_faults.h"
#include "tests/support/grid/schedule_play.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include <cmocka.h>

/* With any kind of schedule, a single stage runs each backward pass at once and needs memory for
 * one micro-batch. */
static void test_one_stage_alternates_forward_and_backward(void **state)
{
    (void)state;
    for (int kind = SCHEDULE_GPIPE; kind <= SCHEDULE_INTERLEAVED; kind++) {
        ScheduleSpec spec = {.kind = (ScheduleKind)kind, .stages = 1, .chunks = 1, .micros = 5};
        Schedule s = schedule_create(&spec, 0);
        assert_int_equal(s.n, 10);
        for (int i = 0; i < 10; i++) {
            const Action *a = &s.action[i];
            assert_int_equal(a->kind, i % 2 ? ACT_BACKWARD : ACT_FORWARD);
            assert_int_equal(a->micro, i / 2);
            assert_true(a->slot == 0 && a->batch == 0 && a->in == -1 && a->out == -1);
        }
        assert_true(s.slots[0] == 1 && s.batches == 1 && s.buffers == 0 && s.n_transfers == 0);
        schedule_free(&s);
    }
}

/* ---- time ------------------------------------------------------------------------------------ */

/* With p stages, v chunks and m micro-batches: a stage begins when its first micro-batch has
 * arrived and then works without a pause, so its idle time is (p - 1) / (v m) of its work. With
 * fewer micro-batches than stages, the path of one micro-batch through all layer ranges takes
 * longer than that. No schedule can be faster. This holds for any cost of actions. With several
 * chunks it holds only if a backward pass costs two forward passes, because the groups are arranged
 * for that case. */
static void check_bubble(const ScheduleSpec *spec)
{
    static const double cost[][2] = {{1, 2}, {1, 1}, {1, 3}, {2, 3}};
    double p = spec->stages, v = spec->chunks, m = (double)spec->micros;
    double least_bubble = p == 1 ? 0 : fmax((p - 1) / (v * m), (p * v + m - 1) / (v * m) - 1);
    for (int i = 0; i < 4; i++) {
        double bubble = played_bubble(spec, cost[i][0], cost[i][1]);
        if (i == 0 || v == 1 ? fabs(bubble - least_bubble) > 1e-12 : bubble < least_bubble - 1e-12)
            fail_msg("kind %d, %g stages of %g, %g micro-batches, costs %g and %g: %g, not %g",
                     (int)spec->kind, p, v, m, cost[i][0], cost[i][1], bubble, least_bubble);
    }
    /* The program prints the bubble as a share of the whole time. */
    double share = schedule_bubble_share(spec);
    if (fabs(share - least_bubble / (1 + least_bubble)) > 1e-12)
        fail_msg("kind %d, %g stages of %g, %g micro-batches: %g of the time, not %g",
                 (int)spec->kind, p, v, m, share, least_bubble / (1 + least_bubble));
}

static void test_the_bubble_is_the_smallest_possible(void **state)
{
    (void)state;
    schedules_each(check_bubble);
    print_message(
        "bubble relative to work, 8 micro-batches\nstages   gpipe    1f1b  2 chunks  4 chunks\n");
    for (int p = 2; p <= 8; p++) {
        double b[4];
        for (int i = 0; i < 4; i++) {
            ScheduleKind kind = i == 0   ? SCHEDULE_GPIPE
                                : i == 1 ? SCHEDULE_1F1B
                                         : SCHEDULE_INTERLEAVED;
            ScheduleSpec spec = {kind, p, i < 2 ? 1 : 2 * (i - 1), 8, false};
            b[i] = played_bubble(&spec, 1, 2);
        }
        print_message("%6d %6.1f%% %6.1f%% %8.1f%% %8.1f%%\n", p, 100 * b[0], 100 * b[1],
                      100 * b[2], 100 * b[3]);
    }
}

/* ---- the check at a run's start -------------------------------------------------------------- */

/* Faults of an action in a schedule. */
typedef enum {
    WRONG_MICRO,
    WRONG_KIND,
    WRONG_SLOT,
    WRONG_BATCH,
    WRONG_IN,
    WRONG_OUT,
    WRONG_TAG,
    WRONG_PEER,
    WRONG_SIDE,
    WRONG_BUFFER,
    MESSAGES_SWAPPED,
    LEFT_OUT,
    TRANSFER_LEFT_OUT,
    BEYOND,
    FAULTS = BEYOND + SCHEDULE_BEYONDS
} Fault;

/* Exchanges this message with a later one from the same stage. */
static bool swap_messages(Schedule *s, Transfer *t)
{
    if (t->send) return false;
    for (Transfer *u = t + 1; u < s->transfer + s->n_transfers; u++) {
        if (u->send || u->peer != t->peer) continue;
        Transfer kept = *t;
        *t = *u;
        *u = kept;
        return true;
    }
    return false;
}

/* Injects a fault; returns false if it is impossible at this action. */
static bool plant(Schedule *s, int64_t at, Fault fault, const ScheduleSpec *spec)
{
    Action *a = &s->action[at];
    bool exchange = a->kind == ACT_EXCHANGE;
    Transfer *t = exchange ? &s->transfer[a->transfer] : NULL;
    if (fault >= BEYOND) return schedule_set_beyond(s, at, (int)(fault - BEYOND), spec);
    if (fault != LEFT_OUT && exchange != (fault >= WRONG_TAG)) return false;
    switch (fault) {
    case WRONG_MICRO: a->micro++; break;
    case WRONG_KIND: a->kind = a->kind == ACT_FORWARD ? ACT_BACKWARD : ACT_FORWARD; break;
    case WRONG_SLOT: a->slot = (a->slot + 1) % s->slots[a->chunk]; return s->slots[a->chunk] > 1;
    case WRONG_BATCH: a->batch = (a->batch + 1) % s->batches; return s->batches > 1;
    case WRONG_IN: a->in = (a->in + 1) % s->buffers; break;
    case WRONG_OUT: a->out = (a->out + 1) % s->buffers; break;
    case WRONG_TAG: t->tag++; break;
    case WRONG_PEER: t->peer = (t->peer + 1) % spec->stages; break;
    case WRONG_SIDE: t->send = !t->send; break;
    case WRONG_BUFFER: t->buffer = (t->buffer + 1) % s->buffers; break;
    case TRANSFER_LEFT_OUT: a->n_transfers--; break;
    case MESSAGES_SWAPPED: return swap_messages(s, t);
    default: memmove(a, a + 1, (size_t)(--s->n - at) * sizeof *a);
    }
    return true;
}

static void test_bug_29_the_check_finds_every_injected_fault(void **state)
{
    (void)state;
    static const ScheduleSpec specs[] = {{SCHEDULE_GPIPE, 3, 1, 4, false},
                                         {SCHEDULE_1F1B, 3, 1, 5, false},
                                         {SCHEDULE_INTERLEAVED, 2, 2, 3, false},
                                         {SCHEDULE_INTERLEAVED, 3, 2, 6, false},
                                         {SCHEDULE_INTERLEAVED, 3, 2, 4, true}};
    int planted = 0;
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
        for (int stage = 0; stage < specs[i].stages; stage++) {
            int64_t n = 1;
            for (int64_t k = 0; k < n * FAULTS; k++) {
                Schedule s[3];
                char err[256] = "";
                for (int r = 0; r < specs[i].stages; r++)
                    s[r] = schedule_create(&specs[i], r);
                n = s[stage].n;
                if (plant(&s[stage], k / FAULTS, (Fault)(k % FAULTS), &specs[i])) {
                    planted++;
                    if (schedule_check_all(&specs[i], s, err, sizeof err))
                        fail_msg("schedule %zu, stage %d, action %lld: fault %lld is not seen", i,
                                 stage, (long long)(k / FAULTS), (long long)(k % FAULTS));
                    assert_non_null(strstr(err, ": stage "));
                }
                for (int r = 0; r < specs[i].stages; r++)
                    schedule_free(&s[r]);
            }
        }
    }
    assert_true(planted > 1000);
}

/* Micro-batches 0 and 1 are exchanged on all stages alike: the schedule completes, but gradients
 * are added in another order. */
static void test_the_check_detects_micro_batches_in_the_wrong_order(void **state)
{
    (void)state;
    char err[256] = "";
    ScheduleSpec spec = {SCHEDULE_GPIPE, 2, 1, 2, false};
    Schedule s[2];
    schedule_create_all(&spec, s);
    assert_true(schedule_check_all(&spec, s, err, sizeof err));
    for (int stage = 0; stage < 2; stage++) {
        for (int64_t i = 0; i < s[stage].n; i++)
            if (s[stage].action[i].kind != ACT_EXCHANGE) s[stage].action[i].micro ^= 1;
        for (int64_t i = 0; i < s[stage].n_transfers; i++)
            s[stage].transfer[i].tag ^= 4; /* two layer ranges, two directions */
    }
    assert_false(schedule_check_all(&spec, s, err, sizeof err));
    assert_non_null(strstr(err, "micro-batch 1 in place of 0"));
    schedule_free(&s[0]);
    schedule_free(&s[1]);
}

/* The returned number of micro-batches halves the bubble, and no smaller number does. */
static void test_the_smallest_number_of_micro_batches_for_half_the_bubble_is_found(void **state)
{
    (void)state;
    for (int i = 0; i < 3 * 4 * 5; i++) {
        ScheduleSpec spec = {.kind = (ScheduleKind)(i % 3),
                             .stages = 2 + i / 3 % 4,
                             .chunks = i % 3 == SCHEDULE_INTERLEAVED ? 2 : 1,
                             .micros = 1 + i / 12};
        double half = schedule_bubble_share(&spec) / 2;
        int64_t enough = schedule_micros_for_half_bubble(&spec);
        assert_true(enough > spec.micros);
        for (; spec.micros < enough; spec.micros++)
            assert_true(schedule_bubble_share(&spec) > half + 1e-9);
        assert_true(schedule_bubble_share(&spec) <= half + 1e-9);
    }
}

/* Random sizes beyond the range that is tested completely. */
static void test_the_bubble_of_random_sizes_is_the_smallest_possible(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < 30; i++) {
        int kind = (int)(drawn(3, 4 * i) % 3), p = 1 + (int)(drawn(3, 4 * i + 1) % 64),
            v = kind == SCHEDULE_INTERLEAVED ? 1 + (int)(drawn(3, 4 * i + 2) % 8) : 1;
        ScheduleSpec spec = {(ScheduleKind)kind, p, v, 1 + (int)(drawn(3, 4 * i + 3) % 120),
                             i % 6 == 0};
        check_bubble(&spec);
    }
}

/* The time to build a schedule is linear in the micro-batches: 100,000 take a fraction of a second.
 * The stages then need no more memory than with 16. */
static void test_100000_micro_batches_need_at_most_16_slots_and_8_buffers(void **state)
{
    (void)state;
    enum { MANY = 100000 };
    for (int kind = SCHEDULE_1F1B; kind <= SCHEDULE_INTERLEAVED; kind++) {
        ScheduleSpec spec = {(ScheduleKind)kind, 8, kind == SCHEDULE_1F1B ? 1 : 4, MANY, false};
        Schedule s = schedule_create(&spec, 3);
        assert_int_equal(s.n_transfers, 4 * MANY * spec.chunks);
        assert_in_range(s.n, 4 * MANY * spec.chunks, 5 * MANY * spec.chunks);
        assert_in_range(s.slots[0], 1, 16);
        assert_in_range(s.buffers, 1, 8);
        schedule_free(&s);
    }
}

static int64_t most_memory(void)
{
    struct rusage usage;
    assert_int_equal(getrusage(RUSAGE_SELF, &usage), 0);
    return usage.ru_maxrss * 1024;
}

/* Computing the bubble and drawing the beginning allocate no memory for the actions. */
static void test_the_bubble_and_drawing_of_a_long_schedule_need_less_than_4_mib(void **state)
{
    (void)state;
    enum { MANY = 300000, LITTLE = 4 << 20 };
    const ScheduleSpec spec = {SCHEDULE_1F1B, 8, 1, MANY, false};
    char text[4096] = "";
    FILE *to = fmemopen(text, sizeof text, "w");
    assert_non_null(to);
    int64_t before = most_memory();
    double share = schedule_bubble_share(&spec);
    schedule_draw(&spec, to, 120);
    fclose(to);
    assert_true(fabs(share - 7.0 / (MANY + 7)) < 1e-12);
    assert_true(most_memory() - before < LITTLE);
}

/* ---- the drawing ----------------------------------------------------------------------------- */

static void check_drawing(const ScheduleSpec *spec, int width, const char *expected)
{
    char text[4096] = "";
    FILE *to = fmemopen(text, sizeof text, "w");
    assert_non_null(to);
    schedule_draw(spec, to, width);
    fclose(to);
    if (strcmp(text, expected) != 0) fail_msg("\n%snot\n%s", text, expected);
}

static void test_a_schedule_is_drawn_with_one_line_per_stage(void **state)
{
    (void)state;
    ScheduleSpec spec = {SCHEDULE_1F1B, 3, 1, 4, false};
    check_drawing(&spec, 0,
                  "stage 0  F0 F1 F2             B0--- F3 B1---    B2---    B3---\n"
                  "stage 1     F0 F1       B0--- F2 B1--- F3 B2---    B3---\n"
                  "stage 2        F0 B0--- F1 B1--- F2 B2--- F3 B3---\n");
    check_drawing(&spec, 40,
                  "stage 0  F0 F1 F2             B0--- ...\n"
                  "stage 1     F0 F1       B0--- F2 B1 ...\n"
                  "stage 2        F0 B0--- F1 B1--- F2 ...\n");
    check_drawing(&(ScheduleSpec){SCHEDULE_INTERLEAVED, 2, 2, 12, false}, 60,
                  "stage 0  F0a  F1a  F0b  F1b            B0b------ F2a  ...\n"
                  "stage 1       F0a  F1a  F0b  B0b------ F1b  B1b------ ...\n");
    check_drawing(&(ScheduleSpec){SCHEDULE_GPIPE, 2, 1, 3, true}, 0,
                  "stage 0  E0 E1 E2\n"
                  "stage 1     E0 E1 E2\n");
    check_drawing(&spec, 1,
                  "(a column a tick; F forward, B- backward)\n"
                  "stage 0  F...\n"
                  "stage 1   ...\n"
                  "stage 2   ...\n");
}

/* With many stages the numbers of micro-batches are omitted, because otherwise no backward pass
 * would fit into the line. */
static void test_drawings_of_many_stages_omit_the_numbers_of_micro_batches(void **state)
{
    (void)state;
    check_drawing(&(ScheduleSpec){SCHEDULE_1F1B, 11, 1, 11, false}, 80,
                  "(a column a tick; F forward, B- backward)\n"
                  "stage 0   FFFFFFFFFFF                    B- B- B- B- B- B- B- B- B- B- B-\n"
                  "stage 1    FFFFFFFFFF                  B-FB- B- B- B- B- B- B- B- B- B-\n"
                  "stage 2     FFFFFFFFF                B-FB-FB- B- B- B- B- B- B- B- B-\n"
                  "stage 3      FFFFFFFF              B-FB-FB-FB- B- B- B- B- B- B- B-\n"
                  "stage 4       FFFFFFF            B-FB-FB-FB-FB- B- B- B- B- B- B-\n"
                  "stage 5        FFFFFF          B-FB-FB-FB-FB-FB- B- B- B- B- B-\n"
                  "stage 6         FFFFF        B-FB-FB-FB-FB-FB-FB- B- B- B- B-\n"
                  "stage 7          FFFF      B-FB-FB-FB-FB-FB-FB-FB- B- B- B-\n"
                  "stage 8           FFF    B-FB-FB-FB-FB-FB-FB-FB-FB- B- B-\n"
                  "stage 9            FF  B-FB-FB-FB-FB-FB-FB-FB-FB-FB- B-\n"
                  "stage 10            FB-FB-FB-FB-FB-FB-FB-FB-FB-FB-FB-\n");
    check_drawing(&(ScheduleSpec){SCHEDULE_INTERLEAVED, 4, 3, 8, false}, 48,
                  "(a column a tick; a forward of chunk a, A- backward)\n"
                  "stage 0  aaaabbbbcccc      C-aC-aC-aC-aB-bB-b...\n"
                  "stage 1   aaaabbbbccc    C-cC-aC-aC-aB-aB-bB-...\n"
                  "stage 2    aaaabbbbcc  C-cC-cC-aC-aB-aB-aB-bB...\n"
                  "stage 3     aaaabbbbcC-cC-cC-cC-aB-aB-aB-aB-b...\n");
    check_drawing(&(ScheduleSpec){SCHEDULE_1F1B, 5, 1, 14, true}, 24,
                  "(a column a tick; a letter a micro-batch)\n"
                  "stage 0  EEEEEEEEEEEE...\n"
                  "stage 1   EEEEEEEEEEE...\n"
                  "stage 2    EEEEEEEEEE...\n"
                  "stage 3     EEEEEEEEE...\n"
                  "stage 4      EEEEEEEE...\n");
    /* The first micro-batch has passed through all chunks at the end of the last one. */
    check_drawing(&(ScheduleSpec){SCHEDULE_INTERLEAVED, 2, 2, 8, true}, 26,
                  "(a column a tick; a letter a micro-batch)\n"
                  "stage 0  aabbaabbaabbaabb\n"
                  "stage 1   aabbaabbaabbaabb\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        /* Runs first, because it measures the peak memory of the whole process. */
        cmocka_unit_test(test_the_bubble_and_drawing_of_a_long_schedule_need_less_than_4_mib),
        cmocka_unit_test(test_one_stage_alternates_forward_and_backward),
        cmocka_unit_test(test_the_bubble_is_the_smallest_possible),
        cmocka_unit_test(test_the_smallest_number_of_micro_batches_for_half_the_bubble_is_found),
        cmocka_unit_test(test_bug_29_the_check_finds_every_injected_fault),
        cmocka_unit_test(test_the_check_detects_micro_batches_in_the_wrong_order),
        cmocka_unit_test(test_the_bubble_of_random_sizes_is_the_smallest_possible),
        cmocka_unit_test(test_100000_micro_batches_need_at_most_16_slots_and_8_buffers),
        cmocka_unit_test(test_a_schedule_is_drawn_with_one_line_per_stage),
        cmocka_unit_test(test_drawings_of_many_stages_omit_the_numbers_of_micro_batches),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

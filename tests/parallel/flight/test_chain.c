/* test_chain.c -- where a hang begins, its cause and who waits for whom, in made-up files of flight
 * recorders (rings), of ranks whose devices are synchronous: a call is complete when it returns. */
#include "tests/support/flight/planted_case.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>

#define NOT_ENDED NAN
/* LATE: for how many seconds a rank has been late. WAIT: for how many seconds the others have
 * waited for it. */
static const double LATE = 20, WAIT = 18;

/* ---- calls that are complete when they return --------------------------------------------------
 */

/* All ranks but `late` (-1: all ranks) wait in call 17 of the group of all ranks. */
static void others_wait(PlantedRing *ring, int ranks, int late)
{
    for (int r = 0; r < ranks; r++) {
        planted_collective(&ring[r], "all-reduce", "compute", 0, 16, 21, 20.5);
        if (r != late)
            planted_collective(&ring[r], "all-reduce", "compute", 0, 17, WAIT, NOT_ENDED);
    }
}

static void in_data(PlantedRing *ring)
{
    others_wait(ring, 4, 2);
    planted_entry(&ring[2], "work", "data", "host", LATE, NOT_ENDED);
}

static void in_save(PlantedRing *ring)
{
    others_wait(ring, 4, 1);
    ring[1].action = "between steps";
    planted_entry(&ring[1], "work", "save", "host", LATE, NOT_ENDED);
    planted_entry(&ring[1], "work", "disk", "host", LATE, NOT_ENDED);
}

static void on_console(PlantedRing *ring)
{
    others_wait(ring, 4, 0);
    ring[0].action = "between steps";
    planted_entry(&ring[0], "work", "console", "host", LATE, NOT_ENDED);
}

static void in_an_op(PlantedRing *ring)
{
    others_wait(ring, 4, 3);
    planted_entry(&ring[3], "op", "linear_forward", "compute", LATE, NOT_ENDED);
}

static void between_entries(PlantedRing *ring)
{
    others_wait(ring, 4, 3);
}

/* An entry of kind "work" encloses the calls that are made in it: the save of rank 0 waits in a
 * barrier for rank 1, which waits for its data. */
static void save_waits_for_data(PlantedRing *ring)
{
    planted_entry(&ring[0], "work", "save", "host", LATE, NOT_ENDED);
    planted_collective(&ring[0], "barrier", "host", 0, 1, WAIT, NOT_ENDED);
    planted_entry(&ring[1], "work", "data", "host", LATE, NOT_ENDED);
}

/* The same with an evaluation instead of the save, and with a call that the device carries out. */
static void evaluation_waits_for_data(PlantedRing *ring)
{
    planted_entry(&ring[0], "work", "evaluation", "host", LATE, NOT_ENDED);
    planted_collective(&ring[0], "all-reduce", "compute", 0, 1, WAIT, NOT_ENDED);
    planted_entry(&ring[1], "work", "data", "host", 19, NOT_ENDED);
}

/* Groups of two ranks: rank 3 computes; rank 2 waits for it in their tp group, and rank 1 in their
 * dp group. Rank 0 waits for rank 2 in their dp group. */
static void along_groups(PlantedRing *ring)
{
    for (int r = 0; r < 4; r++) {
        planted_group(&ring[r], 1, "dp", r % 2, 2, 2);
        planted_group(&ring[r], 2, "tp", r / 2 * 2, 1, 2);
    }
    planted_collective(&ring[0], "all-reduce", "compute", 1, 5, WAIT, NOT_ENDED);
    planted_collective(&ring[2], "all-gather", "compute", 2, 7, WAIT, NOT_ENDED);
    planted_collective(&ring[1], "all-reduce", "compute", 1, 8, WAIT, NOT_ENDED);
    planted_entry(&ring[3], "op", "attention_forward", "compute", LATE, NOT_ENDED);
}

/* Three pipeline stages: rank 0 sends to rank 1, which still receives from rank 2, which
 * computes. */
static void along_messages(PlantedRing *ring)
{
    for (int r = 0; r < 3; r++)
        planted_group(&ring[r], 1, "pp", 0, 1, 3);
    planted_message(&ring[0], true, "compute", 1, 1, 4, WAIT, NOT_ENDED);
    planted_message(&ring[1], false, "compute", 1, 2, 9, WAIT, NOT_ENDED);
    planted_message(&ring[2], true, "compute", 1, 1, 8, 19, 18.5);
    planted_entry(&ring[2], "op", "linear_forward", "compute", 18, NOT_ENDED);
}

/* Rank 1 exchanges two messages as one group of calls: rank 0 takes part in its message, but rank
 * 2, which waits for its data, does not. */
static void in_a_group_of_messages(PlantedRing *ring)
{
    for (int r = 0; r < 3; r++)
        planted_group(&ring[r], 1, "pp", 0, 1, 3);
    planted_message(&ring[1], true, "compute", 1, 0, 4, WAIT, NOT_ENDED);
    planted_message(&ring[1], false, "compute", 1, 2, 9, WAIT, NOT_ENDED);
    planted_message(&ring[0], false, "compute", 1, 1, 4, WAIT, NOT_ENDED);
    planted_entry(&ring[2], "work", "data", "host", LATE, NOT_ENDED);
}

static void asleep_in_a_collective(PlantedRing *ring)
{
    for (int r = 0; r < 3; r++) {
        planted_collective(&ring[r], "broadcast", "compute", 0, 3, WAIT, r == 1 ? NOT_ENDED : 17.9);
        if (r != 1) planted_collective(&ring[r], "all-reduce", "compute", 0, 4, 17, NOT_ENDED);
    }
}

static void asleep_in_a_receive(PlantedRing *ring)
{
    planted_message(&ring[1], false, "host", 0, 0, 6, WAIT, NOT_ENDED);
    planted_message(&ring[0], true, "host", 0, 1, 6, 17.5, 17.4);
    planted_collective(&ring[0], "barrier", "host", 0, 3, 17, NOT_ENDED);
}

static void no_answer(PlantedRing *ring)
{
    others_wait(ring, 4, -1);
}

/* Rank 3 does not answer, and rank 1 is in its loader: that rank 3 does not answer counts as the
 * cause. */
static void no_answer_and_data(PlantedRing *ring)
{
    others_wait(ring, 4, 1);
    planted_entry(&ring[1], "work", "data", "host", LATE, NOT_ENDED);
}

static void other_elements(PlantedRing *ring)
{
    for (int r = 0; r < 4; r++)
        planted_collective(&ring[r], r == 2 ? "all-gather" : "all-reduce", "compute", 0, 17, WAIT,
                           NOT_ENDED);
}

static void two_differ(PlantedRing *ring)
{
    planted_collective(&ring[0], "all-reduce", "compute", 0, 17, WAIT, NOT_ENDED);
    planted_collective(&ring[1], "reduce-scatter", "compute", 0, 17, WAIT, NOT_ENDED);
}

/* Rank 1 is in a call of the pair (ranks 0 and 1), and the others are in a call of the group of all
 * ranks. */
static void passed_each_other(PlantedRing *ring)
{
    for (int r = 0; r < 3; r++) {
        if (r < 2) planted_group(&ring[r], 1, "pair", 0, 1, 2);
        planted_collective(&ring[r], "all-reduce", "compute", r == 1, 17, WAIT, NOT_ENDED);
    }
}

/* The same, but rank 1 is in a call of the first group, and the others are in a call of the second.
 * So the call of rank 1, in which the fewest ranks wait, is listed first. */
static void passed_the_others(PlantedRing *ring)
{
    for (int r = 0; r < 3; r++) {
        planted_group(&ring[r], 1, "dp", 0, 1, 3);
        planted_collective(&ring[r], "all-reduce", "compute", r != 1, 17, WAIT, NOT_ENDED);
    }
}

static const PlantedCase at_once[] = {
    {"data",
     4,
     in_data,
     {0},
     CAUSE_DATA,
     {2},
     1,
     "rank 2 is late: it has been in the wait for its training data for 20 s, in the backward "
     "pass of micro-batch 3 of step 12",
     {"ranks 0, 1, 3 have waited up to 18 s for rank 2 in all-reduce of 64 f32 (group world, "
      "call 17), in the backward pass of micro-batch 3 of step 12"}},
    {"save",
     4,
     in_save,
     {0},
     CAUSE_DISK,
     {1},
     1,
     "rank 1 is late: it has been in the work on a file",
     {"ranks 0, 2, 3 have waited"}},
    {"console",
     4,
     on_console,
     {0},
     CAUSE_CONSOLE,
     {0},
     1,
     "rank 0 is late: it has been in a write to the console for 20 s, after step 12",
     {"ranks 1-3 have waited"}},
    {"op",
     4,
     in_an_op,
     {0},
     CAUSE_COMPUTING,
     {3},
     1,
     "it has been in the op linear_forward",
     {"for rank 3 in"}},
    {"between",
     4,
     between_entries,
     {0},
     CAUSE_COMPUTING,
     {3},
     1,
     "it has begun nothing new for 20.5 s, in the backward pass of micro-batch 3 of step 12, since "
     "the "
     "end of all-reduce of 64 f32 (group world, call 16)",
     {"for rank 3 in"}},
    {"save and data",
     2,
     save_waits_for_data,
     {0},
     CAUSE_DATA,
     {1},
     1,
     "rank 1 is late",
     {"rank 0 has waited 18 s for rank 1 in barrier of 64 f32 (group world, call 1)"}},
    {"evaluation and data",
     2,
     evaluation_waits_for_data,
     {0},
     CAUSE_DATA,
     {1},
     1,
     "rank 1 is late",
     {"rank 0 has waited 18 s for rank 1 in all-reduce of 64 f32 (group world, call 1)"}},
    {"groups",
     4,
     along_groups,
     {0},
     CAUSE_COMPUTING,
     {3},
     1,
     "the op attention_forward",
     {"rank 1 has waited 18 s for rank 3 in all-reduce of 64 f32 (group dp, call 8)",
      "rank 2 has waited 18 s for rank 3 in all-gather of 64 f32 (group tp, call 7)",
      "rank 0 has waited 18 s for rank 2 in all-reduce of 64 f32 (group dp, call 5)"}},
    {"messages",
     3,
     along_messages,
     {0},
     CAUSE_COMPUTING,
     {2},
     1,
     "the op linear_forward",
     {"rank 1 has waited 18 s for rank 2 in receive of 64 f32 from rank 2 (group "
      "pp, message 9)",
      "rank 0 has waited 18 s for rank 1 in send of 64 f32 to rank 1"}},
    {"group of messages",
     3,
     in_a_group_of_messages,
     {0},
     CAUSE_DATA,
     {2},
     1,
     "rank 2 is late",
     {"rank 1 has waited 18 s for rank 2 in receive", "rank 0 has been in receive"}},
    {"asleep in a collective",
     3,
     asleep_in_a_collective,
     {0},
     CAUSE_STOPPED,
     {1},
     1,
     "rank 1 is stopped: rank 1 has been in broadcast of 64 f32 (group world, call 3) for 18 s",
     {"ranks 0, 2 have waited up to 17 s for rank 1"}},
    {"asleep in a receive",
     2,
     asleep_in_a_receive,
     {0},
     CAUSE_STOPPED,
     {1},
     1,
     "rank 1 is stopped: rank 1 has been in receive of 64 f32 from rank 0",
     {"rank 0 has waited 17 s for rank 1"}},
    {"no answer",
     4,
     no_answer,
     {[3] = true},
     CAUSE_STOPPED,
     {3},
     1,
     "rank 3 does not answer",
     {"ranks 0-2 have waited up to 18 s for rank 3 in all-reduce"}},
    {"no answer and data",
     4,
     no_answer_and_data,
     {[3] = true},
     CAUSE_STOPPED,
     {3},
     1,
     "rank 3 does not answer",
     {"ranks 0, 2 have waited up to 18 s for ranks 1, 3"}},
    {"two of four answer",
     4,
     no_answer,
     {[1] = true, [2] = true},
     CAUSE_STOPPED,
     {1, 2},
     2,
     "ranks 1, 2 do not answer",
     {"ranks 0, 3 have waited up to 18 s for ranks 1, 2"}},
    {"other elements",
     4,
     other_elements,
     {0},
     CAUSE_COLLECTIVE,
     {2},
     1,
     "rank 2 is in another call: call 17 of the group is all-gather of 64 f32 on rank 2, in the "
     "backward pass of micro-batch 3 of step 12, and all-reduce of 64 f32 on rank 0",
     {NULL}},
    {"two differ",
     2,
     two_differ,
     {0},
     CAUSE_COLLECTIVE,
     {0, 1},
     2,
     "is all-reduce of 64 f32 on rank 0, in the backward pass of micro-batch 3 of step 12, and "
     "reduce-scatter of 64 f32 on rank 1",
     {NULL}},
    {"passed each other",
     3,
     passed_each_other,
     {0},
     CAUSE_COLLECTIVE,
     {1},
     1,
     "rank 1 is in another call than the ranks that wait for it: rank 1 is in all-reduce of 64 f32 "
     "(group pair, call 17)",
     {NULL}},
    {"passed the others",
     3,
     passed_the_others,
     {0},
     CAUSE_COLLECTIVE,
     {1},
     1,
     "rank 1 is in another call than the ranks that wait for it: rank 1 is in all-reduce of 64 f32 "
     "(group world, call 17)",
     {NULL}},
};

static void test_the_cause_of_a_hang_is_found_on_synchronous_devices(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof at_once / sizeof *at_once; i++)
        planted_case_expect(&at_once[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_cause_of_a_hang_is_found_on_synchronous_devices),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

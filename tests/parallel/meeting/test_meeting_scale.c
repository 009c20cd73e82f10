/* test_meeting_scale.c -- hundreds of real processes, without a model, that meet on the loopback.
 */
#include "model/core/clock.h"
#include "tests/support/files/data_support.h"
#include "tests/support/meeting/meeting_ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { RANKS = 500 };

static void set(void *context, int i, MeetingOptions *o)
{
    (void)i;
    o->folder = context;
    o->name = "hundreds";
    o->local_size = o->size;
    o->timeout = 60;
}

/* The table is sent down a tree of ranks: rank 0 sends it to 16 ranks, these to 256, and these to
 * the rest. */
static void test_500_processes_meet_and_get_the_same_table(void **state)
{
    char *folder = folder_new();
    int ranks = getenv("TEST_SAMPLE") ? 300 : RANKS, wrong = 0;
    MeetingRun run = {.processes = ranks, .set = set, .context = folder};
    (void)state;
    double start = seconds_now();
    MeetingResult *r = meeting_ranks(&run);
    double seconds = seconds_now() - start;
    for (int i = 0; i < ranks; i++) {
        bool good = r[i].met && r[i].wrong[0] == 0 && r[i].m.rank == i && r[i].m.size == ranks &&
                    memcmp(r[i].m.secret, r[0].m.secret, SHA256_BYTES) == 0 &&
                    memcmp(&r[i].last, &r[0].last, sizeof r[0].last) == 0;
        if (!good && wrong++ < 5) print_message("rank %d: %s %s\n", i, r[i].err, r[i].wrong);
    }
    print_message("%d processes have met in %.1f s\n", ranks, seconds);
    assert_int_equal(wrong, 0);
    assert_true(seconds < 20);
    free(r);
    folder_drop(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_500_processes_meet_and_get_the_same_table),
    };
    return cmocka_run_group_tests_name("meeting of hundreds", tests, NULL, NULL);
}

/* test_large_dump.c -- dumps of 65,536 ranks: the time of the analysis grows with the ranks, not
 * with their square. */
#include "model/core/check.h"
#include "model/core/clock.h"
#include "parallel/flight/print.h"
#include "tests/support/flight/planted_ring.h"
#include "tests/support/turns.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 65536, TP = 8, DP = 64, PP = RANKS / TP / DP };

/* The rank that waits in its loader (except in STANDING), and the kinds of hangs. */
enum { LATE = 40007 };
typedef enum { WORLD, GRID, SILENT, STANDING, UNEQUAL, HANGS } Hang;

/* Makes up the ring of a rank in a grid in which tp is the fastest axis, then dp, then pp. */
static void plant(PlantedRing *ring, int rank, Hang hang)
{
    int tp = rank % TP, dp = rank / TP % DP, pp = rank / TP / DP;
    *ring = planted_ring(rank, RANKS);
    planted_group(ring, 0, "world", 0, 1, RANKS);
    planted_group(ring, 1, "tp", rank - tp, 1, TP);
    planted_group(ring, 2, "dp", pp * TP * DP + tp, TP, DP);
    planted_group(ring, 3, "pp", dp * TP + tp, TP * DP, PP);
    if (rank == LATE && hang != STANDING) {
        planted_entry(ring, "work", "data", "host", 20, NAN);
    } else if (hang != GRID) {
        int64_t call = hang == UNEQUAL ? 1 + rank % 1000 : 17;
        planted_collective(ring, "all-reduce", "compute", 0, call, 18, NAN);
    } else if (rank / TP == LATE / TP) {
        planted_collective(ring, "all-reduce", "compute", 1, 9, 18, NAN);
    } else if (pp == LATE / TP / DP) {
        planted_collective(ring, "reduce-scatter", "compute", 2, 4, 18, NAN);
    } else {
        planted_message(ring, false, "compute", 3, pp > 0 ? pp - 1 : 1, 5, 18, NAN);
    }
}

/* Reads the rings of all ranks. Returns the seconds that the analysis takes. */
static double read_all(Hang hang, FlightReading *reading)
{
    RingFile **ring = must_calloc(RANKS, sizeof *ring);
    int n = 0;
    for (int rank = 0; rank < RANKS; rank++) {
        PlantedRing planted;
        plant(&planted, rank, hang);
        ring[n++] = planted_parse(&planted);
        if (hang == SILENT && rank % 2 == 1) ring_free(ring[--n]);
    }
    double start = seconds_now();
    flight_reading_take(reading, ring, n);
    double seconds = seconds_now() - start;
    free(ring);
    return seconds;
}

/* Slow builds (TEST_SAMPLE) analyse one kind of hang, by turns. */
static void test_a_dump_of_65536_ranks_is_analysed_within_seconds(void **state)
{
    static const FlightCause cause[HANGS] = {CAUSE_DATA, CAUSE_DATA, CAUSE_STOPPED, CAUSE_DEVICE,
                                             CAUSE_DATA};
    static const int lates[HANGS] = {1, 1, RANKS / 2, RANKS, 1};
    /* In seconds: far more than the analysis takes. If its time grew with the square of the ranks,
     * it would take minutes. */
    const double most = 20;
    (void)state;
    const int every = (int)turns_every(HANGS);
    for (int hang = (int)turns_first(every); hang < HANGS; hang += every) {
        FlightReading r;
        char *text;
        size_t bytes;
        double seconds = read_all((Hang)hang, &r);
        if (r.chain.cause != cause[hang] || r.chain.lates != lates[hang])
            fail_msg("hang %d: %s, %d late: %s", hang, flight_cause_name[r.chain.cause],
                     r.chain.lates, flight_words_begin(&r));
        if (lates[hang] == 1) assert_int_equal(r.chain.late[0], LATE);
        FILE *to = text_stream(&text, &bytes);
        double start = seconds_now();
        flight_print(to, &r);
        flight_print_json(to, &r);
        fclose(to);
        print_message("hang %d: %.2f s, printed in %.2f s\n", hang, seconds, seconds_now() - start);
        assert_true(seconds < most && seconds_now() - start < most);
        free(text);
        flight_reading_close(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_dump_of_65536_ranks_is_analysed_within_seconds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

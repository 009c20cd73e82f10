/* planted_case.c -- see planted_case.h. */
#include "tests/support/flight/planted_case.h"

#include "model/core/check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

/* Makes the rings of all ranks that answer, and reads them. */
static void read_case(const PlantedCase *one, FlightReading *reading)
{
    PlantedRing ring[PLANTED_MOST];
    RingFile *file[PLANTED_MOST];
    int n = 0;
    for (int r = 0; r < one->ranks; r++) {
        ring[r] = planted_ring(r, one->ranks);
        planted_group(&ring[r], 0, "world", 0, 1, one->ranks);
    }
    one->plant(ring);
    for (int r = 0; r < one->ranks; r++) {
        RingFile *parsed = planted_parse(&ring[r]);
        if (one->silent[r])
            ring_free(parsed);
        else
            file[n++] = parsed;
    }
    flight_reading_take(reading, file, n);
}

static void expect_in(const char *name, char *text, const char *part)
{
    if (part && strstr(text, part) == NULL) fail_msg("%s: \"%s\" is not in: %s", name, part, text);
    free(text);
}

void planted_case_expect(const PlantedCase *one)
{
    FlightReading r;
    read_case(one, &r);
    const Chain *c = &r.chain;
    if (c->cause != one->cause)
        fail_msg("%s: %s, not %s: %s", one->name, flight_cause_name[c->cause],
                 flight_cause_name[one->cause], flight_words_begin(&r));
    if (c->lates != one->lates)
        fail_msg("%s: %d late ranks: %s", one->name, c->lates, flight_words_begin(&r));
    for (int i = 0; i < one->lates; i++)
        assert_int_equal(c->late[i], one->late[i]);
    expect_in(one->name, flight_words_begin(&r), one->begin);
    for (int i = 0; i < 3 && one->waits[i]; i++) {
        if (i >= c->waits) fail_msg("%s: there are %d waits", one->name, c->waits);
        expect_in(one->name, flight_words_wait(&r, &c->wait[i]), one->waits[i]);
    }
    free(flight_words_advice(&r));
    flight_reading_close(&r);
}

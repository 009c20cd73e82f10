/* planted_case.h -- dumps that a test makes up, and what their analysis must find. */
#ifndef TESTS_SUPPORT_FLIGHT_PLANTED_CASE_H
#define TESTS_SUPPORT_FLIGHT_PLANTED_CASE_H

#include "tests/support/flight/planted_ring.h"

enum { PLANTED_MOST = 8 };

/* What the test expects of a dump. */
typedef struct {
    const char *name;
    int ranks;
    /* Fills the rings [ranks], which have a group 0 of all ranks. */
    void (*plant)(PlantedRing *ring);
    bool silent[PLANTED_MOST]; /* these ranks have no file */
    FlightCause cause;
    int late[PLANTED_MOST], lates;
    const char *begin, *waits[3]; /* parts of sentences */
} PlantedCase;

/* Makes the rings of all ranks that answer, analyses them and fails the test if anything else is
 * found. */
void planted_case_expect(const PlantedCase *one);

#endif

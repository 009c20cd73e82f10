/* some_flight.c -- see some_flight.h. */
#include "tests/support/flight/some_flight.h"

static const char *const op[] = {"copy_rows", "add"}, *const verb[] = {"all-reduce", "send"};

Flight *some_flight(void)
{
    Flight *f = flight_create();
    GraphGroup dp = {.name = "dp", .size = 2, .rank = 1, .first = 0, .stride = 1};
    flight_group(f, &(GraphGroup){.name = "world", .size = 2, .stride = 1});
    int group = flight_group(f, &dp);
    flight_at(f, 12, 3, FLIGHT_BACKWARD);
    flight_unit(f, 5);
    FlightEntry add = {.kind = FLIGHT_OP,
                       .code = 1,
                       .dtype = F32,
                       .elements = 64,
                       .group = -1,
                       .call = -1,
                       .peer = -1};
    flight_end(f, flight_begin(f, NULL, &add));
    FlightEntry sum = {.kind = FLIGHT_COLLECTIVE,
                       .code = 0,
                       .dtype = BF16,
                       .elements = 1 << 20,
                       .group = (int8_t)group,
                       .call = 17,
                       .peer = -1};
    flight_begin(f, NULL, &sum);
    return f;
}

FlightSource some_source(const Flight *f, int rank)
{
    return (FlightSource){.flight = f,
                          .names = {op, verb},
                          .rank = rank,
                          .ranks = SOME_RANKS,
                          .here = SOME_RANKS,
                          .dp = rank,
                          .attempt = 2,
                          .host = "n\"1",
                          .start = SOME_START};
}

/* flights.c -- see flights.h. */
#include "parallel/run/flights.h"

#include "model/core/clock.h"
#include "model/core/hash.h"
#include "parallel/flight/dump.h"
#include "parallel/grid/control.h"
#include "parallel/grid/launch.h"

#include <string.h>
#include <unistd.h>

/* Returns a number that identifies this start; it is the same on all ranks. */
static uint64_t name_of_start(const Run *run)
{
    double now[] = {wall_seconds_now(), seconds_now()};
    uint64_t name = hash_bytes((uint64_t)getpid(), now, sizeof now);
    control_share(run->world, &name, sizeof name);
    return name;
}

void run_open_flights(const Run *run)
{
    const Session *s = &run->trainer.session;
    const GridPlace *at = &s->grid.at;
    FlightSource source = {.flight = s->dev.flight,
                           .names = {op_name, comm_call_name},
                           .rank = run->world->rank,
                           .ranks = run->world->size,
                           .here = 1,
                           .pp = at->pp,
                           .dp = at->dp,
                           .tp = at->tp,
                           .attempt = run->folder.attempt,
                           .start = name_of_start(run)};
    if (source.flight == NULL) return;
    if (strcmp(launch_kind(run->world), "threads") == 0) source.here = run->world->size;
    gethostname(source.host, sizeof source.host - 1);
    flight_dump_add(&source, run->folder.path);
}

void run_close_flights(const Run *run)
{
    const Flight *flight = run->trainer.session.dev.flight;
    if (flight) flight_dump_remove(flight);
}

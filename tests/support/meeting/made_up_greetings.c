/* made_up_greetings.c -- ranks that greet rank 0's desk. */
#include "tests/support/meeting/made_up_greetings.h"

#include <stdio.h>

static const char *host_name(const void *context, int rank, char *buf, size_t n)
{
    (void)context;
    snprintf(buf, n, "node%d", rank / RANKS_PER_MACHINE);
    return buf;
}

MeetingOptions made_up_options(int size)
{
    static const MeetingFact fact[] = {{"version", "1", NULL}, {"config", "12ab", "use one"}};
    return (MeetingOptions){.size = size,
                            .local_rank = -1,
                            .timeout = 60,
                            .cpu_level = 9,
                            .fact = fact,
                            .facts = 2,
                            .host = host_name};
}

void made_up_greeting(Greeting *g, int rank, int size)
{
    *g = (Greeting){
        .rank = rank, .size = size, .local_rank = rank % RANKS_PER_MACHINE, .cpu_level = 4};
    host_name(NULL, rank, g->host, sizeof g->host);
    snprintf(g->boot, sizeof g->boot, "boot of %d", rank / RANKS_PER_MACHINE);
    g->address = (Address){.family = 4, .port = (uint16_t)(1024 + rank % 60000), .ip = {10, 1}};
    g->facts = 2;
    g->fact[0] = (GreetingFact){"version", "1"};
    g->fact[1] = (GreetingFact){"config", "12ab"};
}

void made_up_arrival(Desk *d, int rank, double now)
{
    Greeting g;
    made_up_greeting(&g, rank, d->o->size);
    desk_greet(d, &g, now);
}

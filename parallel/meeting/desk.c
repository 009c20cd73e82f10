/* desk.c -- what rank 0 decides while ranks arrive. See desk.h. */
#include "parallel/meeting/desk.h"

#include "model/core/check.h"
#include "model/core/hash.h"
#include "model/core/min_max.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* How often rank 0 reports which ranks are missing, and how long it waits for more ranks after it
 * found that a fact (a value that must be equal on all ranks) differs. More ranks show which value
 * most ranks have. */
static const double NOTICE_SECONDS = 10, ODD_SECONDS = 1;

void desk_open(Desk *d, const MeetingOptions *o, double now)
{
    CHECK(o->size >= 1 && o->size <= MEETING_MOST_RANKS && o->facts <= MEETING_MOST_FACTS,
          "%d ranks, %d facts", o->size, o->facts);
    *d = (Desk){.o = o, .began = now, .next_notice = now + NOTICE_SECONDS, .odd_since = -1};
    d->limit = o->timeout > 0 ? now + o->timeout : INFINITY;
    d->cpu_level = o->cpu_level;
    d->rank = must_calloc((size_t)o->size, sizeof *d->rank);
    d->machine = must_calloc((size_t)o->size, sizeof *d->machine);
    for (d->slots = 4; d->slots < 2 * o->size;)
        d->slots *= 2;
    d->slot = must_calloc((size_t)d->slots, sizeof *d->slot);
}

void desk_close(Desk *d)
{
    free(d->rank);
    free(d->machine);
    free(d->slot);
    *d = (Desk){0};
}

void desk_fail(Desk *d, ExitCode code, const char *fmt, ...)
{
    va_list args;
    if (d->state == DESK_FAILED) return;
    d->state = DESK_FAILED;
    d->verdict.code = code;
    va_start(args, fmt);
    vsnprintf(d->verdict.sentence, sizeof d->verdict.sentence, fmt, args);
    va_end(args);
}

/* Writes the name of a rank's machine to text, "" if it is not known. */
static const char *host_of(const Desk *d, int rank, char text[MEETING_NAME_BYTES])
{
    char name[MEETING_NAME_BYTES];
    const DeskRank *r = &d->rank[rank];
    const char *host = r->here      ? d->machine[r->machine].host
                       : d->o->host ? d->o->host(d->o->context, rank, name, sizeof name)
                                    : NULL;
    snprintf(text, MEETING_NAME_BYTES, "%s", host ? host : "");
    return text;
}

/* Writes "rank 3 (node7, dp 1 tp 0)" to text and returns it. */
static const char *name_rank(const Desk *d, int rank, char *text, size_t n)
{
    char buf[64], host[MEETING_NAME_BYTES];
    const char *place = d->o->place ? d->o->place(d->o->context, rank, buf, sizeof buf) : NULL;
    if (place == NULL) place = "";
    host_of(d, rank, host);
    snprintf(text, n, *host || *place ? "rank %d (%s%s%s)" : "rank %d", rank, host,
             *host && *place ? ", " : "", place);
    return text;
}

/* ---- machines -------------------------------------------------------------------------------- */

static int machine_of(Desk *d, const Greeting *g)
{
    uint64_t hash = hash_bytes(1, g->host, (int64_t)strlen(g->host));
    hash = hash_bytes(hash, g->boot, (int64_t)strlen(g->boot));
    int at = (int)(hash % (uint64_t)d->slots);
    for (; d->slot[at] != 0; at = (at + 1) % d->slots) {
        const DeskMachine *m = &d->machine[d->slot[at] - 1];
        if (strcmp(m->host, g->host) == 0 && strcmp(m->boot, g->boot) == 0) return d->slot[at] - 1;
    }
    DeskMachine *m = &d->machine[d->machines++];
    memcpy(m->host, g->host, sizeof m->host);
    memcpy(m->boot, g->boot, sizeof m->boot);
    d->slot[at] = d->machines;
    return d->machines - 1;
}

/* ---- facts ----------------------------------------------------------------------------------- */

static const char *value_in(const Greeting *g, const char *name)
{
    for (int i = 0; i < g->facts; i++)
        if (strcmp(g->fact[i].name, name) == 0) return g->fact[i].value;
    return "";
}

static void count_facts(Desk *d, const Greeting *g, double now)
{
    for (int i = 0; i < d->o->facts; i++) {
        DeskFact *fact = &d->fact[i];
        const char *text = value_in(g, d->o->fact[i].name);
        int at = 0;
        while (at < fact->values && strcmp(fact->value[at].text, text) != 0)
            at++;
        /* If there are more different values than entries, the last entry counts all further
         * values. */
        at = (int)min_i64(at, DESK_VALUES - 1);
        DeskValue *value = &fact->value[at];
        if (at == fact->values) {
            fact->values++;
            value->first = g->rank;
            snprintf(value->text, sizeof value->text, "%s", text);
            if (at > 0 && d->odd_since < 0) d->odd_since = now;
        }
        value->ranks++;
        if (g->rank < value->first) value->first = g->rank;
    }
}

/* If facts differ between ranks, lets the meeting fail because of the first one that differs. The
 * value that most ranks have counts as right. If two values are equally frequent, the one that was
 * counted first counts as right, because rank 0 arrives first. */
static void fail_odd(Desk *d)
{
    char rank[192];
    for (int i = 0; i < d->o->facts; i++) {
        const DeskFact *fact = &d->fact[i];
        const DeskValue *most = &fact->value[0], *odd = NULL;
        for (int k = 1; k < fact->values; k++)
            if (fact->value[k].ranks > most->ranks) most = &fact->value[k];
        for (int k = 0; k < fact->values; k++)
            if (&fact->value[k] != most && (!odd || fact->value[k].first < odd->first))
                odd = &fact->value[k];
        if (!odd) continue;
        const char *advice = d->o->fact[i].advice;
        desk_fail(d, EXIT_CONFIG, "%s: %s is \"%s\", but \"%s\" on %d of the %d ranks%s%s",
                  name_rank(d, odd->first, rank, sizeof rank), d->o->fact[i].name, odd->text,
                  most->text, most->ranks, d->here, advice ? "; " : "", advice ? advice : "");
        return;
    }
}

/* ---- events ---------------------------------------------------------------------------------- */

void desk_greet(Desk *d, const Greeting *g, double now)
{
    char name[192];
    const MeetingOptions *o = d->o;
    if (d->state == DESK_FAILED) return;
    if (g->size != o->size) {
        desk_fail(d, EXIT_CONFIG,
                  "rank %d (%s) is one of %d ranks, but rank 0 (%s) is one of %d: they were not "
                  "started together",
                  g->rank, g->host, g->size, d->machines ? d->machine[0].host : "", o->size);
        return;
    }
    DeskRank *r = &d->rank[g->rank];
    if (r->here) {
        desk_fail(d, EXIT_PROTOCOL,
                  "%s has arrived twice, the second time from %s: two processes were given the "
                  "same rank, or two jobs the same name",
                  name_rank(d, g->rank, name, sizeof name), g->host);
        return;
    }
    *r = (DeskRank){.here = true, .local_rank = g->local_rank, .address = g->address};
    r->machine = machine_of(d, g);
    d->machine[r->machine].ranks++;
    d->cpu_level = (int)min_i64(d->cpu_level, g->cpu_level);
    d->here++;
    count_facts(d, g, now);
    if (d->here < o->size) return;
    fail_odd(d);
    if (d->state == DESK_FAILED) return;
    d->state = DESK_TABLES;
    d->limit = o->timeout > 0 ? now + o->timeout : INFINITY;
}

void desk_ready(Desk *d, int rank)
{
    if (d->state != DESK_TABLES || d->rank[rank].ready) return;
    d->rank[rank].ready = true;
    if (++d->ready == d->o->size) d->state = DESK_MET;
}

void desk_lost(Desk *d, int rank)
{
    char name[192];
    desk_fail(d, EXIT_PEER_LOST, "%s has ended before all ranks had met",
              name_rank(d, rank, name, sizeof name));
}

void desk_report(Desk *d, int rank, const Verdict *v)
{
    char name[192];
    desk_fail(d, v->code, "%s: %s", name_rank(d, rank, name, sizeof name), v->sentence);
}

double desk_tick(Desk *d, double now, char *notice, size_t n)
{
    char missing[512];
    notice[0] = 0;
    if (d->state != DESK_WAITS && d->state != DESK_TABLES) return INFINITY;
    double odd_end = d->odd_since < 0 ? INFINITY : d->odd_since + ODD_SECONDS;
    bool waits = d->state == DESK_WAITS;
    if (waits && (now >= odd_end || (now >= d->limit && d->odd_since >= 0))) fail_odd(d);
    if (now >= d->limit && d->state != DESK_FAILED) {
        desk_missing(d, !waits, missing, sizeof missing);
        desk_fail(d, EXIT_UNAVAILABLE,
                  waits ? "%s of %d %s not arrived within %g s (parallel.timeout)"
                        : "%s of %d %s not got the table of members within %g s (parallel.timeout)",
                  missing, d->o->size,
                  (waits ? d->here : d->ready) == d->o->size - 1 ? "has" : "have", d->o->timeout);
    }
    if (d->state == DESK_FAILED) return INFINITY;
    if (waits && now >= d->next_notice) {
        d->next_notice = now + NOTICE_SECONDS;
        snprintf(notice, n, "waiting for ranks: %d of %d are here; missing: %s", d->here,
                 d->o->size, desk_missing(d, false, missing, sizeof missing));
    }
    double next = fmin(d->limit, waits ? fmin(odd_end, d->next_notice) : INFINITY);
    return next;
}

/* ---- results --------------------------------------------------------------------------------- */

/* Sets DeskMachine.told of each machine to whether each of the local ranks 0, 1, ... occurs there
 * exactly once. Otherwise the local ranks that the launcher gave are not used. */
static void check_local_ranks(Desk *d)
{
    int size = d->o->size, *begin = must_calloc((size_t)d->machines + 1, sizeof *begin);
    bool *taken = must_calloc((size_t)size, sizeof *taken);
    for (int m = 0; m < d->machines; m++) {
        begin[m + 1] = begin[m] + d->machine[m].ranks;
        d->machine[m].told = true;
    }
    for (int i = 0; i < size; i++) {
        const DeskRank *r = &d->rank[i];
        DeskMachine *m = &d->machine[r->machine];
        bool good = r->local_rank >= 0 && r->local_rank < m->ranks;
        bool *seat = good ? &taken[begin[r->machine] + r->local_rank] : NULL;
        if (!good || *seat) m->told = false;
        if (good) *seat = true;
    }
    free(begin);
    free(taken);
}

void desk_table(Desk *d, Table *t)
{
    int size = d->o->size, numbered = 0, *seats = must_calloc((size_t)d->machines, sizeof *seats);
    CHECK(d->state == DESK_TABLES, "state %d", d->state);
    *t = (Table){.size = size, .machines = d->machines};
    t->rank = must_calloc((size_t)size, sizeof *t->rank);
    t->host = must_calloc((size_t)d->machines, sizeof *t->host);
    check_local_ranks(d);
    for (int m = 0; m < d->machines; m++)
        d->machine[m].number = -1;
    for (int i = 0; i < size; i++) {
        const DeskRank *r = &d->rank[i];
        DeskMachine *m = &d->machine[r->machine];
        if (m->number < 0) {
            m->number = numbered++;
            memcpy(t->host[m->number], m->host, sizeof m->host);
        }
        int seat = seats[m->number]++;
        t->rank[i] = (TableRank){m->number, m->told ? r->local_rank : seat, r->address};
    }
    free(seats);
}

const char *desk_missing(const Desk *d, bool ready, char *text, size_t n)
{
    enum { RUNS = 8 }; /* how many runs of consecutive ranks are listed */
    int size = d->o->size, left = size - (ready ? d->ready : d->here), runs = 0;
    size_t used = (size_t)snprintf(text, n, left == 1 ? "rank" : "ranks");
    for (int i = 0, last; i < size && used < n; i = last + 1) {
        char host[MEETING_NAME_BYTES], next[MEETING_NAME_BYTES];
        last = i;
        if (ready ? d->rank[i].ready : d->rank[i].here) continue;
        if (runs++ == RUNS) {
            snprintf(text + used, n - used, " and %d more", left);
            break;
        }
        /* Find a run of consecutive missing ranks of the same machine. */
        host_of(d, i, host);
        while (last + 1 < size && !(ready ? d->rank[last + 1].ready : d->rank[last + 1].here) &&
               strcmp(host_of(d, last + 1, next), host) == 0)
            last++;
        left -= last - i + 1;
        used += (size_t)snprintf(text + used, n - used, "%s %d", runs > 1 ? "," : "", i);
        if (last > i && used < n)
            used +=
                (size_t)snprintf(text + used, n - used, "%s%d", last > i + 1 ? "-" : ", ", last);
        if (*host && used < n) used += (size_t)snprintf(text + used, n - used, " (%s)", host);
    }
    return text;
}

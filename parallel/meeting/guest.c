/* guest.c -- the side of a rank other than 0: it finds rank 0, sends its greeting, receives the
 * table of members, and leaves when rank 0 reports that all ranks have the table. */
#include "model/core/check.h"
#include "model/core/clock.h"
#include "parallel/meeting/relay.h"

#include <errno.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

/* Seconds that this rank waits longer than rank 0, so that rank 0's time limit ends the meeting
 * first. */
static const double PATIENCE_SECONDS = 10;
/* How long a rank that fails waits for rank 0's verdict, and how long a rank that failed before the
 * meeting tries to reach rank 0 in order to report that. */
static const double REPORT_SECONDS = 2, DECLINE_SECONDS = 10;

typedef struct {
    const MeetingOptions *o;
    Meeting *m;
    Channel rank0;
    double limit;
    Relay relay;
    bool greeted, answered, ready, gone;
} Guest;

/* Queues the verdict for rank 0. Before the greeting rank 0 does not know this rank's machine, so
 * the message names the rank and its machine. */
static void put_verdict(Guest *g, const Verdict *v)
{
    char host[MEETING_NAME_BYTES] = "", text[64];
    const MeetingOptions *o = g->o;
    const char *place = o->place ? o->place(o->context, o->rank, text, sizeof text) : NULL;
    Verdict sent = *v;
    Bytes body = {0};
    gethostname(host, sizeof host - 1);
    if (!g->greeted)
        verdict_set(&sent, v->code, "rank %d (%s%s%s): %.800s", o->rank, host, place ? ", " : "",
                    place ? place : "", v->sentence);
    verdict_write(&body, &sent);
    channel_put(&g->rank0, MESSAGE_VERDICT, &body);
    bytes_free(&body);
}

/* Tells rank 0 that this rank fails, and waits briefly for the verdict that rank 0 then sends to
 * all ranks. Always returns false. */
static bool report(Guest *g, Verdict *v)
{
    const unsigned char *answer;
    size_t n;
    int kind;
    Verdict own = *v;
    put_verdict(g, v);
    for (double end = seconds_now() + REPORT_SECONDS; seconds_now() < end && !g->rank0.gone;) {
        struct pollfd wait = {.fd = g->rank0.fd,
                              .events = channel_flush(&g->rank0) ? POLLIN : POLLIN | POLLOUT};
        poll(&wait, 1, 100);
        if (!channel_take(&g->rank0, table_most_bytes(g->o->size) + VERDICT_MOST_BYTES, &kind,
                          &answer, &n) ||
            kind != MESSAGE_VERDICT)
            continue;
        g->m->told = verdict_read(v, answer, n);
        if (!g->m->told) *v = own;
        break;
    }
    return false;
}

/* Listens at the local address of the connection to rank 0, and sends the greeting. Returns false
 * and fills in the verdict if this rank cannot listen. */
static bool greet(Guest *g, Verdict *v)
{
    Greeting greeting;
    Bytes body = {0};
    Address own;
    bool known = network_name(g->rank0.fd, &own);
    own.port = 0;
    if (known) g->m->listener = network_listen(&own);
    if (g->m->listener < 0) {
        verdict_set(v, EXIT_SYSTEM, "it cannot listen for other ranks: %s", strerror(errno));
        return report(g, v);
    }
    greeting_own(&greeting, g->o, &own);
    greeting_write(&body, &greeting);
    channel_put(&g->rank0, MESSAGE_GREETING, &body);
    channel_flush(&g->rank0);
    bytes_free(&body);
    g->greeted = true;
    return true;
}

static bool take_answer(Guest *g, const unsigned char *body, size_t n)
{
    Answer a;
    if (g->answered || !answer_read(&a, body, n) || a.parent != table_parent(g->o->rank))
        return false;
    g->answered = true;
    memcpy(g->m->secret, a.secret, SHA256_BYTES);
    g->m->cpu_level = a.cpu_level;
    return relay_begin(&g->relay, g->o, &a, g->m->listener);
}

/* Parses the table of members once it has arrived. Returns false and fills in the verdict if it is
 * invalid. */
static bool read_table(Guest *g, Verdict *v)
{
    Table t = {0};
    const Bytes *body = &g->relay.table;
    if (g->m->member || !g->relay.has_table) return true;
    bool good = table_read(&t, g->o->size, body->data, body->used);
    if (good) meeting_fill(g->m, &t);
    table_free(&t);
    if (good) return true;
    verdict_set(v, EXIT_PROTOCOL, "the table of members that it has got makes no sense");
    return report(g, v);
}

/* Receives and passes on the table as far as possible without waiting. Returns the time at which it
 * must be called again. */
static double relay(Guest *g, double now)
{
    if (!g->answered || g->ready) return INFINITY;
    double next = relay_move(&g->relay, now);
    if (relay_done(&g->relay) && g->m->member) {
        g->ready = true;
        channel_put(&g->rank0, MESSAGE_READY, NULL);
    }
    return next;
}

/* Acts on a message of rank 0. Returns false and fills in the verdict if the meeting fails. */
static bool obey(Guest *g, int kind, const unsigned char *body, size_t n, Verdict *v)
{
    if (kind == MESSAGE_ANSWER && take_answer(g, body, n)) return true;
    if (kind == MESSAGE_TABLE && g->answered && table_parent(g->o->rank) == 0 &&
        !g->relay.has_table) {
        relay_give(&g->relay, body, n);
        return true;
    }
    if (kind == MESSAGE_GO && g->ready && n == 0) {
        g->gone = true;
        return true;
    }
    if (kind == MESSAGE_VERDICT && verdict_read(v, body, n)) {
        g->m->told = true;
        return false;
    }
    return verdict_set(v, EXIT_PROTOCOL, "rank 0 says something that no rank 0 says");
}

/* Waits for an event on a connection, until `until` at most. `sent`: nothing is left to be sent to
 * rank 0. */
static void wait_until(Guest *g, double until, bool sent)
{
    struct pollfd wait[1 + RELAY_POLLS] = {
        {.fd = g->rank0.fd, .events = sent ? POLLIN : POLLIN | POLLOUT}};
    int n = 1;
    double left = until - seconds_now();
    if (g->answered && !g->ready) n += relay_polls(&g->relay, wait + 1);
    poll(wait, (nfds_t)n, (int)ceil(fmin(fmax(left, 0), 60) * 1000));
}

/* Acts on rank 0's messages until the meeting ends. Returns whether all ranks have met. */
static bool follow(Guest *g, Verdict *v)
{
    size_t most = table_most_bytes(g->o->size);
    if (most < VERDICT_MOST_BYTES) most = VERDICT_MOST_BYTES;
    while (!g->gone) {
        const unsigned char *body;
        size_t n;
        int kind;
        if (channel_take(&g->rank0, most, &kind, &body, &n)) {
            if (!obey(g, kind, body, n, v)) return false;
            continue;
        }
        if (g->rank0.gone)
            return verdict_set(v, EXIT_PEER_LOST, "rank 0 has ended before all ranks had met");
        double now = seconds_now();
        if (now >= g->limit)
            return verdict_set(v, EXIT_HANG,
                               "rank 0 has not ended the meeting within %g s (parallel.timeout): "
                               "its process may be stopped",
                               g->o->timeout);
        double next = relay(g, now);
        if (!read_table(g, v)) return false;
        if (g->m->member && !g->ready) next = fmin(next, relay(g, now));
        wait_until(g, fmin(g->limit, next), channel_flush(&g->rank0));
    }
    return true;
}

bool guest_hold(Meeting *m, const MeetingOptions *o, Verdict *v)
{
    Guest g = {.o = o, .m = m, .limit = INFINITY};
    double limit = o->timeout > 0 ? seconds_now() + o->timeout : INFINITY;
    if (o->fails != EXIT_OK) limit = fmin(limit, seconds_now() + DECLINE_SECONDS);
    int fd = guest_find(o, limit, v);
    if (fd < 0) return false;
    /* The limit has two timeouts: rank 0 waits up to one timeout for all ranks to arrive, and then
     * up to one more until all have the table. */
    if (o->timeout > 0) g.limit = seconds_now() + 2 * o->timeout + PATIENCE_SECONDS;
    channel_open(&g.rank0, fd);
    bool met = o->fails == EXIT_OK ? greet(&g, v) && follow(&g, v)
                                   : verdict_set(v, o->fails, "%s", o->sentence) || report(&g, v);
    if (g.answered) relay_end(&g.relay);
    if (met)
        m->control[0] = channel_release(&g.rank0);
    else
        channel_close(&g.rank0);
    return met;
}

/* host.c -- rank 0's side of a meeting: it listens, admits processes that prove that they know the
 * secret, and carries out what desk.c decides. One loop serves all connections, so a silent one
 * delays none of the others. */
#include "model/core/check.h"
#include "model/core/clock.h"
#include "model/core/log.h"
#include "parallel/meeting/desk.h"
#include "parallel/meeting/relay.h"
#include "parallel/meeting/rendezvous.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <unistd.h>

typedef struct {
    const MeetingOptions *o;
    Meeting *m;
    Desk desk;
    Rendezvous at;   /* the secret, and where it listens */
    Rendezvous held; /* where another rank 0 of this meeting may listen, and its secret */
    double look;     /* when to check the file again */
    Door *door;
    int members[NETWORK_MOST_ADDRESSES]; /* how many ranks have connected to each address */
    int epoll;
    bool published;
    Channel *channel; /* [size], of the ranks that have arrived */
} Host;

/* How long rank 0 tries to send its last message to all. */
static const double LAST_SECONDS = 1;
/* How long a rank 0 that has failed before the meeting waits for other ranks, in order to tell them
 * that. */
static const double DECLINE_SECONDS = 2.5;

/* The index of epoll events of the door. Events of another rank's connection have that rank, which
 * is above 0, as their index. */
enum { DOOR = 0 };

static void watch(Host *h, int fd, int index, uint32_t events, int how)
{
    struct epoll_event event = {.events = events, .data.u32 = (uint32_t)index};
    if (epoll_ctl(h->epoll, how, fd, &event) != 0 && how != EPOLL_CTL_DEL)
        desk_fail(&h->desk, EXIT_SYSTEM, "rank 0 cannot watch a connection: %s", strerror(errno));
}

/* ---- opening --------------------------------------------------------------------------------- */

/* Listens at address i. If ranks meet by a file, which will contain the port, any port is used,
 * otherwise the first free one of those that the other ranks try. Ports that are in use are added
 * to h->held, because another rank 0 of this meeting may listen there. Returns whether this process
 * now listens at the address. */
static bool listen_at(Host *h, int i)
{
    const MeetingOptions *o = h->o;
    Address *a = &h->at.at.address[i];
    int fd = -1;
    for (int k = 1; k <= (o->folder ? 1 : MEETING_PORTS); k++) {
        a->port = (uint16_t)(o->folder ? 0 : o->port + k);
        fd = network_listen(a);
        if (fd >= 0 || errno != EADDRINUSE) break;
        if (h->held.at.count < NETWORK_MOST_ADDRESSES) h->held.at.address[h->held.at.count++] = *a;
    }
    if (fd >= 0) door_listen(h->door, fd, false);
    return fd >= 0;
}

static bool open_listeners(Host *h, Verdict *v)
{
    char text[ADDRESS_TEXT_BYTES] = "";
    AddressList wanted;
    int error = 0;
    if (!network_for_rank_0(&h->at.at, h->o, &v->code, v->sentence, sizeof v->sentence))
        return false;
    wanted = h->at.at;
    h->at.at.count = 0;
    for (int i = 0; i < wanted.count; i++) {
        int last = h->at.at.count;
        h->at.at.address[last] = wanted.address[i];
        if (listen_at(h, last))
            h->at.at.count++;
        else if (error == 0) {
            error = errno;
            address_text(&wanted.address[i], text);
        }
    }
    if (h->at.at.count > 0) return true;
    if (error == EADDRNOTAVAIL)
        return verdict_set(v, EXIT_UNAVAILABLE,
                           "rank 0's address is given as %s (%s), which is not of this machine: %s",
                           h->o->master, text, strerror(error));
    if (error == EADDRINUSE)
        return verdict_set(v, EXIT_UNAVAILABLE, "the ports %d to %d of %s are all in use: %s",
                           h->o->port + 1, h->o->port + MEETING_PORTS, h->o->master,
                           strerror(error));
    return verdict_set(v, EXIT_SYSTEM, "rank 0 cannot listen at %s: %s", text, strerror(error));
}

static bool host_open(Host *h, Verdict *v)
{
    const MeetingOptions *o = h->o;
    Greeting own;
    Address none = {0};
    desk_open(&h->desk, o, seconds_now());
    if (getrandom(h->m->secret, SHA256_BYTES, 0) != SHA256_BYTES ||
        getrandom(h->at.secret, SHA256_BYTES, 0) != SHA256_BYTES)
        return verdict_set(v, EXIT_SYSTEM, "the system gives no random bytes: %s", strerror(errno));
    if (!o->folder) memcpy(h->at.secret, o->secret, SHA256_BYTES);
    h->epoll = epoll_create1(EPOLL_CLOEXEC);
    h->door = door_open(h->at.secret, meeting_tag(o), 0, GREETING_MOST_BYTES);
    if (h->epoll < 0 || h->door == NULL)
        return verdict_set(v, EXIT_SYSTEM, "rank 0 cannot watch connections: %s", strerror(errno));
    watch(h, h->door->epoll, DOOR, EPOLLIN, EPOLL_CTL_ADD);
    if (o->size > 1 && !open_listeners(h, v)) return false;
    greeting_own(&own, o, &none);
    desk_greet(&h->desk, &own, seconds_now());
    if (o->size == 1) return true;
    if (o->folder)
        rendezvous_look(&h->held, o->folder, o->name, &v->code, v->sentence, sizeof v->sentence);
    else
        memcpy(h->held.secret, o->secret, SHA256_BYTES);
    if (h->held.at.count > 0 && guest_finds_twin(o, &h->held, &h->at.at.address[0], v))
        return false;
    if (!o->folder) return true;
    h->published =
        rendezvous_publish(&h->at, o->folder, o->name, &v->code, v->sentence, sizeof v->sentence);
    return h->published;
}

/* Checks each second that the file still exists and is the one of this process. */
static void keep_file(Host *h, double now)
{
    const MeetingOptions *o = h->o;
    Rendezvous r;
    ExitCode code;
    char err[MEETING_SENTENCE_BYTES];
    if (!h->published || now < h->look) return;
    h->look = now + 1;
    RendezvousState state = rendezvous_look(&r, o->folder, o->name, &code, err, sizeof err);
    if (state == RENDEZVOUS_READ && !same_bytes(r.secret, h->at.secret, SHA256_BYTES))
        desk_fail(&h->desk, EXIT_PROTOCOL,
                  "another rank 0 has replaced the file of this meeting in %s: two processes were "
                  "given rank 0, or two jobs the same name",
                  o->folder);
    /* If somebody has removed the file, it is written again. */
    if (state == RENDEZVOUS_NOT_THERE &&
        !rendezvous_publish(&h->at, o->folder, o->name, &code, err, sizeof err))
        desk_fail(&h->desk, code, "%s", err);
}

/* ---- ranks that arrive ----------------------------------------------------------------------- */

/* Assigns the caller's connection to `rank`. Returns false if the rank has one already, or does not
 * exist. */
static bool seat(Host *h, int rank, const Caller *caller)
{
    if (rank <= 0 || rank >= h->o->size || h->channel[rank].fd >= 0) return false;
    h->channel[rank] = *caller->channel;
    *caller->channel = (Channel){.fd = -1};
    h->members[caller->listener]++;
    watch(h, h->channel[rank].fd, rank, EPOLLIN, EPOLL_CTL_ADD);
    return true;
}

/* Handles the first message of a process that has proven that it knows the secret: its greeting, or
 * the error with which it fails. */
static bool admit(void *context, const Caller *caller)
{
    Host *h = context;
    Greeting g;
    Verdict v;
    if (caller->kind == MESSAGE_VERDICT && verdict_read(&v, caller->body, caller->n) &&
        seat(h, caller->rank, caller)) {
        desk_fail(&h->desk, v.code, "%s", v.sentence); /* the sentence names the rank */
        return true;
    }
    if (caller->kind != MESSAGE_GREETING || !greeting_read(&g, caller->body, caller->n) ||
        g.rank != caller->rank || g.address.family == 0)
        return false;
    desk_greet(&h->desk, &g, seconds_now());
    if (!seat(h, g.rank, caller)) {
        /* The rank has arrived twice or does not exist, so the meeting has failed. tell_all reaches
         * only connections that are assigned to a rank, so this process is told here. */
        Bytes body = {0};
        verdict_write(&body, &h->desk.verdict);
        channel_put(caller->channel, MESSAGE_VERDICT, &body);
        channel_flush(caller->channel);
        bytes_free(&body);
    }
    return true;
}

static void serve_door(Host *h, double now)
{
    door_serve(h->door, now, admit, h);
    if (h->door->error)
        desk_fail(&h->desk, EXIT_SYSTEM,
                  "rank 0 cannot accept connections, %d of %d ranks are here: %s%s", h->desk.here,
                  h->o->size, strerror(h->door->error),
                  h->door->error == EMFILE ? " (ulimit -n)" : "");
}

/* ---- ranks that have arrived ----------------------------------------------------------------- */

/* Sends what can be sent to the rank now. If something is left, epoll will report when more can be
 * sent. */
static void flush_to(Host *h, int rank)
{
    if (!channel_flush(&h->channel[rank]))
        watch(h, h->channel[rank].fd, rank, EPOLLIN | EPOLLOUT, EPOLL_CTL_MOD);
}

static void move_member(Host *h, int rank)
{
    Channel *c = &h->channel[rank];
    const unsigned char *body;
    size_t n;
    int kind;
    bool sends = c->out.used > 0;
    if (c->fd < 0) return;
    if (channel_flush(c) && sends) watch(h, c->fd, rank, EPOLLIN, EPOLL_CTL_MOD);
    while (channel_take(c, VERDICT_MOST_BYTES, &kind, &body, &n)) {
        Verdict v;
        if (kind == MESSAGE_READY && n == 0)
            desk_ready(&h->desk, rank);
        else if (kind == MESSAGE_VERDICT && verdict_read(&v, body, n))
            desk_report(&h->desk, rank, &v);
        else
            desk_fail(&h->desk, EXIT_PROTOCOL, "rank %d says something that no rank says", rank);
        if (h->desk.state != DESK_WAITS && h->desk.state != DESK_TABLES) return;
    }
    if (!c->gone) return;
    watch(h, c->fd, rank, 0, EPOLL_CTL_DEL);
    desk_lost(&h->desk, rank);
}

/* Called when all ranks have arrived. Opens the listening socket for the time after the meeting, at
 * the address to which most ranks have connected. Sends the answer to all ranks, and the table of
 * members to those that receive it from rank 0. */
static void send_tables(Host *h)
{
    Address at = h->at.at.address[0];
    Bytes answer = {0}, table = {0};
    Table t;
    for (int i = 1, most = 0; i < h->at.at.count; i++)
        if (h->members[i] > h->members[most]) at = h->at.at.address[most = i];
    at.port = 0;
    if (h->o->size > 1) h->m->listener = network_listen(&at);
    if (h->o->size > 1 && h->m->listener < 0) {
        desk_fail(&h->desk, EXIT_SYSTEM, "rank 0 cannot listen: %s", strerror(errno));
        return;
    }
    h->desk.rank[0].address = at;
    desk_table(&h->desk, &t);
    meeting_fill(h->m, &t);
    h->m->cpu_level = h->desk.cpu_level;
    table_write(&table, &t);
    for (int rank = 1; rank < h->o->size; rank++) {
        Answer a = {.cpu_level = h->desk.cpu_level, .parent = table_parent(rank)};
        memcpy(a.secret, h->m->secret, SHA256_BYTES);
        if (a.parent > 0) a.reach = h->desk.rank[a.parent].address;
        answer.used = 0;
        answer_write(&answer, &a);
        channel_put(&h->channel[rank], MESSAGE_ANSWER, &answer);
        if (a.parent == 0) channel_put(&h->channel[rank], MESSAGE_TABLE, &table);
        flush_to(h, rank);
    }
    desk_ready(&h->desk, 0);
    bytes_free(&answer);
    bytes_free(&table);
    table_free(&t);
}

/* ---- the loop -------------------------------------------------------------------------------- */

static bool goes_on(const Host *h)
{
    return h->desk.state == DESK_WAITS || h->desk.state == DESK_TABLES;
}

static void serve(Host *h)
{
    enum { EVENTS = 256 };
    struct epoll_event event[EVENTS];
    bool tables = false;
    while (goes_on(h)) {
        char notice[768];
        if (h->desk.state == DESK_TABLES && !tables) {
            tables = true;
            send_tables(h);
        }
        double now = seconds_now(), next = desk_tick(&h->desk, now, notice, sizeof notice);
        keep_file(h, now);
        if (notice[0]) log_notice("%s", notice);
        if (!goes_on(h)) break;
        next = fmin(fmin(next, door_expires(h->door)), h->published ? h->look : now + 60);
        int events = epoll_wait(h->epoll, event, EVENTS, (int)fmax(0, ceil((next - now) * 1000)));
        for (int i = 0; i < events; i++)
            if (event[i].data.u32 != DOOR) move_member(h, (int)event[i].data.u32);
        serve_door(h, seconds_now());
    }
}

/* Sends MESSAGE_GO to all ranks, and stores their sockets in the meeting. */
static void let_go(Host *h)
{
    double end = seconds_now() + LAST_SECONDS;
    for (int rank = 1; rank < h->o->size; rank++)
        channel_put(&h->channel[rank], MESSAGE_GO, NULL);
    for (int left = 1; left > 0 && seconds_now() < end;) {
        left = 0;
        for (int rank = 1; rank < h->o->size; rank++)
            left += !channel_flush(&h->channel[rank]);
        if (left > 0) usleep(2000);
    }
    for (int rank = 1; rank < h->o->size; rank++)
        h->m->control[rank] = channel_release(&h->channel[rank]);
}

/* Sends the verdict to a rank that has not received it. Returns whether the rank still has to close
 * its connection: if this side closed its socket first, with unread bytes in it, the system might
 * discard what was sent. */
static bool tell(Host *h, int rank, const Bytes *verdict)
{
    char unread[256];
    Channel *c = &h->channel[rank];
    if (c->fd < 0) return false;
    if (c->gone) h->desk.rank[rank].told = true; /* nobody is left to tell */
    if (c->gone) return false;
    if (!h->desk.rank[rank].told) channel_put(c, MESSAGE_VERDICT, verdict);
    h->desk.rank[rank].told = true;
    channel_flush(c);
    ssize_t got = recv(c->fd, unread, sizeof unread, MSG_DONTWAIT);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) c->gone = true;
    return !c->gone;
}

/* Tells all ranks that have arrived why the meeting fails, and those that arrive within the next
 * second (2.5 s if rank 0 failed before the meeting). */
static void tell_all(Host *h)
{
    bool declines = h->o->fails != EXIT_OK;
    double end = seconds_now() + (declines ? DECLINE_SECONDS : LAST_SECONDS);
    /* If the time for arriving is over, no further ranks are expected. */
    bool late = declines || h->desk.verdict.code != EXIT_UNAVAILABLE;
    Bytes body = {0};
    verdict_write(&body, &h->desk.verdict);
    for (int left = 1; left > 0 && seconds_now() < end;) {
        left = 0;
        if (late) serve_door(h, seconds_now());
        for (int rank = 1; rank < h->o->size; rank++)
            left += tell(h, rank, &body) || (late && !h->desk.rank[rank].told);
        if (left > 0) usleep(2000);
    }
    for (int rank = 1; rank < h->o->size; rank++)
        channel_close(&h->channel[rank]);
    bytes_free(&body);
}

bool host_hold(Meeting *m, const MeetingOptions *o, Verdict *v)
{
    Host *h = must_calloc(1, sizeof *h);
    h->o = o;
    h->m = m;
    h->epoll = -1;
    h->channel = must_calloc((size_t)o->size, sizeof *h->channel);
    for (int i = 0; i < o->size; i++)
        h->channel[i].fd = -1;
    bool open = host_open(h, v), met = false;
    if (open) {
        if (o->fails != EXIT_OK) desk_fail(&h->desk, o->fails, "%s", o->sentence);
        serve(h);
        met = h->desk.state == DESK_MET;
        if (!met) *v = h->desk.verdict;
        if (!met) tell_all(h);
        m->told = !met;
    }
    int strangers = h->door ? h->door->strangers : 0;
    bool warned = h->door && h->door->warned;
    door_close(h->door);
    if (h->published) rendezvous_remove(&h->at, o->folder, o->name);
    if (met) let_go(h);
    if (strangers > (warned ? 1 : 0))
        log_warning(
            "refused %d connections that did not prove in time that they belong to this job",
            strangers);
    if (h->epoll >= 0) close(h->epoll);
    desk_close(&h->desk);
    free(h->channel);
    explicit_bzero(h, sizeof *h); /* it contains secrets */
    free(h);
    return met;
}

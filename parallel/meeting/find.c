/* find.c -- how a rank finds rank 0. At the same time it tries all addresses at which rank 0 may
 * be, and uses the first connection whose other side proves that it knows the secret. An address at
 * which nobody answers, or nobody proves that, is tried again later: rank 0 may not have started
 * yet, and the file may be left from a job that has died. */
#include "model/core/check.h"
#include "model/core/clock.h"
#include "parallel/comm/socket/handshake.h"
#include "parallel/meeting/channel.h"
#include "parallel/meeting/sides.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_TARGETS = NETWORK_MOST_ADDRESSES * MEETING_PORTS };

/* The pauses between two attempts to connect to an address, and between two reads of rank 0's file,
 * grow from LEAST_PAUSE to MOST_PAUSE. PLACE_SECONDS: the time between the first attempts at one of
 * rank 0's addresses and at the next one. */
static const double LEAST_PAUSE = 0.01, MOST_PAUSE = 0.5, PLACE_SECONDS = 0.05;
/* How long rank 0 tries to find another process that is rank 0 of the same meeting by mistake. */
static const double TWIN_SECONDS = 0.5;
/* The ports at rank 0's address may belong to other jobs, whose rank 0 refuses the secret, while
 * rank 0 of this job has not started yet. So the search continues until all ports that answer have
 * refused the secret for this long. */
static const double REFUSED_SECONDS = 5;

/* An address at which rank 0 may be, and the attempt to connect to it. */
typedef struct {
    Address address;
    int fd;             /* -1: no attempt at the moment */
    double began, next; /* when the attempt began; earliest time of the next one */
    double pause;
    double refused; /* time since which every attempt was refused because of the secret; 0: the last
                       attempt was not */
    Handshake hand;
} Target;

typedef struct {
    const MeetingOptions *o;
    Rendezvous at; /* the file's content; secret and addresses */
    int targets;
    Target target[MOST_TARGETS];
    AddressList
        sources; /* addresses of the interface, if one is given; connections come from these */
    double look, pause;     /* look: when to read the file again */
    bool asked;             /* true: this rank has checked whether the folder can be written */
    HandshakeReason reason; /* the last refusal */
    int error;              /* errno of the last connection that failed */
    Verdict file;           /* why the file is not used; code EXIT_OK: it is used */
} Search;

static void stop(Target *t)
{
    if (t->fd >= 0) close(t->fd);
    t->fd = -1;
}

static void stop_all(Search *s)
{
    for (int i = 0; i < s->targets; i++)
        stop(&s->target[i]);
}

static double longer(double pause)
{
    return fmin(2 * pause, MOST_PAUSE);
}

/* Adds an address to try. `place`: its index among rank 0's addresses. Addresses with a higher
 * index are tried a little later, so that all ranks use the first address that works. */
static void add_target(Search *s, const Address *address, int place)
{
    if (s->targets == MOST_TARGETS) return;
    s->target[s->targets++] = (Target){.address = *address,
                                       .fd = -1,
                                       .next = seconds_now() + place * PLACE_SECONDS,
                                       .pause = LEAST_PAUSE};
}

static void take_file(Search *s, const Rendezvous *r)
{
    stop_all(s);
    s->at = *r;
    s->targets = 0;
    for (int i = 0; i < r->at.count; i++)
        add_target(s, &r->at.address[i], i);
}

/* Reads the file if it is time. If it has changed, its addresses become the targets. Returns false
 * and fills in the verdict if waiting for the file is useless. */
static bool look(Search *s, double now, Verdict *v)
{
    Rendezvous r;
    ExitCode code;
    char err[MEETING_SENTENCE_BYTES];
    if (now < s->look) return true;
    s->look = now + s->pause;
    s->pause = longer(s->pause);
    RendezvousState state = rendezvous_look(&r, s->o->folder, s->o->name, &code, err, sizeof err);
    s->file.code = EXIT_OK;
    /* If rank 0 cannot write its file, waiting for it is useless. Checked once. */
    if (state != RENDEZVOUS_READ && !s->asked) {
        s->asked = true;
        if (!rendezvous_can_publish(s->o->folder, &v->code, v->sentence, sizeof v->sentence))
            return false;
    }
    if (state == RENDEZVOUS_REFUSED) verdict_set(&s->file, code, "%s", err);
    /* Wrong permissions do not change by waiting: only the user can correct them. */
    if (state == RENDEZVOUS_REFUSED && code == EXIT_PERMISSION)
        return verdict_set(v, code, "%s", err);
    if (state != RENDEZVOUS_READ || same_bytes(r.secret, s->at.secret, SHA256_BYTES)) return true;
    take_file(s, &r);
    return true;
}

/* For ranks that meet at an address, without a file: makes the targets the MEETING_PORTS ports of
 * each address to which the name of rank 0's machine resolves. Returns false and fills in the
 * verdict if it cannot be resolved. */
static bool list_ports(Search *s, double limit, Verdict *v)
{
    AddressList list;
    memcpy(s->at.secret, s->o->secret, SHA256_BYTES);
    while (!network_master(&list, s->o->master, &v->code, v->sentence, sizeof v->sentence)) {
        /* The name server may be busy when thousands of ranks ask it. */
        if (v->code != EXIT_TEMPORARY || seconds_now() >= limit) return false;
        sleep(1);
    }
    for (int i = 0; i < list.count; i++)
        for (int k = 1; k <= MEETING_PORTS; k++) {
            list.address[i].port = (uint16_t)(s->o->port + k);
            add_target(s, &list.address[i], i);
        }
    return true;
}

/* Starts the attempts that are due. */
static void start(Search *s, double now)
{
    for (int i = 0; i < s->targets; i++) {
        Target *t = &s->target[i];
        const Address *source = NULL;
        if (t->fd >= 0 || now < t->next) continue;
        for (int k = 0; k < s->sources.count && !source; k++)
            if (s->sources.address[k].family == t->address.family) source = &s->sources.address[k];
        if (s->o->interface && !source) {
            t->next = INFINITY; /* the interface has no address of this kind */
            continue;
        }
        t->began = now;
        t->next = now + t->pause;
        t->pause = longer(t->pause);
        t->fd = network_connect(&t->address, source);
        if (t->fd < 0) s->error = errno;
        handshake_begin(&t->hand, s->at.secret, false, s->o->rank);
        handshake_name(&t->hand, meeting_tag(s->o));
    }
}

/* Waits for an event until `until` at most, and continues all attempts. Returns the socket of an
 * attempt whose other side has proven the secret, or -1. */
static int move(Search *s, double until)
{
    struct pollfd wait[MOST_TARGETS];
    double now = seconds_now(), next = until;
    for (int i = 0; i < s->targets; i++) {
        Target *t = &s->target[i];
        wait[i] =
            (struct pollfd){.fd = t->fd, .events = handshake_sends(&t->hand) ? POLLOUT : POLLIN};
        next = fmin(next, t->fd < 0 ? t->next : t->began + MEETING_PENDING_SECONDS);
    }
    poll(wait, (nfds_t)s->targets, (int)ceil(fmin(fmax(next - now, 0), 60) * 1000));
    now = seconds_now();
    for (int i = 0; i < s->targets; i++) {
        Target *t = &s->target[i];
        if (t->fd < 0) continue;
        if (wait[i].revents == 0) {
            if (now >= t->began + MEETING_PENDING_SECONDS) stop(t);
            continue;
        }
        HandshakeState state = handshake_move(&t->hand, t->fd);
        if (state == HANDSHAKE_PROVEN) {
            int fd = t->fd;
            t->fd = -1;
            return fd;
        }
        if (state == HANDSHAKE_LOST) s->error = errno;
        if (state == HANDSHAKE_REFUSED) s->reason = t->hand.reason;
        if (state == HANDSHAKE_REFUSED && t->hand.reason == HANDSHAKE_WRONG_SECRET)
            t->refused = t->refused > 0 ? t->refused : now;
        else if (state != HANDSHAKE_GOES_ON)
            t->refused = 0;
        if (state != HANDSHAKE_GOES_ON) stop(t);
    }
    return -1;
}

/* Fills in the verdict if rank 0 was not found in time. */
static void explain(const Search *s, Verdict *v)
{
    const MeetingOptions *o = s->o;
    char host[MEETING_NAME_BYTES], where[512], why[MEETING_SENTENCE_BYTES] = "";
    const char *name = o->host ? o->host(o->context, 0, host, sizeof host) : NULL;
    if (o->folder)
        snprintf(where, sizeof where, "its file in %s", o->folder);
    else
        snprintf(where, sizeof where, "%s, ports %d to %d", o->master, o->port + 1,
                 o->port + MEETING_PORTS);
    ExitCode code = EXIT_UNAVAILABLE;
    if (s->file.code != EXIT_OK) {
        code = s->file.code;
        snprintf(why, sizeof why, "%s", s->file.sentence);
    } else if (s->reason == HANDSHAKE_WRONG_SECRET) {
        code = EXIT_PROTOCOL;
        snprintf(why, sizeof why, "who answers there has another secret");
    } else if (s->reason == HANDSHAKE_OTHER_VERSION) {
        code = EXIT_CONFIG;
        snprintf(why, sizeof why, "who answers there is another version of this program");
    } else if (s->reason != HANDSHAKE_NO_REASON) {
        snprintf(why, sizeof why, "who answers there is no rank of this job");
    } else if (o->folder && s->targets == 0) {
        snprintf(why, sizeof why, "there is no such file");
    } else {
        snprintf(why, sizeof why, "nobody answers there%s%s", s->error ? ": " : "",
                 s->error ? strerror(s->error) : "");
    }
    verdict_set(v, code, "rank 0%s%s%s was not found within %g s (parallel.timeout) by %s: %s",
                name ? " (" : "", name ? name : "", name ? ")" : "", o->timeout, where, why);
}

/* Sends this rank 0's greeting to the other process that is rank 0, and receives the verdict with
 * which both end. */
static void greet_twin(const MeetingOptions *o, int fd, const Address *own, Verdict *v)
{
    Channel c;
    Greeting g;
    Bytes body = {0};
    const unsigned char *answer;
    size_t n;
    int kind;
    channel_open(&c, fd);
    greeting_own(&g, o, own);
    greeting_write(&body, &g);
    channel_put(&c, MESSAGE_GREETING, &body);
    bytes_free(&body);
    verdict_set(v, EXIT_PROTOCOL,
                "another rank 0 of this job waits already: two processes were given rank 0, or two "
                "jobs the same name");
    for (double end = seconds_now() + 2; seconds_now() < end && !c.gone;) {
        struct pollfd wait = {.fd = fd, .events = channel_flush(&c) ? POLLIN : POLLIN | POLLOUT};
        poll(&wait, 1, 100);
        if (channel_take(&c, VERDICT_MOST_BYTES, &kind, &answer, &n)) {
            if (kind == MESSAGE_VERDICT) verdict_read(v, answer, n);
            break;
        }
    }
    channel_close(&c);
}

bool guest_finds_twin(const MeetingOptions *o, const Rendezvous *at, const Address *own, Verdict *v)
{
    Search *s = must_calloc(1, sizeof *s);
    double end = seconds_now() + TWIN_SECONDS;
    int fd = -1;
    s->o = o;
    take_file(s, at);
    for (bool waiting = true; fd < 0 && waiting && seconds_now() < end;) {
        start(s, seconds_now());
        fd = move(s, end);
        /* Each address is tried only once. */
        waiting = false;
        for (int i = 0; i < s->targets; i++) {
            Target *t = &s->target[i];
            if (t->fd < 0 && t->began > 0) t->next = INFINITY;
            waiting |= t->fd >= 0 || t->next < INFINITY;
        }
    }
    if (fd >= 0) greet_twin(o, fd, own, v);
    stop_all(s);
    explicit_bzero(s, sizeof *s); /* it contains secrets */
    free(s);
    return fd >= 0;
}

/* Returns whether at least one target has refused the secret for REFUSED_SECONDS, and none for a
 * shorter time. */
static bool all_refuse(const Search *s, double now)
{
    bool some = false;
    for (int i = 0; i < s->targets; i++) {
        if (s->target[i].refused > 0 && now < s->target[i].refused + REFUSED_SECONDS) return false;
        some |= s->target[i].refused > 0;
    }
    return some;
}

int guest_find(const MeetingOptions *o, double limit, Verdict *v)
{
    Search *s = must_calloc(1, sizeof *s);
    int fd = -1;
    s->o = o;
    s->pause = LEAST_PAUSE;
    bool good = !o->interface ||
                network_own(&s->sources, o->interface, &v->code, v->sentence, sizeof v->sentence);
    if (good && !o->folder) good = list_ports(s, limit, v);
    while (good && fd < 0) {
        double now = seconds_now();
        if (o->folder) good = look(s, now, v);
        if (good && now >= limit) {
            explain(s, v);
            good = false;
        }
        if (!good) break;
        start(s, now);
        fd = move(s, fmin(limit, o->folder ? s->look : INFINITY));
        if (fd < 0 && !o->folder && all_refuse(s, seconds_now())) {
            good = verdict_set(v, EXIT_PROTOCOL,
                               "this rank has another secret (TRAIN_SECRET, parallel.secret_file) "
                               "than all that answer at %s, ports %d to %d",
                               o->master, o->port + 1, o->port + MEETING_PORTS);
        }
    }
    stop_all(s);
    explicit_bzero(s, sizeof *s); /* it contains secrets */
    free(s);
    return fd;
}

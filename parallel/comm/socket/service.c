/* service.c -- the thread with which each rank's process reports to rank 0 and hears from it. In
 * rank 0's process the same thread runs the hub (hub.c). */
#include "parallel/comm/socket/service.h"

#include "model/core/check.h"
#include "model/core/clock.h"
#include "model/core/guard.h"
#include "model/core/log.h"
#include "model/core/pool.h"
#include "parallel/comm/deadline.h"
#include "parallel/comm/socket/hub.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

/* Seconds between two reports of a rank that has no news, at most. */
static const double HEARTBEAT = 1;

double socket_heartbeat(const SocketLinks *links, double timeout)
{
    const double several = 3;
    return links->joined && timeout > 0 ? fmin(HEARTBEAT, timeout / several) : HEARTBEAT;
}

/* For how many seconds a failing rank waits for rank 0's word, and one that has lost a peer for
 * rank 0 to find out why. */
static const double CLAIM_WAIT = 1, CAUSE_WAIT = 0.5;
/* For how many seconds the message about rank 0 may wait for the reader of a console. */
enum { SECONDS_TO_PRINT = 4 };

/* This thread reads what rank 0 sends: the service thread, and before it runs the rank's own. */
static _Thread_local bool hears_rank_0;

static void signal_event(int fd)
{
    const uint64_t once = 1;
    ssize_t written = write(fd, &once, sizeof once);
    (void)written; /* it can only fail if its reader is to wake up already */
}

void socket_service_nudge(SocketService *service, uint64_t question)
{
    atomic_store(&service->question, question);
    signal_event(service->nudge);
}

/* ---- a rank's thread ------------------------------------------------------------------------- */

/* Acts on a packet from rank 0. */
static void hear(SocketService *service, const SocketWord *word)
{
    service->silent = 0;
    switch ((SocketPacketKind)word->head.kind) {
    case PACKET_ASK:
        if (word->asked != service->asked) socket_service_nudge(service, word->asked);
        service->asked = word->asked;
        break;
    case PACKET_GRANT: atomic_store(&service->granted, true); break;
    case PACKET_VERDICT: ends_now((ExitCode)word->code);
    case PACKET_FAREWELL: service->farewell = true; break;
    default: break;
    }
}

/* Rank 0's process has ended without a verdict, or the network has. So this one ends, too, unless
 * it is this rank that fails. A launcher reports the loss; without one, a rank of each machine
 * does. */
static void lose_rank_0(SocketService *service)
{
    const SocketLinks *links = service->links;
    if (atomic_load(&service->granted) || service->farewell) return;
    if (links->joined && atomic_load(&service->claiming)) {
        atomic_store(&service->granted, true); /* there is nobody who could grant it */
        return;
    }
    if (!links->joined || !socket_links_speaks(links, service->rank)) ends_now(EXIT_PEER_LOST);
    guard_end_within(SECONDS_TO_PRINT, EXIT_PEER_LOST);
    log_set_rank(0, links->place[0]);
    error_print(EXIT_PEER_LOST,
                "the process of this rank on %s has ended, or the network to it is broken",
                socket_links_host(links, 0));
    ends_now(EXIT_PEER_LOST);
}

/* Receives what rank 0 has sent. */
static void listen_to_rank_0(SocketService *service)
{
    SocketPacket packet;
    while (socket_stream_take(&service->zero, &packet))
        hear(service, &packet.word);
    if (service->zero.lost) lose_rank_0(service);
}

/* Sends what could not be sent before. Returns whether some is left. */
static bool flush(SocketService *service)
{
    pthread_mutex_lock(&service->sends);
    socket_stream_flush(&service->zero);
    bool left = service->zero.left > 0;
    pthread_mutex_unlock(&service->sends);
    return left;
}

/* Lets so many seconds pass in which rank 0 was silent, and in which this rank may have waited. */
static void pass_time(SocketService *service, double passed)
{
    pthread_mutex_lock(&service->mutex);
    const SocketWait *wait = &service->wait;
    bool same = wait->waits && !wait->unlimited && wait->wait == service->timed;
    service->waited = same ? service->waited + passed : 0;
    service->timed = wait->wait;
    pthread_mutex_unlock(&service->mutex);
    service->silent += passed;
    watched_pass(passed);
}

/* Returns whether this rank says that rank 0 is silent, once it is its turn. */
static bool speaks_without_rank_0(const SocketService *service)
{
    return !service->links->joined || socket_links_speaks(service->links, service->rank);
}

/* Returns after how many seconds more than the timeout this rank ends the program because rank 0 is
 * silent. Joined ranks may be cut off from all others, so none waits for another one: the lowest
 * rank of each machine speaks, and the others end without a word. */
static double turn(const SocketService *service)
{
    const double first = 0.5, others = 1;
    if (!service->links->joined) return service->rank;
    return speaks_without_rank_0(service) ? first : others;
}

/* Returns the deadline that this rank's wait has reached, or 0 if there is none. Rank 0 is silent,
 * and waits that rank 0 does not hear of have no deadline. Writes what it waits in to call. */
static double late_wait(SocketService *service, char call[BLAME_CALL_BYTES])
{
    double timeout = service->timeout;
    pthread_mutex_lock(&service->mutex);
    bool waits = service->wait.waits && service->wait.wait == service->timed;
    snprintf(call, BLAME_CALL_BYTES, "%s", service->wait.call);
    pthread_mutex_unlock(&service->mutex);
    if (waits && timeout > 0 && service->waited >= timeout + turn(service)) return timeout;
    for (int i = 0; i < service->watches; i++) { /* as reported last */
        if (!watched_is_late(&service->watched[i])) continue;
        snprintf(call, BLAME_CALL_BYTES, "%s", service->watched[i].call);
        return service->watched[i].timeout;
    }
    return 0;
}

/* Rank 0 enforces all deadlines but those for itself. If its whole process does not answer, the
 * first rank whose own wait is too long ends the program. Rank 1 does so a second after the
 * deadline, and each further rank a second later, in case those before it do not answer either.
 * Both the silence and the wait must have lasted that long. */
static void watch_rank_0(SocketService *service)
{
    int rank_0 = 0;
    BlameWait wait = {.rank = service->rank,
                      .lack = BLAME_HOSTS,
                      .who = &rank_0,
                      .n = 1,
                      .hosts = socket_links_hosts(service->links)};
    Blame blame = {.kind = BLAME_THEMSELVES};
    double timeout = late_wait(service, wait.call);
    if (timeout <= 0 || service->silent < timeout + turn(service)) return;
    if (!speaks_without_rank_0(service)) ends_now(EXIT_HANG);
    atomic_store(&service->granted, true); /* there is nobody who could grant it */
    log_set_rank(service->rank, service->links->place[service->rank]);
    deadline_end_waiting(&wait, timeout, &blame);
}

/* Waits for rank 0 for a moment, at the end of the program. */
static void wait_at_the_end(SocketService *service)
{
    const double period = 0.01;
    SocketWait wait = {.waits = 1, .wait = UINT64_MAX};
    struct pollfd fd = {.fd = service->zero.lost ? -1 : service->zero.fd, .events = POLLIN};
    snprintf(wait.call, sizeof wait.call, "%s", SOCKET_LAST_WAIT);
    pthread_mutex_lock(&service->mutex);
    service->wait = wait;
    pthread_mutex_unlock(&service->mutex);
    double start = seconds_now();
    poll(&fd, 1, (int)(1000 * period));
    pass_time(service, fmin(seconds_now() - start, period));
    listen_to_rank_0(service);
    watch_rank_0(service);
}

/* Rank 0 has no room for the last report only if it is stopped. Then this is a wait, too. Joined
 * ranks end together, so that all hear of a failure until then. */
static void say_goodbye(SocketService *service)
{
    while (!socket_service_report(service, true) && !service->zero.lost)
        wait_at_the_end(service);
    while (flush(service) && !service->zero.lost)
        wait_at_the_end(service);
    if (service->zero.shut) listen_to_rank_0(service);
    while (service->links->joined && !service->farewell && !service->zero.lost)
        wait_at_the_end(service);
}

static void rank_main(SocketService *service)
{
    const SocketStream *zero = &service->zero;
    while (!atomic_load(&service->stop)) {
        short events = (short)(POLLIN | (flush(service) ? POLLOUT : 0));
        struct pollfd fd[] = {{.fd = service->wake, .events = POLLIN},
                              {.fd = zero->lost ? -1 : zero->fd, .events = events}};
        double start = seconds_now(),
               period = watched_pace(socket_heartbeat(service->links, service->timeout));
        uint64_t times;
        poll(fd, 2, (int)ceil(1000 * period));
        /* After the process was stopped, at most one period counts. */
        pass_time(service, fmin(seconds_now() - start, period));
        if (fd[0].revents && read(service->wake, &times, sizeof times) < 0) continue;
        listen_to_rank_0(service);
        watch_rank_0(service);
        if (!atomic_load(&service->stop)) socket_service_report(service, false);
    }
    say_goodbye(service);
}

static void *service_main(void *context)
{
    SocketService *service = context;
    hears_rank_0 = true;
    log_set_rank(service->rank, service->links->place[service->rank]);
    if (service->hub)
        socket_hub_main(service->hub);
    else
        rank_main(service);
    return NULL;
}

/* ---- the first failure speaks ---------------------------------------------------------------- */

/* Called when this rank has lost a peer. Usually that rank's process has ended, which rank 0 finds
 * out, too, and knows how. Waits until it has, but not for long. */
static void wait_for_cause(SocketService *service)
{
    double end = seconds_now() + CAUSE_WAIT;
    while (seconds_now() < end && !atomic_load(&service->granted)) {
        if (service->hub && atomic_load(&service->hub->claimed) >= 0) return;
        usleep(1000);
    }
}

/* Asks rank 0 whether this process's failure is the first of all ranks (ends_set_claim). */
static bool claim(void *context, ExitCode code)
{
    SocketService *service = context;
    SocketWord word = socket_word(PACKET_CLAIM);
    word.head.rank = service->rank;
    word.code = (int32_t)code;
    if (code == EXIT_PEER_LOST && !hears_rank_0) wait_for_cause(service);
    if (service->hub) return socket_hub_claim(service->hub, 0, (int)code);
    if (atomic_load(&service->granted)) return true;
    atomic_store(&service->claiming, true);
    if (mutex_lock_within(&service->sends, DEADLINE_LOCK)) {
        socket_stream_put(&service->zero, &word);
        pthread_mutex_unlock(&service->sends);
    }
    double end = seconds_now() + CLAIM_WAIT;
    while (seconds_now() < end && !atomic_load(&service->granted)) {
        if (hears_rank_0) listen_to_rank_0(service);
        usleep(1000);
    }
    /* Without an answer rank 0 is stopped or lost. Two messages are better than none. */
    return true;
}

/* ---- starting, stopping, and news from the rank's own thread --------------------------------- */

static void free_list(SocketGroupShare *group)
{
    while (group) {
        SocketGroupShare *next = group->next;
        socket_members_free(&group->members);
        free(group);
        group = next;
    }
}

void socket_service_start(SocketService *service, SocketLinks *links, int rank, double timeout)
{
    service->links = links;
    service->rank = rank;
    service->timeout = timeout;
    service->zero.fd = links->star[1][rank];
    pthread_mutex_init(&service->mutex, NULL);
    pthread_mutex_init(&service->sends, NULL);
    /* From here on a failure of this rank reaches the others. */
    if (rank == 0) service->hub = socket_hub_create(service, links, timeout);
    hears_rank_0 = true;
    ends_set_claim(claim, service);
    service->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    service->nudge = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (service->wake < 0 || service->nudge < 0)
        fail(EXIT_SYSTEM, "no descriptor for rank %d: %s", rank, strerror(errno));
    watched_report(true);
    thread_start(&service->thread, service_main, service, "the service of a rank");
    hears_rank_0 = false;
}

void socket_service_stop(SocketService *service)
{
    atomic_store(&service->stop, true);
    signal_event(service->wake);
    pthread_join(service->thread, NULL);
    watched_report(false);
    ends_set_claim(NULL, NULL);
    close(service->wake);
    close(service->nudge);
    pthread_mutex_destroy(&service->mutex);
    pthread_mutex_destroy(&service->sends);
    free_list(service->left);
    free_list(service->groups);
    socket_hub_destroy(service->hub);
}

void socket_service_opens(SocketService *service, SocketGroupShare *group)
{
    pthread_mutex_lock(&service->mutex);
    SocketGroupShare *left = service->left;
    service->left = NULL;
    group->next = service->groups;
    service->groups = group;
    pthread_mutex_unlock(&service->mutex);
    free_list(left);
}

void socket_service_closes(SocketService *service, SocketGroupShare *group)
{
    pthread_mutex_lock(&service->mutex);
    group->closed = true;
    pthread_mutex_unlock(&service->mutex);
    signal_event(service->wake);
}

void socket_service_waits(SocketService *service, const SocketWait *wait)
{
    pthread_mutex_lock(&service->mutex);
    bool news = service->wait.wait != wait->wait || service->wait.gones != wait->gones ||
                service->wait.confirmed != wait->confirmed;
    service->wait = *wait;
    pthread_mutex_unlock(&service->mutex);
    if (news) signal_event(service->wake);
}

void socket_service_goes_on(SocketService *service)
{
    pthread_mutex_lock(&service->mutex);
    service->wait.waits = false;
    pthread_mutex_unlock(&service->mutex);
}

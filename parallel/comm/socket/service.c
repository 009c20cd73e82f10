/* service.c -- the thread with which each rank's process reports to rank 0 and hears from it. In
 * rank 0's process the same thread runs the hub (hub.c). */
#include "parallel/comm/socket/service.h"

#include "model/core/check.h"
#include "model/core/clock.h"
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
/* For how many seconds a failing rank waits for rank 0's word, and one that has lost a peer for
 * rank 0 to find out why. */
static const double CLAIM_WAIT = 1, CAUSE_WAIT = 0.5;

/* This thread reads what rank 0 sends: the service thread, and before it runs the rank's own. */
static _Thread_local bool hears_rank_0;

/* ---- reports --------------------------------------------------------------------------------- */

static void pack_group(SocketReport *report, SocketGroupShare *group, bool goodbye)
{
    SocketGroupReport *packed = &report->group[report->groups++];
    *packed = (SocketGroupReport){.id = group->id,
                                  .size = group->size,
                                  .closed = group->closed || goodbye,
                                  .meetings = group->meetings};
    memcpy(packed->name, group->name, sizeof packed->name);
    for (int i = 0; i < group->size; i++)
        packed->member[i] = (uint8_t)group->member[i];
}

/* Packs the groups of which rank 0 does not know the current state. Returns whether all fit. */
static bool pack(SocketService *service, bool goodbye)
{
    SocketReport *report = &service->report;
    bool fits = true;
    pthread_mutex_lock(&service->mutex);
    *report = (SocketReport){.kind = PACKET_REPORT,
                             .rank = service->rank,
                             .asked = service->asked,
                             .wait = service->wait};
    for (SocketGroupShare *group = service->groups; group; group = group->next) {
        if (!group->closed && !goodbye && group->reported == 1 + group->meetings) continue;
        fits = report->groups < GROUPS_IN_REPORT;
        if (!fits) break;
        pack_group(report, group, goodbye);
    }
    pthread_mutex_unlock(&service->mutex);
    return fits;
}

/* Notes what rank 0 knows now. Groups that this rank has left are not needed any more. */
static void has_reported(SocketService *service, const SocketReport *report)
{
    pthread_mutex_lock(&service->mutex);
    for (int i = 0; i < report->groups; i++) {
        SocketGroupShare **at = &service->groups;
        while ((*at)->id != report->group[i].id)
            at = &(*at)->next;
        SocketGroupShare *group = *at;
        group->reported = 1 + report->group[i].meetings;
        if (!report->group[i].closed) continue;
        *at = group->next;
        group->next = service->left;
        service->left = group;
    }
    pthread_mutex_unlock(&service->mutex);
}

/* Reports the watched groups of this process to rank 0. Returns false if they cannot be sent. */
static bool report_watched(SocketService *service)
{
    SocketWatched *watched = &service->watched;
    int before = watched->calls;
    *watched = (SocketWatched){.kind = PACKET_WATCHED, .rank = service->rank};
    watched->calls = watched_calls(watched->call, WATCHED_IN_REPORT);
    CHECK(watched->calls <= WATCHED_IN_REPORT, "%d watched groups", watched->calls);
    if (watched->calls == 0 && before == 0) return true;
    if (service->hub) socket_hub_take_watched(service->hub, watched);
    return service->hub || send(service->links->star[service->rank][1], watched,
                                socket_watched_bytes(watched), MSG_DONTWAIT | MSG_NOSIGNAL) >= 0;
}

bool socket_service_report(SocketService *service, bool goodbye)
{
    const SocketReport *report = &service->report;
    bool all = false;
    if (!report_watched(service)) return false;
    while (!all) {
        all = pack(service, goodbye);
        if (service->hub)
            socket_hub_take(service->hub, report);
        else if (send(service->links->star[service->rank][1], report, socket_report_bytes(report),
                      MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
            return false;
        has_reported(service, report);
    }
    return true;
}

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
static void hear(SocketService *service, const SocketPacket *packet)
{
    service->silent = 0;
    if (packet->kind == PACKET_ASK && packet->asked != service->asked)
        socket_service_nudge(service, packet->asked);
    if (packet->kind == PACKET_ASK) service->asked = packet->asked;
    if (packet->kind == PACKET_GRANT) atomic_store(&service->granted, true);
    if (packet->kind == PACKET_VERDICT) ends_now((ExitCode)packet->code);
}

/* Receives what rank 0 has sent. If rank 0's process has ended without a verdict, this one ends,
 * too, unless it is this rank that fails. The launcher reports the loss. */
static void listen_to_rank_0(SocketService *service)
{
    SocketPacket packet;
    ssize_t got = 1;
    while (!service->lost && got > 0) {
        got = socket_packet(service->links->star[service->rank][1], &packet, sizeof packet);
        if (got == (ssize_t)sizeof packet) hear(service, &packet);
        if (got == 0) service->lost = true;
    }
    if (service->lost && !atomic_load(&service->granted)) ends_now(EXIT_PEER_LOST);
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

/* Returns the deadline that this rank's wait has reached, or 0 if there is none. Rank 0 is silent,
 * and waits that rank 0 does not hear of have no deadline. Writes what it waits in to call. */
static double late_wait(SocketService *service, char call[BLAME_CALL_BYTES])
{
    const SocketWatched *watched = &service->watched; /* as reported last */
    double timeout = service->timeout;
    pthread_mutex_lock(&service->mutex);
    bool waits = service->wait.waits && service->wait.wait == service->timed;
    snprintf(call, BLAME_CALL_BYTES, "%s", service->wait.call);
    pthread_mutex_unlock(&service->mutex);
    if (waits && timeout > 0 && service->waited >= timeout + service->rank) return timeout;
    for (int i = 0; i < watched->calls; i++) {
        if (!watched_is_late(&watched->call[i])) continue;
        snprintf(call, BLAME_CALL_BYTES, "%s", watched->call[i].call);
        return watched->call[i].timeout;
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
    BlameWait wait = {.rank = service->rank, .lack = BLAME_HOSTS, .who = &rank_0, .n = 1};
    Blame blame = {.kind = BLAME_THEMSELVES};
    double timeout = late_wait(service, wait.call);
    if (timeout <= 0 || service->silent < timeout + service->rank) return;
    atomic_store(&service->granted, true); /* there is nobody who could grant it */
    log_set_rank(service->rank, service->links->place[service->rank]);
    deadline_end_waiting(&wait, timeout, &blame);
}

/* Rank 0 has no room for the last report only if it is stopped. Then this is a wait, too. */
static void say_goodbye(SocketService *service)
{
    const double period = 0.01;
    SocketWait wait = {.waits = 1, .wait = UINT64_MAX};
    snprintf(wait.call, sizeof wait.call, "%s", SOCKET_LAST_WAIT);
    while (!socket_service_report(service, true) && !service->lost) {
        pthread_mutex_lock(&service->mutex);
        service->wait = wait;
        pthread_mutex_unlock(&service->mutex);
        usleep((useconds_t)(1e6 * period));
        pass_time(service, period);
        listen_to_rank_0(service);
        watch_rank_0(service);
    }
}

static void rank_main(SocketService *service)
{
    while (!atomic_load(&service->stop)) {
        struct pollfd fd[] = {
            {.fd = service->wake, .events = POLLIN},
            {.fd = service->lost ? -1 : service->links->star[service->rank][1], .events = POLLIN}};
        double start = seconds_now(), period = watched_pace(HEARTBEAT);
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
    SocketPacket packet = {.kind = PACKET_CLAIM, .rank = service->rank, .code = (int32_t)code};
    if (code == EXIT_PEER_LOST && !hears_rank_0) wait_for_cause(service);
    if (service->hub) return socket_hub_claim(service->hub, 0, (int)code);
    if (atomic_load(&service->granted)) return true;
    send(service->links->star[service->rank][1], &packet, sizeof packet,
         MSG_DONTWAIT | MSG_NOSIGNAL);
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
        free(group);
        group = next;
    }
}

void socket_service_start(SocketService *service, SocketLinks *links, int rank, double timeout)
{
    service->links = links;
    service->rank = rank;
    service->timeout = timeout;
    pthread_mutex_init(&service->mutex, NULL);
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
    bool news = service->wait.wait != wait->wait || service->wait.gone != wait->gone ||
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

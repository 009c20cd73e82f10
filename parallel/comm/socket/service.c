/* service.c -- the thread of each rank's process that reports to rank 0 and receives from it. In
 * rank 0's process this thread runs the hub (hub.c). */
#include "parallel/comm/socket/service.h"

#include "model/core/check.h"
#include "model/core/clock.h"
#include "model/core/dumps.h"
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

/* Seconds between two reports of a rank whose state has not changed, at most. */
static const double HEARTBEAT = 1;

double socket_heartbeat(const SocketLinks *links, double timeout)
{
    const double several = 3;
    return links->joined && timeout > 0 ? fmin(HEARTBEAT, timeout / several) : HEARTBEAT;
}

/* For how many seconds a failing rank waits for rank 0's permission, and a rank that has lost a
 * peer for rank 0 to find out why. */
static const double CLAIM_WAIT = 1, CAUSE_WAIT = 0.5;

/* True in the thread that reads what rank 0 sends: the service thread or, before it is started, the
 * rank's own thread. */
static _Thread_local bool hears_rank_0;

static void signal_event(int fd)
{
    const uint64_t once = 1;
    ssize_t written = write(fd, &once, sizeof once);
    (void)written; /* this can only fail if the reader is about to wake up already */
}

void socket_service_wake(SocketService *service)
{
    signal_event(service->wake);
}

void socket_service_nudge(SocketService *service, uint64_t question)
{
    atomic_store(&service->question, question);
    signal_event(service->nudge);
}

/* ---- the service thread of ranks other than 0 ------------------------------------------------ */

/* Acts on a packet that comes from rank 0, or over the tree. */
static void hear(SocketService *service, const SocketWord *word)
{
    SocketPacketKind kind = (SocketPacketKind)word->head.kind;
    socket_relay_down(service, word);
    if (word->head.rank >= 0 && word->head.rank != service->rank) return;
    if (kind != PACKET_ALIVE && kind != PACKET_LOST) service->silent = 0;
    switch (kind) {
    case PACKET_ASK:
        if (word->asked > service->asked) {
            socket_service_nudge(service, word->asked);
            service->asked = word->asked;
        }
        break;
    case PACKET_GRANT: atomic_store(&service->granted, true); break;
    case PACKET_VERDICT:
        socket_relay_finish(service);
        if (word->rank != service->rank) ends_now((ExitCode)word->code);
        break;
    case PACKET_FAREWELL: service->farewell = true; break;
    case PACKET_DUMP: dumps_order((int64_t)word->asked); break;
    case PACKET_LOST:
        if (word->code == EXIT_HANG) socket_above_lose_silent_rank_0(service);
        socket_above_lose_rank_0(service);
        break;
    case PACKET_ALIVE: service->relay.suspect = word->rank; break;
    default: break;
    }
}

/* Receives what has arrived, and forwards packets that are for other ranks. */
static void listen_to_others(SocketService *service)
{
    SocketRelay *relay = &service->relay;
    SocketPacket packet;
    while (socket_stream_take(&service->zero, &packet))
        hear(service, &packet.word);
    while (atomic_load(&relay->planted) && socket_stream_take(&relay->parent, &packet)) {
        relay->quiet = 0;
        hear(service, &packet.word);
    }
    socket_relay_serve(service);
    if (!socket_relay_up_is_lost(service)) return;
    if (relay->up == UP_STAR)
        socket_above_lose_rank_0(service);
    else
        socket_above_lose_parent(service);
}

/* Adds `passed` seconds to the time in which rank 0 was silent, and, if this rank waits, to its
 * wait. */
static void pass_time(SocketService *service, double passed)
{
    pthread_mutex_lock(&service->mutex);
    const SocketWait *wait = &service->wait;
    bool same = wait->waits && !wait->unlimited && wait->wait == service->timed;
    service->waited = same ? service->waited + passed : 0;
    service->timed = wait->wait;
    pthread_mutex_unlock(&service->mutex);
    service->silent += passed;
    service->relay.quiet += passed;
    watched_pass(passed);
}

/* Forwards the request for a dump to rank 0. If there is no room at the moment, it is sent
 * later. */
static void send_wish(SocketService *service)
{
    SocketWord word = socket_word(PACKET_DUMP);
    int64_t number = atomic_load(&service->wish);
    word.head.rank = service->rank;
    word.asked = (uint64_t)number;
    if (number > 0 && socket_relay_put(service, &word))
        atomic_compare_exchange_strong(&service->wish, &number, 0);
}

/* Waits for rank 0 for one period, at the end of the program. */
static void wait_at_the_end(SocketService *service)
{
    const double period = 0.01;
    SocketWait wait = {.waits = 1, .wait = UINT64_MAX};
    struct pollfd own[SERVICE_FDS] = {{.fd = -1}};
    int n;
    struct pollfd *fd = socket_relay_poll(service, own, &n);
    snprintf(wait.call, sizeof wait.call, "%s", SOCKET_LAST_WAIT);
    pthread_mutex_lock(&service->mutex);
    service->wait = wait;
    pthread_mutex_unlock(&service->mutex);
    double start = seconds_now();
    poll(fd, (nfds_t)n, (int)(1000 * period));
    pass_time(service, deadline_passed(start, period));
    listen_to_others(service);
    socket_above_watch(service);
}

/* Sends the last report. If there is no room for it, rank 0 is stopped. The wait for room has a
 * deadline, like a wait in a call. A joined rank then waits until all ranks have left, so that
 * until then it is told of a failure. */
static void say_goodbye(SocketService *service)
{
    while (!socket_service_report(service, true) && !socket_relay_up_is_lost(service))
        wait_at_the_end(service);
    while (socket_relay_flush(service) && !socket_relay_up_is_lost(service))
        wait_at_the_end(service);
    service->relay.left = true;
    if (socket_relay_up_is_shut(service)) listen_to_others(service);
    while (service->links->joined && !service->farewell && !socket_relay_up_is_lost(service))
        wait_at_the_end(service);
    socket_relay_part(service);
}

/* Returns after how many seconds the thread checks again. If a rank above is silent, nothing wakes
 * the thread, and only the passing of time can end this process, so it checks more often. */
static double look_within(const SocketService *service, double period)
{
    const double soon = 0.1;
    return socket_relay_suspect(service) > 0 ? fmin(soon, period) : period;
}

static void rank_main(SocketService *service)
{
    double reported = 0;
    while (!atomic_load(&service->stop)) {
        struct pollfd own[SERVICE_FDS] = {{.fd = service->wake, .events = POLLIN}};
        int n;
        struct pollfd *fd = socket_relay_poll(service, own, &n);
        double start = seconds_now(),
               period = watched_pace(socket_heartbeat(service->links, service->timeout)),
               look = look_within(service, period);
        uint64_t times;
        bool due = poll(fd, (nfds_t)n, (int)ceil(1000 * look)) <= 0 && look >= period;
        pass_time(service, deadline_passed(start, look));
        if (fd[0].revents && read(service->wake, &times, sizeof times) < 0) continue;
        due = due || fd[0].revents || fd[1].revents || fd[2].revents;
        send_wish(service);
        listen_to_others(service);
        socket_above_watch(service);
        /* If packets have come only from children, which this rank forwards, its own state has not
         * changed, so it is not reported before the period has passed. */
        if (!due && seconds_now() < reported + period) continue;
        if (!atomic_load(&service->stop)) socket_service_report(service, false);
        reported = seconds_now();
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

/* ---- only the first failure is printed ------------------------------------------------------- */

/* Called when this rank has lost a peer. Usually the peer's process has ended, and rank 0 finds out
 * how and ends the program. Waits for that, but not for long. */
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
    socket_relay_claim(service, &word);
    double end = seconds_now() + CLAIM_WAIT;
    while (seconds_now() < end && !atomic_load(&service->granted)) {
        if (hears_rank_0) listen_to_others(service);
        usleep(1000);
    }
    /* If there is no answer, rank 0 is stopped or lost. This rank then prints its error without
     * permission: two messages are better than none. It also ends the ranks below it, because
     * nobody else tells them. */
    bool answered = atomic_load(&service->granted) && !atomic_load(&service->alone);
    if (answered) return true;
    dumps_end_alone();
    socket_relay_end(service, PACKET_VERDICT, (int)code);
    return true;
}

/* Called by the thread that writes the dumps (dumps_set_ask). */
static void ask_for_dump(void *context, int64_t number)
{
    SocketService *service = context;
    atomic_store(&service->wish, number);
    socket_service_wake(service);
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
    service->relay.parent.fd = service->relay.suspect = -1;
    pthread_mutex_init(&service->mutex, NULL);
    pthread_mutex_init(&service->sends, NULL);
    /* From here on a failure of this rank ends the other ranks, too. */
    if (rank == 0) service->hub = socket_hub_create(service, links, timeout);
    hears_rank_0 = true;
    ends_set_claim(claim, service);
    service->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    service->nudge = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (service->wake < 0 || service->nudge < 0)
        fail(EXIT_SYSTEM, "no descriptor for rank %d: %s", rank, strerror(errno));
    watched_report(true);
    dumps_set_ask(ask_for_dump, service);
    thread_start(&service->thread, service_main, service, "the service of a rank");
    hears_rank_0 = false;
}

void socket_service_stop(SocketService *service)
{
    atomic_store(&service->stop, true);
    socket_service_wake(service);
    pthread_join(service->thread, NULL);
    watched_report(false);
    ends_set_claim(NULL, NULL);
    dumps_set_ask(NULL, NULL);
    close(service->wake);
    close(service->nudge);
    pthread_mutex_destroy(&service->mutex);
    pthread_mutex_destroy(&service->sends);
    free_list(service->left);
    free_list(service->groups);
    socket_relay_close(service);
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
    socket_service_wake(service);
}

void socket_service_waits(SocketService *service, const SocketWait *wait)
{
    pthread_mutex_lock(&service->mutex);
    bool news = service->wait.wait != wait->wait || service->wait.gones != wait->gones ||
                service->wait.confirmed != wait->confirmed;
    service->wait = *wait;
    pthread_mutex_unlock(&service->mutex);
    if (news) socket_service_wake(service);
}

void socket_service_goes_on(SocketService *service)
{
    pthread_mutex_lock(&service->mutex);
    service->wait.waits = false;
    pthread_mutex_unlock(&service->mutex);
}

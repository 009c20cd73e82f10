/* above.c -- what a rank does when rank 0, or in a tree a rank on the way to it, has ended or is
 * silent. */
#include "model/core/check.h"
#include "model/core/dumps.h"
#include "model/core/guard.h"
#include "model/core/log.h"
#include "parallel/comm/deadline.h"
#include "parallel/comm/socket/service.h"

#include <stdio.h>
#include <unistd.h>

/* For how many seconds the message about rank 0 may wait for the reader of a console. */
enum { SECONDS_TO_PRINT = 4 };

/* Ends this process without a word, and all below. */
static void end_in_silence(SocketService *service, ExitCode code) __attribute__((noreturn));
static void end_in_silence(SocketService *service, ExitCode code)
{
    socket_relay_end(service, PACKET_VERDICT, (int)code);
    ends_now(code);
}

/* Returns whether another rank's failure does not end this process: it is this rank that fails, or
 * all have left. */
static bool goes_its_way(SocketService *service)
{
    if (atomic_load(&service->granted) || service->farewell) return true;
    if (!service->links->joined || !atomic_load(&service->claiming)) return false;
    atomic_store(&service->alone, true);
    atomic_store(&service->granted, true); /* there is nobody who could grant it */
    return true;
}

/* Rank 0's process has ended without a verdict, or the network has. So this one ends, too, unless
 * it is this rank that fails. A launcher reports the loss; without one, a rank of each machine
 * does. */
void socket_above_lose_rank_0(SocketService *service)
{
    const SocketLinks *links = service->links;
    if (atomic_load(&service->granted) || service->farewell) return;
    socket_relay_end(service, PACKET_LOST, EXIT_PEER_LOST);
    if (goes_its_way(service)) return;
    if (!links->joined || !socket_links_speaks(links, service->rank)) ends_now(EXIT_PEER_LOST);
    guard_end_within(SECONDS_TO_PRINT, EXIT_PEER_LOST);
    log_set_rank(0, links->place[0]);
    error_print(EXIT_PEER_LOST,
                "the process of this rank on %s has ended, or the network to it is broken",
                socket_links_host(links, 0));
    ends_now(EXIT_PEER_LOST);
}

/* The connection to the parent, which is not rank 0, has ended without a verdict. The parent's own
 * parent tells rank 0, which says so; it has a moment for that before this process ends. If the
 * parent was silent before, it was stopped, which is what rank 0 has said. */
void socket_above_lose_parent(SocketService *service)
{
    const useconds_t moment = 300000;
    bool silent = service->timeout > 0 && service->relay.quiet >= service->timeout;
    if (goes_its_way(service)) return;
    usleep(moment);
    end_in_silence(service, silent ? EXIT_HANG : EXIT_PEER_LOST);
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

/* Returns the deadline that this rank's wait has exceeded by so many seconds, or 0 if there is
 * none. Rank 0 is silent, and waits that rank 0 does not hear of have no deadline. Writes what it
 * waits in to call. */
static double late_wait(SocketService *service, double by, char call[BLAME_CALL_BYTES])
{
    double timeout = service->timeout;
    pthread_mutex_lock(&service->mutex);
    bool waits = service->wait.waits && service->wait.wait == service->timed;
    snprintf(call, BLAME_CALL_BYTES, "%s", service->wait.call);
    pthread_mutex_unlock(&service->mutex);
    if (waits && timeout > 0 && service->waited >= timeout + by) return timeout;
    for (int i = 0; i < service->watches; i++) { /* as reported last */
        if (!watched_is_late(&service->watched[i])) continue;
        snprintf(call, BLAME_CALL_BYTES, "%s", service->watched[i].call);
        return service->watched[i].timeout;
    }
    return 0;
}

/* Ends this process because rank 0 is silent, and all below. `timeout`: the deadline of the wait in
 * `call`; 0: this rank does not wait, so it says nothing. */
static void end_without_rank_0(SocketService *service, double timeout, const char *call)
    __attribute__((noreturn));
static void end_without_rank_0(SocketService *service, double timeout, const char *call)
{
    int rank_0 = 0;
    BlameWait wait = {.rank = service->rank,
                      .lack = BLAME_HOSTS,
                      .who = &rank_0,
                      .n = 1,
                      .hosts = socket_links_hosts(service->links)};
    Blame blame = {.kind = BLAME_THEMSELVES};
    socket_relay_end(service, PACKET_LOST, EXIT_HANG);
    if (timeout <= 0 || !speaks_without_rank_0(service)) ends_now(EXIT_HANG);
    atomic_store(&service->granted, true); /* there is nobody who could grant it */
    dumps_end_alone();
    snprintf(wait.call, sizeof wait.call, "%s", call);
    log_set_rank(service->rank, service->links->place[service->rank]);
    deadline_end_waiting(&wait, timeout, &blame);
}

/* A rank above this one ends because rank 0 is silent. */
void socket_above_lose_silent_rank_0(SocketService *service)
{
    char call[BLAME_CALL_BYTES];
    if (goes_its_way(service)) return;
    end_without_rank_0(service, late_wait(service, 0, call), call);
}

/* Rank 0 enforces all deadlines but those for itself. If its whole process does not answer, the
 * first rank whose own wait is too long ends the program. Rank 1 does so a second after the
 * deadline, and each further rank a second later, in case those before it do not answer either.
 * Both the silence and the wait must have lasted that long.
 *
 * In a tree it may be a rank between that does not answer. Rank 0 finds that out and says so, but
 * its verdict does not come through. So the ranks below end without a word, those next to the
 * silent one first, which tell the others. They leave rank 0 the time that it needs if somebody
 * waits; if nobody does, it may say so a little after they have ended. */
void socket_above_watch(SocketService *service)
{
    const double rank_0_first = 2, others_first = 3;
    char call[BLAME_CALL_BYTES];
    double silent = service->silent, limit = service->timeout + others_first;
    int suspect = socket_relay_suspect(service);
    bool next = suspect == socket_links_parent(service->links, service->rank);
    bool cut_off =
        silent >= limit || (next && service->relay.quiet >= service->timeout + rank_0_first);
    if (suspect > 0 && cut_off) end_in_silence(service, EXIT_HANG);
    if (suspect != 0 && silent < limit) return;
    if (late_wait(service, 0, call) <= 0) return; /* the rest takes longer */
    double timeout = late_wait(service, turn(service), call);
    if (timeout <= 0 || silent < timeout + turn(service)) return;
    end_without_rank_0(service, timeout, call);
}

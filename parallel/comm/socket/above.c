/* above.c -- what a rank does when rank 0, or, in a tree, a rank on the way to rank 0, has ended or
 * is silent. */
#include "model/core/check.h"
#include "model/core/dumps.h"
#include "model/core/guard.h"
#include "model/core/log.h"
#include "parallel/comm/deadline.h"
#include "parallel/comm/socket/service.h"

#include <stdio.h>
#include <unistd.h>

/* For how many seconds the message about rank 0 may be blocked by a console that nobody reads. */
enum { SECONDS_TO_PRINT = 4 };

/* Ends this process silently, and all ranks below it in the control tree. */
static void end_in_silence(SocketService *service, ExitCode code) __attribute__((noreturn));
static void end_in_silence(SocketService *service, ExitCode code)
{
    socket_relay_end(service, PACKET_VERDICT, (int)code);
    ends_now(code);
}

/* Returns whether this process ignores the failure of another rank, because this rank itself fails,
 * or because all ranks have left. */
static bool goes_its_way(SocketService *service)
{
    if (atomic_load(&service->granted) || service->farewell) return true;
    if (!service->links->joined || !atomic_load(&service->claiming)) return false;
    atomic_store(&service->alone, true);
    atomic_store(&service->granted, true); /* no other rank can grant the permission */
    return true;
}

/* Rank 0's process has ended without a verdict (PACKET_VERDICT), or the network to it has failed.
 * So this process ends, too, unless this rank itself fails. The launcher reports the loss; without
 * a launcher, one rank of each machine does. */
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

/* The connection to the parent, which is not rank 0, has closed without a verdict. The parent's own
 * parent tells rank 0, which prints the error; this process waits a moment for that before it ends.
 * If the parent was silent before, it was stopped, and rank 0 has printed that. */
void socket_above_lose_parent(SocketService *service)
{
    const useconds_t moment = 300000;
    bool silent = service->timeout > 0 && service->relay.quiet >= service->timeout;
    if (goes_its_way(service)) return;
    usleep(moment);
    end_in_silence(service, silent ? EXIT_HANG : EXIT_PEER_LOST);
}

/* Returns whether this rank, when its turn comes, prints that rank 0 is silent. */
static bool speaks_without_rank_0(const SocketService *service)
{
    return !service->links->joined || socket_links_speaks(service->links, service->rank);
}

/* Returns how many seconds after the timeout this rank ends the program because rank 0 is silent.
 * If the ranks have a launcher, rank r does so after r seconds. Joined ranks may be cut off from
 * all other machines, so they do not rely on other ranks: the lowest rank of each machine prints
 * the error, and a moment later its other ranks end silently. */
static double turn(const SocketService *service)
{
    const double first = 0.5, others = 1;
    if (!service->links->joined) return service->rank;
    return speaks_without_rank_0(service) ? first : others;
}

/* Returns the timeout that a wait of this rank has exceeded, or 0 if there is none, and writes a
 * description of the wait to `call`. A wait of the host must have exceeded it by at least `by`
 * seconds; for calls in watched groups, watched_is_late decides. Rank 0 is silent, so no other
 * process enforces these timeouts. */
static double late_wait(SocketService *service, double by, char call[BLAME_CALL_BYTES])
{
    double timeout = service->timeout;
    pthread_mutex_lock(&service->mutex);
    bool waits = service->wait.waits && service->wait.wait == service->timed;
    snprintf(call, BLAME_CALL_BYTES, "%s", service->wait.call);
    pthread_mutex_unlock(&service->mutex);
    if (waits && timeout > 0 && service->waited >= timeout + by) return timeout;
    for (int i = 0; i < service->watches; i++) { /* as this rank has last reported them */
        if (!watched_is_late(&service->watched[i])) continue;
        snprintf(call, BLAME_CALL_BYTES, "%s", service->watched[i].call);
        return service->watched[i].timeout;
    }
    return 0;
}

/* Ends this process, and all ranks below, because rank 0 is silent. `timeout`: the deadline of the
 * wait in `call`; 0: this rank does not wait, so it prints nothing. */
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
    atomic_store(&service->granted, true); /* no other rank can grant the permission */
    dumps_end_alone();
    snprintf(wait.call, sizeof wait.call, "%s", call);
    log_set_rank(service->rank, service->links->place[service->rank]);
    deadline_end_waiting(&wait, timeout, &blame);
}

/* Called when a rank above this one ends because rank 0 is silent. Ends this process, too, unless
 * this rank itself fails. */
void socket_above_lose_silent_rank_0(SocketService *service)
{
    char call[BLAME_CALL_BYTES];
    if (goes_its_way(service)) return;
    end_without_rank_0(service, late_wait(service, 0, call), call);
}

/* Rank 0 enforces all deadlines, except if its own process does not respond. Then another rank
 * whose wait is too long ends the program. Rank 1 does so a second after the deadline, and each
 * further rank a second later, in case the ranks before it do not respond either. Both rank 0's
 * silence and the rank's own wait must have lasted that long.
 *
 * In a tree, the rank that does not respond may be one between this rank and rank 0. Rank 0
 * detects this and prints the error, but its verdict does not get through. So the ranks below the
 * silent rank end silently: its children `rank_0_first` seconds after the timeout, and they tell
 * the others. A rank that is not told ends `others_first` seconds after the timeout. Until then
 * rank 0 has had the time that it needs to detect a late wait. If no rank waits, rank 0 may print
 * the error a little after they have ended. */
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
    if (late_wait(service, 0, call) <= 0) return; /* a cheap test first */
    double timeout = late_wait(service, turn(service), call);
    if (timeout <= 0 || silent < timeout + turn(service)) return;
    end_without_rank_0(service, timeout, call);
}

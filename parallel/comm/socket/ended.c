/* ended.c -- ends the program when the process of a rank has ended, or sends nothing any more. */
#include "model/core/check.h"
#include "model/core/guard.h"
#include "model/core/log.h"
#include "parallel/comm/socket/hub.h"

#include <string.h>
#include <sys/wait.h>

/* For how many seconds rank 0 waits for the launcher's report about an ended process. */
static const double REPORT = 1;
/* A silent rank counts as lost this many seconds after the timeout. This is longer than the second
 * that may pass between two of its packets. */
static const double SILENT = 1.2;
/* For how many seconds a message may be blocked by a console that nobody reads. */
enum { SECONDS_TO_PRINT = 4 };

void socket_hub_speak_for(const SocketHub *hub, int rank)
{
    log_set_rank(rank, hub->links->place[rank]);
}

/* Ends the program because the process of a rank has ended. This must not call fail(): another
 * thread of this process may already be failing for the same cause, and wait for this thread
 * (service.c). */
static void end_for_ended(SocketHub *hub, int rank)
{
    const SocketHubRank *r = &hub->rank[rank];
    /* A rank that had not joined the world yet could not ask for permission, and has printed its
     * error itself. */
    bool said = r->known && r->spoken && WIFEXITED(r->status) && WEXITSTATUS(r->status) != EXIT_OK;
    int code = said ? WEXITSTATUS(r->status) : (int)EXIT_PEER_LOST;
    if (!socket_hub_claim(hub, 0, code)) return;
    if (said) ends_now((ExitCode)code);
    guard_end_within(SECONDS_TO_PRINT, EXIT_PEER_LOST);
    socket_hub_speak_for(hub, rank);
    if (hub->links->joined)
        error_print(EXIT_PEER_LOST,
                    "the process of this rank on %s has ended, or the network to it is broken",
                    socket_links_host(hub->links, rank));
    else if (r->known && WIFSIGNALED(r->status))
        error_print(EXIT_PEER_LOST, "the process of this rank was killed by signal %d (%s)",
                    WTERMSIG(r->status), strsignal(WTERMSIG(r->status)));
    else if (r->known)
        error_print(EXIT_PEER_LOST,
                    "the process of this rank ended with code %d while the other ranks still "
                    "needed it",
                    WEXITSTATUS(r->status));
    else
        error_print(EXIT_PEER_LOST, "the process of this rank has closed its connection to rank 0");
    ends_now(EXIT_PEER_LOST);
}

/* Ends the program if the process of a rank has ended although the rank had not left the world, or
 * although it forwards packets for others. If several processes have ended, the order of the
 * launcher's reports shows which was the first. */
static void judge_ended(SocketHub *hub, double passed)
{
    int first = -1;
    for (int i = 1; i < hub->ranks; i++) {
        SocketHubRank *r = &hub->rank[i];
        if (!r->ended || (r->left && !r->carries)) continue;
        r->ended_for += passed;
        if (!r->known && !hub->links->joined && r->ended_for < REPORT) continue;
        const SocketHubRank *best = first < 0 ? NULL : &hub->rank[first];
        bool sooner = best != NULL && r->known && (!best->known || r->order < best->order);
        if (best == NULL || sooner) first = i;
    }
    if (first >= 0) end_for_ended(hub, first);
}

/* Returns the rank because of which nothing comes from `rank`: the highest silent rank above it in
 * the tree, or `rank` itself. */
static int cause_of_silence(const SocketHub *hub, int rank)
{
    int cause = rank;
    for (int at = rank; at > 0; at = socket_links_parent(hub->links, at))
        if (hub->rank[at].silent >= hub->timeout) cause = at;
    return cause;
}

void socket_hub_end_for_silent(SocketHub *hub, int rank)
{
    rank = cause_of_silence(hub, rank);
    if (!socket_hub_claim(hub, 0, EXIT_HANG)) return;
    guard_end_within(SECONDS_TO_PRINT, EXIT_HANG);
    socket_hub_speak_for(hub, rank);
    error_print(EXIT_HANG,
                "the process of this rank on %s has been silent for %.0f s, longer than "
                "parallel.timeout (%g s): it is stopped, or its machine or the network has failed",
                socket_links_host(hub->links, rank), hub->rank[rank].silent, hub->timeout);
    ends_now(EXIT_HANG);
}

/* Joined ranks send a packet each second. Only their silence shows that they are stopped, because
 * they have no launcher. */
static void judge_silent(SocketHub *hub, double passed)
{
    if (!hub->links->joined || hub->timeout <= 0) return;
    for (int i = 1; i < hub->ranks; i++) {
        SocketHubRank *r = &hub->rank[i];
        r->silent += passed;
        if ((!r->left || r->carries) && !r->ended && r->silent >= hub->timeout + SILENT)
            socket_hub_end_for_silent(hub, i);
    }
}

void socket_hub_judge_ended(SocketHub *hub, double passed)
{
    judge_ended(hub, passed);
    judge_silent(hub, passed);
}

/* ---- ranks that are cut off ------------------------------------------------------------------ */

bool socket_hub_is_cut_off(const SocketHub *hub, int rank)
{
    if (socket_hub_has_answered(hub, &hub->rank[rank])) return false;
    int at = socket_links_parent(hub->links, rank);
    for (; at > 0; at = socket_links_parent(hub->links, at))
        if (!socket_hub_has_answered(hub, &hub->rank[at]) && !hub->rank[at].left) return true;
    return false;
}

bool socket_hub_any_is_cut_off(const SocketHub *hub)
{
    for (int i = 1; hub->links->parent && i < hub->ranks; i++)
        if (!hub->rank[i].left && socket_hub_is_cut_off(hub, i)) return true;
    return false;
}

int socket_hub_silent_one(const SocketHub *hub, const BlameWait *wait, double seconds)
{
    for (int i = 0; hub->links->parent && i < wait->n; i++)
        if (hub->rank[wait->who[i]].silent >= seconds) return wait->who[i];
    return wait->who[0];
}

bool socket_hub_leave_out_cut_off(const SocketHub *hub, BlameWait *wait)
{
    int n = 0;
    for (int i = 0; i < wait->n; i++)
        if (!socket_hub_is_cut_off(hub, wait->who[i])) wait->who[n++] = wait->who[i];
    wait->n = n;
    return n > 0;
}

/* judge.c -- decides from the table of all ranks' reports who keeps whom waiting, and ends the
 * program when a wait takes too long, a rank has left, or a rank's process has ended.
 *
 * Reports are up to a second old, so rank 0 asks before it ends the program because of a wait.
 * Questions are numbered, and `asked` counts them; every rank's service thread answers with a
 * report that holds the number. There are two reasons to ask:
 *
 * - A wait has exceeded its limit (`patience`, or a watched call is late). `late_question` is the
 *   number, and `asked_for` the time since then. An answer proves that the rank's process runs, and
 *   its report says whether it still waits. A rank that has not answered in ANSWER seconds may be
 *   stopped, so it counts as one that has not arrived.
 * - A rank (`suspect`: its wait) waits for one that has left the group. What the other one sent
 *   before may still be on its way. The number is kept in `question`. The rank's own thread looks
 *   at all its connections again and then sets `confirmed` to it: nothing is left to receive.
 */
#include "model/core/check.h"
#include "model/core/guard.h"
#include "model/core/log.h"
#include "parallel/comm/deadline.h"
#include "parallel/comm/socket/hub.h"

#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

/* Seconds for which answers are awaited before a rank counts as silent, and for which the
 * launcher's report about an ended process is awaited. */
static const double ANSWER = 0.8, REPORT = 1;

/* ---- for blame.h ----------------------------------------------------------------------------- */

/* Returns whether the rank has reported since rank 0 last asked because of a deadline. */
static bool has_answered(const SocketHub *hub, const SocketHubRank *rank)
{
    return rank->asked >= hub->late_question;
}

/* Returns whether the rank's own thread has looked again since then, and still waits. What it has
 * reported before may be over: it may be about to go on, or be frozen. */
static bool still_waits(const SocketHub *hub, const SocketHubRank *rank)
{
    return rank->wait.waits && rank->wait.confirmed >= hub->late_question;
}

static bool has(uint64_t set, int rank)
{
    return set >> rank & 1;
}

/* Returns the meetings that the world rank has begun in the group. */
static int64_t meetings_of(const SocketHubGroup *group, int rank)
{
    for (int i = 0; i < group->size; i++)
        if (group->member[i] == rank) return group->meetings[i];
    return 0;
}

/* Finds the ranks that the rank waits for according to its report. Returns whether the numbers of
 * meetings prove it, so that even an old report suffices. */
static bool find_lack(const SocketHub *hub, const SocketHubGroup *group, int rank, BlameWait *wait)
{
    const SocketWait *own = &hub->rank[rank].wait;
    int64_t meetings = meetings_of(group, rank);
    wait->rank = rank;
    wait->lack = BLAME_HOSTS;
    wait->n = 0;
    snprintf(wait->call, sizeof wait->call, "%s", own->call);
    for (int i = 0; i < group->size; i++) {
        bool lacks = own->meets ? group->meetings[i] < meetings : has(own->who, group->member[i]);
        if (lacks) wait->who[wait->n++] = group->member[i];
    }
    /* All have come. Then the answer of member 0 is missing. */
    bool proven = own->meets && wait->n > 0;
    if (wait->n == 0 && own->meets && group->member[0] != rank)
        wait->who[wait->n++] = group->member[0];
    return proven;
}

static const void *waits_in(void *of, int rank)
{
    SocketHub *hub = of;
    const SocketHubRank *r = &hub->rank[rank];
    /* A rank that has not answered is not known to wait: it may be stopped. */
    bool silent = !has_answered(hub, r) || r->left || r->ended;
    return r->wait.waits && !silent ? socket_hub_group(hub, r->wait.group) : NULL;
}

/* A rank whose thread has not looked again waits for those that are proven to be missing, or else
 * for nobody. */
static bool lacks(void *of, const void *group, int rank, BlameWait *wait)
{
    SocketHub *hub = of;
    bool proven = find_lack(hub, group, rank, wait);
    return wait->n > 0 && (proven || still_waits(hub, &hub->rank[rank]));
}

static void describe(void *of, const void *group, int rank, char *text, size_t n)
{
    const SocketHub *hub = of;
    (void)group;
    snprintf(text, n, "%s", hub->rank[rank].wait.call);
}

/* Copies the watched calls of all ranks, or of those that have answered, to hub->watched. A rank
 * that is missing counts as one that has not arrived: its process may be stopped. */
static void copy_calls(SocketHub *hub, bool answered)
{
    int n = 0;
    for (int i = 0; i < hub->ranks; i++) {
        const SocketHubRank *r = &hub->rank[i];
        if (answered && !has_answered(hub, r)) continue;
        memcpy(&hub->calls[n], r->call, (size_t)r->calls * sizeof *r->call);
        n += r->calls;
    }
    hub->watched = watched_link(hub->calls, n, hub->ranks, hub->first_call, hub->next_call);
}

/* Returns the waits of all hosts and, as copy_calls has found them, in watched groups. */
static BlameWaits waits_of(SocketHub *hub)
{
    static const BlameTransport transport = {
        .waits_in = waits_in, .lacks = lacks, .describe = describe};
    return (BlameWaits){
        .room = hub->room, .hosts = {&transport, hub}, .devices = {&watched_waits, &hub->watched}};
}

/* ---- ends ------------------------------------------------------------------------------------ */

/* Makes this thread print messages as that rank. */
static void speak_for(const SocketHub *hub, int rank)
{
    log_set_rank(rank, hub->links->place[rank]);
}

/* Ends the program because the process of a rank has ended. Another thread of this process may be
 * failing already, for the same cause, and wait for this one (service.c), so this is no fail(). */
static void end_for_ended(SocketHub *hub, int rank)
{
    enum { MOST_SECONDS = 4 }; /* the message may wait for the reader of a console */
    const SocketHubRank *r = &hub->rank[rank];
    /* It could not claim before it had joined the world. */
    bool said = r->known && r->spoken && WIFEXITED(r->status) && WEXITSTATUS(r->status) != EXIT_OK;
    int code = said ? WEXITSTATUS(r->status) : (int)EXIT_PEER_LOST;
    if (!socket_hub_claim(hub, 0, code)) return;
    if (said) ends_now((ExitCode)code);
    guard_end_within(MOST_SECONDS, EXIT_PEER_LOST);
    speak_for(hub, rank);
    if (r->known && WIFSIGNALED(r->status))
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

/* Ends the program if the process of a rank has ended. If several have, the launcher's reports tell
 * which was the first. */
static void judge_ended(SocketHub *hub, double passed)
{
    int first = -1;
    for (int i = 1; i < hub->ranks; i++) {
        SocketHubRank *r = &hub->rank[i];
        if (!r->ended || r->left) continue;
        r->ended_for += passed;
        if (!r->known && r->ended_for < REPORT) continue;
        const SocketHubRank *best = first < 0 ? NULL : &hub->rank[first];
        bool sooner = best != NULL && r->known && (!best->known || r->order < best->order);
        if (best == NULL || sooner) first = i;
    }
    if (first >= 0) end_for_ended(hub, first);
}

/* The rank waits for one that has left. Returns whether it still does after it has received all
 * that the other one had sent before. */
static bool is_confirmed(SocketHub *hub, SocketHubRank *r)
{
    if (r->suspect != r->wait.wait) {
        socket_hub_ask(hub, true);
        r->suspect = r->wait.wait;
        r->question = hub->asked;
    }
    return r->wait.confirmed >= r->question;
}

/* Ends the program if the rank waits for ranks that have left the group. */
static void judge_lost(SocketHub *hub, int rank)
{
    SocketHubRank *r = &hub->rank[rank];
    const SocketHubGroup *group = r->wait.waits ? socket_hub_group(hub, r->wait.group) : NULL;
    BlameWait wait = {.who = blame_room_who(hub->room)};
    bool sure = group && find_lack(hub, group, rank, &wait);
    int lost = 0;
    for (int i = 0; i < wait.n; i++) {
        bool left = hub->rank[wait.who[i]].left;
        for (int m = 0; m < group->size; m++)
            if (group->member[m] == wait.who[i]) left = left || group->closed[m];
        if (!left) continue;
        /* What it has sent before it left may not have been read yet, unless the end of the
         * connection has. */
        sure = sure || has(r->wait.gone, wait.who[i]);
        wait.who[lost++] = wait.who[i];
    }
    wait.n = lost;
    if (lost == 0 || (!sure && !is_confirmed(hub, r))) return;
    speak_for(hub, rank);
    deadline_end_lost(&wait);
}

/* Returns whether the rank is in a call of a watched group, whose own deadline names the cause. */
static bool is_watched(const SocketHubRank *r)
{
    for (int i = 0; i < r->calls; i++)
        if (watched_holds(&r->call[i])) return true;
    return false;
}

/* Returns whether some rank whose host this one waits for, directly or through other hosts, is in a
 * call of a watched group. */
static bool is_held(SocketHub *hub, const BlameWait *wait)
{
    BlameWaits hosts = {.room = hub->room, .hosts = waits_of(hub).hosts};
    const int *rank;
    int n = blame_reach(&hosts, wait, &rank);
    for (int i = 0; i < n; i++) {
        const SocketHubRank *r = &hub->rank[rank[i]];
        if (is_watched(r) && has_answered(hub, r)) return true;
    }
    return false;
}

/* Ends the program if the rank's wait is still not over and no watched call is its cause. */
static void judge_late(SocketHub *hub, int rank)
{
    SocketHubRank *r = &hub->rank[rank];
    const SocketHubGroup *group = socket_hub_group(hub, r->wait.group);
    BlameWaits waits = waits_of(hub);
    BlameWait wait = {.who = blame_room_who(hub->room)};
    Blame blame;
    bool late =
        r->wait.waits && r->wait.wait == r->timed && group && lacks(hub, group, rank, &wait);
    r->patience = r->limit;
    if (!late || is_held(hub, &wait)) return;
    blame_find(&waits, &wait, &blame);
    speak_for(hub, rank);
    deadline_end_waiting(&wait, r->limit, &blame);
}

static bool is_late(const SocketHubRank *r)
{
    return r->wait.waits && r->patience <= 0 && !r->left;
}

/* Returns whether the rank waits for nobody but the rank that prints, directly or through others.
 */
static bool waits_for_printer(SocketHub *hub, int rank)
{
    const SocketHubGroup *group = socket_hub_group(hub, hub->rank[rank].wait.group);
    BlameWaits waits = waits_of(hub);
    BlameWait wait = {.who = blame_room_who(hub->room)};
    if (group) find_lack(hub, group, rank, &wait);
    return wait.n > 0 && blame_only(&waits, &wait, DEADLINE_PRINTS);
}

/* Lets time pass for all waits. Returns whether any has exceeded the timeout. While the console of
 * the rank that prints is blocked, which is this process, no time counts for those who wait for
 * it. */
static bool pass_time(SocketHub *hub, double passed)
{
    bool late = false, blocked = log_blocked();
    if (blocked) copy_calls(hub, false);
    for (int i = 0; i < hub->ranks; i++) {
        SocketHubRank *r = &hub->rank[i];
        if (!r->wait.waits || r->wait.wait != r->timed || r->left) r->patience = r->limit;
        r->timed = r->wait.wait;
        if (!r->wait.waits || r->wait.unlimited) continue;
        if (!blocked || !waits_for_printer(hub, i)) r->patience -= passed;
        late = late || is_late(r);
    }
    return late;
}

/* Returns the rank that has waited longest beyond the timeout; -1: none. A rank that does not
 * answer may be stopped, and what it has reported may be over; its time begins again. */
static int latest(SocketHub *hub)
{
    int late = -1;
    for (int i = 0; i < hub->ranks; i++) {
        SocketHubRank *r = &hub->rank[i];
        if (!is_late(r)) continue;
        if (!has_answered(hub, r))
            r->patience = r->limit;
        else if (late < 0 || r->patience < hub->rank[late].patience)
            late = i;
    }
    return late;
}

/* ---- watched groups -------------------------------------------------------------------------- */

/* Ends the program if a call of a watched group has taken too long. */
static void judge_watched(SocketHub *hub)
{
    BlameWaits waits = waits_of(hub);
    for (int i = 0; i < hub->watched.n; i++) {
        if (!watched_is_late(&hub->calls[i])) continue;
        speak_for(hub, hub->calls[i].rank);
        watched_end(&waits, &hub->calls[i]);
    }
}

/* Makes this time not count for calls that wait for rank 0's host while its console is blocked. */
static void excuse_watched(SocketHub *hub, double passed)
{
    if (!log_blocked()) return;
    BlameWaits waits = waits_of(hub);
    copy_calls(hub, false);
    for (int i = 0, k = 0; i < hub->ranks; i++)
        for (int c = 0; c < hub->rank[i].calls; c++, k++)
            if (watched_is_excused(&waits, &hub->calls[k])) hub->rank[i].call[c].excused += passed;
}

static bool any_watched_is_late(const SocketHub *hub)
{
    for (int i = 0; i < hub->ranks; i++)
        for (int c = 0; c < hub->rank[i].calls; c++)
            if (!hub->rank[i].left && watched_is_late(&hub->rank[i].call[c])) return true;
    return false;
}

/* ---- all waits ------------------------------------------------------------------------------- */

/* Returns whether all ranks have answered the last question because of a deadline, and those that
 * wait have looked again. */
static bool all_have_answered(const SocketHub *hub)
{
    for (int i = 0; i < hub->ranks; i++) {
        const SocketHubRank *r = &hub->rank[i];
        if (r->left || r->ended) continue;
        if (!has_answered(hub, r) || (r->wait.waits && !still_waits(hub, r))) return false;
    }
    return true;
}

bool socket_hub_judge(SocketHub *hub, double passed)
{
    judge_ended(hub, passed);
    for (int i = 0; i < hub->ranks; i++)
        if (!hub->rank[i].left) judge_lost(hub, i);
    excuse_watched(hub, passed);
    bool overdue = hub->timeout > 0 && pass_time(hub, passed);
    if (!overdue && !any_watched_is_late(hub)) {
        hub->asked_for = -1;
        return false;
    }
    if (hub->asked_for < 0) {
        /* Reports may be a second old. */
        socket_hub_ask(hub, true);
        hub->late_question = hub->asked;
        hub->asked_for = 0;
        return true;
    }
    hub->asked_for += passed;
    if (!all_have_answered(hub) && hub->asked_for < ANSWER) return true;
    hub->asked_for = -1;
    copy_calls(hub, true);
    judge_watched(hub);
    for (int late = latest(hub); hub->timeout > 0 && late >= 0; late = latest(hub))
        judge_late(hub, late);
    return false;
}

/* judge.c -- finds in the table of all ranks' reports which rank waits for which, and ends the
 * program if a wait takes too long or is for a rank that has left. ended.c ends it if a rank's
 * process has ended or is silent.
 *
 * Reports are up to a second old, so rank 0 asks before it ends the program because of a wait.
 * Questions are numbered, and `asked` counts them. The service thread of a rank that is asked
 * answers with a report that contains the number of the question. There are two reasons to ask:
 * - A wait has exceeded its limit: its `patience` is used up, or a call of a watched group
 *   (watched.h) is late. Rank 0 then asks all ranks. `late_question` is the number of this
 *   question, and `asked_for` the time since then. An answer proves that the rank's process runs,
 *   and the report says whether the rank still waits. A rank that has not answered in ANSWER
 *   seconds may be stopped, so it counts as one that has not arrived.
 * - A rank waits for another rank that has left the group. What the other rank sent before it left
 *   may still be on its way. Rank 0 then asks only the waiting rank. `suspect` is the number of the
 *   wait, `question` that of the question. The rank's own thread looks at all its connections again
 *   and then sets `confirmed` to the number of the question: nothing is left to receive. */
#include "model/core/check.h"
#include "model/core/hash.h"
#include "model/core/log.h"
#include "parallel/comm/deadline.h"
#include "parallel/comm/socket/hub.h"
#include "parallel/comm/socket/tree.h"

#include <stdio.h>
#include <string.h>

/* Seconds after which a rank that has not answered counts as silent. */
static const double ANSWER = 0.8;
/* Seconds until rank 0 asks again if another rank does not forward the answers. */
static const double ASK_AGAIN = 0.2;

/* ---- for blame.h ----------------------------------------------------------------------------- */

/* Returns whether the rank's own thread has confirmed, since rank 0 last asked because of a
 * deadline, that it still waits. An earlier report may be outdated: the rank may be about to
 * continue, or be blocked. */
static bool still_waits(const SocketHub *hub, const SocketHubRank *rank)
{
    return rank->wait.waits && rank->wait.confirmed >= hub->late_question;
}

static bool is_in(const int32_t *list, int n, int rank)
{
    for (int i = 0; i < n; i++)
        if (list[i] == rank) return true;
    return false;
}

static void add_lack(BlameWait *wait, int rank)
{
    if (rank >= 0 && rank != wait->rank) wait->who[wait->n++] = rank;
}

/* Adds the members that the report names. */
static void add_named(const SocketMembers *members, const SocketWait *own, BlameWait *wait)
{
    for (int i = 0; i < own->whos; i++)
        if (socket_members_find(members, own->rank[i]) >= 0) add_lack(wait, own->rank[i]);
}

/* Finds the ranks that the rank waits for according to its report. Returns whether the numbers of
 * begun meetings (meet.c) prove this, so that even an old report suffices. */
static bool find_lack(const SocketHub *hub, const SocketHubGroup *group, int rank, BlameWait *wait)
{
    const SocketWait *own = &hub->rank[rank].wait;
    const SocketMembers *members = &group->members;
    wait->rank = rank;
    wait->lack = BLAME_HOSTS;
    wait->n = 0;
    snprintf(wait->call, sizeof wait->call, "%s", own->call);
    if (!own->meets) add_named(members, own, wait);
    for (int i = 0; own->meets && i < members->size; i++)
        if (group->meetings[i] < own->meeting) add_lack(wait, members->rank[i]);
    /* If all members have arrived, this rank waits for the answer of member 0 or, over a tree, for
     * a frame from one of the ranks that its report names. */
    bool proven = own->meets && wait->n > 0;
    if (wait->n == 0 && own->meets && !socket_tree_is_deep(members->size))
        add_lack(wait, members->rank[0]);
    else if (wait->n == 0 && own->meets)
        add_named(members, own, wait);
    wait->alike = proven;
    return proven;
}

/* For blame.h. Only meetings have a key: all ranks in a meeting wait for the same ranks. */
static uint64_t key(void *of, const void *group, int rank)
{
    const SocketHub *hub = of;
    const SocketWait *own = &hub->rank[rank].wait;
    (void)group;
    return own->meets ? hash_bytes(own->group, &own->meeting, sizeof own->meeting) : 0;
}

static const void *waits_in(void *of, int rank)
{
    SocketHub *hub = of;
    const SocketHubRank *r = &hub->rank[rank];
    /* A rank that has not answered is not known to wait: it may be stopped. */
    bool silent = !socket_hub_has_answered(hub, r) || r->left || r->ended;
    return r->wait.waits && !silent ? socket_hub_group(hub, r->wait.group) : NULL;
}

/* A rank whose thread has not confirmed its wait counts as waiting only for ranks that are proven
 * to be missing. */
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
 * that is left out counts as one that has not arrived: its process may be stopped. */
static void copy_calls(SocketHub *hub, bool answered)
{
    int n = 0, all = 0;
    for (int i = 0; i < hub->ranks; i++)
        all += hub->rank[i].calls;
    if (all > hub->calls) {
        hub->calls = 2 * all;
        hub->call = must_realloc(hub->call, (size_t)hub->calls * sizeof *hub->call);
        hub->next_call = must_realloc(hub->next_call, (size_t)hub->calls * sizeof *hub->next_call);
    }
    for (int i = 0; i < hub->ranks; i++) {
        const SocketHubRank *r = &hub->rank[i];
        if (r->calls == 0 || (answered && !socket_hub_has_answered(hub, r))) continue;
        memcpy(&hub->call[n], r->call, (size_t)r->calls * sizeof *r->call);
        n += r->calls;
    }
    hub->watched = watched_link(hub->call, n, hub->ranks, hub->first_call, hub->next_call);
}

/* Returns the waits of all hosts, and those in watched groups that copy_calls has found. */
static BlameWaits waits_of(SocketHub *hub)
{
    static const BlameTransport transport = {
        .waits_in = waits_in, .lacks = lacks, .key = key, .describe = describe};
    return (BlameWaits){.room = hub->room,
                        .names = socket_links_hosts(hub->links),
                        .hosts = {&transport, hub},
                        .devices = {&watched_waits, &hub->watched}};
}

/* ---- waits ----------------------------------------------------------------------------------- */

/* Called if the rank waits for another rank that has left. Returns whether it has confirmed that it
 * still waits after it has received everything that the other rank had sent. */
static bool is_confirmed(SocketHub *hub, SocketHubRank *r)
{
    if (r->suspect != r->wait.wait) {
        socket_hub_ask_one(hub, (int)(r - hub->rank));
        r->suspect = r->wait.wait;
        r->question = hub->asked;
    }
    return r->wait.confirmed >= r->question;
}

/* Returns whether it is certain that no rank for which this one waits has left. In a meeting, all
 * members that have left may have taken part before they left; then the answer is on its way. Many
 * ranks may wait for that answer, so this must not check all members for each waiting rank. */
static bool none_has_left(const SocketHubGroup *group, const SocketWait *wait)
{
    if (group == NULL || group->open == group->members.size) return true;
    return wait->meets && group->least_left >= wait->meeting;
}

/* Ends the program if the rank waits for ranks that have left the group. */
static void judge_lost(SocketHub *hub, int rank)
{
    SocketHubRank *r = &hub->rank[rank];
    const SocketHubGroup *group = r->wait.waits ? socket_hub_group(hub, r->wait.group) : NULL;
    BlameWait wait = {.who = blame_room_who(hub->room), .hosts = socket_links_hosts(hub->links)};
    int lost = 0;
    if (none_has_left(group, &r->wait)) return;
    bool sure = find_lack(hub, group, rank, &wait);
    for (int i = 0; i < wait.n; i++) {
        int who = wait.who[i];
        if (!group->closed[socket_members_find(&group->members, who)]) continue;
        /* The waiting rank may not have read yet what this member sent before it left, unless it
         * has already read the end of the connection (`gones`). */
        sure = sure || is_in(r->wait.rank + r->wait.whos, r->wait.gones, who);
        wait.who[lost++] = who;
    }
    wait.n = lost;
    if (lost == 0 || (!sure && !is_confirmed(hub, r))) return;
    socket_hub_speak_for(hub, rank);
    deadline_end_lost(&wait);
}

static bool is_late(const SocketHubRank *r)
{
    return r->wait.waits && r->patience <= 0 && !r->left;
}

/* Returns whether the rank is in a call of a watched group that has a deadline. The message at this
 * deadline will name the cause. */
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
        if (is_watched(r) && socket_hub_has_answered(hub, r)) return true;
    }
    return false;
}

/* Allows all late ranks that wait in the same meeting as this one to wait `seconds` longer. */
static void wait_on(SocketHub *hub, int rank, double seconds)
{
    const SocketWait *of = &hub->rank[rank].wait;
    for (int i = 0; i < hub->ranks; i++) {
        SocketHubRank *r = &hub->rank[i];
        bool same = r->wait.meets && r->wait.group == of->group && r->wait.meeting == of->meeting;
        if (same && is_late(r)) r->patience = seconds;
    }
}

/* Ends the program if the rank's wait is still not over and no watched call is its cause. */
static void judge_late(SocketHub *hub, int rank)
{
    SocketHubRank *r = &hub->rank[rank];
    const SocketHubGroup *group = socket_hub_group(hub, r->wait.group);
    BlameWaits waits = waits_of(hub);
    BlameWait wait = {.who = blame_room_who(hub->room), .hosts = waits.names};
    Blame blame;
    bool late =
        r->wait.waits && r->wait.wait == r->timed && group && lacks(hub, group, rank, &wait);
    r->patience = r->limit;
    if (!late) return;
    if (is_held(hub, &wait)) {
        if (wait.alike) wait_on(hub, rank, r->limit);
        return;
    }
    int cause = socket_hub_silent_one(hub, &wait, r->limit);
    bool known = socket_hub_leave_out_cut_off(hub, &wait);
    if (known) blame_find(&waits, &wait, &blame);
    if (known && blame.kind == BLAME_RANK) cause = blame.rank;
    if (hub->links->joined && hub->rank[cause].silent >= r->limit)
        socket_hub_end_for_silent(hub, cause);
    if (!known || socket_hub_is_cut_off(hub, cause)) {
        /* Wait until the ranks that are cut off answer, or until the rank that does not forward
         * their answers is found to be silent. */
        r->patience = ASK_AGAIN;
        if (wait.alike) wait_on(hub, rank, ASK_AGAIN);
        return;
    }
    socket_hub_speak_for(hub, rank);
    deadline_end_waiting(&wait, r->limit, &blame);
}

/* Returns whether the rank waits, directly or indirectly, only for the rank that prints. */
static bool waits_for_printer(SocketHub *hub, int rank)
{
    const SocketWait *own = &hub->rank[rank].wait;
    SocketHubGroup *group = socket_hub_group(hub, own->group);
    BlameWaits waits = waits_of(hub);
    BlameWait wait = {.who = blame_room_who(hub->room)};
    if (group == NULL) return false;
    /* The result is the same for all ranks that wait in a meeting. */
    bool known = own->meets && group->asked_in == hub->passes && group->asked_at == own->meeting;
    if (known) return group->for_printer;
    find_lack(hub, group, rank, &wait);
    bool only = wait.n > 0 && blame_only(&waits, &wait, DEADLINE_PRINTS);
    if (wait.alike) {
        group->asked_in = hub->passes;
        group->asked_at = own->meeting;
        group->for_printer = only;
    }
    return only;
}

/* Adds the time that has passed to all waits. Returns whether any has exceeded the timeout. While
 * the console of the rank that prints (this process) is blocked, no time counts for ranks that wait
 * only for it. */
static bool pass_time(SocketHub *hub, double passed)
{
    bool late = false, blocked = log_blocked();
    hub->passes++;
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
 * answer may be stopped, and its report may be outdated, so its time restarts. */
static int latest(SocketHub *hub)
{
    int late = -1;
    for (int i = 0; i < hub->ranks; i++) {
        SocketHubRank *r = &hub->rank[i];
        if (!is_late(r)) continue;
        if (!socket_hub_has_answered(hub, r))
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
        if (!watched_is_late(&hub->call[i])) continue;
        socket_hub_speak_for(hub, hub->call[i].rank);
        watched_end(&waits, &hub->call[i]);
    }
}

/* While rank 0's console is blocked, excuses watched calls that wait only for rank 0's host. */
static void excuse_watched(SocketHub *hub, double passed)
{
    if (!log_blocked()) return;
    BlameWaits waits = waits_of(hub);
    copy_calls(hub, false);
    for (int i = 0, k = 0; i < hub->ranks; i++)
        for (int c = 0; c < hub->rank[i].calls; c++, k++)
            if (watched_is_excused(&waits, &hub->call[k])) hub->rank[i].call[c].excused += passed;
}

static bool any_watched_is_late(const SocketHub *hub)
{
    for (int i = 0; i < hub->ranks; i++)
        for (int c = 0; c < hub->rank[i].calls; c++)
            if (!hub->rank[i].left && watched_is_late(&hub->rank[i].call[c])) return true;
    return false;
}

/* ---- all waits ------------------------------------------------------------------------------- */

/* Returns whether all ranks have answered the last question that was asked because of a deadline,
 * and all waiting ranks have confirmed that they still wait. */
static bool all_have_answered(const SocketHub *hub)
{
    for (int i = 0; i < hub->ranks; i++) {
        const SocketHubRank *r = &hub->rank[i];
        if (r->left || r->ended) continue;
        if (!socket_hub_has_answered(hub, r) || (r->wait.waits && !still_waits(hub, r)))
            return false;
    }
    return true;
}

bool socket_hub_judge(SocketHub *hub, double passed)
{
    socket_hub_judge_ended(hub, passed);
    for (int i = 0; i < hub->ranks; i++)
        if (!hub->rank[i].left) judge_lost(hub, i);
    excuse_watched(hub, passed);
    bool overdue = hub->timeout > 0 && pass_time(hub, passed);
    if (!overdue && !any_watched_is_late(hub)) {
        hub->asked_for = -1;
        return false;
    }
    if (hub->asked_for < 0) {
        /* Reports may be a second old, so ask for new ones. */
        socket_hub_ask(hub, true);
        hub->late_question = hub->asked;
        hub->asked_for = 0;
        return true;
    }
    hub->asked_for += passed;
    if (!all_have_answered(hub) && hub->asked_for < ANSWER) return true;
    hub->asked_for = -1;
    copy_calls(hub, true);
    /* While ranks are cut off, watched calls are not judged, because the devices of these ranks may
     * have arrived. The rank that cuts them off will be found to be silent. */
    if (hub->timeout <= 0 || !socket_hub_any_is_cut_off(hub)) judge_watched(hub);
    for (int late = latest(hub); hub->timeout > 0 && late >= 0; late = latest(hub))
        judge_late(hub, late);
    return false;
}

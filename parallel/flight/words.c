/* words.c -- see words.h. */
#include "parallel/flight/words.h"

#include "model/core/check.h"
#include "model/core/figures.h"
#include "parallel/comm/rank_list.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- a reading ---------------------------------------------------------------------------------
 */

static void analyse(FlightReading *r)
{
    net_make(&r->net, &r->files);
    search_make(&r->search, &r->net);
    chain_make(&r->chain, &r->search);
}

bool flight_reading_open(FlightReading *r, const char *run, double seconds, bool *missing,
                         char *err, size_t n)
{
    if (!flight_files_read(&r->files, run, seconds, missing, err, n)) {
        flight_files_free(&r->files);
        return false;
    }
    analyse(r);
    return true;
}

void flight_reading_take(FlightReading *r, RingFile **rings, int count)
{
    flight_files_take(&r->files, rings, count);
    analyse(r);
}

void flight_reading_close(FlightReading *r)
{
    chain_free(&r->chain);
    search_free(&r->search);
    net_free(&r->net);
    flight_files_free(&r->files);
}

/* ---- entries and places ------------------------------------------------------------------------
 */

char *flight_words_place(int64_t step, int64_t micro, FlightAction action)
{
    switch (action) {
    case FLIGHT_BEGIN: return text_format("at the begin of step %" PRId64, step);
    case FLIGHT_FORWARD:
    case FLIGHT_BACKWARD:
        return text_format("in the %s pass of micro-batch %" PRId64 " of step %" PRId64,
                           flight_action_name[action], micro, step);
    case FLIGHT_EVALUATE:
        return text_format("in micro-batch %" PRId64 " of the evaluation after step %" PRId64,
                           micro, step);
    case FLIGHT_TRANSFERS:
        return text_format("in an exchange between stages in step %" PRId64, step);
    case FLIGHT_GRADIENTS:
        return text_format("in the reduction of the gradients of step %" PRId64, step);
    case FLIGHT_DECIDE:
        return text_format("in the decision about the update of step %" PRId64, step);
    case FLIGHT_UPDATE: return text_format("in the update of step %" PRId64, step);
    default: break;
    }
    return step > 0 ? text_format("after step %" PRId64, step)
                    : must_strdup("before the first step");
}

static char *place_of(const RingFile *ring, const RingEntry *entry)
{
    return entry ? flight_words_place(entry->step, entry->micro_batch, entry->action)
                 : flight_words_place(ring->step, ring->micro_batch, ring->action);
}

char *flight_words_entry(const RingFile *ring, const RingEntry *e)
{
    static const char *const work[FLIGHT_WORKS] = {[FLIGHT_DATA] = "the wait for its training data",
                                                   [FLIGHT_SAVE] = "the save of a checkpoint",
                                                   [FLIGHT_EVALUATION] = "an evaluation",
                                                   [FLIGHT_SAMPLE] = "the text of a sample",
                                                   [FLIGHT_CONSOLE] = "a write to the console",
                                                   [FLIGHT_DISK] = "the work on a file"};
    const char *group = e->group >= 0 ? ring->group[e->group].name : "";
    char count[64] = "", call[64] = "", peer[32] = "a rank";
    int rank = e->group >= 0 && e->peer >= 0 ? ring_member(&ring->group[e->group], e->peer) : -1;
    if (rank >= 0) snprintf(peer, sizeof peer, "rank %d", rank);
    if (e->elements > 0) snprintf(count, sizeof count, " of %" PRId64 " %s", e->elements, e->dtype);
    if (e->call > 0)
        snprintf(call, sizeof call, ", %s %" PRId64,
                 e->kind == FLIGHT_EXCHANGE ? "message" : "call", e->call);
    switch (e->kind) {
    case FLIGHT_COLLECTIVE: return text_format("%s%s (group %s%s)", e->name, count, group, call);
    case FLIGHT_EXCHANGE:
        return text_format("%s%s %s %s (group %s%s)", e->name, count, ring_sends(e) ? "to" : "from",
                           peer, group, call);
    case FLIGHT_COPY: return text_format("a copy%s", count);
    case FLIGHT_WAIT:
        return strcmp(e->name, flight_wait_name[FLIGHT_WHOLE_DEVICE]) == 0
                   ? must_strdup("a wait for its device")
                   : text_format("a wait for its device's stream %s", e->name);
    case FLIGHT_WORK:
        for (int w = 0; w < FLIGHT_WORKS; w++)
            if (strcmp(e->name, flight_work_name[w]) == 0) return must_strdup(work[w]);
        return must_strdup(e->name);
    default: return text_format("the op %s", e->name);
    }
}

/* ---- ranks and their machines ------------------------------------------------------------------
 */

static const char *host_of(const void *of, int rank)
{
    const FlightFiles *files = of;
    return files->ring[rank] ? files->ring[rank]->host : "an unknown machine";
}

/* Returns "ranks 1, 2 (on n1, n2)", which the caller frees. If n < all, only the first n of `all`
 * ranks are given. */
static char *ranks_text(const FlightFiles *files, const int *rank, int n, int all)
{
    char list[RANK_LIST_BYTES], hosts[RANK_HOSTS_BYTES];
    rank_list(rank, n, list, sizeof list);
    if (all > n) return text_format("%s and others, %d in all", list, all);
    if (!files->several_hosts) return must_strdup(list);
    rank_hosts(&(RankHosts){host_of, files}, rank, n, hosts, sizeof hosts);
    return text_format("%s (%s)", list, hosts);
}

/* ---- where the hang begins ---------------------------------------------------------------------
 */

static char *begin_stopped(const FlightReading *r, const char *who)
{
    const Chain *c = &r->chain;
    bool one = c->lates == 1;
    if (c->in == NULL)
        return text_format("%s %s not answer: %s stopped, or %s ended", who, one ? "does" : "do",
                           one ? "its process is" : "their processes are", one ? "has" : "have");
    const RingFile *ring = r->files.ring[c->first];
    char *entry = flight_words_entry(ring, c->in), *place = place_of(ring, c->in);
    char *text = text_format(
        "%s %s stopped: rank %d has been in %s for %s, %s, although the others "
        "have done their part",
        who, one ? "is" : "are", c->first, entry, figure_seconds(c->seconds).text, place);
    free(entry);
    free(place);
    return text;
}

static char *call_text(const RingCall *call)
{
    return call->elements > 0
               ? text_format("%s of %" PRId64 " %s", call->name, call->elements, call->dtype)
               : must_strdup(call->name);
}

/* Returns the text for ranks that are in different calls. */
static char *begin_collective(const FlightReading *r, const char *who)
{
    const Chain *c = &r->chain;
    const RingFile *ring = r->files.ring[c->first];
    char *text, *place = place_of(ring, c->in);
    if (c->circle) {
        char *entry = c->in ? flight_words_entry(ring, c->in) : must_strdup("no call");
        text = text_format("%s %s in another call than the ranks that wait for %s: rank %d is in "
                           "%s, %s. The ranks wait for each other",
                           who, c->lates == 1 ? "is" : "are", c->lates == 1 ? "it" : "them",
                           c->first, entry, place);
        free(entry);
    } else {
        char *late = call_text(c->late_call);
        char *other = c->other_call ? call_text(c->other_call) : must_strdup("another call");
        text = text_format("%s %s in another call: call %" PRId64 " of the group is %s on rank %d, "
                           "%s, and %s on rank %d",
                           who, c->lates == 1 ? "is" : "are", c->late_call->call, late, c->first,
                           place, other, c->other);
        free(late);
        free(other);
    }
    free(place);
    return text;
}

/* Returns the text for late ranks: which entry the first of them is in, or after which entry it has
 * begun nothing new. */
static char *begin_in(const FlightReading *r, const char *who)
{
    const Chain *c = &r->chain;
    const RingFile *ring = r->files.ring[c->first];
    const RingEntry *last = ring->last.n > 0 ? &ring->last : NULL;
    char *place = place_of(ring, c->in), subject[32] = "it", since[64] = "", *doing, *entry;
    if (!isnan(c->seconds))
        snprintf(since, sizeof since, " for %s", figure_seconds(c->seconds).text);
    if (c->lates > 1) snprintf(subject, sizeof subject, "rank %d", c->first);
    if (c->in) {
        entry = flight_words_entry(ring, c->in);
        doing = text_format("has been in %s%s, %s%s", entry, since, place,
                            front_is_call(c->in) ? ". No rank is missing in this call" : "");
    } else {
        entry = last ? flight_words_entry(ring, last) : must_strdup("its start");
        doing =
            text_format("has begun nothing new%s, %s, since the end of %s", since, place, entry);
    }
    char *text =
        text_format("%s %s late: %s %s", who, c->lates == 1 ? "is" : "are", subject, doing);
    free(place);
    free(entry);
    free(doing);
    return text;
}

/* Returns the text for a cause that is unknown because too few files were read. */
static char *begin_unknown(const FlightReading *r)
{
    char list[RANK_LIST_BYTES], waited[96] = "None of the others waits";
    int n = 0, *rank = must_calloc((size_t)r->files.ranks, sizeof *rank);
    for (int i = 0; i < r->files.ranks; i++)
        if (r->files.state[i] == RANK_UNKNOWN) rank[n++] = i;
    rank_list(rank, n, list, sizeof list);
    free(rank);
    double longest = 0;
    for (int i = 0; i < r->chain.waits; i++)
        longest = fmax(longest, r->chain.wait[i].seconds);
    if (longest > 0)
        snprintf(waited, sizeof waited, "The longest wait of the others has lasted %s",
                 figure_seconds(longest).text);
    return text_format("where it begins cannot be told from what was read: the %s of %s %s damaged "
                       "or %s left out. %s",
                       n == 1 ? "file" : "files", list, n == 1 ? "is" : "are",
                       n == 1 ? "was" : "were", waited);
}

char *flight_words_begin(const FlightReading *r)
{
    const Chain *c = &r->chain;
    if (c->cause == CAUSE_UNKNOWN) return begin_unknown(r);
    if (c->cause == CAUSE_NONE || c->lates == 0) {
        if (r->files.first->reason != DUMP_SIGNAL)
            return must_strdup("nowhere: no rank that answers holds up another one");
        return text_format("no rank waits longer than usual: the longest wait has lasted %s, and "
                           "the longest one that has ended %s",
                           figure_seconds(c->waited).text, figure_seconds(c->usual).text);
    }
    char *who = ranks_text(&r->files, c->late, c->lates, c->lates), *text;
    switch (c->cause) {
    case CAUSE_STOPPED: text = begin_stopped(r, who); break;
    case CAUSE_COLLECTIVE: text = begin_collective(r, who); break;
    default: text = begin_in(r, who); break;
    }
    free(who);
    return text;
}

/* ---- who waits ---------------------------------------------------------------------------------
 */

char *flight_words_wait(const FlightReading *r, const ChainWait *w)
{
    const RingFile *ring = r->files.ring[w->rank[0]];
    char *who = ranks_text(&r->files, w->rank, w->ranks, w->ranks);
    char *entry = flight_words_entry(ring, w->call), *place = place_of(ring, w->call), *text;
    const char *have = w->ranks == 1 ? "has" : "have", *up = w->ranks == 1 ? "" : "up to ";
    char since[32];
    snprintf(since, sizeof since, "%s", figure_seconds(w->seconds).text);
    if (w->late == 0) {
        text = text_format("%s %s been in %s for %s%s, %s; no rank%s is missing there", who, have,
                           entry, up, since, place,
                           r->files.unknown > 0 ? " whose file was read" : "");
    } else {
        char *whom = ranks_text(&r->files, w->whom, w->whoms, w->late);
        text = text_format("%s %s waited %s%s for %s%s in %s, %s", who, have, up, since,
                           w->devices ? "the device of " : "", whom, entry, place);
        free(whom);
    }
    free(who);
    free(entry);
    free(place);
    return text;
}

/* ---- what to do --------------------------------------------------------------------------------
 */

static char *advice_stopped(const FlightReading *r)
{
    const Chain *c = &r->chain;
    const RingFile *ring = r->files.ring[c->first];
    if (ring == NULL)
        return must_strdup("look at the machine of this rank: has its process been stopped or "
                           "ended, does the machine itself still answer? What the kernel has ended "
                           "for lack of memory is in dmesg");
    return text_format("look at process %" PRId64 " on %s: if it is stopped (state T in ps), kill "
                       "-CONT %" PRId64 " lets it go on; what the kernel has ended for lack of "
                       "memory is in dmesg",
                       ring->pid, ring->host, ring->pid);
}

char *flight_words_advice(const FlightReading *r)
{
    static const char *const advice[CAUSES] = {
        [CAUSE_NONE] = "nothing: the run goes on. If it looks stuck all the same, ask for another "
                       "dump and compare",
        [CAUSE_UNKNOWN] = "ask for another dump (kill -USR2 PID), which replaces the files of this "
                          "one, and read it",
        [CAUSE_COLLECTIVE] = "the ranks must make the same calls in the same order: this is a bug, "
                             "or the ranks run different programs or configs. Keep the folder "
                             "flight of the run for a report",
        [CAUSE_DATA] = "look at the disk or network that holds the training data, on the machine "
                       "of this rank: is it full of requests, or gone?",
        [CAUSE_DISK] = "look at the disk or network that holds the run's folder, on the machine of "
                       "this rank: is it slow, full or gone?",
        [CAUSE_CONSOLE] = "read the output of this rank: its terminal is stopped (Ctrl-Q lets it "
                          "go on), or the pipe behind it is full. Output to a file never waits",
        [CAUSE_DEVICE] = "look at the GPU of this rank (nvidia-smi; Xid messages in dmesg) and, if "
                         "it is in a call of several ranks, at the network between them",
        [CAUSE_COMPUTING] = "ask for another dump: if this rank is still in the same entry, it "
                            "hangs there; if not, it is slower than the others. Look at the load "
                            "and the clock of its machine",
    };
    if (r->chain.cause == CAUSE_STOPPED) return advice_stopped(r);
    if (r->files.first->reason != DUMP_SIGNAL) {
        /* The run has ended, so asking for another dump would be no help. */
        if (r->chain.cause == CAUSE_UNKNOWN)
            return must_strdup("read the error message with which the run has ended. If it hangs "
                               "again, read that dump, or ask for one before it ends (kill -USR2 "
                               "PID)");
        if (r->chain.cause == CAUSE_NONE)
            return must_strdup("read the error message with which the run has ended: the dump "
                               "shows no cause");
    }
    return must_strdup(advice[r->chain.cause]);
}

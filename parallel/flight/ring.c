/* ring.c -- see ring.h. Each line is one JSON object whose keys come in a fixed order. */
#include "parallel/flight/ring.h"

#include "model/core/check.h"
#include "model/core/dumps.h"
#include "parallel/comm/comm.h"
#include "parallel/flight/line.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* VERSION: of the format. MOST_GROUPS: the largest value of "group", the number of a group. MOST:
 * the largest version, pid, attempt and unit. DUMP_DIGITS: how many digits a dump's name has. */
enum { VERSION = 1, MOST_GROUPS = 127, MOST = 2147483647, DUMP_DIGITS = 16 };

/* State of the parser that is not kept afterwards. */
typedef struct {
    RingFile *ring;
    JsonCursor j;
    int64_t entries, lines;    /* entries that the header announces; entries read so far */
    int64_t n;                 /* number of the last entry that was read */
    int at[MOST_GROUPS + 1];   /* 1 + position in ring->group of the group with this number; 0:
                                * none */
    int first[FLIGHT_STREAMS]; /* number of unfinished entries of each stream so far */
    int extra[FLIGHT_STREAMS]; /* 1 + position in ring->open of the stream's latest unfinished entry
                                  after the first RING_FIRST, which the next such entry replaces; 0:
                                  none */
} Parse;

/* ---- the header and the groups --------------------------------------------------------------- */

static bool is_dump_name(const char *text)
{
    return strlen(text) == DUMP_DIGITS && strspn(text, "0123456789abcdef") == DUMP_DIGITS;
}

static bool take_header(Parse *p)
{
    JsonCursor *j = &p->j;
    RingFile *r = p->ring;
    char format[RING_NAME];
    int version, reason, action;
    if (!line_take_text(j, "format", format, sizeof format)) return false;
    if (strcmp(format, "train.c flight") != 0)
        return json_error(j, "this is no file of a flight recorder");
    if (!line_take_small(j, "version", 1, MOST, &version)) return false;
    if (version != VERSION)
        return json_error(j, "version %d of the format; this program reads version %d", version,
                          VERSION);
    if (!line_take_text(j, "dump", r->dump, sizeof r->dump)) return false;
    if (!is_dump_name(r->dump))
        return json_error(j, "\"dump\" has %d hexadecimal digits", DUMP_DIGITS);
    bool good = line_take_name(j, "reason", dump_reason_name, DUMP_REASONS, &reason) &&
                line_take_small(j, "rank", 0, COMM_MAX_RANKS - 1, &r->rank) &&
                line_take_small(j, "ranks", r->rank + 1, COMM_MAX_RANKS, &r->ranks) &&
                line_take_text(j, "host", r->host, sizeof r->host) &&
                line_take_int(j, "pid", 0, MOST, &r->pid) &&
                line_take_seconds(j, "time", &r->time) &&
                line_take_int(j, "attempt", 0, MOST, &r->attempt) &&
                line_take_small(j, "pp", -1, r->ranks - 1, &r->pp) &&
                line_take_small(j, "dp", -1, r->ranks - 1, &r->dp) &&
                line_take_small(j, "tp", -1, r->ranks - 1, &r->tp) &&
                line_take_int(j, "step", 0, INT64_MAX, &r->step) &&
                line_take_int(j, "micro_batch", -1, INT64_MAX, &r->micro_batch) &&
                line_take_name(j, "action", flight_action_name, FLIGHT_ACTIONS, &action) &&
                line_take_int(j, "issued", 0, INT64_MAX, &r->issued) &&
                line_take_int(j, "entries", 0, FLIGHT_SNAPSHOT, &p->entries) && line_end(j);
    if (!good) return false;
    r->reason = (DumpReason)reason;
    r->action = (FlightAction)action;
    return true;
}

/* Reads "[first,stride,count]", a run of ranks of the world. */
static bool take_run(Parse *p, RankRun *run)
{
    JsonCursor *j = &p->j;
    int64_t first, stride, count;
    if (!json_expect(j, '[') || !json_take_int(j, &first) || !json_expect(j, ',') ||
        !json_take_int(j, &stride) || !json_expect(j, ',') || !json_take_int(j, &count) ||
        !json_expect(j, ']'))
        return false;
    /* The first two lines of this condition bound the numbers, so that the products in its last
     * line cannot overflow. */
    if (first < 0 || first >= p->ring->ranks || count < 1 || count > p->ring->ranks ||
        stride < -COMM_MAX_RANKS || stride > COMM_MAX_RANKS || (stride == 0 && count > 1) ||
        first + (count - 1) * stride < 0 || first + (count - 1) * stride >= p->ring->ranks)
        return json_error(j, "ranks that the world of %d does not have", p->ring->ranks);
    *run = (RankRun){(int32_t)first, (int32_t)stride, (int32_t)count};
    return true;
}

static bool take_runs(Parse *p, RingGroup *group)
{
    JsonCursor *j = &p->j;
    int room = 0;
    if (!line_take_key(j, "ranks") || !json_expect(j, '[')) return false;
    if (json_take(j, ']')) return true;
    do {
        if (group->runs == RING_RUNS) return json_error(j, "more than %d runs of ranks", RING_RUNS);
        if (group->runs == room)
            group->run =
                must_realloc(group->run, (size_t)(room = 2 * room + 1) * sizeof *group->run);
        if (!take_run(p, &group->run[group->runs])) return false;
        group->size += group->run[group->runs++].count;
        if (group->size > p->ring->ranks)
            return json_error(j, "a group of more ranks than the world has");
    } while (json_take(j, ','));
    return json_expect(j, ']');
}

static bool take_group(Parse *p)
{
    JsonCursor *j = &p->j;
    RingFile *r = p->ring;
    int index;
    if (!line_take_small(j, "group", 0, MOST_GROUPS, &index)) return false;
    if (p->at[index] > 0) return json_error(j, "group %d again", index);
    if (p->n > 0) return json_error(j, "a group after an entry");
    r->group = must_realloc(r->group, ((size_t)r->groups + 1) * sizeof *r->group);
    RingGroup *group = &r->group[r->groups++];
    *group = (RingGroup){.size = 0};
    p->at[index] = r->groups;
    return line_take_text(j, "name", group->name, sizeof group->name) && take_runs(p, group) &&
           line_end(j);
}

/* ---- entries --------------------------------------------------------------------------------- */

static bool take_entry(Parse *p, RingEntry *e)
{
    JsonCursor *j = &p->j;
    int kind, stream, action, group;
    bool good = line_take_int(j, "n", p->n + 1, INT64_MAX - 1, &e->n) &&
                line_take_name(j, "kind", flight_kind_name, FLIGHT_KINDS, &kind) &&
                line_take_text(j, "name", e->name, sizeof e->name) &&
                line_take_text(j, "dtype", e->dtype, sizeof e->dtype) &&
                line_take_int(j, "elements", 0, INT64_MAX, &e->elements) &&
                line_take_name(j, "stream", flight_stream_name, FLIGHT_STREAMS, &stream) &&
                line_take_small(j, "group", -1, MOST_GROUPS, &group) &&
                line_take_int(j, "call", -1, INT64_MAX, &e->call) &&
                line_take_small(j, "peer", -1, COMM_MAX_RANKS - 1, &e->peer) &&
                line_take_int(j, "step", -1, INT64_MAX, &e->step) &&
                line_take_int(j, "micro_batch", -1, INT64_MAX, &e->micro_batch) &&
                line_take_name(j, "action", flight_action_name, FLIGHT_ACTIONS, &action) &&
                line_take_small(j, "unit", -1, MOST, &e->unit) &&
                line_take_seconds(j, "begun", &e->begun) &&
                line_take_seconds_or_null(j, "ended", &e->ended) && line_end(j);
    if (!good) return false;
    e->kind = (FlightKind)kind;
    e->action = (FlightAction)action;
    e->stream = stream;
    e->group = -1;
    if (group >= 0) e->group = p->at[group] - 1;
    if (group >= 0 && e->group < 0) return json_error(j, "there is no group %d", group);
    if (e->ended < e->begun) return json_error(j, "an end before the begin");
    return true;
}

/* Returns the RingPlace for the collectives or messages that the entry belongs to, and adds it if
 * it is new. */
static RingPlace *place_of(RingFile *r, const RingEntry *e)
{
    bool collective = e->kind == FLIGHT_COLLECTIVE, send = !collective && ring_sends(e);
    int peer = collective ? -1 : e->peer;
    RingPlace *old = (RingPlace *)ring_place(r, e->group, peer, send);
    if (old) return old;
    /* Grows by doubling, at each power of two. */
    if ((r->places & (r->places - 1)) == 0)
        r->place = must_realloc(r->place, 2 * ((size_t)r->places + 1) * sizeof *r->place);
    RingPlace *place = &r->place[r->places++];
    *place = (RingPlace){.group = e->group, .peer = peer, .send = send};
    if (collective) place->seen = must_calloc(RING_SEEN, sizeof *place->seen);
    return place;
}

static void note_place(RingFile *r, const RingEntry *e)
{
    bool ended = !isnan(e->ended);
    RingPlace *place = place_of(r, e);
    if (e->call > place->begun) place->begun = e->call;
    if (!ended && (place->first == 0 || e->call < place->first)) place->first = e->call;
    if (ended && e->call > place->ended) {
        place->ended = e->call;
        place->ended_at = e->ended;
    }
    if (place->seen == NULL) return;
    RingCall *seen = &place->seen[e->call % RING_SEEN];
    if (e->call < seen->call) return;
    *seen = (RingCall){.call = e->call, .elements = e->elements, .ended = ended};
    memcpy(seen->name, e->name, sizeof seen->name);
    memcpy(seen->dtype, e->dtype, sizeof seen->dtype);
}

/* Keeps an unfinished entry if it is one of the first of its stream, or the latest one. */
static void keep_open(Parse *p, const RingEntry *e)
{
    RingFile *r = p->ring;
    int *extra = &p->extra[e->stream];
    if (*extra > 0) {
        RingEntry *old = &r->open[*extra - 1];
        memmove(old, old + 1, (size_t)(&r->open[r->opens] - (old + 1)) * sizeof *old);
        r->opens--;
        for (int s = 0; s < FLIGHT_STREAMS; s++)
            p->extra[s] -= p->extra[s] > *extra;
    } else {
        r->open = must_realloc(r->open, ((size_t)r->opens + 1) * sizeof *r->open);
    }
    r->open[r->opens++] = *e;
    if (++p->first[e->stream] > RING_FIRST) *extra = r->opens;
}

static bool take_next(Parse *p)
{
    RingFile *r = p->ring;
    RingEntry e = {.n = 0};
    if (!take_entry(p, &e)) return false;
    p->n = e.n;
    if (++p->lines > p->entries)
        return json_error(&p->j, "more than the %lld entries of the first line",
                          (long long)p->entries);
    bool call = e.kind == FLIGHT_COLLECTIVE || e.kind == FLIGHT_EXCHANGE;
    if (call && e.group >= 0 && e.call > 0) note_place(r, &e);
    if (isnan(e.ended)) {
        keep_open(p, &e);
        return true;
    }
    if (r->last.n == 0 || e.ended >= r->last.ended) r->last = e;
    if ((call || e.kind == FLIGHT_WORK) && e.ended - e.begun > r->longest)
        r->longest = e.ended - e.begun;
    return true;
}

/* ---- the file -------------------------------------------------------------------------------- */

static bool take_line(Parse *p, int64_t number)
{
    static const char group[] = "{\"group\"";
    JsonCursor *j = &p->j;
    if (number == 1) return take_header(p);
    if ((size_t)(j->end - j->at) > sizeof group && memcmp(j->at, group, sizeof group - 1) == 0)
        return take_group(p);
    return take_next(p);
}

/* Reads all lines, and sets err, with the number of the line, at the first one that is wrong. */
static bool take_lines(Parse *p, const char *text, size_t size, char *err, size_t n)
{
    char why[512];
    const char *at = text, *end = text + size;
    int64_t number = 0;
    while (at < end) {
        const char *feed = memchr(at, '\n', (size_t)(end - at));
        number++;
        if (feed == NULL) return error_set(err, n, "line %lld has no end", (long long)number);
        p->j = (JsonCursor){.start = at, .at = at, .end = feed, .err = why, .n = sizeof why};
        if (!take_line(p, number))
            return error_set(err, n, "line %lld, %s", (long long)number, why);
        at = feed + 1;
    }
    if (number == 0) return error_set(err, n, "it is empty");
    if (p->lines < p->entries)
        return error_set(err, n, "it has %lld entries, not %lld as its first line says",
                         (long long)p->lines, (long long)p->entries);
    return true;
}

RingFile *ring_parse(const char *text, size_t size, char *err, size_t n)
{
    Parse p = {.ring = must_calloc(1, sizeof *p.ring)};
    if (take_lines(&p, text, size, err, n)) return p.ring;
    ring_free(p.ring);
    return NULL;
}

void ring_free(RingFile *ring)
{
    if (ring == NULL) return;
    for (int g = 0; g < ring->groups; g++)
        free(ring->group[g].run);
    for (int i = 0; i < ring->places; i++)
        free(ring->place[i].seen);
    free(ring->group);
    free(ring->open);
    free(ring->place);
    free(ring);
}

const RingPlace *ring_place(const RingFile *ring, int group, int peer, bool send)
{
    for (int i = 0; i < ring->places; i++) {
        const RingPlace *place = &ring->place[i];
        if (place->group == group && place->peer == peer && place->send == send) return place;
    }
    return NULL;
}

bool ring_sends(const RingEntry *entry)
{
    return strcmp(entry->name, comm_verb_name[COMM_SEND]) == 0;
}

int ring_member(const RingGroup *group, int i)
{
    for (int r = 0; r < group->runs; i -= group->run[r++].count)
        if (i >= 0 && i < group->run[r].count) return rank_run_at(&group->run[r], i);
    return -1;
}

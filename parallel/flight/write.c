/* write.c -- see write.h. Numbers are formatted by functions of this file, because printf may
 * allocate memory. */
#include "parallel/flight/write.h"

#include "model/core/clock.h"
#include "model/core/hash.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* A file begins with this, followed by the name of the dump in quotes. */
static const char begin[] = "{\"format\":\"train.c flight\",\"version\":1,\"dump\":\"";
enum { NAME_DIGITS = 16, MICROSECONDS = 1000000, MICRO_DIGITS = 6 };

uint64_t flight_dump_name(uint64_t start, int64_t number)
{
    return hash_mix(start, (uint64_t)number);
}

/* ---- text ------------------------------------------------------------------------------------ */

typedef struct {
    int fd, error; /* error: the first errno value; 0: none */
    char *text;
    size_t used, room;
} Out;

static void flush(Out *out)
{
    size_t done = 0;
    while (out->error == 0 && done < out->used) {
        ssize_t n = write(out->fd, out->text + done, out->used - done);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) out->error = n < 0 ? errno : ENOSPC;
        if (n > 0) done += (size_t)n;
    }
    out->used = 0;
}

static void put_bytes(Out *out, const char *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (out->used == out->room) flush(out);
        out->text[out->used++] = bytes[i];
    }
}

static void put(Out *out, const char *text)
{
    put_bytes(out, text, strlen(text));
}

/* Puts x in this base, with at least `digits` digits. */
static void put_digits(Out *out, uint64_t x, unsigned base, int digits)
{
    char text[24], *at = text + sizeof text;
    for (; x > 0 || digits > 0; x /= base, digits--)
        *--at = "0123456789abcdef"[x % base];
    put_bytes(out, at, (size_t)(text + sizeof text - at));
}

/* put_int and put_text put a comma, a key and its value. */
static void put_int(Out *out, const char *key, int64_t value)
{
    put(out, ",\"");
    put(out, key);
    put(out, value < 0 ? "\":-" : "\":");
    put_digits(out, value < 0 ? -(uint64_t)value : (uint64_t)value, 10, 1);
}

static void put_text(Out *out, const char *key, const char *value)
{
    put(out, ",\"");
    put(out, key);
    put(out, "\":\"");
    put(out, value);
    put(out, "\"");
}

/* Puts seconds with six decimals. */
static void put_seconds(Out *out, const char *key, double seconds)
{
    int64_t micro = (int64_t)llround(seconds * MICROSECONDS);
    uint64_t size = micro < 0 ? -(uint64_t)micro : (uint64_t)micro;
    put(out, ",\"");
    put(out, key);
    put(out, micro < 0 ? "\":-" : "\":");
    put_digits(out, size / MICROSECONDS, 10, 1);
    put(out, ".");
    put_digits(out, size % MICROSECONDS, 10, MICRO_DIGITS);
}

/* ---- the lines ------------------------------------------------------------------------------- */

static void put_header(Out *out, const FlightSource *s, Dump dump, int entries, double time)
{
    FlightPlace place = flight_place(s->flight);
    put(out, begin);
    put_digits(out, flight_dump_name(s->start, dump.number), 16, NAME_DIGITS);
    put(out, "\"");
    put_text(out, "reason", dump_reason_name[dump.reason]);
    put_int(out, "rank", s->rank);
    put_int(out, "ranks", s->ranks);
    put_text(out, "host", s->host);
    put_int(out, "pid", getpid());
    put_seconds(out, "time", time);
    put_int(out, "attempt", s->attempt);
    put_int(out, "pp", s->pp);
    put_int(out, "dp", s->dp);
    put_int(out, "tp", s->tp);
    put_int(out, "step", place.step);
    put_int(out, "micro_batch", place.micro_batch);
    put_text(out, "action", flight_action_name[place.action]);
    put_int(out, "issued", flight_issued(s->flight));
    put_int(out, "entries", entries);
    put(out, "}\n");
}

static void put_group(Out *out, int index, const GraphGroup *group)
{
    put(out, "{\"group\":");
    put_digits(out, (uint64_t)index, 10, 1);
    put_text(out, "name", group->name);
    put(out, ",\"ranks\":[");
    if (group->stride != 0 || group->size == 1) {
        put(out, "[");
        put_digits(out, (uint64_t)group->first, 10, 1);
        put(out, ",");
        put_digits(out, (uint64_t)group->stride, 10, 1);
        put(out, ",");
        put_digits(out, (uint64_t)group->size, 10, 1);
        put(out, "]");
    }
    put(out, "]}\n");
}

/* now: seconds_now() at the time recorded in the header. */
static void put_entry(Out *out, const FlightEntry *e, GraphNames names, double now)
{
    put(out, "{\"n\":");
    put_digits(out, (uint64_t)e->n, 10, 1);
    put_text(out, "kind", flight_kind_name[e->kind]);
    put_text(out, "name", flight_entry_name(e, names));
    put_text(out, "dtype", flight_dtype_name(e));
    put_int(out, "elements", e->elements);
    put_text(out, "stream", flight_stream_name[e->stream]);
    put_int(out, "group", e->group);
    put_int(out, "call", e->call);
    put_int(out, "peer", e->peer);
    put_int(out, "step", e->step);
    put_int(out, "micro_batch", e->micro_batch);
    put_text(out, "action", flight_action_name[e->action]);
    put_int(out, "unit", e->unit);
    put_seconds(out, "begun", e->issued - now);
    if (e->finished > 0)
        put_seconds(out, "ended", e->finished - now);
    else
        put(out, ",\"ended\":null");
    put(out, "}\n");
}

static void put_all(Out *out, const FlightSource *s, Dump dump, FlightRoom *room)
{
    bool named[FLIGHT_GROUPS] = {false};
    int n = flight_snapshot(s->flight, room->entry), groups = flight_groups(s->flight, room->group);
    double now = seconds_now(), time = wall_seconds_now();
    for (int i = 0; i < n; i++)
        if (room->entry[i].group >= 0) named[room->entry[i].group] = true;
    put_header(out, s, dump, n, time);
    for (int i = 0; i < groups; i++)
        if (named[i]) put_group(out, i, &room->group[i]);
    for (int i = 0; i < n; i++)
        put_entry(out, &room->entry[i], s->names, now);
}

/* ---- the file -------------------------------------------------------------------------------- */

/* Writes "rank_00003.jsonl" and, if `temporary`, ".tmp". */
static void name_file(int rank, bool temporary, char name[FLIGHT_FILE_BYTES])
{
    enum { DIGITS = 5 };
    Out out = {.text = name, .room = FLIGHT_FILE_BYTES};
    put(&out, "rank_");
    put_digits(&out, (uint64_t)rank, 10, DIGITS);
    put(&out, temporary ? ".jsonl.tmp" : ".jsonl");
    put_bytes(&out, "", 1);
}

void flight_file_name(int rank, char name[FLIGHT_FILE_BYTES])
{
    name_file(rank, false, name);
}

int flight_write(const FlightSource *s, Dump dump, int folder, FlightRoom *room)
{
    const mode_t mode = 0666;
    char name[FLIGHT_FILE_BYTES], temporary[FLIGHT_FILE_BYTES];
    Out out = {.text = room->text, .room = sizeof room->text};
    name_file(s->rank, false, name);
    name_file(s->rank, true, temporary);
    out.fd = openat(folder, temporary, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, mode);
    if (out.fd < 0) return errno;
    put_all(&out, s, dump, room);
    flush(&out);
    if (close(out.fd) != 0 && out.error == 0) out.error = errno;
    if (out.error == 0 && renameat(folder, temporary, folder, name) != 0) out.error = errno;
    if (out.error != 0) unlinkat(folder, temporary, 0);
    return out.error;
}

bool flight_is_written(int folder, int rank, uint64_t name)
{
    char file[FLIGHT_FILE_BYTES], wanted[sizeof begin + NAME_DIGITS], got[sizeof wanted];
    Out out = {.text = wanted, .room = sizeof wanted};
    size_t n = sizeof begin - 1 + NAME_DIGITS;
    put(&out, begin);
    put_digits(&out, name, 16, NAME_DIGITS);
    flight_file_name(rank, file);
    int fd = openat(folder, file, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) return false;
    bool same = read(fd, got, n) == (ssize_t)n && memcmp(got, wanted, n) == 0;
    close(fd);
    return same;
}

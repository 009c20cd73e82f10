/* folder.c -- see folder.h. */
#include "parallel/flight/folder.h"

#include "model/core/check.h"
#include "model/core/clock.h"
#include "model/core/files.h"
#include "parallel/comm/comm.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Files that have been parsed, and the ranks whose files have not. */
typedef struct {
    RingFile **ring;
    int rings, room;
    int *unknown; /* ranks whose files have not been parsed */
    int unknowns, unknown_room;
} Found;

static void add_ring(Found *found, RingFile *ring)
{
    if (found->rings == found->room)
        found->ring =
            must_realloc(found->ring, (size_t)(found->room = 2 * found->room + 1) * sizeof ring);
    found->ring[found->rings++] = ring;
}

static void add_unknown(Found *found, int rank)
{
    if (found->unknowns == found->unknown_room)
        found->unknown = must_realloc(found->unknown,
                                      (size_t)(found->unknown_room = 2 * found->unknown_room + 1) *
                                          sizeof *found->unknown);
    found->unknown[found->unknowns++] = rank;
}

/* Returns the rank in a file name like "rank_00003.jsonl", or -1 if it is no such name. */
static int rank_in(const char *name)
{
    enum { DIGITS = 5, TEN = 10, BEFORE = 5 };
    int rank = 0;
    if (strncmp(name, "rank_", BEFORE) != 0 || strspn(name + BEFORE, "0123456789") != DIGITS ||
        strcmp(name + BEFORE + DIGITS, ".jsonl") != 0)
        return -1;
    for (int i = 0; i < DIGITS; i++)
        rank = TEN * rank + (name[BEFORE + i] - '0');
    return rank < COMM_MAX_RANKS ? rank : -1;
}

/* Reads the file of a rank. Adds the parsed file to `found`; if it cannot be parsed, adds the rank
 * to found->unknown and a message to files->damaged. */
static void read_file(FlightFiles *files, Found *found, const char *folder, const char *name)
{
    char err[1024], why[768], *text, *path = text_format("%s/%s", folder, name);
    size_t size;
    int rank = rank_in(name);
    RingFile *ring = NULL;
    if (file_read_own(path, &text, &size, err, sizeof err)) {
        ring = ring_parse(text, size, why, sizeof why);
        free(text);
        if (ring == NULL) error_set(err, sizeof err, "%s: %s", path, why);
        if (ring && ring->rank != rank) {
            error_set(err, sizeof err, "%s: line 1 is of rank %d", path, ring->rank);
            ring_free(ring);
            ring = NULL;
        }
    }
    if (ring)
        add_ring(found, ring);
    else
        string_list_add(&files->damaged, err), add_unknown(found, rank);
    free(path);
}

/* Returns one of the parsed files that belong to the newest dump: that with the latest time. */
static const RingFile *newest_of(RingFile **ring, int rings)
{
    const RingFile *newest = ring[0];
    for (int i = 1; i < rings; i++)
        if (ring[i]->time > newest->time) newest = ring[i];
    return newest;
}

static bool is_of(const RingFile *ring, const RingFile *dump)
{
    return strcmp(ring->dump, dump->dump) == 0 && ring->ranks == dump->ranks;
}

/* Assigns the parsed files to their ranks. Frees those of ranks that the world of the newest dump
 * does not have, and further files of the same rank. */
static void place_rings(FlightFiles *files, RingFile **ring, int rings)
{
    const RingFile *newest = newest_of(ring, rings);
    files->ranks = newest->ranks;
    files->state = must_calloc((size_t)files->ranks, sizeof *files->state);
    files->ring = must_calloc((size_t)files->ranks, sizeof *files->ring);
    for (int turn = 0; turn < 2; turn++) /* first the files of the newest dump, then all others */
        for (int i = 0; i < rings; i++) {
            RingFile *r = ring[i];
            if (r == NULL || (turn == 0 && !is_of(r, newest))) continue;
            if (r->rank >= files->ranks || files->ring[r->rank]) continue;
            ring[i] = NULL;
            files->ring[r->rank] = r;
            files->state[r->rank] = turn == 0 ? RANK_READ : RANK_SILENT;
        }
    /* Freed only now, because `newest` may be a further file of its rank and is used until here. */
    for (int i = 0; i < rings; i++)
        if (ring[i]) ring_free(ring[i]);
}

static void count_states(FlightFiles *files)
{
    for (int rank = 0; rank < files->ranks; rank++) {
        files->read += files->state[rank] == RANK_READ;
        files->silent += files->state[rank] == RANK_SILENT;
        files->unknown += files->state[rank] == RANK_UNKNOWN;
        if (files->first == NULL && files->state[rank] == RANK_READ)
            files->first = files->ring[rank];
    }
    for (int rank = 0; rank < files->ranks; rank++)
        if (files->ring[rank] && strcmp(files->ring[rank]->host, files->first->host) != 0)
            files->several_hosts = true;
}

void flight_files_take(FlightFiles *files, RingFile **rings, int count)
{
    *files = (FlightFiles){.ranks = 0};
    place_rings(files, rings, count);
    count_states(files);
}

static void take_found(FlightFiles *files, Found *found)
{
    place_rings(files, found->ring, found->rings);
    for (int i = 0; i < found->unknowns; i++) {
        int rank = found->unknown[i];
        if (rank < files->ranks && files->ring[rank] == NULL) files->state[rank] = RANK_UNKNOWN;
    }
    count_states(files);
}

/* Reads the files of the folder. If `seconds` > 0, the ranks whose files have not been read after
 * this time are added to found->unknown, but not before at least one file has been parsed. */
static void read_all(FlightFiles *files, Found *found, DIR *in, const char *folder, double seconds)
{
    double end = seconds_now() + seconds;
    for (struct dirent *entry = readdir(in); entry; entry = readdir(in)) {
        int rank = rank_in(entry->d_name);
        if (rank < 0) continue;
        if (seconds > 0 && found->rings > 0 && seconds_now() > end)
            add_unknown(found, rank);
        else
            read_file(files, found, folder, entry->d_name);
    }
}

bool flight_files_read(FlightFiles *files, const char *run, double seconds, bool *missing,
                       char *err, size_t n)
{
    *files = (FlightFiles){.ranks = 0};
    *missing = true;
    char *folder = text_format("%s/flight", run);
    DIR *in = opendir(folder);
    Found found = {.rings = 0};
    if (in == NULL && errno != ENOENT && errno != ENOTDIR) {
        error_set(err, n, "cannot open %s: %s", folder, strerror(errno));
    } else {
        if (in) read_all(files, &found, in, folder, seconds);
        *missing = found.unknowns == 0;
        if (found.rings > 0)
            take_found(files, &found);
        else if (found.unknowns > 0)
            error_set(err, n, "no file in %s can be read; the first: %s", folder,
                      files->damaged.item[0]);
        else
            error_set(err, n,
                      "%s holds no flight recorder: a run writes it there when a rank hangs or is "
                      "lost, or on SIGUSR2 (kill -USR2 PID)",
                      run);
    }
    if (in) closedir(in);
    free(found.ring);
    free(found.unknown);
    free(folder);
    return files->ranks > 0;
}

void flight_files_free(FlightFiles *files)
{
    for (int rank = 0; rank < files->ranks; rank++)
        ring_free(files->ring[rank]);
    free(files->ring);
    free(files->state);
    string_list_free(&files->damaged);
}

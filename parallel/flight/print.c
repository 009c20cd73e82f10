/* print.c -- see print.h. */
#include "parallel/flight/print.h"

#include "model/core/check.h"
#include "model/core/figures.h"
#include "model/core/json_write.h"
#include "model/core/terminal.h"
#include "parallel/comm/rank_list.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* LABEL: width of the labels. WAITS: the most waits that flight_print prints. SIDES: number of
 * nodes of a rank (search.h). */
enum { LABEL = 12, WAITS = 20, SIDES = 2 };

/* ---- for people --------------------------------------------------------------------------------
 */

/* Prints an allocated text, and frees it. */
static void print_text(FILE *to, const char *label, char *text)
{
    terminal_field(to, label, text, LABEL);
    free(text);
}

/* Prints an allocated sentence, and frees it. Breaks lines as terminal_message does for messages,
 * which keeps the parts of a sentence together better than print_text does. */
static void print_sentence(FILE *to, const char *label, char *text)
{
    char *line = text_format("%-*s%s", LABEL, label, text);
    terminal_message(to, line, MARK_NONE, 0);
    free(line);
    free(text);
}

static void print_dump(FILE *to, const FlightFiles *files)
{
    static const char *const why[DUMP_REASONS] = {
        [DUMP_DEADLINE] = "because a rank waited beyond parallel.timeout",
        [DUMP_SIGNAL] = "on a signal",
        [DUMP_FAILURE] = "because a rank was lost or has failed"};
    const RingFile *first = files->first;
    time_t seconds = (time_t)first->time;
    struct tm utc;
    char when[64] = "at an unknown time";
    if (gmtime_r(&seconds, &utc)) strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S UTC", &utc);
    print_text(to, "dump",
               text_format("%s, %s; attempt %" PRId64 ", step %" PRId64, when, why[first->reason],
                           first->attempt, first->step));
}

/* Returns a text that lists the ranks in this state; the caller frees it. */
static char *ranks_in(const FlightFiles *files, RankState state, int count)
{
    char list[RANK_LIST_BYTES];
    int n = 0, *rank = must_calloc((size_t)count + 1, sizeof *rank);
    for (int i = 0; i < files->ranks; i++)
        if (files->state[i] == state) rank[n++] = i;
    rank_list(rank, n, list, sizeof list);
    free(rank);
    return must_strdup(list);
}

static void print_ranks(FILE *to, const FlightFiles *files)
{
    char *silent = ranks_in(files, RANK_SILENT, files->silent);
    char *unknown = ranks_in(files, RANK_UNKNOWN, files->unknown);
    char *text =
        text_format("%d, of which %d %s answered%s%s%s%s", files->ranks, files->read,
                    files->read == 1 ? "has" : "have", files->silent > 0 ? "; no answer from " : "",
                    files->silent > 0 ? silent : "", files->unknown > 0 ? "; not known: " : "",
                    files->unknown > 0 ? unknown : "");
    print_text(to, "ranks", text);
    free(silent);
    free(unknown);
}

void flight_print(FILE *to, const FlightReading *r)
{
    const Chain *c = &r->chain;
    print_dump(to, &r->files);
    print_ranks(to, &r->files);
    terminal_field(to, "cause", flight_cause_name[c->cause], LABEL);
    print_sentence(to, "begins", flight_words_begin(r));
    print_sentence(to, "what to do", flight_words_advice(r));
    for (int i = 0; i < c->waits && i < WAITS; i++)
        print_sentence(to, i == 0 ? "waits" : "", flight_words_wait(r, &c->wait[i]));
    if (c->waits > WAITS)
        print_text(to, "",
                   text_format("and %s more; --json prints all of them",
                               figure_of(c->waits - WAITS, "wait").text));
}

/* ---- as JSON -----------------------------------------------------------------------------------
 */

static void put_seconds(FILE *to, double seconds)
{
    if (isnan(seconds))
        fputs("null", to);
    else
        fprintf(to, "%.6f", seconds);
}

/* Prints an allocated text as a string, and frees it. */
static void put_text(FILE *to, const char *key, char *text)
{
    fprintf(to, ",\"%s\":", key);
    json_print_string(to, text);
    free(text);
}

/* Prints ranks as runs: [[first,stride,count],...]. */
static void put_ranks(FILE *to, const char *key, const int *rank, int n)
{
    RankRun run;
    fprintf(to, ",\"%s\":[", key);
    for (int i = 0, length; i < n; i += length) {
        length = rank_run_next(rank + i, n - i, &run);
        fprintf(to, "%s[%d,%d,%d]", i > 0 ? "," : "", run.first, run.stride, run.count);
    }
    fputc(']', to);
}

/* Prints the keys of an entry, which end with a comma. */
static void put_entry(FILE *to, const RingFile *ring, const RingEntry *e)
{
    fprintf(to, "\"kind\":\"%s\",\"name\":", flight_kind_name[e->kind]);
    json_print_string(to, e->name);
    fprintf(to, ",\"dtype\":\"%s\",\"elements\":%" PRId64 ",\"stream\":\"%s\",\"group\":", e->dtype,
            e->elements, flight_stream_name[e->stream]);
    json_print_string(to, e->group >= 0 ? ring->group[e->group].name : "");
    fprintf(to,
            ",\"call\":%" PRId64 ",\"peer\":%d,\"step\":%" PRId64 ",\"micro_batch\":%" PRId64
            ",\"action\":\"%s\",\"unit\":%d,",
            e->call, e->peer, e->step, e->micro_batch, flight_action_name[e->action], e->unit);
}

static void put_wait(FILE *to, const FlightReading *r, const ChainWait *w)
{
    fputc('{', to);
    put_entry(to, r->files.ring[w->rank[0]], w->call);
    fprintf(to, "\"seconds\":");
    put_seconds(to, w->seconds);
    put_ranks(to, "ranks", w->rank, w->ranks);
    put_ranks(to, "for", w->whom, w->whoms);
    fprintf(to, ",\"late\":%d,\"devices\":%s,\"depth\":%d", w->late, w->devices ? "true" : "false",
            w->depth);
    put_text(to, "text", flight_words_wait(r, w));
    fputc('}', to);
}

/* Prints one rank: whether it has answered, its place in the grid and in training, and the entry
 * that it is in. */
static void put_rank(FILE *to, const FlightReading *r, int rank)
{
    static const char *const state[] = {
        [RANK_SILENT] = "silent", [RANK_READ] = "read", [RANK_UNKNOWN] = "unknown"};
    const FlightFiles *files = &r->files;
    const RingFile *ring = files->ring[rank];
    const SearchNode *at = &r->search.node[SIDES * rank];
    fprintf(to, "{\"rank\":%d,\"state\":\"%s\"", rank, state[files->state[rank]]);
    if (ring) {
        fputs(",\"host\":", to);
        json_print_string(to, ring->host);
        fprintf(to, ",\"pid\":%" PRId64, ring->pid);
    }
    if (files->state[rank] == RANK_READ) {
        fprintf(to,
                ",\"pp\":%d,\"dp\":%d,\"tp\":%d,\"step\":%" PRId64 ",\"micro_batch\":%" PRId64
                ",\"action\":\"%s\",\"issued\":%" PRId64 ",\"waits\":%s,\"in\":",
                ring->pp, ring->dp, ring->tp, ring->step, ring->micro_batch,
                flight_action_name[ring->action], ring->issued, at->waits ? "true" : "false");
        fputs(at->in ? "{" : "null", to);
        if (at->in) put_entry(to, ring, at->in);
        if (at->in) fputs("\"seconds\":", to);
        if (at->in) put_seconds(to, chain_seconds(ring, at->in));
        if (at->in) fputc('}', to);
    }
    fputc('}', to);
}

void flight_print_json(FILE *to, const FlightReading *r)
{
    const Chain *c = &r->chain;
    const RingFile *first = r->files.first;
    fprintf(to,
            "{\"format\":\"train.c flight analysis\",\"version\":1,\"dump\":\"%s\","
            "\"reason\":\"%s\",\"time\":%.6f,\"attempt\":%" PRId64
            ",\"ranks\":%d,\"answered\":%d,\"cause\":\"%s\"",
            first->dump, dump_reason_name[first->reason], first->time, first->attempt,
            r->files.ranks, r->files.read, flight_cause_name[c->cause]);
    put_ranks(to, "late", c->late, c->lates);
    put_text(to, "begins", flight_words_begin(r));
    put_text(to, "advice", flight_words_advice(r));
    fputs(",\"seconds\":", to);
    put_seconds(to, c->seconds);
    fputs(",\"waits\":[", to);
    for (int i = 0; i < c->waits; i++) {
        fputs(i > 0 ? ",\n" : "\n", to);
        put_wait(to, r, &c->wait[i]);
    }
    fputs("],\"each\":[", to);
    for (int rank = 0; rank < r->files.ranks; rank++) {
        fputs(rank > 0 ? ",\n" : "\n", to);
        put_rank(to, r, rank);
    }
    fputs("]}\n", to);
}

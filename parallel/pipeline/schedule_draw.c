/* schedule_draw.c -- draws a schedule as text. */
#include "model/core/check.h"
#include "parallel/pipeline/schedule_order.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const ScheduleSpec *spec;
    bool letters;  /* draw only letters, one column per tick */
    int cell;      /* columns per tick */
    int64_t ticks; /* number of ticks that are drawn */
    char *line;    /* [stage][ticks * cell] */
} Drawing;

char schedule_chunk_letter(int chunk)
{
    return "abcdefghijklmnopqrstuvwxyz"[chunk % 26];
}

static char *place(const Drawing *d, int stage, int64_t tick)
{
    return d->line + (size_t)((stage * d->ticks + tick) * d->cell);
}

/* Writes an action: "F12", or "F12b" with its chunk if there are several. As a single letter it is
 * "F", or the chunk's letter, which is a capital in backward. */
static int write_action(const Drawing *d, const ScheduleEvent *e, char *text, size_t n)
{
    bool chunks = d->spec->chunks > 1;
    char kind = "FBE"[e->kind], chunk = schedule_chunk_letter(e->chunk);
    if (d->letters && chunks) kind = e->kind == ACT_BACKWARD ? (char)(chunk - 'a' + 'A') : chunk;
    if (d->letters) return snprintf(text, n, "%c", kind);
    return chunks ? snprintf(text, n, "%c%lld%c", kind, (long long)e->micro, chunk)
                  : snprintf(text, n, "%c%lld", kind, (long long)e->micro);
}

/* Draws an action; if it ends after the last drawn tick, only its beginning. */
static bool draw(void *context, const ScheduleEvent *e)
{
    Drawing *d = context;
    char text[32];
    /* The beginning of an action already draws its full length, so its end adds nothing. */
    if (e->ends) return true;
    if (e->tick >= d->ticks) return false;
    int ticks = schedule_ticks(e->kind), n = write_action(d, e, text, sizeof text);
    if (ticks > d->ticks - e->tick) ticks = (int)(d->ticks - e->tick);
    char *at = place(d, e->stage, e->tick);
    if (e->kind == ACT_BACKWARD) memset(at, '-', (size_t)(ticks * d->cell - !d->letters));
    memcpy(at, text, (size_t)n);
    return true;
}

/* Returns the columns of a tick: enough for the longest action of one tick and a space. */
static int cell_columns(const ScheduleSpec *spec)
{
    return snprintf(NULL, 0, "F%lld ", (long long)(spec->micros - 1)) + (spec->chunks > 1);
}

/* Finds the number of ticks until stage 0 has ended its first backward pass or, in an evaluation,
 * until the first micro-batch has ended. */
static bool watch_first(void *context, const ScheduleEvent *e)
{
    Drawing *d = context;
    bool first = e->kind == ACT_EVALUATE
                     ? e->stage == d->spec->stages - 1 && e->chunk == d->spec->chunks - 1
                     : e->kind == ACT_BACKWARD && e->stage == 0;
    d->ticks = e->tick;
    return !(first && e->ends);
}

static int64_t first_ticks(const ScheduleSpec *spec)
{
    Drawing d = {.spec = spec};
    schedule_play(spec, watch_first, &d);
    return d.ticks;
}

/* Computes how many ticks fit into a line. Returns whether all ticks do. */
static bool fit(Drawing *d, int columns)
{
    int64_t room = (columns - (int)strlen("...")) / d->cell;
    d->ticks = schedule_length(d->spec);
    if (d->ticks * d->cell <= columns) return true;
    d->ticks = room > 1 ? room : 1;
    return false;
}

void schedule_draw(const ScheduleSpec *spec, FILE *to, int width)
{
    Drawing d = {.spec = spec, .cell = cell_columns(spec)};
    int label = snprintf(NULL, 0, "stage %d  ", spec->stages - 1);
    /* If the line ends before the first backward pass of stage 0, the drawing shows neither the
     * bubble nor the steady state. Then only letters are drawn, several times as many per line. */
    bool all = fit(&d, width > 0 ? width - label : INT_MAX);
    if (!all && d.ticks < first_ticks(spec)) {
        d.letters = true;
        d.cell = 1;
        all = fit(&d, width - label);
        fprintf(to, "(a column a tick; %s)\n",
                spec->evaluate     ? "a letter a micro-batch"
                : spec->chunks > 1 ? "a forward of chunk a, A- backward"
                                   : "F forward, B- backward");
    }
    size_t columns = (size_t)(d.ticks * d.cell);
    d.line = must_alloc((size_t)spec->stages * columns);
    memset(d.line, ' ', (size_t)spec->stages * columns);
    schedule_play(spec, draw, &d);
    for (int i = 0; i < spec->stages; i++) {
        size_t n = columns;
        /* Trailing spaces are removed if a line ends with the step. Before dots they are kept, so
         * that the dots are aligned. */
        while (all && n > 0 && place(&d, i, 0)[n - 1] == ' ')
            n--;
        fprintf(to, "stage %-*d%.*s%s\n", label - (int)strlen("stage "), i, (int)n, place(&d, i, 0),
                all ? "" : "...");
    }
    free(d.line);
}

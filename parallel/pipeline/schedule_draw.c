/* schedule_draw.c -- a schedule as text. */
#include "model/core/check.h"
#include "parallel/pipeline/timeline.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    const ScheduleSpec *spec;
    int cell;      /* columns of a tick */
    int64_t ticks; /* that are drawn */
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

/* An action from its beginning on: "F12 ", "B12---- "; with its chunk, where there are several, as
 * a letter: "F12b ". Of one that goes on behind the last tick its beginning. */
static bool draw(void *context, const TimelineEvent *e)
{
    Drawing *d = context;
    char text[32];
    if (e->ends) return true;
    if (e->tick >= d->ticks) return false;
    int ticks = timeline_ticks(e->kind);
    if (ticks > d->ticks - e->tick) ticks = (int)(d->ticks - e->tick);
    int n = snprintf(text, sizeof text, "%c%lld", "FBE"[e->kind], (long long)e -> micro);
    if (d->spec->chunks > 1 && n < (int)sizeof text - 1)
        text[n++] = schedule_chunk_letter(e->chunk);
    char *at = place(d, e->stage, e->tick);
    if (e->kind == ACT_BACKWARD) memset(at, '-', (size_t)(ticks * d->cell - 1));
    memcpy(at, text, (size_t)n);
    return true;
}

/* Columns of the longest action of one tick and the space behind it. */
static int cell_columns(const ScheduleSpec *spec)
{
    return snprintf(NULL, 0, "F%lld ", (long long)(spec->micros - 1)) + (spec->chunks > 1);
}

void schedule_draw(const ScheduleSpec *spec, FILE *to, int width)
{
    Drawing d = {.spec = spec, .cell = cell_columns(spec), .ticks = timeline_length(spec)};
    int label = snprintf(NULL, 0, "stage %d  ", spec->stages - 1);
    int64_t room = (width - label - (int)strlen("...")) / d.cell;
    bool cut = width > 0 && d.ticks * d.cell > width - label;
    if (cut) d.ticks = room > 1 ? room : 1;
    size_t columns = (size_t)(d.ticks * d.cell);
    d.line = must_alloc((size_t)spec->stages * columns);
    memset(d.line, ' ', (size_t)spec->stages * columns);
    timeline_play(spec, draw, &d);
    for (int i = 0; i < spec->stages; i++) {
        size_t n = columns;
        while (!cut && n > 0 && place(&d, i, 0)[n - 1] == ' ')
            n--;
        fprintf(to, "stage %-*d%.*s%s\n", label - (int)strlen("stage "), i, (int)n, place(&d, i, 0),
                cut ? "..." : "");
    }
    free(d.line);
}

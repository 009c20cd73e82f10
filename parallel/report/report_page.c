/* report_page.c -- prints the page of `./train report`. See report_page.h. */
#include "parallel/report/report_page.h"

#include "model/core/check.h"
#include "model/core/figures.h"
#include "model/core/utf8.h"
#include "model/core/version.h"
#include "parallel/report/plot.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* POINTS_BYTES: how many bytes of a page the points of all curves may use. POINT_BYTES: how
 * many bytes a point and its range use at most, summed over all plots but those of eval.sets.
 * POINTS_MOST: the most points of a curve. The constants below limit the samples in the same
 * way. */
enum { POINTS_BYTES = 190000, POINT_BYTES = 140, POINTS_MOST = 400 };
enum { SAMPLES_BYTES = 60000, SAMPLES_MOST = 4, SAMPLE_BYTES_MOST = 4000 };
enum { NAME_BYTES = 400 };
/* The largest number of sets of eval.sets that are shown; a point in the plot of a set has at most
 * SET_POINT_BYTES. */
enum { SETS_MOST = 8, SET_POINT_BYTES = 20 };
/* If there are more runs than this, the ranges of the curves are not drawn, because they would hide
 * each other. */
enum { BANDS_MOST = 3 };

static const char page_start[] =
    "<!DOCTYPE html>\n"
    "<html lang=en><head><meta charset=utf-8><title>Training report</title>\n"
    "<meta name=viewport content=\"width=device-width,initial-scale=1\">\n"
    "<meta name=color-scheme content=\"light dark\">\n"
    "<meta http-equiv=Content-Security-Policy content=\"default-src 'none'; "
    "style-src 'unsafe-inline'; img-src data:\">\n"
    "<link rel=icon href=\"data:,\">\n"
    "<style>\n"
    ":root{--paper:#fff;--ink:#1c1e21;--soft:#5a6068;--rule:#e1e4e8;--box:#f6f7f9;"
    "--c0:#0b62a4;--c1:#c2410c;--c2:#15803d;--c3:#a21caf;--c4:#92620a;--c5:#0e7490;--c6:#be123c;"
    "--c7:#4b5563}\n"
    "@media(prefers-color-scheme:dark){:root{--paper:#14171a;--ink:#e8eaed;--soft:#a2a9b2;"
    "--rule:#30363d;--box:#1d2126;--c0:#58a6ff;--c1:#ff9a5c;--c2:#56d364;--c3:#e29bff;"
    "--c4:#e3b341;--c5:#4fd1e0;--c6:#ff7b93;--c7:#b1bac4}}\n"
    "*{box-sizing:border-box}\n"
    "body{margin:0;padding:16px;background:var(--paper);color:var(--ink);"
    "font:16px/1.45 system-ui,sans-serif;overflow-wrap:anywhere}\n"
    "h1{font-size:22px;margin:0 0 8px}h2{font-size:18px;margin:24px 0 8px}\n"
    "ul{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,440px),1fr));"
    "list-style:none;margin:0 0 16px;padding:0}li{margin:6px 0 6px 40px}\n"
    "li svg{width:30px;height:10px;margin-left:-40px;margin-right:10px}\n"
    "small,footer{color:var(--soft);font-size:14px}\n"
    ".plots{display:grid;gap:16px;grid-template-columns:repeat(auto-fit,minmax(min(100%,340px),1fr)"
    ")"
    "}\n"
    "figure{margin:0;padding:10px;background:var(--box);border:1px solid var(--rule);"
    "border-radius:6px;max-width:640px}\n"
    "figcaption{font-weight:600}figcaption small{font-weight:400}figure "
    "svg{display:block;width:100%;height:auto}\n"
    "text{font-size:12px;fill:var(--soft)}.x{text-anchor:middle}.y{text-anchor:end}\n"
    ".grid{stroke:var(--rule);stroke-width:1}\n"
    ".line{fill:none;stroke:currentColor;stroke-width:1.8;stroke-linejoin:round;"
    "stroke-linecap:round}\n"
    ".band{fill:currentColor;opacity:.18}\n"
    "details{margin:8px 0;padding:8px 10px;background:var(--box);border:1px solid var(--rule);"
    "border-radius:6px}summary{cursor:pointer}\n"
    "pre{white-space:pre-wrap;margin:8px 0 0;font:14px/1.45 ui-monospace,monospace}\n";

/* ---- text -------------------------------------------------------------------------------------
 */

/* Prints text that is safe in an element and in a quoted attribute, at most `most` bytes of it.
 * Invalid UTF-8 and control characters are shown as \xNN. Returns false if the text was cut. */
static bool print_text(FILE *to, const char *text, size_t most)
{
    size_t bytes = strlen(text), used = 0;
    for (size_t at = 0; at < bytes;) {
        char piece[16];
        uint32_t code = 0;
        int length = utf8_decode((const uint8_t *)text + at, (int64_t)(bytes - at), &code);
        bool control = code != '\n' && code != '\t' && (code < 32 || (code >= 127 && code < 160));
        if (length == 0 || control)
            snprintf(piece, sizeof piece, "\\x%02x", length ? code : (unsigned char)text[at]);
        else if (strchr("<>&\"'", (int)code) && code < 128)
            snprintf(piece, sizeof piece, "&#%u;", code);
        else
            snprintf(piece, sizeof piece, "%.*s", length, text + at);
        used += strlen(piece);
        if (used > most) return false;
        fputs(piece, to);
        at += length ? (size_t)length : 1;
    }
    return true;
}

static void print_name(FILE *to, const PageRun *run)
{
    if (!print_text(to, run->name, NAME_BYTES)) fputs("…", to);
}

/* ---- the list of runs -------------------------------------------------------------------------
 */

/* Prints the colours of the runs. From the ninth run on the colours repeat with a dashed line. */
static void print_colours(FILE *to, int n)
{
    enum { COLOURS = 8 };
    for (int r = 0; r < n; r++)
        fprintf(to, ".r%d{color:var(--c%d)%s}\n", r, r % COLOURS,
                r < COLOURS ? "" : ";stroke-dasharray:5 4");
}

/* Prints the best and the last validation loss. */
static void print_validation(FILE *to, const History *h)
{
    const EvalPoint *best = NULL;
    for (int64_t i = 0; i < h->n_eval; i++)
        if (!isnan(h->eval[i].loss) && (best == NULL || h->eval[i].loss < best->loss))
            best = &h->eval[i];
    if (best == NULL) return;
    const EvalPoint *last = &h->eval[h->n_eval - 1];
    if (isnan(last->loss))
        fputs(", validation not finite", to);
    else
        fprintf(to, ", validation %.4f", last->loss);
    if (best != last) fprintf(to, " (best %.4f at step %lld)", best->loss, (long long)best->step);
}

/* Prints the last loss on each set of eval.sets. */
static void print_sets(FILE *to, const History *h)
{
    for (int i = 0; i < h->n_sets && i < SETS_MOST; i++) {
        if (h->set[i].n_eval == 0) continue;
        const EvalPoint *last = &h->set[i].eval[h->set[i].n_eval - 1];
        fputs(", ", to);
        print_text(to, h->set[i].name, NAME_BYTES);
        if (isnan(last->loss))
            fputs(" not finite", to);
        else
            fprintf(to, " %.4f", last->loss);
    }
}

/* Prints an item of the list of runs, which is also the legend of the plots. */
static void print_run(FILE *to, const PageRun *run, int r)
{
    const History *h = &run->history;
    const TrainPoint *last = &h->train[h->n_train - 1];
    fprintf(to,
            "<li><svg viewBox=\"0 0 30 10\" class=\"r%d\" aria-hidden=\"true\">"
            "<path class=\"line\" d=\"M2 5H28\"/></svg><b>",
            r);
    print_name(to, run);
    fprintf(to, "</b><br>%s", figure_count((double)last->step).text);
    if (h->train_steps > 0) fprintf(to, " of %s", figure_count((double)h->train_steps).text);
    fprintf(to, " steps, %s tokens, training loss ", figure_short((double)last->tokens).text);
    if (isnan(last->loss))
        fputs("not finite", to);
    else
        fprintf(to, "%.4f", last->loss);
    print_validation(to, h);
    print_sets(to, h);
    if (h->skipped > 0) fprintf(to, ", %s skipped", figure_of(h->skipped, "update").text);
    fputs("</li>\n", to);
}

/* ---- the plots --------------------------------------------------------------------------------
 */

/* Extends the steps [*first, *last] to those of a curve. */
static void cover_steps(const Curve *c, int64_t *first, int64_t *last)
{
    for (int64_t i = 0; i<c->n; i += c->n> 1 ? c->n - 1 : 1) {
        int64_t step;
        memcpy(&step, (const char *)c->point + (size_t)i * c->size, sizeof step);
        *first = step < *first ? step : *first;
        *last = step > *last ? step : *last;
    }
}

/* Returns the curve of one member of the points in a list of a History. */
#define CURVE(h, list, member)                                                                     \
    (Curve)                                                                                        \
    {                                                                                              \
        .point = (h)->list, .n = (h)->n_##list, .size = sizeof *(h)->list,                         \
        .value_at = offsetof(__typeof__(*(h)->list), member)                                       \
    }

enum { LOSS, VALIDATION, RATE, NORM, SPEED, EXPOSED, PLOTS };

/* Collects the names of the sets that any run has, at most SETS_MOST; returns their number. */
static int sets_of(const PageRun *run, int n, const char *name[SETS_MOST])
{
    int count = 0;
    for (int r = 0; r < n; r++) {
        for (int i = 0; i < run[r].history.n_sets; i++) {
            int k = 0;
            while (k < count && strcmp(name[k], run[r].history.set[i].name) != 0)
                k++;
            if (k == count && count < SETS_MOST) name[count++] = run[r].history.set[i].name;
        }
    }
    return count;
}

/* Prints the plot of the losses on one set. */
static void print_set_plot(FILE *to, const PageRun *run, int n, const char *name, const Plot *like)
{
    Curve curve[PAGE_RUNS_MOST] = {{0}};
    char *title;
    size_t size;
    FILE *escaped = text_stream(&title, &size);
    fputs("Validation loss, ", escaped);
    print_text(escaped, name, NAME_BYTES);
    fclose(escaped);
    for (int r = 0; r < n; r++) {
        const History *h = &run[r].history;
        for (int i = 0; i < h->n_sets; i++)
            if (strcmp(h->set[i].name, name) == 0) curve[r] = CURVE(&h->set[i], eval, loss);
    }
    Plot plot = *like;
    plot.title = title;
    plot.curve = curve;
    plot_print(to, &plot);
    free(title);
}

static void print_plots(FILE *to, const PageRun *run, int n)
{
    Curve curve[PLOTS][PAGE_RUNS_MOST];
    Plot plot[PLOTS] = {
        [LOSS] = {.title = "Training loss",
                  .unit = "nats per token",
                  .may_log = true,
                  .band = true},
        [VALIDATION] = {.title = "Validation loss", .unit = "nats per token", .may_log = true},
        [RATE] = {.title = "Learning rate", .unit = "", .from_zero = true},
        [NORM] = {.title = "Gradient norm",
                  .unit = "before clipping",
                  .may_log = true,
                  .band = true},
        [SPEED] = {.title = "Speed", .unit = "tokens per second", .from_zero = true},
        [EXPOSED] = {.title = "Exposed communication",
                     .unit = "part of the time",
                     .from_zero = true},
    };
    int64_t first = INT64_MAX, last = 0;
    const char *name[SETS_MOST];
    int sets = sets_of(run, n, name);
    int most = POINTS_BYTES / ((POINT_BYTES + SET_POINT_BYTES * sets) * n);
    for (int r = 0; r < n; r++) {
        const History *h = &run[r].history;
        curve[LOSS][r] = CURVE(h, train, loss);
        curve[VALIDATION][r] = CURVE(h, eval, loss);
        curve[RATE][r] = CURVE(h, train, lr);
        curve[NORM][r] = CURVE(h, train, grad_norm);
        curve[SPEED][r] = CURVE(h, speed, tokens_per_second);
        curve[EXPOSED][r] = CURVE(h, speed, exposed);
        for (int p = 0; p < PLOTS; p++)
            cover_steps(&curve[p][r], &first, &last);
    }
    fputs("<div class=plots>\n", to);
    for (int p = 0; p < PLOTS; p++) {
        plot[p].curve = curve[p];
        plot[p].n_curves = n;
        plot[p].first_step = first;
        plot[p].last_step = last;
        plot[p].band = plot[p].band && n <= BANDS_MOST;
        plot[p].most = most < POINTS_MOST ? most : POINTS_MOST;
        plot_print(to, &plot[p]);
        for (int i = 0; p == VALIDATION && i < sets; i++)
            print_set_plot(to, run, n, name[i], &plot[p]);
    }
    fputs("</div>\n", to);
}

/* ---- the samples ------------------------------------------------------------------------------
 */

/* Prints samples of a run: the last ones, newest first, and at the end the run's first sample. */
static void print_samples(FILE *to, const PageRun *run, int runs)
{
    const History *h = &run->history;
    size_t most = SAMPLES_BYTES / (size_t)(runs * SAMPLES_MOST);
    if (most > SAMPLE_BYTES_MOST) most = SAMPLE_BYTES_MOST;
    int64_t shown = h->n_sample < SAMPLES_MOST ? h->n_sample : SAMPLES_MOST;
    for (int64_t i = 0; i < shown; i++) {
        const SamplePoint *s = &h->sample[i + 1 < shown ? h->n_sample - 1 - i : 0];
        fprintf(to, "<details%s><summary>", i == 0 ? " open" : "");
        print_name(to, run);
        fprintf(to, ", step %s</summary><pre dir=auto><b>", figure_count((double)s->step).text);
        bool whole = print_text(to, s->prompt, most / 4);
        fputs(whole ? "</b>" : "…</b>", to);
        fputs(print_text(to, s->text, most - most / 4) ? "</pre></details>\n"
                                                       : "…</pre></details>\n",
              to);
    }
}

void report_page_print(FILE *to, const PageRun *run, int n)
{
    int64_t samples = 0;
    fputs(page_start, to);
    print_colours(to, n);
    fputs("</style></head><body>\n<h1>Training report</h1>\n<ul>\n", to);
    for (int r = 0; r < n; r++) {
        print_run(to, &run[r], r);
        samples += run[r].history.n_sample;
    }
    fputs("</ul>\n", to);
    print_plots(to, run, n);
    if (samples > 0) fputs("<h2>Samples</h2>\n", to);
    for (int r = 0; r < n; r++)
        print_samples(to, &run[r], n);
    fprintf(to, "<footer>%s</footer>\n</body></html>\n", program_version());
}

/* cmd_report.c -- `./train report RUN...`: prints the curves of runs as an HTML page, or as CSV. */
#include "model/core/check.h"
#include "model/core/files.h"
#include "model/core/log.h"
#include "parallel/commands/commands.h"
#include "parallel/report/report_csv.h"
#include "parallel/report/report_page.h"

#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

typedef struct {
    ArgList runs;
    bool csv;
} Arguments;

/* Reads the figures of a run; `name` is its path without slashes at the end. Ends the program if
 * there are none. */
static void read_run(History *history, const char *name)
{
    char err[1024];
    if (!history_read(history, name, err, sizeof err)) fail(EXIT_MISSING, "%s", err);
    if (history->n_train == 0) fail(EXIT_MISSING, "%s/metrics.jsonl has no step yet", name);
    if (history->bad_lines > 0)
        log_warning("%s/metrics.jsonl: %" PRId64 " of its lines cannot be read and are left out",
                    name, history->bad_lines);
}

/* Prints the runs one after the other as CSV. */
static int print_csv(const ArgList *runs, char **name)
{
    History history;
    StringList sets = {0};
    /* The columns must include the sets of all runs. Every run is read twice, so that only one at a
     * time is in memory. */
    for (int r = 0; r < runs->count; r++) {
        read_run(&history, name[r]);
        report_csv_sets(&history, &sets);
        history_free(&history);
    }
    report_csv_head(stdout, &sets);
    for (int r = 0; r < runs->count; r++) {
        char err[1024];
        if (!history_read(&history, name[r], err, sizeof err)) fail(EXIT_MISSING, "%s", err);
        report_csv_run(stdout, name[r], &history, &sets);
        history_free(&history);
    }
    string_list_free(&sets);
    return EXIT_OK;
}

/* Prints the page of all runs. */
static int print_page(const ArgList *runs, char **name)
{
    PageRun run[PAGE_RUNS_MOST];
    if (runs->count > PAGE_RUNS_MOST)
        fail(EXIT_USAGE,
             "./train report: a page shows at most %d runs, not %d; --csv takes any number",
             PAGE_RUNS_MOST, runs->count);
    if (isatty(STDOUT_FILENO))
        fail(EXIT_USAGE,
             "./train report prints an HTML page; write it to a file: ./train report %s%s > "
             "report.html",
             runs->item[0], runs->count > 1 ? " ..." : "");
    for (int r = 0; r < runs->count; r++) {
        run[r].name = name[r];
        read_run(&run[r].history, name[r]);
    }
    report_page_print(stdout, run, runs->count);
    for (int r = 0; r < runs->count; r++)
        history_free(&run[r].history);
    return EXIT_OK;
}

static int report(const void *values)
{
    const Arguments *a = values;
    char **name = must_calloc((size_t)a->runs.count, sizeof *name);
    for (int r = 0; r < a->runs.count; r++)
        name[r] = path_trimmed(a->runs.item[r]);
    int code = a->csv ? print_csv(&a->runs, name) : print_page(&a->runs, name);
    for (int r = 0; r < a->runs.count; r++)
        free(name[r]);
    free(name);
    return code;
}

static const ArgOption options[] = {
    {.name = "--csv",
     .help = "print a table of all steps, with commas, instead of a page",
     .kind = ARG_FLAG,
     .at = offsetof(Arguments, csv)},
};

const ArgCommand cmd_report = {
    .name = "report",
    .call = "./train report",
    .usage = "RUN [RUN2 ...] [--csv] > FILE",
    .summary = "curves and samples of runs as an HTML page, or as CSV",
    .about = "RUN is a run folder, also of a run that is still training. Prints one HTML page\n"
             "that needs no other file: loss, validation, learning rate, gradient norm,\n"
             "speed, exposed communication (of several ranks with wall_clock_breakdown) and\n"
             "samples. Several runs are drawn over each other.",
    .options = options,
    .n_options = ARG_ROWS(options),
    .words = {.least = 1,
              .most = ARGS_ANY,
              .at = offsetof(Arguments, runs),
              .missing = "which run? ./train report out/demo > report.html",
              .plural = "runs"},
    .size = sizeof(Arguments),
    .run = report,
};

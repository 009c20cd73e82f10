/* console.h -- what a person sees of a run: a table, one live line below it on a terminal, results
 * above it.
 *
 * In a pipe the same rows come as plain lines: no carriage return, no escape code, no colour. */
#ifndef PARALLEL_REPORT_CONSOLE_H
#define PARALLEL_REPORT_CONSOLE_H

#include "parallel/report/metrics.h"

typedef struct {
    FILE *to;
    bool terminal, colour, scale; /* scale: a column for the loss scale */
    int64_t train_steps;
    int64_t rows; /* since the header was printed */
} Console;

/* Colour only on a terminal and without NO_COLOR in the environment. */
void console_open(Console *console, const MetricsOptions *options);
/* Takes the live line away. */
void console_close(Console *console);
/* A row of the table; `eta` in seconds, negative: not known yet. */
void console_row(Console *console, const StepRecord *record, const SpeedRecord *speed, double eta);
void console_live(Console *console, const StepRecord *record, double tokens_per_second, double eta);
void console_eval(Console *console, const EvalRecord *record);
void console_sample(Console *console, const char *prompt, const char *text);
void console_saved(Console *console, int64_t step, double seconds, const char *path);

#endif

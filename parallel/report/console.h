/* console.h -- prints the progress of a run for its user: a table of steps and results and, on a
 * terminal, one live line below it.
 *
 * In a pipe the same rows are printed as plain lines, without carriage returns, escape codes or
 * colours. */
#ifndef PARALLEL_REPORT_CONSOLE_H
#define PARALLEL_REPORT_CONSOLE_H

#include "parallel/report/metrics.h"

typedef struct {
    FILE *to;
    bool terminal, colour, scale; /* `scale`: show a column for the loss scale */
    int64_t train_steps;
    int64_t rows;   /* number of rows so far; the header is printed again after some of them */
    Flight *flight; /* flight recorder, which notes each print; NULL: none */
} Console;

/* Initializes the console. Colours are used only on a terminal, and only if NO_COLOR is not set in
 * the environment. */
void console_open(Console *console, const MetricsOptions *options);
/* Erases the live line. */
void console_close(Console *console);
/* Prints a row of the table. `eta` is in seconds; negative means unknown. */
void console_row(Console *console, const StepRecord *record, const SpeedRecord *speed, double eta);
void console_live(Console *console, const StepRecord *record, double tokens_per_second, double eta);
void console_eval(Console *console, const EvalRecord *record);
void console_sample(Console *console, const char *prompt, const char *text);
/* Prints a finished line, at once, because a program that reads JSON lines from a pipe needs each
 * line when it is written. */
void console_json(Console *console, const char *line, size_t bytes);
void console_saved(Console *console, const SaveRecord *save);

#endif

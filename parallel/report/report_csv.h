/* report_csv.h -- prints the figures of runs as a table in CSV (RFC 4180), for other programs. */
#ifndef PARALLEL_REPORT_REPORT_CSV_H
#define PARALLEL_REPORT_REPORT_CSV_H

#include "model/core/string_list.h"
#include "parallel/report/history.h"

/* Prints the line of column names. The last columns are the losses and the bits per byte of `sets`,
 * names of eval.sets. */
void report_csv_head(FILE *to, const StringList *sets);
/* Prints one line for each step of a run that has any figure. All digits are kept; a cell is empty
 * if the figure is not known at that step, or was not finite. */
void report_csv_run(FILE *to, const char *run, const History *history, const StringList *sets);
/* Adds the names of the run's sets that `sets` lacks. */
void report_csv_sets(const History *history, StringList *sets);

#endif

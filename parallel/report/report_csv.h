/* report_csv.h -- prints the figures of runs as a table in CSV (RFC 4180), for other programs. */
#ifndef PARALLEL_REPORT_REPORT_CSV_H
#define PARALLEL_REPORT_REPORT_CSV_H

#include "parallel/report/history.h"

/* Prints the line of column names. */
void report_csv_head(FILE *to);
/* Prints one line for each step of a run that has any figure. All digits are kept; a cell is empty
 * if the figure is not known at that step, or was not finite. */
void report_csv_run(FILE *to, const char *run, const History *history);

#endif

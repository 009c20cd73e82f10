/* report_page.h -- prints the curves and samples of runs as one HTML page that needs no other
 * file. */
#ifndef PARALLEL_REPORT_REPORT_PAGE_H
#define PARALLEL_REPORT_REPORT_PAGE_H

#include "parallel/report/history.h"

/* The largest number of runs on a page, and the largest size of a page in bytes, however long its
 * runs are. */
enum { PAGE_RUNS_MOST = 16, PAGE_BYTES_MOST = 300000 };

typedef struct {
    const char *name; /* any text */
    History history;
} PageRun;

/* Prints the page of 1 to PAGE_RUNS_MOST runs. Text of the runs is escaped. The page contains no
 * script, and its policy forbids it to load anything. */
void report_page_print(FILE *to, const PageRun *run, int n);

#endif

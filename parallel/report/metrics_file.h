/* metrics_file.h -- writes files such as metrics.jsonl: appends whole lines (or records of
 * TensorBoard events), keeps them in memory while writing fails, and cuts metrics.jsonl back to the
 * checkpoint when a run resumes. Used only in parallel/report. */
#ifndef PARALLEL_REPORT_METRICS_FILE_H
#define PARALLEL_REPORT_METRICS_FILE_H

#include "model/core/fs.h"
#include "parallel/report/metrics.h"

#include <pthread.h>

typedef struct {
    const FsOps *fs;
    int fd; /* -1: no file; lines are dropped */
    char *path;
    char *pending; /* lines that are not on disk yet */
    size_t n, capacity;
    Flight *flight;       /* flight recorder of the rank whose thread adds lines; NULL: none */
    pthread_mutex_t busy; /* held while a line is added or written */
    char error[512];      /* message of the last failed write, while lines are pending */
} MetricsFile;

/* Opens FOLDER/NAME for appending; `fs` must outlive the file.
 *
 * If upto >= 0, an existing file is cut back first. It loses the lines after step `upto`, lines
 * that cannot be parsed, and an incomplete last line; a new file is written and renamed over it.
 * `tail` is set to the content of the last remaining step. If `upto` is 0 and lines would be lost,
 * the file is renamed instead, for example from metrics.jsonl to metrics.before-attempt-N.jsonl.
 *
 * Returns false and sets `err` on failure. It is a failure if FOLDER/NAME is a symbolic link, a
 * pipe or a folder. */
bool metrics_file_open(MetricsFile *file, const FsOps *fs, const char *folder, const char *name,
                       int64_t upto, int attempt, MetricsTail *tail, char *err, size_t n);
/* Moves the lines after step `upto` to the file `aside`, which is replaced if it exists. But if
 * `aside` exists with more lines than those that move, it stays, and the lines move to `other`.
 * Sets `tail` as metrics_file_open does. Returns false and sets `err` on failure. */
bool metrics_file_go_back(MetricsFile *file, int64_t upto, const char *aside, const char *other,
                          MetricsTail *tail, char *err, size_t n);
void metrics_file_close(MetricsFile *file);
/* Appends whole lines; a failure is reported by the next metrics_file_sync. */
void metrics_file_put(MetricsFile *file, const char *text, size_t bytes);
/* Does the work of metrics_end for one file. */
void metrics_file_end(MetricsFile *file);
/* Returns true if all lines are on disk; otherwise false, and sets `err`. */
bool metrics_file_sync(MetricsFile *file, char *err, size_t n);

#endif

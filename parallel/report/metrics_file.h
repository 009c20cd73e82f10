/* metrics_file.h -- the lines of metrics.jsonl on disk: appended whole, kept in memory while the
 * disk refuses them, and cut back to the checkpoint when a run resumes. Private to metrics.c. */
#ifndef PARALLEL_REPORT_METRICS_FILE_H
#define PARALLEL_REPORT_METRICS_FILE_H

#include "model/core/fs.h"
#include "parallel/report/metrics.h"

#include <pthread.h>

typedef struct {
    const FsOps *fs;
    int fd; /* -1: no file; lines are dropped */
    char *path;
    char *pending; /* what is not on disk yet */
    size_t n, capacity;
    pthread_mutex_t busy; /* held while a line is added or written */
    char error[512];      /* of the last write that failed, while something is pending */
} MetricsFile;

/* Opens FOLDER/NAME for appending; `fs` must outlive the file. upto >= 0: a file that is there
 * loses the lines beyond that step, those that cannot be read and a torn last one, by a rewritten
 * file renamed over it; `tail` gets what is known of its last step. upto 0: a file that would lose
 * lines is renamed instead, metrics.jsonl to metrics.before-attempt-N.jsonl. False with a sentence:
 * a symbolic link, a pipe or a folder of that name among them. */
bool metrics_file_open(MetricsFile *file, const FsOps *fs, const char *folder, const char *name,
                       int64_t upto, int attempt, MetricsTail *tail, char *err, size_t n);
void metrics_file_close(MetricsFile *file);
/* Appends whole lines; a failure shows at the next sync. */
void metrics_file_put(MetricsFile *file, const char *text, size_t bytes);
/* metrics_end for one file. */
void metrics_file_end(MetricsFile *file);
/* True when all lines are on disk; false with a sentence. */
bool metrics_file_sync(MetricsFile *file, char *err, size_t n);

#endif

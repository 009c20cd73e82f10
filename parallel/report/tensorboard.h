/* tensorboard.h -- writes the figures of a run as TensorBoard events.
 *
 * An event file is a sequence of records: length (8 bytes), checksum of the length, data, checksum
 * of the data. Checksums are CRC-32C, masked. The data are a protocol buffer message `Event`. Each
 * record is written by one call of write, so a killed run leaves whole records and at most one
 * incomplete one at the end, which readers ignore. */
#ifndef PARALLEL_REPORT_TENSORBOARD_H
#define PARALLEL_REPORT_TENSORBOARD_H

#include "parallel/report/metrics_file.h"

/* A figure of an event. */
typedef struct {
    const char *tag; /* at most EVENT_TAG_MOST characters */
    double value;
} EventScalar;
enum { EVENT_TAG_MOST = 60, EVENT_SCALARS_MOST = 8 };

typedef struct {
    MetricsFile file; /* fd -1: no events are written */
    bool warned;      /* the warning about a failed write has been printed */
} EventFile;

/* The run whose events are written. */
typedef struct {
    const char *folder;      /* the folder of the event files; created if it is missing */
    const char *run_folder;  /* identifies the run among those that share `folder`; folders in it
                              * may not be symbolic links */
    int attempt;             /* number of this attempt, from 0 */
    int64_t resumed_samples; /* samples at the checkpoint from which the run resumes; -1: new run */
} EventRun;

/* Opens a new event file of this attempt. A resumed run repeats the steps after its checkpoint, so
 * the events after it are first cut off from the files of its earlier attempts. If the run begins
 * again at its first step, these files are renamed so that TensorBoard does not read them. Returns
 * false and sets err on failure. */
bool event_file_open(EventFile *file, const FsOps *fs, const EventRun *run, char *err, size_t n);
void event_file_close(EventFile *file);
/* Appends an event with 1 to EVENT_SCALARS_MOST figures; TensorBoard shows them at `samples` on the
 * horizontal axis, as in DeepSpeed. Allocates nothing while the disk accepts the data. */
void event_file_put(EventFile *file, int64_t samples, const EventScalar *scalar, int n);
/* Appends an event with a text at most a few MB long, which TensorBoard shows as Markdown. Invalid
 * UTF-8 in it becomes U+FFFD. Allocates memory. */
void event_file_put_text(EventFile *file, int64_t samples, const char *tag, const char *text);
/* Syncs the file. If the events cannot be written, warns once; metrics.jsonl has every figure. */
void event_file_sync(EventFile *file);
/* Does the work of metrics_end for the events. */
void event_file_end(EventFile *file);

/* Returns the size of the part of an event file that comes before its first event after `samples`,
 * or before a damaged or incomplete record. Declared here only for tests. */
size_t events_until(const uint8_t *data, size_t size, int64_t samples);

#endif

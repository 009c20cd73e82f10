/* history.h -- reads the figures of a run back from RUN/metrics.jsonl, for `./train report`. */
#ifndef PARALLEL_REPORT_HISTORY_H
#define PARALLEL_REPORT_HISTORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* The points of the curves. Each struct begins with its step. NaN means that a figure is not known,
 * or was not finite. */
typedef struct {
    int64_t step, samples, tokens;
    double loss, lr, grad_norm, loss_scale;
} TrainPoint;

typedef struct {
    int64_t step;
    double loss, bits_per_byte;
} EvalPoint;

typedef struct {
    int64_t step;
    double tokens_per_second;
    /* Part of the time, from 0 to 1, in which rank 0 only communicated. Known for several ranks
     * with wall_clock_breakdown. */
    double exposed;
} SpeedPoint;

typedef struct {
    int64_t step;
    char *prompt, *text;
} SamplePoint;

/* A checkpoint that was saved. */
typedef struct {
    int64_t step;
    double time; /* when it was complete: seconds since 1970 */
} SavePoint;

/* The evaluations on one set of eval.sets. */
typedef struct {
    char *name;
    EvalPoint *eval;
    int64_t n_eval;
} SetHistory;

/* The figures of one run. In each list, every step is larger than the one before it. */
typedef struct {
    TrainPoint *train;
    EvalPoint *eval;
    SpeedPoint *speed;
    SamplePoint *sample;
    SavePoint *save;
    int64_t n_train, n_eval, n_speed, n_sample, n_save;
    SetHistory *set; /* (n_sets), in the order of their first evaluation */
    int n_sets;
    int64_t train_steps; /* as configured at the last start; 0: not known */
    int64_t skipped;     /* updates that were skipped */
    int64_t bad_lines;   /* complete lines that could not be parsed */
} History;

/* Reads FOLDER/metrics.jsonl, even while the run is writing to it. A resumed run repeats steps: the
 * last line of a step counts, and a line {"event":"start"} discards earlier lines about later
 * steps. Returns false and sets err if the file cannot be read. The caller calls history_free in
 * both cases. */
bool history_read(History *history, const char *folder, char *err, size_t n);
/* Does the work of history_read for an open stream. An incomplete last line is ignored. */
void history_read_stream(History *history, FILE *from);
void history_free(History *history);

#endif

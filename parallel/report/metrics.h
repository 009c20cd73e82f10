/* metrics.h -- what a run tells: the console (a table on a terminal or in a pipe, or JSON lines)
 * and RUN/metrics.jsonl.
 *
 * Rank 0 only. Every figure comes in as a record; nothing here computes or waits for the device. */
#ifndef PARALLEL_REPORT_METRICS_H
#define PARALLEL_REPORT_METRICS_H

#include "parallel/comm/comm.h"
#include "parallel/report/pace.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* One optimizer step. */
typedef struct {
    int64_t step, updates, samples, tokens, skipped; /* totals after the step */
    int64_t skips_in_row;
    bool stop;   /* overflow at the smallest loss scale: the run must end */
    double loss; /* mean nats per target; non-finite becomes null plus "nonfinite": true in JSON */
    double lr, grad_norm, loss_scale;
    bool applied; /* false: the update was skipped */
} StepRecord;

/* Speed of the steps since the last report, evaluation and saving excluded. */
typedef struct {
    double seconds; /* of `steps` steps */
    int64_t steps, tokens;
    double flops_per_token;
    double forward, backward, optimizer,
        data; /* seconds of rank 0, with wall_clock_breakdown; else negative */
    /* With it, over several ranks: the seconds of a rank's own work (the first three), on average
     * and on the rank that took most. */
    int ranks, slowest;
    double mean_work, most_work;
    /* Between ranks, and in none of the others; 0: none, or not known apart. exchange and bubble
     * are of stages: what moves between them, and waiting for them. */
    double communication, exchange, bubble;
    /* On a device with streams, in the first three: what the compute stream stood still for, by
     * axis, each of the rank that has most of it; 0: nothing, or not measured. */
    double exposed[EXPOSED_AXES];
} SpeedRecord;

typedef struct {
    int64_t step, targets, bytes; /* targets and text bytes evaluated; bytes 0: unknown */
    double loss;                  /* mean nats per target */
    double bits_per_byte;         /* negative: unknown */
    double seconds;
    bool final;
    bool cut; /* ended before its last micro-batch, so its figures are no result */
} EvalRecord;

typedef struct {
    const char *run_folder; /* NULL: console only */
    bool json;              /* the console speaks JSON lines */
    bool terminal;          /* stdout is a terminal: one live line, colours unless NO_COLOR */
    Pace pace;              /* train_steps, and what else takes time */
    int64_t resumed_step;   /* lines after it and a torn last one are dropped; -1: new run */
    int64_t tokens_per_step;
    int attempt;           /* of the run, from 0; on every line */
    bool loss_scale_shown; /* a column for the loss scale (fp16) */
    FILE *to;              /* the console; NULL: stdout */
} MetricsOptions;

typedef struct Metrics Metrics;

/* Opens RUN/metrics.jsonl for appending. On failure returns false with an error message that names
 * the file. */
bool metrics_open(Metrics **out, const MetricsOptions *options, char *err, size_t n);
void metrics_close(Metrics *metrics);
/* For the end of a process that another thread brings: what is not on disk yet goes there, once
 * rank 0 is not just writing; not waited for long. */
void metrics_end(Metrics *metrics);

/* What metrics.jsonl says of its last step, once it is cut back to the checkpoint that a run goes
 * on from. */
typedef struct {
    StepRecord last; /* the totals, and with `trained` the loss; the other fields are zero */
    bool trained, evaluated, sampled; /* which lines of that step there are */
} MetricsTail;
MetricsTail metrics_tail(const Metrics *metrics);

/* {"event":"start","format":1,...}: `fields` is the inside of a JSON object (config name, commit,
 * machine, attempt). */
void metrics_start(Metrics *metrics, const char *fields);
/* To metrics.jsonl, every digit; shown only by metrics_report or the live line. */
void metrics_step(Metrics *metrics, const StepRecord *record);
/* A console row for the latest step with its speed. It has an ETA once five steps or five seconds
 * of steps are known, and in the last row. */
void metrics_report(Metrics *metrics, const SpeedRecord *speed);
/* Redraws the live line on a terminal (progress, loss, tokens/s, ETA); nothing elsewhere. Cheap:
 * call every step. */
void metrics_live(Metrics *metrics, const StepRecord *latest, double seconds_per_step);
void metrics_eval(Metrics *metrics, const EvalRecord *record);
/* A sample text, control characters escaped on the console; also appended to RUN/samples.txt. */
void metrics_sample(Metrics *metrics, int64_t step, double seconds, const char *prompt,
                    const char *text);
void metrics_saved(Metrics *metrics, int64_t step, double seconds, const char *path);
/* What has gone between ranks so far: a table on the console, and a line {"event":"comms"}. */
void metrics_comms(Metrics *metrics, int64_t step, const Comm *const *group, int n_groups);
/* One line with a sentence; `event` is "warn", "resume" or "end". */
void metrics_note(Metrics *metrics, const char *event, int64_t step, const char *text);
/* Flushes and fsyncs metrics.jsonl; false with a sentence on a full disk. Called before each
 * checkpoint is committed. */
bool metrics_flush(Metrics *metrics, char *err, size_t n);

#endif

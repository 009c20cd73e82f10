/* metrics.h -- reports the events of a run on the console (a table or JSON lines) and in
 * RUN/metrics.jsonl, and as TensorBoard events.
 *
 * Only rank 0 calls it. The caller passes all figures in records; nothing here computes them or
 * waits for the device. */
#ifndef PARALLEL_REPORT_METRICS_H
#define PARALLEL_REPORT_METRICS_H

#include "parallel/comm/comm.h"
#include "parallel/report/pace.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* The record of one optimizer step. */
typedef struct {
    int64_t step, updates, samples, tokens, skipped; /* totals after the step */
    int64_t skipped_tokens, spikes; /* totals: tokens of skipped steps; spikes of the loss */
    /* Since the last update: steps with non-finite gradients, and spikes that were skipped. */
    int64_t skips_in_row, spikes_in_row;
    int64_t data_offset, rollbacks; /* as in StepState */
    bool stop;                      /* overflow at the smallest loss scale: the run must end */
    double loss;                    /* mean nats per target; if not finite, null in JSON */
    double lr, grad_norm, loss_scale;
    double median, deviation; /* if `spike`: the values with which the step's loss was compared */
    bool spike;
    bool applied; /* false: the update was skipped */
} StepRecord;

/* The speed of the steps since the last report, without evaluations and saves. */
typedef struct {
    double seconds; /* time of `steps` steps */
    int64_t steps, tokens;
    double flops_per_token;
    double forward, backward, optimizer,
        data; /* seconds of rank 0 with wall_clock_breakdown; else negative */
    /* With wall_clock_breakdown and several ranks: seconds of a rank's own work (forward, backward
     * and optimizer), on average and on the rank `slowest`, which has the most. */
    int ranks, slowest;
    double mean_work, most_work;
    /* Seconds of communication that the fields above do not include; 0: none, or not measured
     * separately. With several stages, `exchange` is the transfer of tensors between them, and
     * `bubble` the wait for other stages. */
    double communication, exchange, bubble;
    /* On a GPU: seconds of forward, backward and optimizer in which the compute stream waited for
     * other ranks, by axis. Each is the maximum over the ranks; 0: none, or not measured. */
    double exposed[EXPOSED_AXES];
    /* On a GPU with optimizer states in host memory: seconds of their updates, and bytes of states
     * that these moved over the host link, per direction. The maximum over the ranks; 0: none. */
    double updates, updated_bytes;
} SpeedRecord;

typedef struct {
    const char *set;              /* the name in eval.sets; NULL: the main validation data */
    int64_t step, targets, bytes; /* evaluated targets and bytes of text; bytes 0: unknown */
    /* micro-batches evaluated, over all ranks, and those of the whole validation data */
    int64_t batches, all_batches;
    double loss;          /* mean nats per target */
    double bits_per_byte; /* negative if unknown */
    double seconds;
    bool final;
    bool cut; /* true: it ended before its last micro-batch, so the figures must not be used */
} EvalRecord;

typedef struct {
    const char *run_folder; /* NULL: console only */
    bool json;              /* the console prints JSON lines */
    bool terminal;          /* stdout is a terminal: live line, and colours unless NO_COLOR */
    Pace pace;              /* length of the run, and cost of evaluations and saves */
    int64_t resumed_step;   /* lines after this step are dropped; -1: new run */
    int64_t tokens_per_step;
    const char *events_folder; /* folder of the TensorBoard events; NULL: none are written */
    int64_t resumed_samples;   /* samples at `resumed_step`; -1: new run */
    int attempt;               /* number of this attempt, from 0; on every line */
    bool loss_scale_shown;     /* show a column for the loss scale (fp16) */
    FILE *to;                  /* stream of the console; NULL: stdout */
    Flight *flight;            /* flight recorder, which notes prints and writes; NULL: none */
} MetricsOptions;

typedef struct Metrics Metrics;

/* Opens RUN/metrics.jsonl for appending. On failure returns false and sets `err` to a message that
 * names the file. */
bool metrics_open(Metrics **out, const MetricsOptions *options, char *err, size_t n);
void metrics_close(Metrics *metrics);
/* Writes everything that is not on disk yet. To be called by a thread other than rank 0's that ends
 * the process. If rank 0 is writing, waits for it at most two seconds. */
void metrics_end(Metrics *metrics);

/* The content of the last step in metrics.jsonl, after the file has been cut back to the checkpoint
 * from which a run resumes. */
typedef struct {
    StepRecord last;                  /* totals, and the loss if `trained`; other fields are zero */
    bool trained, evaluated, sampled; /* which kinds of lines that step has */
    /* eval: that step's evaluation, if `evaluated`. lowest: the evaluation with the lowest loss in
     * the whole file or, if the file has lines {"event":"data"}, after the last of these; its step
     * is 0 if there is none. Of both, only the step, the loss and the bits per byte are set. */
    EvalRecord eval, lowest;
    int64_t since_lowest; /* number of evaluations after `lowest` */
} MetricsTail;
MetricsTail metrics_tail(const Metrics *metrics);

/* Writes the line {"event":"start","format":1,...}. `fields` are further members of this JSON
 * object (config name, commit, machine, attempt). */
void metrics_start(Metrics *metrics, const char *fields);
/* Writes a step to metrics.jsonl with all digits. The console shows it only through metrics_report
 * or metrics_live. */
void metrics_step(Metrics *metrics, const StepRecord *record);
/* Prints a console row for the latest step with its speed, and writes a line {"event":"speed"}.
 * They include the remaining time once five steps, or five seconds of steps, have been made, and in
 * the last row. */
void metrics_report(Metrics *metrics, const SpeedRecord *speed);
/* Redraws the live line (progress, loss, tokens/s, ETA); does nothing if the console is not a
 * terminal. Cheap enough to be called after every step. */
void metrics_live(Metrics *metrics, const StepRecord *latest, double seconds_per_step);
/* Reports an evaluation on the main validation data, and on n further sets. The lines of the sets,
 * {"event":"val_set"}, precede the line {"event":"val"}, so a step that has the latter has all of
 * them. */
void metrics_eval(Metrics *metrics, const EvalRecord *record, const EvalRecord *sets, int n);
/* Reports a sample of text and appends it to RUN/samples.txt; the console shows control characters
 * escaped. */
void metrics_sample(Metrics *metrics, int64_t step, double seconds, const char *prompt,
                    const char *text);
/* Reports that replicas were compared in this step and are equal: a line {"event":"replicas"}. */
void metrics_compared(Metrics *metrics, int64_t step, double seconds);
/* Comparisons of replicas: how many, and how many seconds they took in all. */
typedef struct {
    int64_t n;
    double seconds;
} Comparisons;
/* The record of a save. The save may have been committed some steps after the step that was saved,
 * `at`. */
typedef struct {
    StepRecord at;  /* the step that was saved, with its totals */
    double seconds; /* from its begin to its commit */
    double stall;   /* of that, how long training waited; `seconds` if it was synchronous */
    const char *path;
    Comparisons compared; /* of the saved state, before the save: at most one */
    Comparisons between;  /* comparisons that were made at intervals, not for a save, and that no
                             save has reported yet */
} SaveRecord;
/* Reports a save on the console and in a line {"event":"ckpt"}. */
void metrics_saved(Metrics *metrics, const SaveRecord *save);
/* Reports how much data was sent between ranks so far: a table on the console and a line
 * {"event":"comms"}. */
void metrics_comms(Metrics *metrics, int64_t step, const Comm *const *group, int n_groups);
/* Writes one line with a message; `event` is "warn", "resume", "weights" (where the first weights
 * come from), "data" (from here on, validation losses are of different data), "best" (this step's
 * checkpoint is the best so far), "rollback" (this is the first repeated step) or "end". */
void metrics_note(Metrics *metrics, const char *event, int64_t step, const char *text);
/* Goes back to an earlier step, from which the run continues: the lines of later steps move from
 * metrics.jsonl to metrics.rollback-N.jsonl, N = rollback, and metrics_tail returns the content of
 * that step. If that file exists with more lines, from an earlier attempt that was killed after the
 * same rollback, it stays, and the lines move to metrics.rollback-N.attempt-A.jsonl. `samples`: the
 * number of samples at that step. Returns false and sets `err` on failure. */
bool metrics_go_back(Metrics *metrics, int64_t step, int64_t samples, int64_t rollback, char *err,
                     size_t n);
/* Flushes and fsyncs metrics.jsonl; returns false and sets `err` if that fails, for example on a
 * full disk. Call it before a checkpoint is committed. */
bool metrics_flush(Metrics *metrics, char *err, size_t n);

#endif

/* metrics_inside.h -- the struct Metrics; private to metrics.c and metrics_back.c. */
#ifndef PARALLEL_REPORT_METRICS_INSIDE_H
#define PARALLEL_REPORT_METRICS_INSIDE_H

#include "parallel/report/console.h"
#include "parallel/report/metrics_file.h"
#include "parallel/report/tensorboard.h"

struct Metrics {
    MetricsOptions options;
    char *run_folder, *events_folder; /* owned copies of the paths in `options` */
    Console console;
    MetricsFile file;    /* RUN/metrics.jsonl */
    MetricsFile samples; /* RUN/samples.txt */
    EventFile events;    /* of TensorBoard */
    MetricsTail tail; /* content of the last step in metrics.jsonl when the file was opened or last
                         cut back */
    StepRecord latest;
    int64_t first_step; /* step at which this attempt began */
    /* The line of a training step, printed through line_to without allocating memory. */
    char line[1024];
    FILE *line_to;
};

/* Opens the file of TensorBoard's events. Defined in metrics_back.c. */
bool metrics_open_events(Metrics *metrics, char *err, size_t n);

#endif

/* metrics_back.c -- cuts the metrics and events of a run back to an earlier step. See metrics.h. */
#include "model/core/check.h"
#include "parallel/report/metrics_inside.h"

#include <stdlib.h>

bool metrics_open_events(Metrics *m, char *err, size_t n)
{
    const EventRun run = {.folder = m->options.events_folder,
                          .run_folder = m->options.run_folder,
                          .attempt = m->options.attempt,
                          .resumed_samples = m->options.resumed_samples};
    char why[900];
    return event_file_open(&m->events, &fs_system, &run, why, sizeof why) ||
           error_set(err, n, "the TensorBoard events cannot be written: %s", why);
}

bool metrics_go_back(Metrics *m, int64_t step, int64_t samples, int64_t rollback, char *err,
                     size_t n)
{
    char *aside =
        text_format("%s/metrics.rollback-%lld.jsonl", m->options.run_folder, (long long)rollback);
    char *other = text_format("%s/metrics.rollback-%lld.attempt-%d.jsonl", m->options.run_folder,
                              (long long)rollback, m->options.attempt);
    bool good = metrics_file_go_back(&m->file, step, aside, other, &m->tail, err, n);
    free(other);
    free(aside);
    m->latest = m->tail.last;
    m->latest.step = m->first_step = step;
    if (!good || m->options.events_folder == NULL) return good;
    event_file_close(&m->events);
    m->events = (EventFile){.file.fd = -1};
    m->options.resumed_samples = samples;
    return metrics_open_events(m, err, n);
}

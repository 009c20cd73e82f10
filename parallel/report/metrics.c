/* metrics.c -- writes each event as a line of JSON and passes it to the console. See metrics.h.
 *
 * A line is written whole, by one write. If the write fails, the line is kept in memory and written
 * later, so a disk that is full for a while leaves no gap in the file. */
#include "parallel/report/metrics.h"

#include "model/core/check.h"
#include "model/core/clock.h"
#include "model/core/fs.h"
#include "model/core/json_write.h"
#include "parallel/report/comms.h"
#include "parallel/report/metrics_inside.h"

#include <stdlib.h>
#include <string.h>

enum { FORMAT_VERSION = 1, STEPS_BEFORE_ETA = 5, SECONDS_BEFORE_ETA = 5 };

bool metrics_open(Metrics **out, const MetricsOptions *options, char *err, size_t n)
{
    Metrics *m = must_calloc(1, sizeof *m);
    m->options = *options;
    m->run_folder = options->run_folder ? must_strdup(options->run_folder) : NULL;
    m->events_folder = options->events_folder ? must_strdup(options->events_folder) : NULL;
    m->options.run_folder = m->run_folder;
    m->options.events_folder = m->events_folder;
    m->file.fd = m->samples.fd = m->events.file.fd = -1;
    console_open(&m->console, options);
    m->line_to = fmemopen(m->line, sizeof m->line, "w");
    CHECK(m->line_to != NULL, "no stream for %zu bytes of memory", sizeof m->line);
    /* A resumed run repeats the steps after its checkpoint, so their lines are removed from
     * metrics.jsonl. samples.txt is not changed: it is for users, and shows the step of each
     * sample. */
    bool good = true;
    if (options->run_folder != NULL) {
        int64_t upto = options->resumed_step < 0 ? 0 : options->resumed_step;
        good = metrics_file_open(&m->file, &fs_system, options->run_folder, "metrics.jsonl", upto,
                                 options->attempt, &m->tail, err, n) &&
               metrics_file_open(&m->samples, &fs_system, options->run_folder, "samples.txt", -1, 0,
                                 NULL, err, n) &&
               (options->events_folder == NULL || metrics_open_events(m, err, n));
    }
    m->file.flight = m->samples.flight = m->events.file.flight = options->flight;
    m->latest = m->tail.last;
    m->latest.step = m->first_step = options->resumed_step < 0 ? 0 : options->resumed_step;
    *out = good ? m : NULL;
    if (!good) metrics_close(m);
    return good;
}

void metrics_close(Metrics *m)
{
    if (m == NULL) return;
    console_close(&m->console);
    metrics_file_close(&m->file);
    metrics_file_close(&m->samples);
    event_file_close(&m->events);
    fclose(m->line_to);
    free(m->run_folder);
    free(m->events_folder);
    free(m);
}

void metrics_end(Metrics *m)
{
    metrics_file_end(&m->file);
    metrics_file_end(&m->samples);
    event_file_end(&m->events);
}

MetricsTail metrics_tail(const Metrics *m)
{
    return m->tail;
}

/* ---- lines ----------------------------------------------------------------------------------- */

/* Prints the members with which every line begins, without the closing brace. */
static void print_head(FILE *to, const Metrics *m, const char *event, int64_t step)
{
    const StepRecord *r = &m->latest;
    fprintf(to,
            "{\"event\": \"%s\", \"step\": %lld, \"updates\": %lld, \"samples\": %lld, \"tokens\": "
            "%lld, \"skipped\": %lld, \"attempt\": %d, \"t\": %.3f",
            event, (long long)step, (long long)r->updates, (long long)r->samples,
            (long long)r->tokens, (long long)r->skipped, m->options.attempt, wall_seconds_now());
}

/* Prints a member of the line's JSON object, with all digits of its value. A number that JSON
 * cannot express (infinite or NaN) becomes null, and *odd is set. */
static void print_number(FILE *to, const char *key, double value, bool *odd)
{
    fprintf(to, ", \"%s\": ", key);
    if (!json_print_number(to, value)) *odd = true;
}

/* Prints a member of the line's JSON object: a text of any bytes. A sample may end in the middle of
 * a UTF-8 character, which json_print_string replaces. */
static void print_string(FILE *to, const char *key, const char *text)
{
    fprintf(to, ", \"%s\": ", key);
    json_print_string(to, text);
}

static void print_tail(FILE *to, bool odd)
{
    fputs(odd ? ", \"nonfinite\": true}\n" : "}\n", to);
}

/* Writes a finished line to the file, and to the console if that prints JSON. */
static void write_line(Metrics *m, const char *line, size_t bytes, bool to_console)
{
    metrics_file_put(&m->file, line, bytes);
    if (m->options.json && to_console) console_json(&m->console, line, bytes);
}

/* A line of any length that is being printed. */
typedef struct {
    FILE *to;
    char *text;
    size_t bytes;
} EventLine;

static FILE *line_begin(EventLine *line, const Metrics *m, const char *event, int64_t step)
{
    line->to = text_stream(&line->text, &line->bytes);
    print_head(line->to, m, event, step);
    return line->to;
}

static void line_end(EventLine *line, Metrics *m, bool odd)
{
    print_tail(line->to, odd);
    fclose(line->to);
    write_line(m, line->text, line->bytes, true);
    free(line->text);
}

/* ---- events ---------------------------------------------------------------------------------- */

void metrics_start(Metrics *m, const char *fields)
{
    EventLine line;
    FILE *to = line_begin(&line, m, "start", m->first_step);
    fprintf(to, ", \"format\": %d, \"train_steps\": %lld, \"tokens_per_step\": %lld%s%s",
            FORMAT_VERSION, (long long)m->options.pace.train_steps,
            (long long)m->options.tokens_per_step, *fields ? ", " : "", fields);
    line_end(&line, m, false);
}

/* Prints the line of m->latest to m->line; returns its length. */
static size_t format_step(Metrics *m)
{
    const StepRecord *r = &m->latest;
    FILE *to = m->line_to;
    bool odd = false;
    rewind(to);
    print_head(to, m, "train", r->step);
    print_number(to, "loss", r->loss, &odd);
    print_number(to, "lr", r->lr, &odd);
    print_number(to, "grad_norm", r->grad_norm, &odd);
    print_number(to, "loss_scale", r->loss_scale, &odd);
    if (r->spike) fputs(", \"spike\": true", to);
    if (!r->applied) fputs(", \"applied\": false", to);
    if (r->skipped > 0) fprintf(to, ", \"skipped_tokens\": %lld", (long long)r->skipped_tokens);
    if (r->spikes > 0) fprintf(to, ", \"spikes\": %lld", (long long)r->spikes);
    if (r->rollbacks > 0)
        fprintf(to, ", \"rollbacks\": %lld, \"data_offset\": %lld", (long long)r->rollbacks,
                (long long)r->data_offset);
    print_tail(to, odd);
    long length = ftell(to);
    fflush(to);
    CHECK(length > 0 && (size_t)length < sizeof m->line, "%ld bytes in a line of metrics", length);
    return (size_t)length;
}

void metrics_step(Metrics *m, const StepRecord *record)
{
    m->latest = *record;
    write_line(m, m->line, format_step(m), false);
    const EventScalar scalar[] = {{"Train/Samples/train_loss", record->loss},
                                  {"Train/Samples/lr", record->lr},
                                  {"Train/Samples/grad_norm", record->grad_norm},
                                  {"Train/Samples/loss_scale", record->loss_scale}};
    event_file_put(&m->events, record->samples, scalar, m->options.loss_scale_shown ? 4 : 3);
}

/* Returns the seconds to the end of the run; negative if the time of a step is not known yet. */
static double seconds_left(const Metrics *m, double seconds_per_step)
{
    int64_t done = m->latest.step - m->first_step, all = m->options.pace.train_steps;
    /* The first steps are slower than the rest, so the estimate begins after some steps or some
     * seconds. */
    bool known = done >= STEPS_BEFORE_ETA || m->latest.step >= all ||
                 (double)done * seconds_per_step >= SECONDS_BEFORE_ETA;
    if (!known || all <= 0) return -1;
    return pace_seconds_left(&m->options.pace, m->latest.step, seconds_per_step);
}

static void print_exposed(FILE *to, const SpeedRecord *s, bool *odd)
{
    char key[32];
    for (int a = 0; a < EXPOSED_AXES; a++) {
        if (!(s->exposed[a] > 0)) continue;
        snprintf(key, sizeof key, "exposed_%s", exposed_axis_name[a]);
        print_number(to, key, s->exposed[a], odd);
    }
    if (!(s->updates > 0)) return;
    print_number(to, "host_updates", s->updates, odd);
    print_number(to, "host_bytes", s->updated_bytes, odd);
}

/* Writes the speed as TensorBoard events. The times of a step's phases have the names that
 * DeepSpeed gives them. */
static void put_speed_events(Metrics *m, const SpeedRecord *s, double rate)
{
    double each = s->steps > 0 ? 1e3 / (double)s->steps : 0;
    const EventScalar scalar[] = {
        {"Train/Samples/tokens_per_second", rate},
        {"Train/Samples/elapsed_time_ms_forward", s->forward * each},
        {"Train/Samples/elapsed_time_ms_backward", s->backward * each},
        {"Train/Samples/elapsed_time_ms_step", s->optimizer * each},
    };
    event_file_put(&m->events, m->latest.samples, scalar, s->forward >= 0 ? 4 : 1);
}

void metrics_report(Metrics *m, const SpeedRecord *s)
{
    /* Before the first step neither the speed nor the remaining time is known. */
    double per_step = s->steps > 0 ? s->seconds / (double)s->steps : -1;
    double eta = s->steps > 0 ? seconds_left(m, per_step) : -1;
    double rate = s->seconds > 0 ? (double)s->tokens / s->seconds : 0;
    /* Printed on the console only: the file already has the step's line. */
    if (m->options.json) {
        fwrite(m->line, 1, format_step(m), m->console.to);
    } else {
        console_row(&m->console, &m->latest, s, eta);
    }
    EventLine line;
    bool odd = false;
    FILE *to = line_begin(&line, m, "speed", m->latest.step);
    print_number(to, "seconds", s->seconds, &odd);
    print_number(to, "tokens_per_second", rate, &odd);
    print_number(to, "gflops", rate * s->flops_per_token / 1e9, &odd);
    if (eta >= 0) print_number(to, "eta", eta, &odd);
    /* These times are measured only with wall_clock_breakdown, because measuring them prevents the
     * host from running ahead of the device. */
    if (s->forward >= 0) {
        print_number(to, "forward", s->forward, &odd);
        print_number(to, "backward", s->backward, &odd);
        print_number(to, "optimizer", s->optimizer, &odd);
        if (s->ranks > 1) {
            fprintf(to, ", \"ranks\": %d, \"slowest_rank\": %d", s->ranks, s->slowest);
            print_number(to, "slowest", s->most_work, &odd);
            print_number(to, "mean", s->mean_work, &odd);
        }
        if (s->communication > 0) print_number(to, "communication", s->communication, &odd);
        if (s->exchange > 0) print_number(to, "exchange", s->exchange, &odd);
        if (s->bubble > 0) print_number(to, "bubble", s->bubble, &odd);
        print_exposed(to, s, &odd);
        print_number(to, "data", s->data, &odd);
    }
    line_end(&line, m, odd);
    put_speed_events(m, s, rate);
}

void metrics_live(Metrics *m, const StepRecord *latest, double seconds_per_step)
{
    if (!m->options.terminal || m->options.json) return;
    double rate = seconds_per_step > 0 ? (double)m->options.tokens_per_step / seconds_per_step : 0;
    console_live(&m->console, latest, rate, seconds_left(m, seconds_per_step));
}

/* Writes the line of an evaluation, and its TensorBoard events. */
static void put_evaluation(Metrics *m, const EvalRecord *r)
{
    EventLine line;
    bool odd = false;
    FILE *to = line_begin(&line, m, r->set ? "val_set" : "val", r->step);
    if (r->set) print_string(to, "set", r->set);
    print_number(to, "loss", r->loss, &odd);
    if (r->bits_per_byte >= 0) print_number(to, "bits_per_byte", r->bits_per_byte, &odd);
    fprintf(to, ", \"targets\": %lld, \"bytes\": %lld", (long long)r->targets, (long long)r->bytes);
    if (r->batches < r->all_batches)
        fprintf(to, ", \"batches\": %lld, \"all_batches\": %lld", (long long)r->batches,
                (long long)r->all_batches);
    print_number(to, "seconds", r->seconds, &odd);
    if (r->final) fputs(", \"final\": true", to);
    line_end(&line, m, odd);
    char loss[80], bits[80];
    snprintf(loss, sizeof loss, "Validation/Samples/%s%sloss", r->set ? r->set : "",
             r->set ? "/" : "");
    snprintf(bits, sizeof bits, "Validation/Samples/%s%sbits_per_byte", r->set ? r->set : "",
             r->set ? "/" : "");
    const EventScalar scalar[] = {{loss, r->loss}, {bits, r->bits_per_byte}};
    event_file_put(&m->events, m->latest.samples, scalar, r->bits_per_byte >= 0 ? 2 : 1);
}

void metrics_eval(Metrics *m, const EvalRecord *r, const EvalRecord *sets, int n)
{
    double seconds = r->seconds;
    for (int i = 0; i < n; i++) {
        put_evaluation(m, &sets[i]);
        seconds += sets[i].seconds;
    }
    put_evaluation(m, r);
    m->options.pace.eval_seconds = seconds; /* from now on the ETA uses this time */
    if (m->options.json) return;
    console_eval(&m->console, r);
    for (int i = 0; i < n; i++)
        console_eval(&m->console, &sets[i]);
}

void metrics_sample(Metrics *m, int64_t step, double seconds, const char *prompt, const char *text)
{
    m->options.pace.sample_seconds = seconds;
    EventLine line;
    FILE *to = line_begin(&line, m, "sample", step);
    print_string(to, "prompt", prompt);
    print_string(to, "text", text);
    line_end(&line, m, false);
    char *entry = text_format("--- step %lld ---\n%s%s\n\n", (long long)step, prompt, text);
    metrics_file_put(&m->samples, entry, strlen(entry));
    free(entry);
    char *whole = text_format("%s%s", prompt, text);
    event_file_put_text(&m->events, m->latest.samples, "Train/Samples/text", whole);
    free(whole);
    if (!m->options.json) console_sample(&m->console, prompt, text);
}

void metrics_compared(Metrics *m, int64_t step, double seconds)
{
    EventLine line;
    FILE *to = line_begin(&line, m, "replicas", step);
    print_number(to, "seconds", seconds, &(bool){false});
    line_end(&line, m, false);
}

void metrics_saved(Metrics *m, const SaveRecord *save)
{
    EventLine line;
    StepRecord latest = m->latest;
    m->options.pace.save_seconds = save->stall;
    m->latest = save->at; /* every line contains the totals of its step */
    FILE *to = line_begin(&line, m, "ckpt", save->at.step);
    print_number(to, "seconds", save->seconds, &(bool){false});
    print_number(to, "stall", save->stall, &(bool){false});
    print_string(to, "path", save->path);
    line_end(&line, m, false);
    m->latest = latest;
    if (m->options.json) return;
    console_saved(&m->console, save);
}

void metrics_comms(Metrics *m, int64_t step, const Comm *const *group, int n_groups)
{
    EventLine line;
    FILE *to = line_begin(&line, m, "comms", step);
    fputs(", \"comms\": ", to);
    comms_print_json(group, n_groups, to);
    line_end(&line, m, false);
    if (!m->options.json) comms_print(group, n_groups);
}

void metrics_note(Metrics *m, const char *event, int64_t step, const char *text)
{
    EventLine line;
    FILE *to = line_begin(&line, m, event, step);
    print_string(to, "text", text);
    line_end(&line, m, false);
}

bool metrics_flush(Metrics *m, char *err, size_t n)
{
    event_file_sync(&m->events);
    return metrics_file_sync(&m->file, err, n) && metrics_file_sync(&m->samples, err, n);
}

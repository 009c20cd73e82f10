/* step_report.c -- reads the records of steps, ends a diverged run, and prints loss and speed. */
#include "parallel/run/step_report.h"

#include "model/core/clock.h"
#include "model/core/log.h"
#include "optim/step_constants.h"
#include "parallel/grid/control.h"
#include "parallel/run/health.h"
#include "parallel/run/saving.h"
#include "parallel/run/signals.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

bool run_is_due(int64_t step, int64_t interval)
{
    return interval > 0 && step % interval == 0;
}

/* ---- records --------------------------------------------------------------------------------- */

/* Reads the records of the steps that the device has finished or, if `all`, waits for all steps.
 * Writes them to metrics.jsonl, up to the first record that ends the run. */
static void take_records(Run *run, bool all)
{
    StepRecord record[TRAINER_HISTORY];
    int n = (all ? trainer_read_all : trainer_read)(&run->trainer, record);
    for (int i = 0; i < n && run->records.event.step == 0; i++) {
        if (run->lead) metrics_step(run->output.metrics, &record[i]);
        health_note(run, &record[i]);
        run_note_saved_health(run, &record[i]);
    }
    if (n > 0) run->records.last = record[n - 1];
    run->records.last_known |= n > 0;
    run->clock.steps += n;
}

void run_read_records(Run *run)
{
    take_records(run, true);
    if (run->records.event.step == 0) return;
    run->records.goes_back = health_goes_back(run);
    if (!run->records.goes_back) health_end(run, false);
}

void run_read_arrived(Run *run)
{
    CHECK(run->world->size == 1, "other ranks do not read the same");
    take_records(run, false);
}

/* Reads the records that have arrived, on all ranks. A step's record is the same on all ranks, but
 * may arrive on some earlier than on others. If one rank reads a divergence, the others wait for
 * that record, so all ranks end at the same step. Every rank takes part in this exchange, however
 * many records it has read. It takes place when the ranks also agree on whether to stop; until then
 * a rank that has read a divergence continues with the others. */
static void read_what_has_come(Run *run)
{
    take_records(run, run->trainer.steps - run->trainer.steps_read == TRAINER_HISTORY);
    if (!run_agrees_now(run)) return;
    if (control_max(run->world, run->records.event.step > 0) != 0) run_read_records(run);
}

/* ---- speed ----------------------------------------------------------------------------------- */

void run_pause_clock(Run *run)
{
    run->clock.seconds += seconds_now() - run->clock.start;
}

void run_resume_clock(Run *run)
{
    run->clock.start = seconds_now();
}

/* Updates the live line; between printed steps at most twice a second. */
static void show_live(Run *run, bool print)
{
    double now = seconds_now(), seconds = run->clock.seconds + now - run->clock.start;
    if (!run->lead || run->clock.steps == 0 || (!print && now - run->clock.shown_at < 0.5)) return;
    metrics_live(run->output.metrics, &run->records.last, seconds / (double)run->clock.steps);
    run->clock.shown_at = now;
}

void run_compare_ranks(const Run *run, SpeedRecord *s)
{
    int ranks = run->world->size;
    enum { WORK = EXPOSED_AXES, UPDATES, BYTES, FIELDS };
    double own[FIELDS] = {[WORK] = s->forward + s->backward + s->optimizer,
                          [UPDATES] = s->updates,
                          [BYTES] = s->updated_bytes},
           most[FIELDS];
    memcpy(own, s->exposed, sizeof s->exposed);
    memcpy(most, own, sizeof most);
    s->ranks = ranks;
    s->mean_work = own[WORK] / ranks;
    comm_all_reduce(run->world, NULL, tensor_1d(&s->mean_work, F64, 1), REDUCE_SUM);
    comm_all_reduce(run->world, NULL, tensor_1d(most, F64, FIELDS), REDUCE_MAX);
    /* The slowest rank is the lowest of those with the most work. */
    int64_t first = control_max(run->world, own[WORK] == most[WORK] ? ranks - run->world->rank : 0);
    s->slowest = ranks - (int)first;
    s->most_work = most[WORK];
    s->updates = most[UPDATES];
    s->updated_bytes = most[BYTES];
    memcpy(s->exposed, most, sizeof s->exposed);
}

static void report(Run *run)
{
    const Config *c = run->config;
    Trainer *t = &run->trainer;
    PhaseSeconds *phases = &t->phases.seconds;
    bool breakdown = c->wall_clock_breakdown;
    /* The clock excludes the comparison of ranks and the printing. */
    run_pause_clock(run);
    SpeedRecord speed = {.seconds = run->clock.seconds,
                         .steps = run->clock.steps,
                         .tokens = run->clock.steps * step_tokens(c),
                         .flops_per_token =
                             gpt_flops_per_token(&t->session.layers.whole, c->data.seq_length),
                         .forward = breakdown ? phases->forward : -1,
                         .backward = breakdown ? phases->backward : -1,
                         .optimizer = breakdown ? phases->optimizer : -1,
                         .communication = phases->layers + phases->communication,
                         .exchange = phases->exchange,
                         .bubble = phases->bubble,
                         .updates = phases->updates,
                         .updated_bytes = phases->updated_bytes,
                         .data = breakdown ? t->feed.seconds : -1};
    memcpy(speed.exposed, phases->exposed, sizeof speed.exposed);
    if (breakdown && run->world->size > 1) run_compare_ranks(run, &speed);
    if (run->lead) metrics_report(run->output.metrics, &speed);
    /* The next report covers only the steps after this one. */
    *phases = (PhaseSeconds){0};
    t->feed.seconds = 0;
    run->clock.seconds = 0;
    run->clock.steps = 0;
    run_resume_clock(run);
}

void run_check_console(Run *run)
{
    if (!run->lead || run->output.console_lost || !ferror(stdout)) return;
    run->output.console_lost = true;
    log_warning("standard output cannot be written: what the run prints is lost, its metrics.jsonl "
                "has all figures");
}

void run_print_comms(const Run *run)
{
    const Session *s = &run->trainer.session;
    if (!run->config->comms_logger.enabled || !run->lead || run->world->size == 1) return;
    const Comm *group[1 + GRID_COMMS] = {s->world};
    grid_comms(&s->grid, group + 1);
    metrics_comms(run->output.metrics, run->trainer.steps, group, 1 + GRID_COMMS);
}

/* Returns whether the run saves, evaluates or samples after this step. */
static bool work_is_due(const Config *c, int64_t step)
{
    return run_is_due(step, c->checkpoint.save_interval) || run_is_due(step, c->eval.interval) ||
           run_is_due(step, c->eval.sample_interval);
}

void run_report(Run *run)
{
    const Config *c = run->config;
    int64_t step = run->trainer.steps;
    bool print = run_is_due(step, c->steps_per_print) || step == c->train_steps;
    /* Waits for the device only if this step is printed, or if the run will save, evaluate or
     * sample now and might have to go back instead. Otherwise read_what_has_come waits only if
     * there is no room for another record. */
    if (print || (c->health.policy == HEALTH_ROLLBACK && work_is_due(c, step)))
        run_read_records(run);
    else
        read_what_has_come(run);
    show_live(run, print);
    run_prepare_answers(run, NULL);
    if (print && c->steps_per_print > 0 && !run->records.goes_back) {
        report(run);
        memory_print_use(run->config, &run->plan, "after a step");
        run_print_comms(run);
    }
    run_check_console(run);
}

/* grid_run.c -- see grid_run.h. */
#include "tests/support/grid/grid_run.h"

#include "data/sampler.h"
#include "model/core/hash.h"
#include "parallel/trainer/replicas.h"
#include "tests/support/model/model_inside.h"
#include "tests/support/model/param_rows.h"
#include "tests/support/support.h"
#include "tests/support/trainer/training.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    GridRun *out;
    Training training;
    const GridHooks *hooks;
    int steps;
    bool masked;
    struct Shared *shared; /* ranks are processes: where rank 0 leaves the results */
} Job;

/* The results of rank 0 in memory that it shares with the test: a run whose pointers point into
 * `bytes`. Forked processes have it at the same address. */
typedef struct Shared {
    GridRun run;
    size_t used;
    char bytes[48 << 20];
} Shared;

/* ---- results of processes -------------------------------------------------------------------- */

static void *put(Shared *to, const void *from, size_t bytes)
{
    CHECK(to->used + bytes <= sizeof to->bytes, "results of %zu bytes", to->used + bytes);
    void *p = memcpy(to->bytes + to->used, from, bytes);
    to->used += (bytes + 63) / 64 * 64;
    return p;
}

/* In rank 0: copies the run to the shared memory. */
static void pass_on(Shared *to, const GridRun *run)
{
    to->run = *run;
    for (int i = 0; i < GRID_COMPARED; i++) {
        Capture *c = &to->run.step[i];
        c->gradient = put(to, c->gradient, (size_t)c->n * sizeof *c->gradient);
        c->weight = put(to, c->weight, (size_t)c->n * sizeof *c->weight);
    }
    ParamTable *table = &to->run.table;
    table->param = put(to, table->param, (size_t)table->n_params * sizeof *table->param);
}

static void *copy_of(const void *from, size_t bytes)
{
    return memcpy(must_alloc(bytes), from, bytes);
}

/* In the test: returns a run of its own. */
static GridRun taken_over(const Shared *from)
{
    GridRun run = from->run;
    for (int i = 0; i < GRID_COMPARED; i++) {
        Capture *c = &run.step[i];
        c->gradient = copy_of(c->gradient, (size_t)c->n * sizeof *c->gradient);
        c->weight = copy_of(c->weight, (size_t)c->n * sizeof *c->weight);
    }
    run.table.param =
        copy_of(run.table.param, (size_t)run.table.n_params * sizeof *run.table.param);
    return run;
}

/* The shared memory stays for later runs. */
static Shared *shared_results(void)
{
    static Shared *shared;
    if (shared == NULL) shared = shared_memory(sizeof *shared);
    shared->used = 0;
    return shared;
}

/* ---- runs ------------------------------------------------------------------------------------ */

/* Whether the target of token t of a sample counts: not in every fourth sample, which leaves whole
 * micro-batches without any, and of the others not in a third. */
static bool counts(int64_t sample, int64_t t)
{
    return sample % 4 != 1 && drawn_uniform((uint64_t)(1000 + sample), t) > 1.0 / 3;
}

/* The trainer's feed, less the targets that do not count. */
static GptBatch masked_batch(void *context, const Action *action)
{
    Trainer *t = context;
    GptBatch batch = feed_batch(&t->feed, action);
    int64_t B = t->config->train_micro_batch_size_per_gpu, T = t->config->data.seq_length;
    const Grid *grid = &t->session.grid;
    for (int64_t row = 0; row < B; row++) {
        int64_t sample =
            sampler_index(t->samples, action->micro, grid->at.dp, grid->size.dp, B, row);
        for (int64_t i = 0; i < T; i++)
            if (!counts(sample, i)) ((int32_t *)batch.targets.data)[row * T + i] = -1;
    }
    return batch;
}

static void take_steps(Trainer *t, const Job *job)
{
    StepRecord record[TRAINER_HISTORY];
    GridRun *out = job->out;
    bool lead = t->session.world->rank == 0;
    for (int i = 0; i < job->steps; i++) {
        /* What nothing was kept in may hold anything. */
        store_poison(t->session.store, &t->session.dev);
        model_poison(t->gpt);
        trainer_step(t);
        if (i < GRID_COMPARED) {
            Capture capture = capture_create(&t->session.table);
            capture_step(&capture, t);
            if (lead)
                out->step[i] = capture;
            else
                capture_free(&capture);
            continue;
        }
        int n = trainer_read_all(t, record);
        if (lead) out->loss = record[n - 1].loss;
    }
}

static void train(Comm *world, void *context)
{
    const Job *job = context;
    const GridHooks *hooks = job->hooks;
    GridRun *out = job->out;
    Trainer t;
    training_lay_out(&t, world, &job->training);
    if (hooks && hooks->opened) hooks->opened(&t, hooks->context);
    training_allocate(&t, &job->training);
    if (job->masked)
        gpt_connect(t.gpt, masked_batch, &t, &t.state->stats, &t.state->state.loss_seed);
    take_steps(&t, job);
    Capture last = capture_create(&t.session.table);
    char unequal[2048] = "";
    trainer_replicas_equal(&t, unequal, sizeof unequal);
    const char *drifted = capture_drift(&t);
    if (drifted == NULL && unequal[0]) drifted = unequal;
    capture_weights(&last, &t);
    if (world->rank == 0) {
        if (drifted) snprintf(out->drifted, sizeof out->drifted, "%.399s", drifted);
        out->state = trainer_state(&t);
        out->each = session_connects(&t.session);
        out->wire = compare_grid(job->training.config, out->each);
        out->hash = hash_bytes(1, last.weight, last.n * (int64_t)sizeof(double));
        out->table = (ParamTable){.n_params = t.session.table.n_params};
        size_t bytes = (size_t)out->table.n_params * sizeof *out->table.param;
        out->table.param = copy_of(t.session.table.param, bytes);
        if (job->shared) pass_on(job->shared, out);
    }
    capture_free(&last);
    trainer_close(&t);
    if (hooks && hooks->closed) hooks->closed(&t, hooks->context);
}

/* Trains the case's ranks with this config, which it frees. */
static void run_config(GridRun *out, const GridCase *c, Config *config, int steps,
                       const GridHooks *hooks)
{
    *out = (GridRun){0};
    Job job = {.out = out, .hooks = hooks, .steps = steps, .masked = c->of[GRID_MASKED] != 0};
    if (ranks_are_processes()) job.shared = shared_results();
    training_of_tokens(&job.training, config, grid_case_ranks(c));
    training_run(&job.training, train, &job);
    training_close(&job.training);
    if (job.shared) *out = taken_over(job.shared);
}

void grid_run(GridRun *out, const GridCase *c, int64_t batch, int steps, const GridHooks *hooks)
{
    run_config(out, c, grid_case_config(c, batch), steps, hooks);
}

void grid_run_processes(GridRun *out, const GridCase *c, int64_t batch, int steps)
{
    bool already = ranks_are_processes();
    if (!already) setenv("TEST_RANKS", "processes", 1);
    grid_run(out, c, batch, steps, NULL);
    if (!already) unsetenv("TEST_RANKS");
}

void grid_run_free(GridRun *run)
{
    for (int i = 0; i < GRID_COMPARED; i++)
        capture_free(&run->step[i]);
    free(run->table.param);
    *run = (GridRun){0};
}

/* ---- single ranks ---------------------------------------------------------------------------- */

typedef struct {
    GridCase single;
    int64_t batch;
    bool exact;
    GridRun run;
} Kept;
static struct {
    Kept **of;
    int n;
} kept;

/* Returns the first steps of the case on a single rank; runs them unless an earlier case had the
 * same. `exact`: the f32 run that 16-bit runs are measured against, on the CPU whatever device the
 * case uses. Emulated kernels are slow, and two devices differ in f32 by far less than 16 bits
 * round. */
static const GridRun *single_rank(const GridCase *c, bool exact)
{
    GridCase single = grid_case_single(c, exact ? 1 : c->of[GRID_DTYPE]);
    int64_t batch = grid_case_batch(c);
    for (int i = 0; i < kept.n; i++)
        if (memcmp(&kept.of[i]->single, &single, sizeof single) == 0 &&
            kept.of[i]->batch == batch && kept.of[i]->exact == exact)
            return &kept.of[i]->run;
    kept.of = must_realloc(kept.of, (size_t)(kept.n + 1) * sizeof *kept.of);
    Kept *k = kept.of[kept.n++] = must_alloc(sizeof *k);
    *k = (Kept){.single = single, .batch = batch, .exact = exact};
    Config *config = grid_case_config(&single, batch);
    if (exact) config->device = DEVICE_CPU;
    run_config(&k->run, &single, config, GRID_COMPARED, NULL);
    return &k->run;
}

void grid_forget(void)
{
    for (int i = 0; i < kept.n; i++) {
        grid_run_free(&kept.of[i]->run);
        free(kept.of[i]);
    }
    free(kept.of);
    kept.of = NULL;
    kept.n = 0;
}

/* ---- gates ----------------------------------------------------------------------------------- */

__attribute__((format(printf, 2, 3))) static void differ(Comparison *c, const char *what, ...)
{
    va_list args;
    va_start(args, what);
    if (!c->differs) vsnprintf(c->difference, sizeof c->difference, what, args);
    va_end(args);
    c->differs = true;
}

/* The norm in units of the root of the gradients' squares, which is one, or, where targets are
 * masked, the number of targets by the number of those that count. */
static double norm_beside_gradients(const Capture *step)
{
    double squares = 0;
    for (int64_t i = 0; i < step->n; i++)
        squares += step->gradient[i] * step->gradient[i];
    return step->grad_norm / sqrt(squares);
}

/* What 16 bits leave to be held closely: the norm is that of the gradients as they are kept, and
 * the first step's loss, before any update, is a single rank's as in f32: that of a sequence is the
 * same whatever shares its micro-batch, and they are added in more than 16 bits. Tensor-parallel
 * ranks add what each has rounded, which is a part of one rounding in a mean of many targets, and
 * of as many more as there are where each addition is rounded. */
static void compare_numbers(Comparison *c, const GridCase *case_, const Capture *got,
                            const Capture *single, bool each)
{
    DType dtype = grid_case_dtype(case_);
    int tp = case_->of[GRID_TENSOR] + 1;
    double once = compare_regions(dtype, tp).relative,
           more = each ? compare_additions(dtype, tp, 1).relative : 0;
    double norm = norm_beside_gradients(got) / norm_beside_gradients(single), bound = 2e-5;
    if (tp > 1) bound = fmax(bound, dtype_info[dtype].roundoff / 16 * (once + more) / once);
    if (!(fabs(norm - 1) <= 1e-12)) differ(c, "the norm is not that of the gradients");
    if (got->step == 1 && !(fabs(got->loss - single->loss) <= bound * single->loss))
        differ(c, "the first loss is not a single rank's");
}

static void compare_steps(const GridCase *case_, const GridRun *run, Comparison *c)
{
    DType dtype = grid_case_dtype(case_);
    const GridRun *single = single_rank(case_, false);
    for (int i = 0; i < GRID_COMPARED; i++) {
        if (!run->step[i].applied) differ(c, "a step is skipped");
        if (dtype == F64 || dtype == F32) {
            CompareBounds bounds = compare_bounds(dtype, GRID_RATE, i + 1);
            if (grid_case_noisy(case_)) {
                bounds.weights = false;
                bounds.gradients = i == 0;
            }
            compare_captures(c, &run->table, dtype, &run->step[i], &single->step[i], &bounds);
            continue;
        }
        compare_numbers(c, case_, &run->step[i], &single->step[i], run->each);
        if (i == 0 || !grid_case_noisy(case_))
            compare_distances(c, &run->table, &run->step[i], &single->step[i],
                              &single_rank(case_, true)->step[i], &run->wire);
    }
}

/* The same whenever the case is made. */
int grid_steps(const GridCase *c)
{
    int sum = 0;
    for (int i = 0; i < GRID_CHOICES; i++)
        sum += c->of[i];
    bool slow = getenv("TEST_DEVICE") != NULL || getenv("TEST_SAMPLE") != NULL;
    return slow || sum % GRID_LONG != 0 ? GRID_FEW_STEPS : GRID_STEPS;
}

bool grid_run_good(const GridCase *case_, const GridRun *run, Comparison *c)
{
    *c = (Comparison){0};
    compare_steps(case_, run, c);
    if (run->drifted[0]) differ(c, "replicas differ after the last step: %s", run->drifted);
    if (!isfinite(run->loss)) differ(c, "the last loss is not finite");
    return !c->differs;
}

bool grid_check(const GridCase *case_, const GridHooks *hooks, Comparison *c)
{
    GridRun run;
    grid_run(&run, case_, grid_case_batch(case_), grid_steps(case_), hooks);
    bool good = grid_run_good(case_, &run, c);
    grid_run_free(&run);
    return good;
}

bool grid_check_processes(const GridCase *case_, Comparison *c)
{
    char why[300];
    GridRun threads, processes;
    int64_t batch = grid_case_batch(case_);
    grid_run(&threads, case_, batch, grid_steps(case_), NULL);
    grid_run_processes(&processes, case_, batch, grid_steps(case_));
    grid_run_good(case_, &threads, c);
    if (!grid_runs_equal(&threads, &processes, 0, why, sizeof why))
        differ(c, "processes and threads: %s", why);
    grid_run_free(&threads);
    grid_run_free(&processes);
    return !c->differs;
}

bool grid_runs_equal(const GridRun *a, const GridRun *b, double norm, char *why, size_t n)
{
    for (int i = 0; i < GRID_COMPARED; i++) {
        const Capture *x = &a->step[i], *y = &b->step[i];
        if (x->loss != y->loss || !(fabs(x->grad_norm / y->grad_norm - 1) <= norm))
            return error_set(why, n, "step %d: loss %.17g and %.17g, norm %.17g and %.17g", i + 1,
                             x->loss, y->loss, x->grad_norm, y->grad_norm);
        for (int64_t k = 0; k < x->n; k++) {
            int64_t at;
            int p = param_of_element(&a->table, k, &at);
            if (memcmp(&x->gradient[k], &y->gradient[k], sizeof(double)) != 0 ||
                memcmp(&x->weight[k], &y->weight[k], sizeof(double)) != 0)
                return error_set(why, n,
                                 "step %d: %s[%lld]: gradients %.17g and %.17g, weights %.17g and "
                                 "%.17g",
                                 i + 1, a->table.param[p].name, (long long)at, x->gradient[k],
                                 y->gradient[k], x->weight[k], y->weight[k]);
        }
    }
    if (a->hash != b->hash || a->loss != b->loss)
        return error_set(why, n, "the last step: loss %.17g and %.17g", a->loss, b->loss);
    return true;
}

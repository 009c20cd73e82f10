/* test_published.c -- compares plans of runs of other programs with their published step times.
 * What matters are the errors for families of runs to which the constants were not fitted. */
#include "model/core/check.h"
#include "tests/support/plan/published_fit.h"
#include "tests/support/support.h"
#include "tests/support/turns.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Constants that published_fit has fitted to the runs on a machine, leaving out one family of runs
 * ("": none). Each commit checks one of these fits. TEST_FIT=1 repeats all fits, which takes a
 * minute, and prints them.
 */
static const struct {
    const char *machine, *left_out;
    Fitted fitted;
} fits[] = {
    {"a100", "", {{0.828, 103.2, 0.837, 2.83e-06}}},
    {"a100", "T1", {{0.812, 124.1, 0.802, 2.49e-06}}},
    {"a100", "T2", {{0.839, 98.6, 0.819, 2.64e-06}}},
    {"h100", "", {{0.739, 83.1, 0.635, 2.32e-06}}},
    {"h100", "175B", {{0.710, 121.1, 0.747, 2.15e-06}}},
    {"h100", "Mcore", {{0.749, 59.8, 0.532, 2.17e-06}}},
    {"h100", "MPT", {{0.778, 122.1, 0.682, 2.84e-06}}},
};
enum { FITS = sizeof fits / sizeof *fits };

static const Fitted *fit_of(const PublishedRun *run, const char *left_out)
{
    if (strcmp(left_out, PUBLISHED_NOT_FITTED) == 0) left_out = "";
    for (int i = 0; i < FITS; i++)
        if (strcmp(fits[i].machine, run->machine) == 0 && strcmp(fits[i].left_out, left_out) == 0)
            return &fits[i].fitted;
    CHECK(false, "no fit for %s without \"%s\"", run->machine, left_out);
    return NULL;
}

/* Sums of the errors of predicted step times, and the largest. */
typedef struct {
    double sum, worst;
    int runs;
} Errors;

static double add_error(Errors *errors, double predicted, const PublishedRun *run)
{
    double error = predicted / run->seconds - 1;
    errors->sum += fabs(error);
    errors->worst = fmax(errors->worst, fabs(error));
    errors->runs++;
    return error;
}

static bool heavy(const PublishedRun *run)
{
    return (int64_t)run->layers * run->batch / (run->dp * run->micro) > 2000;
}

/* Errors of predictions with three sets of constants: `all` fitted to all runs on the machine,
 * `left_out` fitted to the other families only, `file` taken from the machine file. */
typedef struct {
    Errors all, left_out, file;
} Predictions;

static void print_errors(const char *family, const Predictions *p)
{
    const Errors *const errors[] = {&p->all, &p->left_out, &p->file};
    static const char *const name[] = {"all fitted", "family left out", "machine file"};
    print_message("%-12s %2d runs: ", family, p->all.runs);
    for (int i = 0; i < 3; i++)
        print_message("%s mean %4.1f %%, worst %4.1f %%%s", name[i],
                      100 * errors[i]->sum / errors[i]->runs, 100 * errors[i]->worst,
                      i < 2 ? "; " : "\n");
}

static Fitted constants_of(const Hardware *h)
{
    return (Fitted){{h->product.sustained, h->product.edge, h->memory_efficiency, h->launch}};
}

static double predict(const RecordedRun *recorded, const Fitted *fitted, Errors *errors)
{
    return 100 * add_error(errors, published_predict(recorded, fitted), recorded->run);
}

/* The sum that a fit minimises (published_fit.h), with the fitted constants and with each of them a
 * little smaller or larger. */
typedef struct {
    int fit; /* in fits */
    double squares[1 + 2 * FITTED];
    int runs;
} Neighbours;

static Fitted neighbour(const Neighbours *n, int i)
{
    const double step = 0.05; /* of the distance of the bounds */
    Fitted f = fits[n->fit].fitted;
    if (i == 0) return f;
    int k = (i - 1) / 2;
    double by = step * (fitted_most(k) - fitted_least(k));
    f.value[k] += i % 2 ? by : -by;
    return f;
}

static void add_neighbours(Neighbours *n, const RecordedRun *recorded)
{
    if (strcmp(fits[n->fit].machine, recorded->run->machine) != 0 ||
        !published_is_used(recorded->run, fits[n->fit].left_out))
        return;
    n->runs++;
    for (int i = 0; i < 1 + 2 * FITTED; i++) {
        const Fitted f = neighbour(n, i);
        double error = published_error(recorded, &f);
        n->squares[i] += error * error;
    }
}

/* Returns the value that a fit minimises, for neighbour i; infinite if its constants are outside
 * their bounds. */
static double misfit(const Neighbours *n, int i)
{
    const Fitted f = neighbour(n, i);
    for (int k = 0; k < FITTED; k++)
        if (f.value[k] < fitted_least(k) || f.value[k] > fitted_most(k)) return INFINITY;
    return n->squares[i] / n->runs + published_penalty(&f);
}

static void check_neighbours(const Neighbours *n)
{
    for (int i = 1; i < 1 + 2 * FITTED; i++)
        if (misfit(n, i) <= misfit(n, 0))
            fail_msg("%s without \"%s\": a %s %s fits better; TEST_FIT=1 prints the best constants",
                     fits[n->fit].machine, fits[n->fit].left_out, i % 2 ? "larger" : "smaller",
                     fitted_name[(i - 1) / 2]);
}

static void predict_all(const PublishedRun *run, Predictions *p, Neighbours *neighbours)
{
    RecordedRun recorded = published_record(run);
    const Fitted file = constants_of(&recorded.hardware);
    double all = predict(&recorded, fit_of(run, ""), &p->all),
           left_out = predict(&recorded, fit_of(run, run->family), &p->left_out),
           preset = predict(&recorded, &file, &p->file);
    print_message("%-14s %8.3f s; predicted, all fitted %+5.1f %%, family left out %+5.1f %%, "
                  "machine file %+5.1f %%\n",
                  run->name, run->seconds, all, left_out, preset);
    add_neighbours(neighbours, &recorded);
    published_free(&recorded);
}

static void add_errors(Errors *to, Errors *from)
{
    to->sum += from->sum;
    to->runs += from->runs;
    to->worst = fmax(to->worst, from->worst);
    *from = (Errors){0};
}

/* Where sanitizers make tests slow (TEST_SAMPLE), the runs of many micro-batches are left out, and
 * only the worst error is checked. Runs that no fit uses count in every column. */
static void test_predictions_are_close_to_published_step_times(void **state)
{
    (void)state;
    Predictions total = {0}, family = {0};
    Neighbours neighbours = {.fit = (int)turns_first(FITS)};
    bool sample = getenv("TEST_SAMPLE") != NULL;
    for (int i = 0; i < published_count; i++) {
        const PublishedRun *run = &published_runs[i];
        bool last = i + 1 == published_count || strcmp(run->family, run[1].family) != 0;
        if (!sample || !heavy(run)) predict_all(run, &family, &neighbours);
        if (last && family.all.runs > 0) print_errors(run->family, &family);
        if (!last) continue;
        add_errors(&total.all, &family.all);
        add_errors(&total.left_out, &family.left_out);
        add_errors(&total.file, &family.file);
    }
    print_errors("all families", &total);
    for (int i = 0; i < published_omission_count; i++)
        print_message("excluded: %s: %s\n", published_omissions[i].name,
                      published_omissions[i].reason);
    assert_true(total.left_out.worst <= 0.25);
    if (sample) return;
    assert_int_equal(total.left_out.runs, 33);
    assert_true(total.left_out.sum / total.left_out.runs <= 0.10);
    assert_true(total.all.sum / total.all.runs <= 0.06);
    assert_true(total.file.sum / total.file.runs <= 0.07);
    check_neighbours(&neighbours);
}

static void test_fitted_constants_are_within_their_physical_limits(void **state)
{
    (void)state;
    for (int i = 0; i < FITS; i++)
        for (int k = 0; k < FITTED; k++)
            if (fits[i].fitted.value[k] < fitted_least(k) ||
                fits[i].fitted.value[k] > fitted_most(k))
                fail_msg("%s without \"%s\": %s is %g", fits[i].machine, fits[i].left_out,
                         fitted_name[k], fits[i].fitted.value[k]);
}

static int record_machine(const char *machine, RecordedRun *recorded)
{
    int n = 0;
    for (int i = 0; i < published_count; i++)
        if (strcmp(published_runs[i].machine, machine) == 0 &&
            published_is_used(&published_runs[i], ""))
            recorded[n++] = published_record(&published_runs[i]);
    return n;
}

static void free_runs(RecordedRun *recorded, int n)
{
    for (int i = 0; i < n; i++)
        published_free(&recorded[i]);
}

/* With TEST_FIT: repeats the fits, whose results must be the constants in the table above. */
static void test_the_stored_constants_equal_the_result_of_the_fit(void **state)
{
    (void)state;
    if (getenv("TEST_FIT") == NULL) skip_because("takes a minute; TEST_FIT=1 runs it");
    RecordedRun *recorded = must_calloc((size_t)published_count, sizeof *recorded);
    int n = 0, wrong = 0;
    for (int i = 0; i < FITS; i++) {
        if (i == 0 || strcmp(fits[i].machine, fits[i - 1].machine) != 0) {
            free_runs(recorded, n);
            n = record_machine(fits[i].machine, recorded);
        }
        Fitted f = published_fit(recorded, n, fits[i].left_out);
        print_message("{\"%s\", \"%s\", {{%.3f, %.1f, %.3f, %.3g}}},\n", fits[i].machine,
                      fits[i].left_out, f.value[0], f.value[1], f.value[2], f.value[3]);
        for (int k = 0; k < FITTED; k++)
            wrong += fabs(f.value[k] - fits[i].fitted.value[k]) >
                     0.01 * (fitted_most(k) - fitted_least(k));
    }
    free_runs(recorded, n);
    free(recorded);
    assert_int_equal(wrong, 0);
}

/* Returns the largest error of the runs' predicted times. */
static double worst_error(const RecordedRun *recorded, int n, const Fitted *f)
{
    Errors errors = {0};
    for (int i = 0; i < n; i++) {
        add_error(&errors, published_predict(&recorded[i], f), recorded[i].run);
    }
    return errors.worst;
}

/* If the times of runs are exactly those that some constants predict, a fit finds about these
 * constants. */
static void test_a_fit_to_made_up_runs_finds_the_constants_they_were_made_with(void **state)
{
    (void)state;
    const Fitted made = {{0.7, 60, 0.6, 5e-6}};
    const char *const names[] = {"Mcore 1.7B", "Mcore 16B", "MPT 3b 256", "MPT 7b 8"};
    enum { RUNS = sizeof names / sizeof *names };
    RecordedRun recorded[RUNS];
    PublishedRun run[RUNS];
    int n = 0;
    for (int i = 0; i < published_count; i++) {
        if (n == RUNS || strcmp(published_runs[i].name, names[n]) != 0) continue;
        run[n] = published_runs[i];
        recorded[n] = published_record(&run[n]);
        run[n].seconds = published_predict(&recorded[n], &made);
        n++;
    }
    assert_int_equal(n, RUNS);
    Fitted f = published_fit(recorded, n, "");
    assert_true(worst_error(recorded, n, &fitted_start) > 0.1);
    assert_true(worst_error(recorded, n, &f) < 0.03);
    assert_true(fabs(f.value[0] - made.value[0]) < 0.04);
    free_runs(recorded, n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fitted_constants_are_within_their_physical_limits),
        cmocka_unit_test(test_a_fit_to_made_up_runs_finds_the_constants_they_were_made_with),
        cmocka_unit_test(test_the_stored_constants_equal_the_result_of_the_fit),
        cmocka_unit_test(test_predictions_are_close_to_published_step_times),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test_grid_equal.c -- tests that any grid of ranks trains like a single rank, on cases drawn from
 * all combinations of grid_case.h. In f64, grids of two and four ranks are also trained on ranks
 * that are processes, which must have the bits of threads.
 *
 * By default a fixed number of cases is drawn with a fixed seed. TEST_EVERY=N runs only every N-th
 * of them, and TEST_TURN chooses the first (turns.h). If these lack a schedule or a dtype, a case
 * is added for it; TEST_EACH restricts this to schedules or to dtypes. `make grid` sets
 * GRID_SECONDS (and perhaps GRID_SEED): then all combinations run in random order until the time is
 * up. GRID_CASE=NUMBERS, as printed with each case, runs that case alone.
 */
#include "model/core/clock.h"
#include "tests/support/grid/grid_run.h"
#include "tests/support/turns.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

enum { CASES = 300, FIXED_SEED = 14, MOST_SHRUNK = 3 };

/* The largest deviations so far: per dtype, and in f64 also per value of each choice, with the
 * number of cases. */
typedef struct {
    double size;
    char what[700];
} Worst;
enum { DTYPES = 7, MOST_VALUES = 32 };
typedef struct {
    Worst worst[DTYPES];
    double by[GRID_CHOICES][MOST_VALUES];
    int64_t cases[GRID_CHOICES][MOST_VALUES];
} Seen;

static double core_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int64_t number(const char *name, int64_t otherwise)
{
    const char *text = getenv(name);
    return text && *text ? strtoll(text, NULL, 10) : otherwise;
}

static int size_of(const GridCase *c)
{
    int size = 0;
    for (int i = 0; i < GRID_CHOICES; i++)
        size += c->of[i];
    return size;
}

/* Returns whether the case is also trained on processes: on few ranks, and in f64, which only CPUs
 * compute. */
static bool on_processes(const GridCase *c)
{
    int ranks = grid_case_ranks(c);
    return grid_case_dtype(c) == F64 && (ranks == 2 || ranks == 4);
}

static bool trains_well(const GridCase *c, Comparison *r)
{
    return on_processes(c) ? grid_check_processes(c, r) : grid_check(c, NULL, r);
}

/* Returns the simplest case that still fails: gives each choice in turn the simplest value with
 * which the case fails, until no choice can be simplified. */
static GridCase shrink(GridCase c)
{
    Comparison r;
    for (bool changed = true; changed;) {
        changed = false;
        for (int choice = 0; choice < GRID_CHOICES; choice++) {
            for (int value = 0; value < c.of[choice]; value++) {
                GridCase simpler = c;
                simpler.of[choice] = value;
                simpler = grid_case_legal(simpler);
                /* Making it legal may have increased another choice, or undone the change. */
                if (size_of(&simpler) >= size_of(&c) || trains_well(&simpler, &r)) continue;
                c = simpler;
                changed = true;
                break;
            }
        }
    }
    return c;
}

static void report(const GridCase *c)
{
    char text[512], numbers[128];
    Comparison r;
    GridCase least = shrink(*c);
    bool again = !trains_well(&least, &r);
    print_error("smallest that fails: %s\n  GRID_CASE=%s\n  %s\n",
                grid_case_text(&least, text, sizeof text),
                grid_case_numbers(&least, numbers, sizeof numbers),
                again ? r.difference : "not every time");
}

static void note_worst(Seen *seen, const GridCase *c, const char *text, const Comparison *r)
{
    Worst *w = &seen->worst[c->of[GRID_DTYPE]];
    if (r->worst > w->size) {
        w->size = r->worst;
        snprintf(w->what, sizeof w->what, "%s: %s", text, r->where);
    }
    for (int i = 0; i < GRID_CHOICES && grid_case_dtype(c) == F64; i++) {
        double *of = &seen->by[i][c->of[i]];
        *of = fmax(*of, r->worst);
        seen->cases[i][c->of[i]]++;
    }
}

/* Compares one case with a single rank. */
static bool check_case(const GridCase *c, Seen *seen)
{
    static int shrunk;
    char text[512], numbers[128];
    Comparison r;
    /* Prints the case before it runs, because a rank may end the program. */
    printf("%s (GRID_CASE=%s)", grid_case_text(c, text, sizeof text),
           grid_case_numbers(c, numbers, sizeof numbers));
    fflush(stdout);
    bool good = trains_well(c, &r);
    printf(": %.2g%s%s\n", r.worst, good ? "" : "\n  ", r.difference);
    note_worst(seen, c, text, &r);
    fflush(stdout);
    if (!good && shrunk++ < MOST_SHRUNK) report(c);
    return good;
}

/* Prints the deviations in f64, for example "dp: 1 5.1e-14 (20), 2 3e-14 (31), ..." */
static void print_axes(const Seen *seen)
{
    static const struct {
        GridChoice choice;
        const char *name;
        int from; /* the number of ranks that value 0 means */
    } axis[] = {{GRID_DATA, "dp", 1},
                {GRID_TENSOR, "tp", 1},
                {GRID_PIPELINE, "pp", 1},
                {GRID_SCHEDULE, "schedule (1f1b, gpipe, interleaved)", 0},
                {GRID_SPLIT, "split (best, parameters, uniform, by hand)", 0},
                {GRID_SEQUENCE, "sequence parallel", 0},
                {GRID_STAGE, "ZeRO", 0},
                {GRID_SHARD, "shard groups (of all, half, a quarter)", 0},
                {GRID_MICROS, "micro-batches", 1},
                {GRID_RECOMPUTE, "recompute", 0}};
    print_message("worst deviation in f64 by axis, and of how many cases\n");
    for (size_t a = 0; a < sizeof axis / sizeof *axis; a++) {
        print_message("  %s:", axis[a].name);
        for (int v = 0; v < MOST_VALUES; v++)
            if (seen->cases[axis[a].choice][v])
                print_message("  %d: %.2g (%lld)", v + axis[a].from, seen->by[axis[a].choice][v],
                              (long long)seen->cases[axis[a].choice][v]);
        print_message("\n");
    }
}

static void print_sum(int64_t n, const Seen *seen, double seconds)
{
    const Worst *worst = seen->worst;
    static const char *const name[] = {"f64",
                                       "f32",
                                       "bf16, beside f32",
                                       "f16, beside f32",
                                       "bf16 without masters, beside f32",
                                       "the same with bf16 moments",
                                       "bf16 with bf16 moments, beside f32"};
    print_message("%lld cases, %.3f core-seconds each\n", (long long)n,
                  seconds / (double)(n > 0 ? n : 1));
    for (int i = 0; i < grid_choice_values(GRID_DTYPE); i++)
        if (worst[i].size > 0)
            print_message("worst deviation in %s: %.2g (%s)\n", name[i], worst[i].size,
                          worst[i].what);
    print_axes(seen);
}

/* Three of five cases are in f64, which detects most. A case drawn with a single rank gets three
 * tensor-parallel ranks, or fewer if its heads require it, because no other case has
 * tensor-parallel ranks only. */
static GridCase fixed_case(int64_t i)
{
    GridCase c = grid_case_drawn(FIXED_SEED, i);
    if (grid_case_ranks(&c) == 1) c.of[GRID_TENSOR] = 2;
    if (i % 5 < 3) c.of[GRID_DTYPE] = 0;
    return grid_case_legal(c);
}

/* Records which numbers of ranks occurred on an axis while the other axes had one rank each. Bit n
 * means n + 1 ranks. */
typedef struct {
    unsigned of[3];
} Alone;

static void note_alone(Alone *seen, const GridCase *c)
{
    for (int axis = GRID_DATA; axis <= GRID_PIPELINE; axis++)
        if (grid_case_ranks(c) == c->of[axis] + 1) seen->of[axis] |= 1U << c->of[axis];
}

static void check_alone(const Alone *seen)
{
    for (int axis = GRID_DATA; axis <= GRID_PIPELINE; axis++)
        assert_int_equal(seen->of[axis], (1U << grid_choice_values((GridChoice)axis)) - 1);
}

/* Returns, as bits, which of the features that every run must cover this case has: schedules and
 * dtypes. With TEST_EACH=dtype only dtypes count, with TEST_EACH=schedule only one schedule, which
 * changes from commit to commit. */
static unsigned features(const GridCase *c)
{
    const char *each = getenv("TEST_EACH");
    GridCase here = grid_case_here(*c);
    unsigned schedule = here.of[GRID_PIPELINE] ? 1U << here.of[GRID_SCHEDULE] : 0;
    unsigned dtype = 1U << (grid_choice_values(GRID_SCHEDULE) + here.of[GRID_DTYPE]);
    if (each && strcmp(each, "schedule") == 0) return schedule & 1U << turns_first(3);
    if (each && strcmp(each, "dtype") == 0) return dtype;
    return schedule | dtype;
}

/* Returns a number that is about proportional to the time of the case on an emulated device. */
static int64_t work(const GridCase *c)
{
    GridCase here = grid_case_here(*c);
    return grid_case_batch(&here) * grid_model[here.of[GRID_MODEL]].seq_length *
           (here.of[GRID_BLOCKS] + 1);
}

/* Returns the case with the least work among the next `most` cases, from `first` on, that have a
 * feature not yet in `seen`; or -1 if no case has one. */
static int64_t lacking_case(int64_t first, unsigned seen, int most)
{
    int64_t best = -1, least = 0;
    for (int64_t k = 0; k < CASES && most > 0; k++) {
        int64_t i = (first + k) % CASES;
        GridCase c = fixed_case(i);
        if ((features(&c) & ~seen) == 0) continue;
        most--;
        if (best >= 0 && work(&c) >= least) continue;
        best = i;
        least = work(&c);
    }
    return best;
}

/* Chooses the cases of this run: every N-th and, for each feature that these lack, the next case
 * that has it. With TEST_EACH, which is for slow devices, it chooses the smallest of the next 20
 * instead. */
static void choose(bool *chosen)
{
    int64_t every = turns_every(12), first = turns_first(every), i;
    unsigned seen = 0;
    for (i = 0; i < CASES; i++) {
        GridCase c = fixed_case(i);
        chosen[i] = i % every == first;
        if (chosen[i]) seen |= features(&c);
    }
    while ((i = lacking_case(first, seen, getenv("TEST_EACH") ? 20 : 1)) >= 0) {
        GridCase c = fixed_case(i);
        chosen[i] = true;
        seen |= features(&c);
    }
}

static void test_bug_1_3_9_13_14_15_16_36_38_45_46_a_grid_trains_like_one_rank(void **state)
{
    (void)state;
    static Seen seen;
    Alone alone = {{0}};
    bool chosen[CASES];
    double start = core_seconds();
    int64_t done = 0, bad = 0;
    choose(chosen);
    for (int64_t i = 0; i < CASES; i++) {
        if (!chosen[i]) continue;
        GridCase c = fixed_case(i);
        done++;
        note_alone(&alone, &c);
        c = grid_case_here(c);
        bad += !check_case(&c, &seen);
    }
    print_sum(done, &seen, core_seconds() - start);
    if (done == CASES) check_alone(&alone);
    assert_int_equal(bad, 0);
}

/* Trains each model with partial biases or scaled rotations on two data-parallel ranks at ZeRO
 * stage 3, on tensor-parallel ranks without and with sequence parallelism, and on two pipeline
 * stages. With TEST_SAMPLE it runs a fifth of these cases; which fifth depends on the commit
 * (turns.h). */
static void test_partial_biases_and_scaled_rotations_train_like_one_rank(void **state)
{
    (void)state;
    static Seen seen;
    enum { AXES = 4 };
    int64_t every = turns_every(5), bad = 0;
    for (int64_t i = turns_first(every); i < AXES * (GRID_MODELS - GRID_BIASES); i += every) {
        int axis = (int)(i % AXES), model = GRID_BIASES + (int)(i / AXES);
        int most = 3; /* the most tensor-parallel ranks, minus one, that can divide the model */
        while (!(grid_model[model].tensor >> most & 1))
            most--;
        GridCase c = {.of = {[GRID_MODEL] = model, [GRID_BLOCKS] = 2, [GRID_MICROS] = 1}};
        if (axis == 0) c.of[GRID_DATA] = 1, c.of[GRID_STAGE] = 3;
        if (axis == 1 || axis == 2) c.of[GRID_TENSOR] = most;
        if (axis == 2) c.of[GRID_SEQUENCE] = 1;
        if (axis == 3) c.of[GRID_PIPELINE] = 1;
        c = grid_case_here(grid_case_legal(c));
        bad += !check_case(&c, &seen);
    }
    assert_int_equal(bad, 0);
}

/* Runs all combinations in random order, until the time is up or one fails. */
static void test_random_grids_train_like_one_rank_until_the_time_is_up(void **state)
{
    (void)state;
    static Seen seen;
    double end = seconds_now() + (double)number("GRID_SECONDS", 0), start = core_seconds();
    int64_t seed = number("GRID_SEED", (int64_t)time(NULL)), all = grid_cases(), i = 0;
    bool good = true;
    print_message("GRID_SEED=%lld\n", (long long)seed);
    for (; good && i < all && seconds_now() < end; i++) {
        GridCase c = grid_case_drawn((uint64_t)seed, i);
        c = grid_case_here(c);
        good = check_case(&c, &seen);
        if (i % 200 == 199) grid_forget();
    }
    print_sum(i, &seen, core_seconds() - start);
    print_message("%lld of %lld combinations\n", (long long)i, (long long)all);
    assert_true(good);
}

/* Runs one case given by its numbers, which are printed when a case fails. */
static void test_the_case_in_the_variable_GRID_CASE_trains_like_one_rank(void **state)
{
    (void)state;
    static Seen seen;
    GridCase c;
    if (!grid_case_read(&c, getenv("GRID_CASE")))
        fail_msg("GRID_CASE is %d numbers, as in 1,0,...", GRID_CHOICES);
    c = grid_case_legal(c);
    assert_true(check_case(&c, &seen));
}

int main(void)
{
    const struct CMUnitTest fixed[] = {
        cmocka_unit_test(test_bug_1_3_9_13_14_15_16_36_38_45_46_a_grid_trains_like_one_rank),
        cmocka_unit_test(test_partial_biases_and_scaled_rotations_train_like_one_rank)};
    const struct CMUnitTest timed[] = {
        cmocka_unit_test(test_random_grids_train_like_one_rank_until_the_time_is_up)};
    const struct CMUnitTest one[] = {
        cmocka_unit_test(test_the_case_in_the_variable_GRID_CASE_trains_like_one_rank)};
    int failed = getenv("GRID_CASE")      ? cmocka_run_group_tests(one, NULL, NULL)
                 : getenv("GRID_SECONDS") ? cmocka_run_group_tests(timed, NULL, NULL)
                                          : cmocka_run_group_tests(fixed, NULL, NULL);
    grid_forget();
    return failed;
}

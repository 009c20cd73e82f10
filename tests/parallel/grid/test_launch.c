/* test_launch.c -- tests ranks as threads: their coordinates, how they are joined, and how all end
 * when one of them fails. */
#include "model/core/check.h"
#include "model/core/log.h"
#include "parallel/comm/local/local.h"
#include "parallel/grid/control.h"
#include "parallel/grid/launch.h"
#include "tests/support/files/child.h"
#include "tests/support/grid/launched_ranks.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#undef fail /* fail() of check.h is used here, not cmocka's */

/* What each rank records about itself. */
typedef struct {
    atomic_int bodies;
    atomic_bool good[LAUNCH_MAX_RANKS];
    pthread_t main;
} Seen;

static bool takes_signals(void)
{
    sigset_t held;
    pthread_sigmask(SIG_BLOCK, NULL, &held);
    return !sigismember(&held, SIGTERM);
}

static int look(Comm *world, void *context)
{
    Seen *seen = context;
    char place[16] = "";
    bool main = pthread_equal(pthread_self(), seen->main) != 0;
    if (world->size > 1) snprintf(place, sizeof place, "dp %d", world->rank);
    bool good = main == (world->rank == 0) && takes_signals() == main;
    good = good && log_rank() == world->rank && strcmp(log_place(), place) == 0;
    good = good && strcmp(world->name, "world") == 0;
    good = good && control_sum(world, 1) == world->size;
    atomic_store(&seen->good[world->rank], good);
    atomic_fetch_add(&seen->bodies, 1);
    return 40 + world->rank;
}

/* Every rank runs once, with the right coordinates, and is joined. Rank 0 is the calling thread,
 * and its exit code is the result. */
static void test_every_rank_runs_once_with_its_coordinates(void **state)
{
    (void)state;
    static const int sizes[] = {1, 2, 3, 5, LAUNCH_MAX_RANKS};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        Seen seen = {.main = pthread_self()};
        LaunchOptions options = {.timeout = LAUNCHED_LONGEST};
        assert_int_equal(launch_ranks(sizes[i], &options, look, &seen), 40);
        assert_int_equal(atomic_load(&seen.bodies), sizes[i]);
        for (int r = 0; r < sizes[i]; r++)
            assert_true(atomic_load(&seen.good[r]));
        assert_int_equal(log_rank(), 0);
        assert_string_equal(log_place(), "");
    }
}

static void launch_one_too_many(void *context)
{
    LaunchOptions options = {.processes = *(bool *)context};
    launch_ranks(LAUNCH_MAX_RANKS + 1, &options, look, NULL);
}

static void make_a_world_of_too_many_threads(void *context)
{
    (void)context;
    local_world_create(LOCAL_MAX_RANKS + 1, 0);
}

/* 64 is the largest number of ranks that one command starts; they are threads or processes of this
 * machine. A world may be larger, but a caller that asks for one here has made a mistake. */
static void test_no_more_than_64_ranks_are_started(void **state)
{
    (void)state;
    char text[1024];
    bool processes[] = {false, true};
    assert_int_equal(LAUNCH_MAX_RANKS, 64);
    assert_int_equal(LOCAL_MAX_RANKS, 64);
    for (int i = 0; i < 2; i++) {
        int code = child_run(launch_one_too_many, &processes[i], text, sizeof text);
        assert_int_equal(code, EXIT_BUG);
        assert_non_null(strstr(text, "65 ranks"));
    }
    assert_int_equal(child_run(make_a_world_of_too_many_threads, NULL, text, sizeof text),
                     EXIT_BUG);
    assert_non_null(strstr(text, "65 ranks"));
}

static void test_a_ranks_place_names_only_axes_with_several_ranks(void **state)
{
    (void)state;
    char text[64];
    GridPlace size = {.pp = 2, .dp = 3, .cp = 1, .tp = 2};
    assert_string_equal(grid_place_text(size, 0, text, sizeof text), "pp 0 dp 0 tp 0");
    assert_string_equal(grid_place_text(size, 9, text, sizeof text), "pp 1 dp 1 tp 1");
    assert_string_equal(grid_place_text(GRID_OF_ONE, 0, text, sizeof text), "");
    assert_string_equal(grid_size_text(size, text, sizeof text), "pp 2 x dp 3 x tp 2");
    size.cp = 4;
    assert_string_equal(grid_size_text(size, text, sizeof text), "pp 2 x dp 3 x cp 4 x tp 2");
    assert_string_equal(grid_size_text(GRID_OF_ONE, text, sizeof text), "");
}

/* ---- ends ------------------------------------------------------------------------------------ */

static int leave_at_once(Comm *world, void *context)
{
    return world->rank == 0 ? EXIT_OK : launched_wait(world, context);
}

static int come_never(Comm *world, void *context)
{
    if (world->rank == 1)
        for (;;)
            pause();
    return launched_wait(world, context);
}

static int child(LaunchBody body, double timeout, char *text, size_t n)
{
    LaunchOptions options = {.timeout = timeout};
    return launched_ranks_end(body, &options, text, n);
}

static void test_a_rank_that_fails_ends_all_ranks(void **state)
{
    (void)state;
    char text[4096];
    launched_ends_alike(false);
    assert_int_equal(child(leave_at_once, LAUNCHED_LONGEST, text, sizeof text), EXIT_PEER_LOST);
    assert_int_equal(child(come_never, 0.2, text, sizeof text), EXIT_HANG);
}

/* ---- equal ranks ----------------------------------------------------------------------------- */

static int compare(Comm *world, const char *odd)
{
    const char *value = world->rank == 2 ? odd : "avx512, 2 threads";
    control_require_alike(world, "computes on", value, "set cpu.threads");
    return EXIT_MISSING;
}

static int compare_alike(Comm *world, void *context)
{
    (void)context;
    return compare(world, "avx512, 2 threads");
}

static int compare_different(Comm *world, void *context)
{
    (void)context;
    return compare(world, "avx512, 1 thread");
}

/* All ranks get the error that one of them computes on another device; both values are printed
 * once. */
static void test_ranks_on_different_devices_are_refused_with_both_values(void **state)
{
    (void)state;
    char text[4096];
    assert_int_equal(child(compare_alike, LAUNCHED_LONGEST, text, sizeof text), EXIT_MISSING);
    assert_int_equal(child(compare_different, LAUNCHED_LONGEST, text, sizeof text), EXIT_CONFIG);
    assert_string_equal(text, "error[78] ranks differ: rank 0 computes on avx512, 2 threads, rank "
                              "2 computes on avx512, 1 thread; set cpu.threads\n");
}

/* ---- devices --------------------------------------------------------------------------------- */

static int open_a_device(Comm *world, void *context)
{
    Device dev = {0};
    char err[512] = "";
    DeviceOptions options = {.threads = 1,
                             .local_ranks = world->size,
                             .index = world->rank,
                             .blas = *(BlasChoice *)context};
    if (!device_open(&dev, "cpu", &options, err, sizeof err)) fail(EXIT_UNAVAILABLE, "%s", err);
    char *name = must_strdup(device_describe(&dev, err, sizeof err));
    control_require_alike(world, "computes on", name, "");
    free(name);
    device_close(&dev);
    return EXIT_OK;
}

/* All ranks open their devices at the same time, as in a run; they share one BLAS library. */
static void test_ranks_can_open_their_devices_at_the_same_time(void **state)
{
    (void)state;
    static const BlasChoice choice[] = {BLAS_AUTO, BLAS_BUILTIN};
    LaunchOptions options = {.timeout = LAUNCHED_LONGEST};
    for (int i = 0; i < 6; i++)
        assert_int_equal(launch_ranks(4, &options, open_a_device, (void *)&choice[i % 2]), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_rank_runs_once_with_its_coordinates),
        cmocka_unit_test(test_no_more_than_64_ranks_are_started),
        cmocka_unit_test(test_a_ranks_place_names_only_axes_with_several_ranks),
        cmocka_unit_test(test_a_rank_that_fails_ends_all_ranks),
        cmocka_unit_test(test_ranks_on_different_devices_are_refused_with_both_values),
        cmocka_unit_test(test_ranks_can_open_their_devices_at_the_same_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* test_device_ranks.c -- tests which device each of several ranks opens, with how many threads and
 * which kernels, if a launcher has started the ranks on one or on several machines. */
#include "model/core/check.h"
#include "model/core/device_cpu.h"
#include "parallel/trainer/session.h"
#include "tests/support/files/config_support.h"
#include "tests/support/grid/made_up_machines.h"
#include "tests/support/grid/process_ends.h"
#include "tests/support/grid/rank_ends.h"
#include "tests/support/support.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* What the ranks ask for, and what each has to get. */
typedef struct {
    const char *level; /* cpu.level */
    int weak;          /* this rank's CPU has only the lowest level; -1: none */
    int threads;       /* cpu.threads */
    int threads_each;
    const char *kernels;
} Ask;

static const Config *config_of(const Ask *ask)
{
    char text[256];
    snprintf(text, sizeof text,
             "\"device\": \"cpu\", \"cpu\": {\"level\": \"%s\", \"threads\": %d, \"blas\": "
             "\"builtin\"}",
             ask->level, ask->threads);
    return config_test_keys(text);
}

static void open_device(Comm *world, void *context)
{
    const Ask *ask = context;
    char err[512], text[256];
    const Config *c = config_of(ask);
    Device dev;
    cpu_level_set_most(world->rank == ask->weak ? CPU_LEVEL_BASELINE : CPU_LEVEL_V4);
    bool good = session_open_device(&dev, c, world, err, sizeof err);
    cpu_level_set_most(CPU_LEVEL_V4);
    config_free(c);
    if (!good) {
        rank_wrong(world, "%s", err);
        return;
    }
    device_describe(&dev, text, sizeof text);
    if (pool_threads(dev.pool) != ask->threads_each || strstr(text, ask->kernels) == NULL)
        rank_wrong(world, "%s, not %d threads of %s", text, ask->threads_each, ask->kernels);
    if (dev.index != machines_of(world).local_rank) rank_wrong(world, "device %d", dev.index);
    device_close(&dev);
}

/* For ranks that are processes, whose body gets no context. */
static const Ask *asked;

static void open_asked_device(Comm *world, void *context)
{
    Ask ask = *asked;
    (void)context;
    open_device(world, &ask);
}

static void open_devices(const char *map, Ask ask)
{
    made_up_machines(map);
    thread_ranks((int)strlen(map), 60, open_device, &ask);
    machines_forget();
}

static void test_a_rank_has_its_share_of_its_machines_cores(void **state)
{
    int cores = pool_allowed_cores(), half = cores / 2 > 0 ? cores / 2 : 1;
    (void)state;
    open_devices("abc", (Ask){"auto", -1, 0, cores, ""});
    open_devices("abab", (Ask){"auto", -1, 0, half, ""});
    /* All ranks have as many threads as the ranks on the machine with the most ranks. */
    open_devices("aab", (Ask){"auto", -1, 0, half, ""});
    open_devices("aab", (Ask){"auto", -1, 3, 3, ""});
}

static void test_all_ranks_use_the_lowest_instruction_level_of_their_cpus(void **state)
{
    const char *best = cpu_level_text(cpu_level_best()),
               *lowest = cpu_level_text(CPU_LEVEL_BASELINE);
    (void)state;
    open_devices("aabb", (Ask){"auto", -1, 1, 1, best});
    open_devices("aabb", (Ask){"auto", 2, 1, 1, lowest});
    open_devices("aaaa", (Ask){"auto", 0, 1, 1, lowest});
    open_devices("aabb", (Ask){"baseline", -1, 1, 1, lowest});
}

static void test_a_cpu_level_that_a_rank_lacks_is_refused(void **state)
{
    Ask ask = {"x86-64-v3", 2, 1, 1, "avx2 (v3)"};
    (void)state;
    if (cpu_level_best() < CPU_LEVEL_V3) skip_because("this CPU or program has no avx2 (v3)");
    made_up_machines("aabb");
    rank_end_expect(&(RankEnd){"no avx2",
                               open_device,
                               4,
                               EXIT_CONFIG,
                               {"error[78] rank 2 on host-b: its CPU lacks avx2 (v3), the best it "
                                "has is sse2 (baseline); write cpu.level \"auto\"\n"}},
                    60, &ask);
    ask.weak = -1;
    thread_ranks(4, 60, open_device, &ask);
    machines_forget();
}

/* A run that launchers have started on two machines ends in time, and a single message names the
 * rank and its machine. */
static void test_a_cpu_level_that_a_rank_lacks_ends_a_run_on_two_machines(void **state)
{
    static Ask ask;
    (void)state;
    if (cpu_level_best() < CPU_LEVEL_V3) skip_because("this CPU or program has no avx2 (v3)");
    ask = (Ask){"x86-64-v3", 2, 1, 1, "avx2 (v3)"};
    made_up_machines("aabb");
    asked = &ask;
    process_links_choose(LINKS_IPV4);
    process_expect_end(&(ProcessEnd){"no avx2",
                                     open_asked_device,
                                     4,
                                     0,
                                     EXIT_CONFIG,
                                     {"error[78] rank 2 on host-b: its CPU lacks avx2 (v3), the "
                                      "best it has is sse2 (baseline); write cpu.level "
                                      "\"auto\"\n"}},
                       0);
    machines_forget();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_rank_has_its_share_of_its_machines_cores),
        cmocka_unit_test(test_all_ranks_use_the_lowest_instruction_level_of_their_cpus),
        cmocka_unit_test(test_a_cpu_level_that_a_rank_lacks_is_refused),
        cmocka_unit_test(test_a_cpu_level_that_a_rank_lacks_ends_a_run_on_two_machines),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

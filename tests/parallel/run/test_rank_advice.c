/* test_rank_advice.c -- tests of the messages about ranks and cores at the start of a run, in cases
 * where a slightly wrong condition would print something else: it might confuse ranks with threads,
 * all ranks with data-parallel ranks, or the ranks of a device with all ranks. */
#include "model/core/check.h"
#include "parallel/memory/memory_plan.h"
#include "tests/support/trainer/seen_run.h"
#include "tests/support/trainer/train_child.h"

#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Restricts this process to the first `n` of the cores that it may use. Returns false if there are
 * fewer. */
static bool keep_cores(int n)
{
    cpu_set_t all, kept;
    CPU_ZERO(&kept);
    if (sched_getaffinity(0, sizeof all, &all) != 0) return false;
    for (int i = 0, found = 0; i < CPU_SETSIZE && found < n; i++)
        if (CPU_ISSET(i, &all)) {
            CPU_SET(i, &kept);
            found++;
        }
    return CPU_COUNT(&kept) == n && sched_setaffinity(0, sizeof kept, &kept) == 0;
}

static void on_one_core(void)
{
    if (!keep_cores(1)) exit(99);
}

static void on_two_cores(void)
{
    if (!keep_cores(2)) exit(99);
}

static int allowed_cores(void)
{
    cpu_set_t all;
    return sched_getaffinity(0, sizeof all, &all) == 0 ? CPU_COUNT(&all) : 1;
}

/* Returns what a dry run on `ranks` ranks and `cores` cores (0: all cores) prints. The caller frees
 * it. */
static char *said(int cores, const char *ranks, const char *const *set)
{
    const char *argv[24] = {"base.json", "--dry-run", "--ranks",
                            ranks,       "--set",     "model.num_layers=2"};
    int argc = 6;
    for (; *set != NULL; set++) {
        argv[argc++] = "--set";
        argv[argc++] = *set;
    }
    ChildPlace place = {.first = cores == 1 ? on_one_core : cores == 2 ? on_two_cores : NULL};
    ChildResult ended = train_in_child(&place, argv);
    if (ended.code != EXIT_OK) fail_msg("ends with %d: %s", ended.code, ended.text);
    return ended.text;
}

/* Fails unless the output of that dry run contains `part` (or, if not `wanted`, lacks it). */
static void check(int cores, const char *ranks, const char *part, bool wanted,
                  const char *const *set)
{
    char *text = said(cores, ranks, set);
    if ((strstr(text, part) != NULL) != wanted)
        fail_msg("%s ranks, %d cores: \"%s\" is %s\n%s", ranks, cores, part,
                 wanted ? "missing" : "there", text);
    free(text);
}
#define SETS(...) ((const char *const[]){__VA_ARGS__, NULL})

/* If there are more ranks than cores, the start says that they take turns. It does not say so if
 * only the threads (cpu.threads) are more than the cores. It also counts ranks that are not
 * data-parallel. */
static void test_a_starting_run_compares_ranks_and_not_threads_with_cores(void **state)
{
    (void)state;
    check(1, "2", "2 ranks on 1 core take turns", true, SETS("cpu.threads=1"));
    check(1, "2", "2 ranks on 1 core take turns", true, SETS("parallel.tensor=2"));
    if (allowed_cores() < 2) {
        print_message("skipped: one core\n");
        skip();
    }
    check(2, "2", "take turns", false, SETS("cpu.threads=2"));
    check(2, "4", "4 ranks on 2 cores take turns", true,
          SETS("parallel.tensor=2", "parallel.pipeline=2"));
}

/* The cores are divided among all ranks of the machine, whichever axis of the grid they are on. */
static void test_cores_are_divided_among_all_ranks_of_every_axis(void **state)
{
    (void)state;
    if (allowed_cores() < 2) {
        print_message("skipped: one core\n");
        skip();
    }
    check(2, "2", "2 = dp 2 (threads, 1 thread each)", true, SETS("cpu.threads=0"));
    check(2, "2", "2 = tp 2 (threads, 1 thread each)", true,
          SETS("cpu.threads=0", "parallel.tensor=2"));
    check(2, "2", "2 = pp 2 (threads, 1 thread each)", true,
          SETS("cpu.threads=0", "parallel.pipeline=2"));
    check(2, "1", "2 threads", true, SETS("cpu.threads=0"));
}

/* A step consists of the micro-batches of all data-parallel ranks. If all ranks are data-parallel,
 * the line says "ranks", otherwise "dp". */
static void test_the_batch_line_counts_only_data_parallel_ranks(void **state)
{
    (void)state;
    check(0, "2", "2 x 16 tokens x 1 accumulation x 2 ranks = 64 tokens a step", true,
          SETS("seed=1"));
    check(0, "4", "2 x 16 tokens x 1 accumulation x dp 2 = 64 tokens a step", true,
          SETS("parallel.tensor=2"));
    check(0, "4", "2 x 16 tokens x 1 accumulation x dp 2 = 64 tokens a step", true,
          SETS("parallel.pipeline=2"));
    check(0, "2", "2 x 16 tokens x 2 accumulation = 64 tokens a step", true,
          SETS("parallel.tensor=2"));
    check(0, "2", "2 x 16 tokens x 2 accumulation = 64 tokens a step", true,
          SETS("parallel.pipeline=2"));
}

/* A plan counts the ranks that share a device. Fewer ranks would help only if several share it, not
 * if each rank has its own. */
static void test_a_refused_plan_advises_fewer_ranks_only_if_they_share_a_GPU(void **state)
{
    (void)state;
    static const struct {
        int ranks, of;
        bool fewer;
    } cases[] = {{1, 1, false}, {1, 4, false}, {2, 4, true}, {4, 4, true}};
    const MemoryRoom room = {
        .device = true, .available = (size_t)1 << 30, .total = (size_t)2 << 30};
    Config c = {.train_micro_batch_size_per_gpu = 1, .gradient_accumulation_steps = 1};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        MemoryPlan plan = {.ranks = cases[i].ranks,
                           .of = cases[i].of,
                           .activations = (size_t)4 << 30,
                           .total = (size_t)4 << 30};
        char err[1024], all[32];
        assert_false(memory_fits(&plan, &room, &c, NULL, err, sizeof err));
        snprintf(all, sizeof all, "for all %d ranks", cases[i].ranks);
        assert_int_equal(strstr(err, ", or fewer --ranks") != NULL, cases[i].fewer);
        assert_int_equal(strstr(err, all) != NULL, cases[i].fewer);
        assert_null(strstr(err, "rank 0's GPU")); /* a rank's message is about its own GPU */
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_starting_run_compares_ranks_and_not_threads_with_cores),
        cmocka_unit_test(test_cores_are_divided_among_all_ranks_of_every_axis),
        cmocka_unit_test(test_the_batch_line_counts_only_data_parallel_ranks),
        cmocka_unit_test(test_a_refused_plan_advises_fewer_ranks_only_if_they_share_a_GPU),
    };
    return cmocka_run_group_tests(tests, seen_folder_setup, leave_scratch);
}

/* test_rank_advice.c -- what the start of a run says of ranks and cores, where a near twin of the
 * condition would say something else: ranks or threads, all ranks or data-parallel ranks, ranks of
 * a device or of the world. */
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

/* The first cores that this process may use, as many as `n`; false where there are fewer. */
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

/* What a dry run on so many ranks says, with blanks as they are; the caller frees. */
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

/* Whether it says a part of a sentence. */
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

/* More ranks than cores take turns. More threads than cores, as many as cpu.threads asks for, is
 * not that; nor are more cores than data-parallel ranks the opposite. */
static void ranks_and_not_threads_are_compared_with_cores(void **state)
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

/* The cores are divided by all ranks of the machine, on whatever axis these are. */
static void cores_are_divided_by_all_ranks(void **state)
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

/* A step has the micro-batches of data-parallel ranks. Where all ranks are, they are called so. */
static void the_batch_is_of_data_parallel_ranks(void **state)
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

/* A plan is of the ranks that share a device: fewer of them would help where there are several, and
 * not where each of many has its own. */
static void a_plan_speaks_of_the_ranks_of_its_device(void **state)
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
        assert_false(memory_fits(&plan, &room, &c, err, sizeof err));
        snprintf(all, sizeof all, "for all %d ranks", cases[i].ranks);
        assert_int_equal(strstr(err, ", or fewer --ranks") != NULL, cases[i].fewer);
        assert_int_equal(strstr(err, all) != NULL, cases[i].fewer);
        assert_null(strstr(err, "rank 0's GPU")); /* each rank speaks of its own */
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_and_not_threads_are_compared_with_cores),
        cmocka_unit_test(cores_are_divided_by_all_ranks),
        cmocka_unit_test(the_batch_is_of_data_parallel_ranks),
        cmocka_unit_test(a_plan_speaks_of_the_ranks_of_its_device),
    };
    return cmocka_run_group_tests(tests, seen_folder_setup, leave_scratch);
}

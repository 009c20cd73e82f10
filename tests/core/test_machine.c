/* test_machine.c -- tests how much memory the control groups (cgroups) of a process allow. */
#include "model/core/machine.h"
#include "tests/support/files/scratch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

/* Writes the files of a control group of cgroup version 1 or 2. */
static void put_group(const char *folder, int version, const char *limit, const char *used,
                      const char *cache)
{
    char path[256], stat[128];
    snprintf(path, sizeof path, "mkdir -p %s", folder);
    assert_int_equal(system(path), 0);
    snprintf(path, sizeof path, "%s/%s", folder,
             version == 1 ? "memory.limit_in_bytes" : "memory.max");
    put_text(path, limit);
    snprintf(path, sizeof path, "%s/%s", folder,
             version == 1 ? "memory.usage_in_bytes" : "memory.current");
    put_text(path, used);
    snprintf(path, sizeof path, "%s/memory.stat", folder);
    snprintf(stat, sizeof stat, "anon 5\n%s %s\n",
             version == 1 ? "total_inactive_file" : "inactive_file", cache);
    put_text(path, stat);
}

static size_t left(const char *groups, const char *root)
{
    put_text("groups", groups);
    return memory_group_left("groups", root);
}

/* The control groups of a job, of its step and of its task are nested. */
static void test_the_smallest_limit_of_all_control_groups_is_used(void **state)
{
    static const char own[] = "0::/slurm/job_7/step_0/task_1\n";
    (void)state;
    put_group("two/slurm/job_7", 2, "1000\n", "300\n", "100");
    put_group("two/slurm/job_7/step_0/task_1", 2, "max\n", "200\n", "0");
    assert_true(left(own, "two") == 800);
    put_group("two/slurm/job_7/step_0", 2, "500\n", "200\n", "0");
    assert_true(left(own, "two") == 300);
    put_group("two/slurm/job_7/step_0/task_1", 2, "100\n", "200\n", "0");
    assert_true(left(own, "two") == 0);
    put_group("two/slurm/job_8", 2, "1\n", "0\n", "0"); /* the group of another job */
    assert_true(left("0::/slurm/job_9\n", "two") == SIZE_MAX);
    assert_true(left("", "two") == SIZE_MAX);
    assert_true(left("nonsense\n1:2\n", "two") == SIZE_MAX);
}

static void test_control_groups_of_version_1_limit_the_memory(void **state)
{
    static const char own[] = "5:cpuset:/job\n4:memory:/job/step\n1:cpu,cpuacct:/\n0::/\n";
    (void)state;
    put_group("one/memory", 1, "9223372036854771712\n", "5\n", "0");
    put_group("one/memory/job/step", 1, "9223372036854771712\n", "5\n", "0");
    assert_true(left(own, "one") > (size_t)1 << 62);
    put_group("one/memory/job", 1, "700\n", "300\n", "50");
    assert_true(left(own, "one") == 450);
}

/* A container sees its own group as the outermost one, whatever the path says. */
static void test_the_memory_limit_of_a_container_is_used(void **state)
{
    (void)state;
    put_group("box", 2, "64\n", "14\n", "0");
    assert_true(left("0::/\n", "box") == 50);
    assert_true(left("0::/somewhere/else\n", "box") == 50);
    assert_true(left("", "box") == 50);
    assert_true(memory_available() > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_smallest_limit_of_all_control_groups_is_used),
        cmocka_unit_test(test_control_groups_of_version_1_limit_the_memory),
        cmocka_unit_test(test_the_memory_limit_of_a_container_is_used),
    };
    return cmocka_run_group_tests(tests, enter_scratch, leave_scratch);
}

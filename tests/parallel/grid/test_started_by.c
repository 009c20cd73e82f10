/* test_started_by.c -- which launcher has started a process: environments that were recorded from
 * processes of Open MPI 4.1.4, MPICH 4.0.2's hydra and SLURM 22.05.8, torchrun's as its manual
 * says, and environments with mistakes. */
#include "parallel/grid/started_by.h"
#include "tests/fuzz/fuzz_started_by.h"
#include "tests/parallel/grid/recorded_environments.h"
#include "tests/support/files/mutate.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* An environment is text of the form "NAME=value NAME=value". Returns the value of a variable in a
 * buffer that stays valid for a few calls. */
static const char *look_up(const void *context, const char *name)
{
    static char values[8][512];
    static int turn;
    size_t length = strlen(name);
    for (const char *at = context; *at; at += strcspn(at, " "), at += *at == ' ')
        if (strncmp(at, name, length) == 0 && at[length] == '=') {
            char *value = values[turn++ % 8];
            snprintf(value, sizeof values[0], "%.*s", (int)strcspn(at + length + 1, " "),
                     at + length + 1);
            return value;
        }
    return NULL;
}

static Environment environment_of(const char *text)
{
    return (Environment){.get = look_up, .context = text};
}

/* ---- recorded environments ------------------------------------------------------------------- */

static void test_recorded_environments_give_the_right_launcher_rank_and_size(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof recorded / sizeof *recorded; i++) {
        const Recorded *r = &recorded[i];
        Environment environment = environment_of(r->environment);
        char err[1024] = "";
        StartedBy s;
        if (!started_by_read(&s, &environment, err, sizeof err)) fail_msg("%s: %s", r->what, err);
        const char *name = s.launcher ? s.launcher->name : "none";
        if (strcmp(name, r->launcher ? r->launcher : "none") != 0 || s.rank != r->rank ||
            s.size != r->size || s.local_rank != r->local_rank || s.local_size != r->local_size ||
            s.idle_tasks != r->idle_tasks)
            fail_msg("%s: %s, rank %d of %d, local rank %d of %d, %d tasks", r->what, name, s.rank,
                     s.size, s.local_rank, s.local_size, s.idle_tasks);
    }
}

/* PMIX_RANK is reported only if no launcher's variables are set; the process may then be one of
 * several ranks. */
static void test_pmix_rank_without_a_launcher_is_reported_as_unknown_size(void **state)
{
    static const struct {
        const char *environment;
        bool unknown;
    } rows[] = {{"HOME=/root", false},
                {"PMIX_RANK=3", true},
                {JOB "SLURM_NTASKS=1 PMIX_RANK=3", true},
                {TASK "PMIX_RANK=1", false},
                {OMPI_OF("1", "1"), false}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Environment environment = environment_of(rows[i].environment);
        char err[1024];
        StartedBy s;
        assert_true(started_by_read(&s, &environment, err, sizeof err));
        if (s.unknown_size != rows[i].unknown) fail_msg("row %d: %d", (int)i, s.unknown_size);
    }
}

/* ---- the name of a start --------------------------------------------------------------------- */

static void test_the_name_of_a_launch_contains_its_launchers_variables(void **state)
{
    static const struct {
        const char *environment, *name; /* "": none */
    } rows[] = {
        {"HOME=/root", ""},
        {TASK, "slurm-7-0"},
        {TASK "SLURM_RESTART_COUNT=2", "slurm-7-0-2"},
        {TASK "PMI_FD=13 PMI_JOBID=2.0 PMI_RANK=1 PMI_SIZE=4", "slurm-7-0"},
        {"SLURM_STEP_ID=3 SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=4", ""},
        {"MPI_LOCALNRANKS=4 MPI_LOCALRANKID=2 PMI_FD=9 PMI_RANK=2 PMI_SIZE=4", ""},
        {DAEMON "PMI_RANK=0 PMI_SIZE=2 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=1", ""},
        {DAEMON OMPI_OF("2", "2"), ""},
        {OMPI_OF("1", "1") "OMPI_MCA_ess_base_jobid=1234567553", "openmpi-1234567553"},
        {OMPI_OF("1", "1") "PMIX_NAMESPACE=prterun-n1-77@1", "openmpi-prterun-n1-77@1"},
        {"RANK=1 WORLD_SIZE=4 MASTER_ADDR=n1", ""},
        {"RANK=1 WORLD_SIZE=4 MASTER_ADDR=n1 MASTER_PORT=29400", "torchrun-n1-29400"},
        {"RANK=1 WORLD_SIZE=4 MASTER_ADDR=fe80::1 MASTER_PORT=29400 TORCHELASTIC_RUN_ID=a/b",
         "torchrun-fe80::1-29400-a/b"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Environment environment = environment_of(rows[i].environment);
        char err[1024], name[STARTED_BY_NAME] = "none";
        StartedBy s;
        assert_true(started_by_read(&s, &environment, err, sizeof err));
        assert_int_equal(started_by_meeting(&s, &environment, name), rows[i].name[0] != '\0');
        assert_string_equal(name, rows[i].name);
    }
}

/* A long name is cut, and its end depends on all that was cut. */
static void test_a_long_name_of_a_launch_is_cut_and_ends_with_a_hash(void **state)
{
    static const char start[] = "RANK=1 WORLD_SIZE=4 MASTER_ADDR=n1 MASTER_PORT=29400 ";
    (void)state;
    char text[2][512], name[2][STARTED_BY_NAME], err[1024];
    for (int i = 0; i < 2; i++) {
        snprintf(text[i], sizeof text[i], "%sTORCHELASTIC_RUN_ID=%0300d", start, i);
        Environment environment = environment_of(text[i]);
        StartedBy s;
        assert_true(started_by_read(&s, &environment, err, sizeof err));
        assert_true(started_by_meeting(&s, &environment, name[i]));
        assert_int_equal(strlen(name[i]), STARTED_BY_NAME - 1);
    }
    assert_string_not_equal(name[0], name[1]);
}

static void test_the_list_of_machines_is_known_only_in_a_slurm_step(void **state)
{
    static const struct {
        const char *environment, *nodes;
    } rows[] = {{TASK, "n[1-2]"},
                {TASK "PMI_RANK=1 PMI_SIZE=4", "n[1-2]"},
                {DAEMON "SLURM_STEP_NODELIST=n[1-2] PMI_RANK=0 PMI_SIZE=4", NULL},
                {"RANK=1 WORLD_SIZE=4 MASTER_ADDR=n1", NULL}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Environment environment = environment_of(rows[i].environment);
        char err[1024];
        StartedBy s;
        assert_true(started_by_read(&s, &environment, err, sizeof err));
        const char *nodes = started_by_nodes(&s, &environment);
        assert_string_equal(nodes ? nodes : "none", rows[i].nodes ? rows[i].nodes : "none");
    }
}

/* ---- mistakes -------------------------------------------------------------------------------- */

static const struct {
    const char *environment, *says;
} mistakes[] = {
    {"OMPI_COMM_WORLD_SIZE=4", "OMPI_COMM_WORLD_RANK is not set, but OMPI_COMM_WORLD_SIZE=4 says "
                               "that Open MPI has started this process; "},
    {"OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_RANK=4",
     "OMPI_COMM_WORLD_RANK=4 is not below OMPI_COMM_WORLD_SIZE=4: ranks count from 0"},
    {"OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_RANK=-1",
     "OMPI_COMM_WORLD_RANK=-1 is not a whole number from 0 to 10000000; unset it if Open MPI has "},
    {"OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_LOCAL_RANK=2 "
     "OMPI_COMM_WORLD_LOCAL_SIZE=2",
     "OMPI_COMM_WORLD_LOCAL_RANK=2 is not below OMPI_COMM_WORLD_LOCAL_SIZE=2"},
    {"OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_LOCAL_RANK=1 "
     "OMPI_COMM_WORLD_LOCAL_SIZE=5",
     "OMPI_COMM_WORLD_LOCAL_SIZE: 5 ranks of one machine are more than OMPI_COMM_WORLD_SIZE=4"},
    {"OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_LOCAL_RANK=4",
     "OMPI_COMM_WORLD_LOCAL_RANK=4 is not below OMPI_COMM_WORLD_SIZE=4"},
    {"PMI_SIZE=0 PMI_RANK=0", "PMI_SIZE=0: a run has at least one rank"},
    {"PMI_SIZE=4x PMI_RANK=0", "PMI_SIZE=4x is not a whole number"},
    {"PMI_SIZE=0x4 PMI_RANK=0", "PMI_SIZE=0x4 is not a whole number"},
    {"PMI_SIZE=+4 PMI_RANK=0", "PMI_SIZE=+4 is not a whole number"},
    {"PMI_SIZE=4 PMI_RANK=99999999999999999999", "PMI_RANK=99999999999999999999 is not a whole"},
    {"PMI_SIZE=4294967297 PMI_RANK=0", "PMI_SIZE=4294967297 is not a whole number"},
    {"PMI_SIZE=65537 PMI_RANK=0", "PMI_SIZE=65537: a run has no more than 65536 ranks"},
    {"PMI_SIZE=4 PMI_RANK=1 MPI_LOCALRANKID=one", "MPI_LOCALRANKID=one is not a whole number"},
    {"SLURM_STEP_ID=0 SLURM_PROCID=1", "SLURM_STEP_NUM_TASKS is not set, but SLURM_STEP_ID=0, "
                                       "SLURM_PROCID=1 says that SLURM has started"},
    {"SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=4", "SLURM_PROCID is not set, but "},
    {"SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=junk", "SLURM_PROCID=junk is not a "},
    {"SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=0 SLURM_NODEID=2 "
     "SLURM_STEP_TASKS_PER_NODE=2(x2)",
     "SLURM_STEP_TASKS_PER_NODE=2(x2) does not say how many tasks SLURM_NODEID=2 has"},
    {"SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=0 SLURM_NODEID=0 "
     "SLURM_STEP_TASKS_PER_NODE=2(x2",
     "SLURM_STEP_TASKS_PER_NODE=2(x2 does not say how many tasks"},
    {"SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=0 SLURM_NODEID=1 "
     "SLURM_STEP_TASKS_PER_NODE=2;2",
     "SLURM_STEP_TASKS_PER_NODE=2;2 does not say how many tasks"},
    {"SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=0 SLURM_NODEID=1 "
     "SLURM_STEP_TASKS_PER_NODE=2,,2",
     "SLURM_STEP_TASKS_PER_NODE=2,,2 does not say how many tasks"},
    {"SLURM_JOB_ID=7 SLURM_NTASKS=many", "SLURM_NTASKS=many is not a whole number"},
    {"WORLD_SIZE=4 MASTER_ADDR=n1", "RANK is not set, but MASTER_ADDR=n1, WORLD_SIZE=4 says that "
                                    "torchrun has started this process; "},
    {"RANK=1 MASTER_ADDR=n1", "WORLD_SIZE is not set, but MASTER_ADDR=n1, RANK=1 says "},
    {"RANK=1 WORLD_SIZE=4", "MASTER_ADDR is not set, but RANK=1, WORLD_SIZE=4 says "},
    {TASK "RANK=2 WORLD_SIZE=4 MASTER_ADDR=n1",
     "RANK=2, WORLD_SIZE=4 contradict SLURM_PROCID=1, SLURM_STEP_NUM_TASKS=4; "},
    {"PMI_RANK=0 PMI_SIZE=1 RANK=0 WORLD_SIZE=4 MASTER_ADDR=n1",
     "RANK=0, WORLD_SIZE=4 contradict PMI_RANK=0, PMI_SIZE=1; "},
    {"RANK=captain WORLD_SIZE=4 MASTER_ADDR=n1", "RANK=captain is not a whole number"},
};

static void test_errors_in_the_environment_name_the_variable_and_its_value(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++) {
        Environment environment = environment_of(mistakes[i].environment);
        char err[1024] = "";
        StartedBy s;
        if (started_by_read(&s, &environment, err, sizeof err))
            fail_msg("\"%s\" is accepted", mistakes[i].environment);
        if (strncmp(err, mistakes[i].says, strlen(mistakes[i].says)) != 0)
            fail_msg("\"%s\" is refused with \"%s\", not \"%s\"", mistakes[i].environment, err,
                     mistakes[i].says);
    }
}

/* The recorded environments with random changes are accepted or refused without a crash. */
static void test_randomly_changed_environments_never_crash_the_reader(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof recorded / sizeof *recorded; i++) {
        char lines[1024];
        int n = snprintf(lines, sizeof lines, "%s", recorded[i].environment);
        for (int at = 0; at < n; at++)
            if (lines[at] == ' ') lines[at] = '\n';
        for (uint64_t round = 0; round < 1000; round++) {
            size_t size;
            uint8_t *changed = mutate(lines, (size_t)n, i, round, &size);
            fuzz_started_by(changed, size);
            free(changed);
        }
    }
}

/* ---- lists of tasks -------------------------------------------------------------------------- */

/* SLURM's list has the number of tasks of each machine; equal numbers of neighbouring machines are
 * written once, with their count. */
static void test_each_machine_reads_its_number_of_tasks_from_slurms_list(void **state)
{
    static const struct {
        const char *list;
        int tasks[6], machines;
    } lists[] = {{"3", {3}, 1},
                 {"2(x2)", {2, 2}, 2},
                 {"2(x3),1", {2, 2, 2, 1}, 4},
                 {"1,2(x2),3,1", {1, 2, 2, 3, 1}, 5},
                 {"16(x1),8", {16, 8}, 2}};
    (void)state;
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        for (int machine = 0; machine <= lists[i].machines; machine++) {
            char text[256], err[1024] = "";
            snprintf(text, sizeof text,
                     "SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=40 SLURM_PROCID=0 SLURM_LOCALID=0 "
                     "SLURM_NODEID=%d SLURM_STEP_TASKS_PER_NODE=%s",
                     machine, lists[i].list);
            Environment environment = environment_of(text);
            StartedBy s;
            bool good = started_by_read(&s, &environment, err, sizeof err);
            if (good != (machine < lists[i].machines))
                fail_msg("machine %d of %s: %s", machine, lists[i].list, err);
            if (good && s.local_size != lists[i].tasks[machine])
                fail_msg("machine %d of %s: %d tasks", machine, lists[i].list, s.local_size);
        }
}

/* ---- what may be started --------------------------------------------------------------------- */

static void test_the_ranks_option_is_refused_under_a_launcher_but_needed_without_srun(void **state)
{
    static const struct {
        const char *environment;
        int64_t ranks;
        const char *says; /* NULL: allowed */
    } rows[] = {
        {"HOME=/root", 0, NULL},
        {"HOME=/root", 4, NULL},
        {"PMI_RANK=0 PMI_SIZE=1", 0, NULL},
        {"PMI_RANK=0 PMI_SIZE=1", 4, NULL},
        {"PMI_RANK=0 PMI_SIZE=2", 0, NULL},
        {"PMI_RANK=1 PMI_SIZE=2", 2,
         "PMI has started 2 processes (PMI_SIZE=2), and each is a rank: leave out --ranks 2, or "},
        {"PMI_RANK=1 PMI_SIZE=2", 1, "PMI has started 2 processes (PMI_SIZE=2), and each is a "},
        {OMPI_OF("1", "1"), 0, NULL},
        {OMPI_OF("1", "1"), 4, "Open MPI has started 4 processes (OMPI_COMM_WORLD_SIZE=4), and "},
        {TASK, 0, NULL},
        {TASK, 8, "SLURM has started 4 processes (SLURM_STEP_NUM_TASKS=4), and each is a rank: "},
        {"RANK=1 WORLD_SIZE=4 MASTER_ADDR=n1", 0, NULL},
        {"RANK=1 WORLD_SIZE=4 MASTER_ADDR=n1", 3,
         "torchrun has started 4 processes (WORLD_SIZE=4), and each is a rank: leave out --ranks "
         "3, or start ./train once, without torchrun"},
        {JOB "SLURM_NTASKS=4", 0,
         "this job has 4 tasks (SLURM_NTASKS=4), but ./train was started as a single process: put "
         "srun before ./train, or --ranks N after it"},
        {JOB "SLURM_NTASKS=4", 1, NULL},
        {JOB "SLURM_NTASKS=1", 0, NULL},
        {JOB "SLURM_NTASKS=4 RANK=0 WORLD_SIZE=1 MASTER_ADDR=n1", 0, NULL},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Environment environment = environment_of(rows[i].environment);
        char err[1024] = "";
        StartedBy s;
        assert_true(started_by_read(&s, &environment, err, sizeof err));
        bool allowed = started_by_allows(&s, rows[i].ranks, err, sizeof err);
        if (allowed != (rows[i].says == NULL) ||
            (!allowed && strncmp(err, rows[i].says, strlen(rows[i].says)) != 0))
            fail_msg("row %d: \"%s\"", (int)i, err);
    }
}

static void test_the_variables_of_the_launcher_are_listed(void **state)
{
    static const struct {
        const char *environment, *variables;
    } rows[] = {
        {"HOME=/root", ""},
        {DAEMON OMPI_OF("2", "2") "OMPI_COMM_WORLD_LOCAL_SIZE=3",
         "OMPI_COMM_WORLD_RANK=2, OMPI_COMM_WORLD_SIZE=4, OMPI_COMM_WORLD_LOCAL_RANK=2, "
         "OMPI_COMM_WORLD_LOCAL_SIZE=3"},
        {TASK, "SLURM_STEP_ID=0, SLURM_PROCID=1, SLURM_STEP_NUM_TASKS=4, SLURM_LOCALID=1, "
               "SLURM_STEP_TASKS_PER_NODE=2(x2), SLURM_NODEID=0"},
        {JOB "SLURM_NTASKS=4", "SLURM_JOB_ID=7, SLURM_NTASKS=4"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Environment environment = environment_of(rows[i].environment);
        char text[1024];
        StartedBy s;
        assert_true(started_by_read(&s, &environment, text, sizeof text));
        assert_string_equal(started_by_variables(&s, &environment, text, sizeof text),
                            rows[i].variables);
    }
    /* A list that does not fit is cut. */
    Environment environment = environment_of(TASK);
    char text[24];
    StartedBy s;
    assert_true(started_by_read(&s, &environment, text, sizeof text));
    assert_string_equal(started_by_variables(&s, &environment, text, sizeof text),
                        "SLURM_STEP_ID=0, SLURM_");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_recorded_environments_give_the_right_launcher_rank_and_size),
        cmocka_unit_test(test_pmix_rank_without_a_launcher_is_reported_as_unknown_size),
        cmocka_unit_test(test_the_name_of_a_launch_contains_its_launchers_variables),
        cmocka_unit_test(test_a_long_name_of_a_launch_is_cut_and_ends_with_a_hash),
        cmocka_unit_test(test_the_list_of_machines_is_known_only_in_a_slurm_step),
        cmocka_unit_test(test_errors_in_the_environment_name_the_variable_and_its_value),
        cmocka_unit_test(test_randomly_changed_environments_never_crash_the_reader),
        cmocka_unit_test(test_each_machine_reads_its_number_of_tasks_from_slurms_list),
        cmocka_unit_test(test_the_ranks_option_is_refused_under_a_launcher_but_needed_without_srun),
        cmocka_unit_test(test_the_variables_of_the_launcher_are_listed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

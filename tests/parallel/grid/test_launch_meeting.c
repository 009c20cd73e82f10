/* test_launch_meeting.c -- where ranks that a launcher has started meet: by a file or at an
 * address, as the environment and the config say. */
#include "model/core/check.h"
#include "parallel/grid/launch_meeting.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

/* The environment is text of the form "NAME=value NAME=value". */
static const char *look_up(const void *context, const char *name)
{
    static char values[8][128];
    static int turn;
    size_t length = strlen(name);
    for (const char *at = context; *at; at += strcspn(at, " "), at += *at == ' ')
        if (strncmp(at, name, length) == 0 && at[length] == '=')
            return snprintf(values[++turn % 8], sizeof values[0], "%.*s",
                            (int)strcspn(at + length + 1, " "), at + length + 1) < 0
                       ? NULL
                       : values[turn % 8];
    return NULL;
}

static const Config *config_with(const char *set)
{
    static const char any[] = "{\"model\": {\"vocab_size\": 256}, \"data\": {\"text\": \"none\"}}";
    ConfigReport report;
    const Config *config = config_parse(&(ConfigContext){.world = 4}, "c.json", any, strlen(any),
                                        *set != '\0', &set, &report);
    if (config == NULL) fail_msg("%s", report.error[0]);
    config_report_free(&report);
    return config;
}

#define TORCHRUN "RANK=1 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 MASTER_ADDR=n1 "
#define PMI      "PMI_RANK=1 PMI_SIZE=4 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2 "
#define SRUN                                                                                       \
    "SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_PROCID=1 SLURM_LOCALID=1 SLURM_NODEID=0 "                \
    "SLURM_STEP_NUM_TASKS=4 SLURM_STEP_NODELIST=n[1-2] SLURM_STEP_TASKS_PER_NODE=2(x2) "
#define SECRET "TRAIN_SECRET=0123456789abcdef "

static const struct {
    const char *environment, *set;
    const char *folder, *name; /* NULL: none */
    const char *master;
    int port;
    const char *host; /* of rank 2; NULL: not known */
    const char *says; /* the beginning of an error message; NULL: none */
} rows[] = {
    {TORCHRUN "MASTER_PORT=29400", "", "out/.rendezvous", "torchrun-n1-29400", NULL, 0, NULL, NULL},
    {TORCHRUN "MASTER_PORT=29400", "parallel.rendezvous=/shared/r", "/shared/r",
     "torchrun-n1-29400", NULL, 0, NULL, NULL},
    {SRUN, "", "out/.rendezvous", "slurm-7-0", NULL, 0, "n2", NULL},
    {SRUN "PMI_RANK=1 PMI_SIZE=4", "", "out/.rendezvous", "slurm-7-0", NULL, 0, "n2", NULL},
    {PMI, "", NULL, NULL, NULL, 0, NULL, "PMI gives its ranks no number that tells this start"},
    {TORCHRUN, "", NULL, NULL, NULL, 0, NULL, "torchrun gives its ranks no number that tells"},
    {PMI, "parallel.rendezvous=/shared/r", "/shared/r", "ranks", NULL, 0, NULL, NULL},
    {PMI, "parallel.rendezvous=", NULL, NULL, NULL, 0, NULL, "parallel.rendezvous is empty; "},
    {SECRET TORCHRUN "MASTER_PORT=29400", "", NULL, "torchrun-n1-29400", "n1", 29400, NULL, NULL},
    {SECRET TORCHRUN, "", NULL, "ranks", "n1", 29500, NULL, NULL},
    {SECRET TORCHRUN "MASTER_PORT=", "", NULL, "ranks", "n1", 29500, NULL, NULL},
    {SECRET TORCHRUN "MASTER_PORT=0", "", NULL, NULL, NULL, 0, NULL, "MASTER_PORT=0 is not the "},
    {SECRET TORCHRUN "MASTER_PORT=65536", "", NULL, NULL, NULL, 0, NULL, "MASTER_PORT=65536 is "},
    {SECRET TORCHRUN "MASTER_PORT=65519", "", NULL, "torchrun-n1-65519", "n1", 65519, NULL, NULL},
    {SECRET TORCHRUN "MASTER_PORT=65520", "", NULL, NULL, NULL, 0, NULL,
     "MASTER_PORT=65520: rank 0 takes one of the 16 ports after it, and 65535 is the last"},
    {SECRET "RANK=1 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 MASTER_ADDR=[fd00::1] "
            "MASTER_PORT=7",
     "", NULL, "torchrun-[fd00::1]-7", "fd00::1", 7, NULL, NULL},
    {SECRET TORCHRUN "MASTER_PORT=29400x", "", NULL, NULL, NULL, 0, NULL, "MASTER_PORT=29400x is "},
    {SECRET SRUN, "", NULL, "slurm-7-0", "n1", 29500, "n2", NULL},
    {SECRET SRUN "MASTER_ADDR=n2", "", NULL, "slurm-7-0", "n2", 29500, "n2", NULL},
    {SRUN "SLURM_DISTRIBUTION=block:cyclic", "", "out/.rendezvous", "slurm-7-0", NULL, 0, "n2",
     NULL},
    {SRUN "SLURM_DISTRIBUTION=cyclic", "", "out/.rendezvous", "slurm-7-0", NULL, 0, NULL, NULL},
    {SECRET SRUN "SLURM_DISTRIBUTION=arbitrary", "", NULL, NULL, NULL, 0, NULL,
     "ranks that know a secret (TRAIN_SECRET, "},
    {SECRET PMI, "", NULL, NULL, NULL, 0, NULL, "ranks that know a secret (TRAIN_SECRET, "},
    {"TRAIN_SECRET=short " TORCHRUN, "", NULL, NULL, NULL, 0, NULL, "TRAIN_SECRET"},
    {TORCHRUN, "parallel.secret_file=none", NULL, NULL, NULL, 0, NULL, ""},
};

static void same(int row, const char *what, const char *got, const char *expected)
{
    if (strcmp(got ? got : "none", expected ? expected : "none") != 0)
        fail_msg("row %d: %s is %s, not %s", row, what, got ? got : "none",
                 expected ? expected : "none");
}

static void test_the_rendezvous_of_ranks_is_chosen_as_documented(void **state)
{
    (void)state;
    for (int i = 0; i < (int)(sizeof rows / sizeof *rows); i++) {
        const Environment environment = {.get = look_up, .context = rows[i].environment};
        const Config *config = config_with(rows[i].set);
        char err[1024] = "", host[256];
        StartedBy by;
        LaunchMeeting m;
        ExitCode code = EXIT_OK;
        assert_true(started_by_read(&by, &environment, err, sizeof err));
        bool good =
            launch_meeting_open(&m, &by, &environment, config, NULL, &code, err, sizeof err);
        if (good != (rows[i].says == NULL)) fail_msg("row %d: \"%s\"", i, err);
        if (!good) {
            assert_int_not_equal(code, EXIT_OK);
            if (strncmp(err, rows[i].says, strlen(rows[i].says)) != 0)
                fail_msg("row %d: \"%s\", not \"%s\"", i, err, rows[i].says);
        } else {
            same(i, "the folder", m.options.folder, rows[i].folder);
            same(i, "the name", m.options.name, rows[i].name);
            same(i, "the master", m.options.master, rows[i].master);
            assert_int_equal(m.options.port, rows[i].port);
            assert_int_equal(m.options.secret != NULL, rows[i].master != NULL);
            same(i, "the machine", m.options.host(&m, 2, host, sizeof host), rows[i].host);
            assert_int_equal(m.options.rank, 1);
            assert_int_equal(m.options.size, 4);
            assert_int_equal(m.options.local_size, 2);
            assert_int_equal(m.options.facts, LAUNCH_FACTS);
            assert_int_equal(strlen(m.fact[1].value), 16);
        }
        launch_meeting_close(&m);
        config_free(config);
    }
}

/* The secret is computed from TRAIN_SECRET, and is erased at the end. */
static void test_the_secret_is_erased_from_memory_at_the_end(void **state)
{
    (void)state;
    static const char text[] = SECRET TORCHRUN;
    const Environment environment = {.get = look_up, .context = text};
    const Config *config = config_with("");
    char err[1024];
    unsigned char none[SHA256_BYTES] = {0};
    StartedBy by;
    LaunchMeeting m;
    ExitCode code;
    assert_true(started_by_read(&by, &environment, err, sizeof err));
    assert_true(launch_meeting_open(&m, &by, &environment, config, NULL, &code, err, sizeof err));
    assert_memory_not_equal(m.options.secret, none, sizeof none);
    launch_meeting_close(&m);
    assert_memory_equal(m.secret, none, sizeof none);
    config_free(config);
}

/* The config's path and the options --set are left out, because the configs are compared in another
 * way. */
static void test_command_line_words_that_must_be_equal_on_all_ranks_are_collected(void **state)
{
    (void)state;
    char *run[] = {"./train", __FILE__, "--set", "a=1", "--resume", "never", "--set=b=2", "--set"};
    char *eval[] = {"./train", "eval", "out/demo", "--best"};
    char words[LAUNCH_WORD_BYTES], again[LAUNCH_WORD_BYTES], text[600];
    launch_words(words, 8, run, false);
    assert_string_equal(words, "train --resume never");
    launch_words(words, 4, eval, true);
    assert_string_equal(words, "eval out/demo --best");
    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = '\0';
    eval[2] = text;
    launch_words(words, 4, eval, true);
    text[sizeof text - 2] = 'y';
    launch_words(again, 4, eval, true);
    assert_true(strcmp(words, again) != 0);
    assert_int_equal(strlen(words), 220);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_rendezvous_of_ranks_is_chosen_as_documented),
        cmocka_unit_test(test_the_secret_is_erased_from_memory_at_the_end),
        cmocka_unit_test(test_command_line_words_that_must_be_equal_on_all_ranks_are_collected),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

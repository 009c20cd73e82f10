/* test_run_folder.c -- tests of how a run chooses its folder, locks it, stores its config there,
 * and compares it with a changed config. */
#include "model/core/json_tree.h"
#include "model/core/machine.h"
#include "parallel/run/folder.h"
#include "tests/support/files/nobody.h"
#include "tests/support/files/scratch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static const char machine[] = "{\"cpu\": \"test\"}";

/* Returns a config from file `name` with a known vocabulary, overridden by `set` unless NULL. */
static const Config *config_of(const char *name, const char *set)
{
    static const char text[] =
        "{\"model\": {\"num_layers\": 2, \"hidden_size\": 32, \"num_attention_heads\": 4, "
        "\"vocab_size\": 300}, \"data\": {\"text\": \"text.txt\", \"seq_length\": 32}, "
        "\"train_micro_batch_size_per_gpu\": 2, \"train_steps\": 10}";
    ConfigReport report = {0};
    const Config *config = config_parse(NULL, name, text, strlen(text), set != NULL, &set, &report);
    if (config == NULL) fail_msg("%s", report.error[0]);
    config_report_free(&report);
    return config;
}

/* Opens the run's folder, writes its description, and closes it unless `keep`. Returns "" or the
 * error message. */
static const char *start(RunFolder *run, const Config *config, RunRequest request, ExitCode *code,
                         bool keep)
{
    static char err[4096];
    err[0] = '\0';
    if (!run_folder_open(run, config, &request, err, sizeof err, code)) return err;
    if (!run_folder_describe(run, config, machine, err, sizeof err)) fail_msg("%s", err);
    if (!keep) run_folder_close(run);
    return err;
}

static void test_a_config_name_becomes_a_safe_folder_name(void **unused)
{
    (void)unused;
    static const struct {
        const char *config, *folder;
    } cases[] = {
        {"configs/demo.json", "out/demo"},    {"a b/../x y\n.json", "out/x_y_"},
        {"/tmp/.hidden.json", "out/_hidden"}, {"corpora.json", "out/corpora-run"},
        {"v1.2-a_b.json", "out/v1.2-a_b"},    {"-", "out/stdin"},
        {"caf\xc3\xa9.json", "out/caf__"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const Config *config = config_of(cases[i].config, NULL);
        RunFolder run;
        ExitCode code;
        assert_string_equal(start(&run, config, (RunRequest){0}, &code, true), "");
        assert_string_equal(run.path, cases[i].folder);
        assert_int_equal(run.state, RUN_NEW);
        assert_int_equal(run.attempt, 0);
        run_folder_close(&run);
        config_free(config);
    }
}

static void test_a_run_without_option_out_takes_the_first_new_or_matching_folder(void **unused)
{
    (void)unused;
    static const struct {
        const char *set, *folder;
        bool never;
        RunState state;
    } steps[] = {
        {NULL, "out/base", false, RUN_NEW},
        {NULL, "out/base", false, RUN_RESUMED},
        {"seed=2", "out/base-2", false, RUN_NEW},
        {"seed=2", "out/base-2", false, RUN_RESUMED},
        {NULL, "out/base", false, RUN_RESUMED},
        {"checkpoint.keep=9", "out/base", false, RUN_RESUMED}, /* a harmless change */
        {"train_steps=20", "out/base-3", false, RUN_NEW},      /* more steps: another run */
        {"model.num_layers=3", "out/base-4", false, RUN_NEW},
        {NULL, "out/base-5", true, RUN_NEW},
        {NULL, "out/base", false, RUN_RESUMED},
    };
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        const Config *config = config_of("base.json", steps[i].set);
        RunFolder run;
        ExitCode code;
        const char *said =
            start(&run, config, (RunRequest){.never_resume = steps[i].never}, &code, true);
        assert_string_equal(said, "");
        if (strcmp(run.path, steps[i].folder) != 0 || run.state != steps[i].state)
            fail_msg("step %zu: %s in state %d, not %s in state %d", i, run.path, run.state,
                     steps[i].folder, steps[i].state);
        run_folder_close(&run);
        config_free(config);
    }
}

static void test_bug_43_a_changed_config_is_accepted_or_refused_by_its_effect(void **unused)
{
    (void)unused;
    static const struct {
        const char *set;
        bool allow, good;
        ExitCode code;
        const char *says;
    } cases[] = {
        {NULL, false, true, EXIT_OK, ""},
        {"checkpoint.keep=9", false, true, EXIT_OK, ""},
        {"activation_checkpointing.policy=selective", false, true, EXIT_OK, ""},
        {"activation_checkpointing.policy=full", false, true, EXIT_OK, ""},
        {"optimizer.params.lr=0.5", false, false, EXIT_CONFIG,
         "the run in run-4 was started with another config: optimizer.params.lr was"},
        {"train_steps=20", false, true, EXIT_OK, ""}, /* the learning rate is constant */
        {"scheduler.type=WarmupLR", false, false, EXIT_CONFIG, "--allow-config-change"},
        {"scheduler.type=WarmupLR", true, true, EXIT_OK, ""},
        {"data.seq_length=16", true, false, EXIT_CONFIG, "impossible"},
        {"model.hidden_size=64", true, false, EXIT_CONFIG, "model.hidden_size"},
        {"bf16={\"enabled\": true, \"bf16_master_weights_and_grads\": true}", true, false,
         EXIT_CONFIG, "bf16.bf16_master_weights_and_grads was false, is true (impossible)"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        RunFolder run;
        ExitCode code = EXIT_OK;
        char out[32];
        snprintf(out, sizeof out, "run-%zu", i);
        const Config *before = config_of("demo.json", NULL),
                     *now = config_of("demo.json", cases[i].set);
        assert_string_equal(start(&run, before, (RunRequest){.out = out}, &code, false), "");
        const char *said =
            start(&run, now, (RunRequest){.out = out, .allow_config_change = cases[i].allow}, &code,
                  true);
        if ((said[0] == '\0') != cases[i].good) fail_msg("case %zu: \"%s\"", i, said);
        if (!cases[i].good) {
            assert_int_equal(code, cases[i].code);
            if (strstr(said, cases[i].says) == NULL)
                fail_msg("case %zu: no \"%s\" in \"%s\"", i, cases[i].says, said);
        } else {
            assert_int_equal(run.attempt, 1);
        }
        run_folder_close(&run);
        config_free(before);
        config_free(now);
    }
}

static void test_the_stored_config_equals_the_config_of_the_run(void **unused)
{
    (void)unused;
    RunFolder run;
    ExitCode code;
    char err[1024];
    const Config *config = config_of("demo.json", "optimizer.params.lr=0.00031415926535897931");
    assert_string_equal(start(&run, config, (RunRequest){.out = "stored"}, &code, false), "");
    const Config *stored = run_folder_config("stored", err, sizeof err);
    if (stored == NULL) fail_msg("%s", err);
    ConfigDifference *d;
    int n = config_diff(stored, config, &d);
    if (n > 0) fail_msg("%s was %s, is %s", d[0].key, d[0].was, d[0].now);
    config_diff_free(d, n);
    config_free(stored);
    config_free(config);
    assert_null(run_folder_config("absent", err, sizeof err));
    assert_non_null(strstr(err, "absent/config.json"));
}

/* The path of a config may contain any bytes, and config.origins.json names it as an origin. */
static void test_the_stored_config_can_be_read_whatever_bytes_its_path_had(void **unused)
{
    (void)unused;
    static const char *const paths[] = {"d\xe9/demo.json", "a\n} b\xff.json", "\r\n\x1b/demo.json",
                                        "\xed\xa0\x80.json"};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        RunFolder run;
        ExitCode code;
        char err[1024], out[32];
        snprintf(out, sizeof out, "path-%zu", i);
        const Config *config = config_of(paths[i], NULL);
        assert_string_equal(start(&run, config, (RunRequest){.out = out}, &code, false), "");
        const Config *stored = run_folder_config(out, err, sizeof err);
        if (stored == NULL) fail_msg("path %zu: %s", i, err);
        char *name = text_format("%s/config.origins.json", out), *text = take_text(name);
        cJSON *origins = json_tree_parse(text, strlen(text));
        assert_true(cJSON_IsString(
            cJSON_GetObjectItem(cJSON_GetObjectItem(origins, "train_steps"), "origin")));
        cJSON_Delete(origins);
        free(text);
        free(name);
        config_free(stored);
        config_free(config);
    }
}

static void test_a_locked_folder_refuses_a_second_process_until_the_first_ends(void **unused)
{
    (void)unused;
    RunFolder run, second;
    ExitCode code = EXIT_OK;
    const Config *config = config_of("demo.json", NULL);
    assert_string_equal(start(&run, config, (RunRequest){.out = "locked"}, &code, true), "");
    const char *said = start(&second, config, (RunRequest){.out = "locked"}, &code, false);
    char holder[32];
    snprintf(holder, sizeof holder, "process %ld", (long)getpid());
    assert_int_equal(code, EXIT_CANNOT_CREATE);
    assert_non_null(strstr(said, holder));
    run_folder_close(&run);
    /* The lock is released when its process ends. */
    pid_t child = fork();
    if (child == 0) {
        start(&run, config, (RunRequest){.out = "locked"}, &code, true);
        _exit(0);
    }
    assert_int_equal(waitpid(child, NULL, 0), child);
    assert_string_equal(start(&run, config, (RunRequest){.out = "locked"}, &code, true), "");
    assert_int_equal(run.attempt, 2);
    run_folder_close(&run);
    /* Numbers in the lock file that do not fit in an int cause no overflow. */
    static const char *const records[] = {"attempt 2147483647, process 1", "attempt 99999999999999",
                                          "attempt -7"};
    for (int i = 0; i < 3; i++) {
        put_text("locked/lock", records[i]);
        assert_string_equal(start(&run, config, (RunRequest){.out = "locked"}, &code, true), "");
        assert_in_range(run.attempt, i < 2 ? 1 : 0, 1000000000);
        run_folder_close(&run);
    }
    config_free(config);
}

static void test_a_folder_with_foreign_files_is_refused_and_not_changed(void **unused)
{
    (void)unused;
    RunFolder run;
    ExitCode code = EXIT_OK;
    const Config *config = config_of("demo.json", NULL);
    assert_int_equal(mkdir("foreign", 0777), 0);
    FILE *f = fopen("foreign/tokenizer.json", "w");
    fclose(f);
    assert_non_null(strstr(start(&run, config, (RunRequest){.out = "foreign"}, &code, false),
                           "no config.json"));
    assert_int_equal(code, EXIT_CANNOT_CREATE);
    assert_true(access("foreign/lock", F_OK) != 0);
    assert_true(start(&run, config, (RunRequest){.out = "foreign/tokenizer.json/run"}, &code,
                      false)[0] != '\0');
    assert_int_equal(code, EXIT_CANNOT_CREATE);
    assert_non_null(
        strstr(start(&run, config, (RunRequest){.out = "foreign/tokenizer.json"}, &code, false),
               "foreign/tokenizer.json is not a folder; "));
    assert_int_equal(code, EXIT_CANNOT_CREATE);
    /* A folder with a log file of a batch system is accepted. With --resume never, a folder that
     * holds a run is refused. */
    assert_int_equal(mkdir("batch", 0777), 0);
    f = fopen("batch/slurm-1.out", "w");
    fclose(f);
    assert_string_equal(start(&run, config, (RunRequest){.out = "batch"}, &code, false), "");
    assert_true(start(&run, config, (RunRequest){.out = "batch", .never_resume = true}, &code,
                      false)[0] != '\0');
    assert_int_equal(code, EXIT_CANNOT_CREATE);
    config_free(config);
}

static void test_a_run_with_an_undamaged_result_of_all_steps_counts_as_finished(void **unused)
{
    (void)unused;
    RunFolder run;
    ExitCode code;
    char err[512];
    const Config *config = config_of("demo.json", NULL),
                 *longer = config_of("demo.json", "train_steps=20");
    assert_string_equal(start(&run, config, (RunRequest){.out = "finished"}, &code, true), "");
    assert_true(run_folder_finish(&run, &(RunResult){.steps = 10, .tokens = 640, .loss = 1.5}, err,
                                  sizeof err));
    run_folder_close(&run);
    assert_string_equal(start(&run, config, (RunRequest){.out = "finished"}, &code, true), "");
    assert_int_equal(run.state, RUN_FINISHED);
    assert_int_equal(run.result.steps, 10);
    assert_int_equal(run.result.tokens, 640);
    assert_true(run.result.loss == 1.5);
    run_folder_close(&run);
    /* A damaged result is ignored: the run resumes from its checkpoint and writes a new result. */
    put_text("finished/result.json", "{\"steps\": 10, \"tokens\": 640");
    assert_string_equal(start(&run, config, (RunRequest){.out = "finished"}, &code, true), "");
    assert_int_equal(run.state, RUN_RESUMED);
    assert_true(run_folder_finish(&run, &(RunResult){.steps = 10}, err, sizeof err));
    run_folder_close(&run);
    RunRequest request = {.out = "finished", .allow_config_change = true};
    assert_string_equal(start(&run, longer, request, &code, true), "");
    assert_int_equal(run.state, RUN_RESUMED);
    char *kept = text_format("finished/config.before-attempt-%d.json", run.attempt);
    assert_int_equal(access(kept, F_OK), 0);
    free(kept);
    run_folder_close(&run);
    config_free(config);
    config_free(longer);
}

static void test_a_STOP_file_is_seen_and_removed_by_the_next_start(void **unused)
{
    (void)unused;
    RunFolder run;
    ExitCode code;
    const Config *config = config_of("demo.json", NULL);
    assert_string_equal(start(&run, config, (RunRequest){.out = "stop"}, &code, true), "");
    assert_false(run_folder_stop_asked(&run));
    put_text("stop/STOP", "");
    assert_true(run_folder_stop_asked(&run));
    run_folder_close(&run);
    assert_string_equal(start(&run, config, (RunRequest){.out = "stop"}, &code, true), "");
    assert_false(run_folder_stop_asked(&run));
    run_folder_close(&run);
    config_free(config);
}

static void test_an_empty_STOP_folder_is_removed_and_a_full_one_is_refused(void **unused)
{
    (void)unused;
    RunFolder run;
    ExitCode code;
    const Config *config = config_of("demo.json", NULL);
    assert_int_equal(mkdir("halt", 0777) | mkdir("halt/STOP", 0777), 0);
    assert_string_equal(start(&run, config, (RunRequest){.out = "halt"}, &code, true), "");
    assert_false(run_folder_stop_asked(&run));
    run_folder_close(&run);
    assert_int_equal(mkdir("halt/STOP", 0777) | mkdir("halt/STOP/mine", 0777), 0);
    assert_non_null(strstr(start(&run, config, (RunRequest){.out = "halt"}, &code, true),
                           "halt/STOP asks every run here to stop and cannot be removed"));
    assert_int_equal(code, EXIT_CANNOT_CREATE);
    config_free(config);
}

/* Returns the exit code with which the program would end. */
static ExitCode start_code(const Config *config, const char *out)
{
    RunFolder run;
    ExitCode code;
    const char *said = start(&run, config, (RunRequest){.out = out}, &code, false);
    return *said ? error_exit_code(said, code) : EXIT_OK;
}

/* Starts runs whose files and folders have no permissions. Returns 0, or the number of the check
 * that failed. */
static int without_permission(void *unused)
{
    (void)unused;
    const Config *config = config_of("mine.json", NULL);
    if (start_code(config, NULL) != EXIT_OK || start_code(config, "given") != EXIT_OK) return 1;
    if (chmod("out/mine/config.json", 0) != 0 || chmod("given/config.json", 0) != 0) return 2;
    if (start_code(config, "given") != EXIT_PERMISSION) return 3;
    if (start_code(config, NULL) != EXIT_PERMISSION) return 4; /* it may be this run's folder */
    if (chmod("given", 0) != 0 || start_code(config, "given") != EXIT_PERMISSION) return 5;
    if (mkdir("closed", 0500) != 0 || start_code(config, "closed/a") != EXIT_PERMISSION) return 6;
    return access("out/mine-2", F_OK) == 0 ? 7 : 0;
}

static void test_a_run_without_permission_for_its_folder_exits_with_code_77(void **state)
{
    (void)state;
    assert_int_equal(mkdir("shared", 0777) | chmod("shared", 0777) | chdir("shared"), 0);
    assert_int_equal(chmod("..", 0777) | as_nobody(without_permission, NULL) | chdir(".."), 0);
}

static void test_machine_json_names_kernel_and_commit_in_one_line(void **unused)
{
    (void)unused;
    char *text = machine_json(NULL);
    assert_non_null(strstr(text, "\"kernel\": \""));
    assert_non_null(strstr(text, "\"commit\": \""));
    assert_null(strchr(text, '\n'));
    free(text);
    size_t bytes = memory_available();
    assert_true(bytes > 1 << 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_config_name_becomes_a_safe_folder_name),
        cmocka_unit_test(test_a_run_without_option_out_takes_the_first_new_or_matching_folder),
        cmocka_unit_test(test_bug_43_a_changed_config_is_accepted_or_refused_by_its_effect),
        cmocka_unit_test(test_the_stored_config_equals_the_config_of_the_run),
        cmocka_unit_test(test_the_stored_config_can_be_read_whatever_bytes_its_path_had),
        cmocka_unit_test(test_a_locked_folder_refuses_a_second_process_until_the_first_ends),
        cmocka_unit_test(test_a_folder_with_foreign_files_is_refused_and_not_changed),
        cmocka_unit_test(test_a_run_with_an_undamaged_result_of_all_steps_counts_as_finished),
        cmocka_unit_test(test_a_STOP_file_is_seen_and_removed_by_the_next_start),
        cmocka_unit_test(test_an_empty_STOP_folder_is_removed_and_a_full_one_is_refused),
        cmocka_unit_test(test_a_run_without_permission_for_its_folder_exits_with_code_77),
        cmocka_unit_test(test_machine_json_names_kernel_and_commit_in_one_line),
    };
    return cmocka_run_group_tests(tests, enter_scratch, leave_scratch);
}

/* test_run_words.c -- tests of messages and exit codes of a run that depend on a condition: each is
 * checked with the condition true and false. */
#include "model/core/check.h"
#include "parallel/run/best.h"
#include "tests/support/trainer/run_fixture.h"

#include <errno.h>
#include <math.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Fails if `what` is in the text. */
static void says_not(const char *text, const char *what)
{
    if (strstr(text, what) != NULL) fail_msg("\"%s\" in:\n%s", what, text);
}

/* Joins wrapped lines: replaces each sequence of spaces and line ends by one space, in place. */
static char *unwrapped(char *text)
{
    char *to = text;
    for (const char *from = text; *from; from++) {
        char c = *from == '\n' ? ' ' : *from;
        if (c != ' ' || to == text || to[-1] != ' ') *to++ = c;
    }
    *to = '\0';
    return text;
}

/* Returns the output of a dry run on `ranks` ranks with these settings, without line breaks. */
static char *dry(int ranks, const char *const *sets, int code)
{
    disturbance = (Disturbance){.dry = true, .ranks = ranks};
    return unwrapped(run_expecting("dry", sets, code));
}

/* ---- the start ------------------------------------------------------------------------------- */

static void test_the_batch_line_names_data_parallel_ranks(void **state)
{
    (void)state;
    static const struct {
        int ranks;
        const char *sets[4];
        const char *line;
    } is[] = {
        {1, {NULL}, "batch 2 x 16 tokens x 2 accumulation = 64 tokens a step"},
        {2, {NULL}, "batch 2 x 16 tokens x 2 accumulation x 2 ranks = 128 tokens a step"},
        {2, {"parallel.tensor=2", NULL}, "batch 2 x 16 tokens x 2 accumulation = 64 tokens a step"},
        {4,
         {"parallel.tensor=2", NULL},
         "batch 2 x 16 tokens x 2 accumulation x dp 2 = 128 tokens a step"},
        {4,
         {"parallel.pipeline=2", "model.num_layers=2", NULL},
         "batch 2 x 16 tokens x 2 accumulation x dp 2 = 128 tokens a step"}};
    for (size_t i = 0; i < sizeof is / sizeof *is; i++) {
        char *said = dry(is[i].ranks, is[i].sets, 0);
        says(said, is[i].line);
        free(said);
    }
}

static void test_the_ranks_line_names_every_axis(void **state)
{
    (void)state;
    char *said = dry(1, NULL, 0);
    says_not(said, "ranks ");
    free(said);
    said = dry(2, (const char *[]){"cpu.threads=2", NULL}, 0);
    says(said, " ranks 2 = dp 2 (threads, 2 threads each), ZeRO 0 ");
    says_not(said, "bubble");
    free(said);
    static const char *const grid[] = {"parallel.tensor=2", "parallel.pipeline=2",
                                       "model.num_layers=2", "zero_optimization.stage=1", NULL};
    said = dry(8, grid, 0);
    says(said, " ranks 8 = pp 2 x dp 2 x tp 2 (threads, 1 thread each), ZeRO 1, 1f1b, 2 "
               "micro-batches, bubble 33 %");
    free(said);
    static const char *const rows[] = {"parallel.tensor=2", "parallel.pipeline=2",
                                       "model.num_layers=2", "parallel.sequence_parallel=true",
                                       NULL};
    said = dry(8, rows, 0);
    says(said, " ranks 8 = pp 2 x dp 2 x tp 2 (threads, 1 thread each), ZeRO 0, sequence parallel, "
               "1f1b, 2 micro-batches, bubble 33 %");
    free(said);
}

/* Restricts this process to at most this number of cores. */
static void keep_cores(int cores)
{
    cpu_set_t set;
    CHECK(sched_getaffinity(0, sizeof set, &set) == 0, "no affinity (%d)", cores);
    for (int c = 0, kept = 0; c < CPU_SETSIZE; c++) {
        if (!CPU_ISSET(c, &set)) continue;
        if (++kept > cores) CPU_CLR(c, &set);
    }
    CHECK(sched_setaffinity(0, sizeof set, &set) == 0, "no affinity (%d)", cores);
}

static void one_core(void)
{
    keep_cores(1);
}

static void two_cores(void)
{
    keep_cores(2);
}

/* More ranks than cores are reported as slow; as many ranks as cores are not. */
static void test_a_run_with_more_ranks_than_cores_prints_that_they_take_turns(void **state)
{
    (void)state;
    static const struct {
        void (*first)(void);
        int ranks;
        const char *line; /* expected line; NULL: no such line */
    } is[] = {{one_core, 1, NULL},
              {one_core, 2, "2 ranks on 1 core take turns: slower than one rank with all of them"},
              {two_cores, 2, NULL},
              {two_cores, 3, "3 ranks on 2 cores take turns: slower than one rank"}};
    cpu_set_t set;
    assert_int_equal(sched_getaffinity(0, sizeof set, &set), 0);
    for (size_t i = 0; i < sizeof is / sizeof *is; i++) {
        if (is[i].first == two_cores && CPU_COUNT(&set) < 2) continue;
        disturbance = (Disturbance){.dry = true, .ranks = is[i].ranks, .first = is[i].first};
        char *said = unwrapped(run_expecting("dry", NULL, 0));
        if (is[i].line)
            says(said, is[i].line);
        else
            says_not(said, "take turns");
        free(said);
    }
}

/* If only the data are missing or unusable, the dry run uses random tokens, and its exit code and
 * its message say what is wrong with the data. */
static void test_a_dry_run_without_usable_data_ends_with_the_code_of_that_error(void **state)
{
    (void)state;
    put_text("short.txt", "the light was upon the water ");
    static const struct {
        const char *set;
        int code;
        const char *words;
    } is[] = {{"data.text=nowhere.txt", EXIT_MISSING, "they are missing, see the warning above"},
              {"data.text=short.txt", EXIT_CONFIG, "they are not usable, see the warning above"}};
    for (size_t i = 0; i < sizeof is / sizeof *is; i++) {
        char *said = dry(1, (const char *[]){is[i].set, NULL}, is[i].code);
        says(said, is[i].words);
        says(said, " of random tokens, loss ");
        free(said);
    }
}

static void test_text_that_was_prepared_before_is_reported_as_cached(void **state)
{
    (void)state;
    static const char *const sets[] = {"data.tokenizer_vocab_size=264", NULL};
    char *said = dry(1, sets, 0);
    says_not(said, "(cached)");
    free(said);
    said = dry(1, sets, 0);
    says(said, " val (cached) ");
    free(said);
}

/* ---- a stop ---------------------------------------------------------------------------------- */

static void interrupt_once(Run *run)
{
    (void)run;
    raise(SIGINT);
}

static void ask_by_usr1(Run *run)
{
    (void)run;
    raise(SIGUSR1);
}

/* The reply to the signal names the work that ends first, and says whether a save follows. */
static void test_a_signal_during_a_sample_prints_what_is_finished_first(void **state)
{
    (void)state;
    disturbance = (Disturbance){.kind = WORK_SAMPLE, .at = 2, .act = interrupt_once};
    char *said = run_expecting("sample", NULL, EXIT_REQUEUE);
    says(said, "ending this sample; Ctrl-C again quits at once\n");
    free(said);
    disturbance = (Disturbance){.kind = WORK_SAMPLE, .at = 2, .act = ask_by_usr1};
    said = run_expecting(
        "sample-unsaved",
        (const char *[]){"checkpoint.save_interval=0", "checkpoint.keep_best=false", NULL},
        EXIT_REQUEUE);
    says(said, "SIGUSR1: ending this sample, then saving; a second signal ends the run at once\n");
    assert_true(is_there("sample-unsaved/checkpoints/step_00000002"));
    free(said);
}

/* All steps are saved, and the run is between two steps. */
static void test_a_second_signal_in_an_evaluation_reports_no_lost_step(void **state)
{
    (void)state;
    disturbance = (Disturbance){.kind = WORK_EVALUATION, .at = 1, .act = interrupt_twice};
    const char *sets[] = {"checkpoint.async=false", NULL}; /* else the step may not be saved yet */
    char *said = run_expecting("lost-evaluation", sets, 128 + SIGINT);
    says(said, "quit at once; only the work under way is lost\n");
    free(said);
}

/* ---- ends ------------------------------------------------------------------------------------ */

/* Stops the run, and makes every further save fail: replaces the folder checkpoints by a file. */
static void stop_and_block(Run *run)
{
    (void)run;
    CHECK(rename("note-unsaved/checkpoints", "note-unsaved/aside") == 0, "no checkpoints of %s",
          "note-unsaved");
    put_text("note-unsaved/checkpoints", "");
    raise(SIGTERM);
}

/* Sets all weights of the tied table to NaN. */
static void be_sick(Run *run)
{
    float *weight = run->trainer.weights[0].data.data;
    for (int i = 0; i < 256 * 16; i++)
        weight[i] = NAN;
}

/* metrics.jsonl gets one "end" line, which says how the attempt ended. */
static void test_the_last_line_of_metrics_says_how_the_run_ended(void **state)
{
    (void)state;
    static const struct {
        const char *run;
        WorkKind kind;
        int64_t round, at;
        void (*act)(Run *);
        int code;
        const char *words;
    } is[] = {
        {"note-whole", WORK_STEP, 0, 0, NULL, 0, "\"text\": \"train_steps reached\""},
        {"note-stopped", WORK_STEP, 2, 1, ask_by_signal, EXIT_REQUEUE,
         "\"text\": \"stopped on request\""},
        {"note-unsaved", WORK_STEP, 4, 1, stop_and_block, EXIT_INPUT_OUTPUT,
         "\"text\": \"stopped, not saved\""},
        {"note-diverged", WORK_EVALUATION, 3, 0, be_sick, EXIT_DIVERGED, "\"text\": \"diverged\""}};
    for (size_t i = 0; i < sizeof is / sizeof *is; i++) {
        disturbance = (Disturbance){
            .kind = is[i].kind, .round = is[i].round, .at = is[i].at, .act = is[i].act};
        free(run_expecting(is[i].run, NULL, is[i].code));
        char *lines = events(is[i].run, "end");
        says(lines, is[i].words);
        assert_int_equal(lines_of(is[i].run, "end"), 1);
        free(lines);
    }
}

/* The last training loss is finite, but the validation loss after it is NaN. */
static void test_a_run_whose_last_validation_loss_is_NaN_exits_with_code_88(void **state)
{
    (void)state;
    disturbance = (Disturbance){.kind = WORK_EVALUATION, .round = 3, .act = be_sick};
    char *said = run_expecting("sick-evaluation", NULL, EXIT_DIVERGED);
    says(said, "error[88] step 7 is the last, and the validation loss is not finite");
    assert_false(is_there("sick-evaluation/result.json"));
    free(said);
}

/* ---- going on -------------------------------------------------------------------------------- */

/* Each key that changed since the earlier start is printed with its effect. */
static void test_a_resume_prints_each_config_change_with_its_effect(void **state)
{
    (void)state;
    static const struct {
        const char *set, *words;
    } is[] = {{"optimizer.params.weight_decay=0.25", "is 0.25: changes the run, as allowed"},
              {"activation_checkpointing.policy=full", "is \"full\": harmless"},
              {"cpu.threads=2", "cpu.threads was 1, is 2: changes rounding only"}};
    disturbance = (Disturbance){0};
    free(run_expecting("changed", (const char *[]){"train_steps=2", NULL}, 0));
    for (size_t i = 0; i < sizeof is / sizeof *is; i++) {
        assert_int_equal(remove("changed/result.json"), 0);
        char *said = unwrapped(command_expecting(
            (const char *[]){"tiny.json", "--out", "changed", "--allow-config-change", "--set",
                             "train_steps=2", "--set", is[i].set, NULL},
            0));
        says(said, is[i].words);
        free(said);
    }
}

/* ---- the table of communication -------------------------------------------------------------- */

static void test_the_communication_table_has_every_group_of_ranks_that_was_used(void **state)
{
    (void)state;
    static const struct {
        const char *sets[5], *groups[5];
    } runs[] = {{{"comms_logger.enabled=true", "parallel.pipeline=2", "model.num_layers=2", NULL},
                 {"world", "pp", "dp", "shard", "tie"}},
                {{"comms_logger.enabled=true", "parallel.tensor=4", "model.num_attention_heads=4",
                  "model.num_key_value_heads=2", NULL},
                 {"world", "tp", "kv"}}};
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        char name[8];
        snprintf(name, sizeof name, "comms%zu", i);
        disturbance = (Disturbance){.ranks = 4};
        free(run_expecting(name, runs[i].sets, 0));
        char *table = events(name, "comms");
        for (int g = 0; g < 5 && runs[i].groups[g]; g++) {
            char group[32];
            snprintf(group, sizeof group, "{\"group\": \"%s\"", runs[i].groups[g]);
            says(table, group);
        }
        free(table);
    }
}

/* A checkpoint that the system does not let the program read may be whole, and stays the best. */
static void test_only_a_damaged_best_checkpoint_is_dropped(void **state)
{
    (void)state;
    static const struct {
        int error;
        ExitCode code;
    } cases[] = {{EIO, EXIT_INPUT_OUTPUT}, {ESTALE, EXIT_INPUT_OUTPUT}, {EMFILE, EXIT_SYSTEM},
                 {ENFILE, EXIT_SYSTEM},    {EACCES, EXIT_PERMISSION},   {ENOENT, EXIT_DAMAGED}};
    char err[200];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        error_set(err, sizeof err, "cannot read run/checkpoints/best.json: %s",
                  strerror(cases[i].error));
        assert_int_equal(best_failure(err), cases[i].code);
    }
    assert_int_equal(best_failure("run/checkpoints/best.json is damaged"), EXIT_DAMAGED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_only_a_damaged_best_checkpoint_is_dropped),
        cmocka_unit_test(test_the_batch_line_names_data_parallel_ranks),
        cmocka_unit_test(test_the_ranks_line_names_every_axis),
        cmocka_unit_test(test_a_run_with_more_ranks_than_cores_prints_that_they_take_turns),
        cmocka_unit_test(test_a_dry_run_without_usable_data_ends_with_the_code_of_that_error),
        cmocka_unit_test(test_text_that_was_prepared_before_is_reported_as_cached),
        cmocka_unit_test(test_a_signal_during_a_sample_prints_what_is_finished_first),
        cmocka_unit_test(test_a_second_signal_in_an_evaluation_reports_no_lost_step),
        cmocka_unit_test(test_the_last_line_of_metrics_says_how_the_run_ended),
        cmocka_unit_test(test_a_run_whose_last_validation_loss_is_NaN_exits_with_code_88),
        cmocka_unit_test(test_a_resume_prints_each_config_change_with_its_effect),
        cmocka_unit_test(test_the_communication_table_has_every_group_of_ranks_that_was_used),
    };
    return cmocka_run_group_tests(tests, run_fixture_setup, leave_scratch);
}

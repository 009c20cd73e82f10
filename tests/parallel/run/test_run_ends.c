/* test_run_ends.c -- tests of a run's replies to signals, of runs that diverge, and of a run with a
 * step without targets. */
#include "tests/support/trainer/run_fixture.h"

#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- signals --------------------------------------------------------------------------------- */

static void interrupt_once(Run *run)
{
    (void)run;
    raise(SIGINT);
}

static void hang_up(Run *run)
{
    (void)run;
    raise(SIGHUP);
    raise(SIGHUP);
}

/* Ignores SIGHUP, as nohup does, and SIGINT, as a script's shell does for its background commands.
 */
static void ignore_signals(void)
{
    signal(SIGHUP, SIG_IGN);
    signal(SIGINT, SIG_IGN);
}

static void send_ignored_signals(Run *run)
{
    interrupt_once(run);
    hang_up(run);
}

/* Calls `act` before the second micro-batch of step `step`. */
static void disturb_step(int64_t step, void (*act)(Run *))
{
    disturbance = (Disturbance){.kind = WORK_STEP, .round = step - 1, .at = 1, .act = act};
}

/* The main thread formats the replies to signals. So all other threads must block these signals:
 * the threads of the pool, of the loader and of libraries. */
static void test_only_the_main_thread_accepts_signals(void **state)
{
    (void)state;
    disturb_step(2, count_who_hears);
    char *said = run_expecting("threads", (const char *const[]){"cpu.threads=4", NULL}, 0);
    says(said, "more than 3 other threads: yes; 0 hear\n");
    free(said);
}

static void test_the_first_signal_prints_what_the_run_finishes_before_it_stops(void **state)
{
    (void)state;
    disturb_step(3, interrupt_once);
    char *said = run_expecting("once", NULL, EXIT_REQUEUE);
    says(said, "finishing this step, then saving; Ctrl-C again quits at once\n");
    says(said, "stopped after step 3;");
    assert_true(is_there("once/checkpoints/step_00000003"));
    free(said);
    disturb_step(3, ask_by_signal);
    said = run_expecting("term", NULL, EXIT_REQUEUE);
    says(said, "SIGTERM: finishing this step, then saving; a second signal ends the run at once\n");
    free(said);
    disturbance = (Disturbance){.kind = WORK_EVALUATION, .at = 2, .act = interrupt_once};
    said = run_expecting("within", NULL, EXIT_REQUEUE);
    says(said, "ending this evaluation; Ctrl-C again quits at once\n");
    free(said);
    said = run_expecting("unsaved-yet", (const char *[]){"checkpoint.save_interval=0", NULL},
                         EXIT_REQUEUE);
    says(said, "ending this evaluation, then saving; Ctrl-C again quits at once\n");
    assert_true(is_there("unsaved-yet/checkpoints/step_00000002"));
    free(said);
}

/* Stops the run, and makes every further save fail: replaces the folder checkpoints by a file. */
static void stop_and_block(Run *run)
{
    (void)run;
    assert_int_equal(rename("blocked/checkpoints", "blocked/aside"), 0);
    put_text("blocked/checkpoints", "");
    raise(SIGTERM);
}

/* The run stops in its last step. What the same command does next depends on whether that step was
 * saved. */
static void test_a_stop_in_the_last_step_says_what_the_same_command_will_do(void **state)
{
    (void)state;
    disturb_step(7, ask_by_signal);
    char *said = run_expecting("whole", NULL, EXIT_REQUEUE);
    says(said, "stopped after the last step, 7; the same command evaluates and ends the run\n");
    assert_true(is_there("whole/checkpoints/step_00000007"));
    free(said);
    disturb_step(7, stop_and_block);
    said = run_expecting("blocked", NULL, EXIT_INPUT_OUTPUT);
    says(said, "stopped after step 7, which is not saved; ");
    assert_null(strstr(said, "stopped after the last step"));
    free(said);
}

static void read_config_from_stdin(void)
{
    CHECK(freopen("tiny.json", "r", stdin) != NULL, "no tiny.json");
}

/* The same command would read the config from standard input again, so the message names the run's
 * folder instead. */
static void test_a_stopped_run_with_a_config_from_stdin_resumes_from_its_folder(void **state)
{
    (void)state;
    disturb_step(3, ask_by_signal);
    disturbance.first = read_config_from_stdin;
    char *said = command_expecting((const char *[]){"-", "--out", "piped", NULL}, EXIT_REQUEUE);
    says(said, "stopped after step 3; ./train piped goes on from there\n");
    free(said);
    disturbance = (Disturbance){0};
    free(command_expecting((const char *[]){"piped/", NULL}, EXIT_OK));
    free(run_expecting("unstopped", NULL, EXIT_OK));
    same_runs("unstopped", "piped");
}

/* The same command would be refused, because it asks for a new run in this folder. So the message
 * names another command, which continues the run. */
static void test_after_a_stop_with_option_resume_never_the_message_names_the_folder(void **state)
{
    (void)state;
    disturb_step(3, ask_by_signal);
    const char *const never[] = {"tiny.json", "--resume", "never", "--out", "anew", NULL};
    char *said = command_expecting(never, EXIT_REQUEUE);
    says(said, "stopped after step 3; ./train anew goes on from there\n");
    free(said);
}

static void test_a_second_signal_prints_which_steps_are_lost(void **state)
{
    (void)state;
    disturb_step(4, interrupt_twice);
    char *said = run_expecting("twice", NULL, 128 + SIGINT);
    says(said, "quit at once; step 3 is not saved: the newest checkpoint is of step 2\n");
    free(said);
    disturb_step(3, interrupt_twice);
    said = run_expecting("lucky", NULL, 128 + SIGINT);
    says(said, "quit at once; only step 3, which is under way, is lost\n");
    free(said);
    disturb_step(6, interrupt_twice);
    said = run_expecting(
        "unsaved",
        (const char *[]){"checkpoint.save_interval=0", "checkpoint.keep_best=false", NULL},
        128 + SIGINT);
    says(said, "quit at once; steps 1 to 5 are not saved: there is no checkpoint\n");
    free(said);
    disturb_step(2, interrupt_twice); /* the second step of this attempt */
    said = run_expecting("twice", NULL, 128 + SIGINT);
    says(said, "quit at once; step 3 is not saved: the newest checkpoint is of step 2\n");
    free(said);
}

static void interrupt_when_saved(Run *run)
{
    struct timespec pause = {.tv_nsec = 20000000};
    nanosleep(&pause, NULL);
    if (run->saving.saved_step == 20) interrupt_twice(run);
}

/* Between two steps, a save that another thread wrote has ended. */
static void test_after_an_asynchronous_save_a_second_signal_names_its_step(void **state)
{
    (void)state;
    disturb_step(21, interrupt_when_saved);
    disturbance.each = true;
    char *said = run_expecting("beside",
                               (const char *[]){"train_steps=60", "checkpoint.save_interval=20",
                                                "eval.interval=0", "eval.sample_interval=0", NULL},
                               128 + SIGINT);
    says(said, " not saved: the newest checkpoint is of step 20\n");
    free(said);
}

/* The signal arrives right before the first micro-batch of a start or of a resume. The run finishes
 * and saves that step. */
static void test_a_signal_in_the_first_step_saves_that_step_and_stops(void **state)
{
    (void)state;
    disturbance = (Disturbance){.kind = WORK_STEP, .act = interrupt_once};
    for (int step = 1; step <= 2; step++) {
        char *said = run_expecting("early", NULL, EXIT_REQUEUE);
        says(said, "finishing this step, then saving; Ctrl-C again quits at once\n");
        says(said, step == 1 ? "stopped after step 1;" : "stopped after step 2;");
        free(said);
    }
    disturbance.act = interrupt_twice;
    char *said = run_expecting("earlier", NULL, 128 + SIGINT);
    says(said, "quit at once; only step 1, which is under way, is lost\n");
    free(said);
}

/* A closing terminal may send SIGHUP twice, which stops the run only once. */
static void test_two_SIGHUPs_stop_a_run_like_one(void **state)
{
    (void)state;
    disturb_step(3, hang_up);
    char *said = run_expecting("closed", NULL, EXIT_REQUEUE);
    says(said, "SIGHUP: finishing this step, then saving\n");
    assert_true(is_there("closed/checkpoints/step_00000003"));
    free(said);
}

static void test_signals_that_a_run_was_started_to_ignore_do_not_stop_it(void **state)
{
    (void)state;
    disturb_step(3, send_ignored_signals);
    disturbance.first = ignore_signals;
    free(run_expecting("nohup", NULL, 0));
}

/* ---- divergence ------------------------------------------------------------------------------ */

enum { ROWS = 256, WIDTH = 16 }; /* the rows of all byte tokens in the tied table, and its width */

/* Sets a column of the tied table to NaN for steps 4 and 5, and restores it afterwards. */
static void be_sick_for_two_steps(Run *run)
{
    static float kept[ROWS];
    float *weight = run->trainer.weights[0].data.data;
    for (int i = 0; i < ROWS; i++) {
        float *x = &weight[i * WIDTH + 7];
        if (run->trainer.steps == 3) {
            kept[i] = *x;
            *x = NAN;
        }
        if (run->trainer.steps == 5) *x = kept[i];
    }
}

static void be_sick(Run *run)
{
    float *weight = run->trainer.weights[0].data.data;
    if (run->trainer.steps >= 3)
        for (int i = 0; i < ROWS * WIDTH; i++)
            weight[i] = NAN;
}

/* Multiplies the weights by 1e6 before step 5: the losses from there on are finite but very high.
 */
static void blow_up(Run *run)
{
    float *weight = run->trainer.weights[0].data.data;
    if (run->trainer.steps == 4)
        for (int i = 0; i < ROWS * WIDTH; i++)
            weight[i] *= 1e6f;
}

static void disturb_weights(void (*act)(Run *))
{
    disturbance = (Disturbance){.kind = WORK_STEP, .at = 0, .act = act, .each = true};
}

static const char *const keep_one[] = {"checkpoint.keep=1", NULL};

static void test_no_checkpoint_is_removed_while_updates_are_skipped(void **state)
{
    (void)state;
    disturb_weights(be_sick_for_two_steps);
    char *said = run_expecting(
        "sick-1", (const char *[]){"checkpoint.keep=1", "train_steps=5", NULL}, EXIT_DIVERGED);
    says(said, "step 4: updates are being skipped, so no older checkpoint is removed\n");
    says(said, "error[88] step 5 is the last, and its loss is not finite");
    says(said, "sick-1/checkpoints/");
    assert_true(is_there("sick-1/checkpoints/step_00000002"));
    assert_true(is_there("sick-1/checkpoints/step_00000004"));
    assert_true(is_there("sick-1/checkpoints/step_00000005"));
    assert_false(is_there("sick-1/result.json"));
    /* the evaluations of steps 2 and 4; that of step 4 has no loss */
    assert_int_equal(lines_of("sick-1", "val"), 2);
    free(said);
    disturb_weights(be_sick_for_two_steps);
    free(run_expecting("well-again", keep_one, 0));
    assert_false(is_there("well-again/checkpoints/step_00000002"));
    assert_false(is_there("well-again/checkpoints/step_00000006"));
    assert_true(is_there("well-again/checkpoints/step_00000007"));
}

/* The run ends with exit code 88. Started again, it has no step left to make and ends with 88
 * again.
 */
static void test_a_run_whose_last_loss_is_NaN_exits_with_code_88_also_when_restarted(void **state)
{
    (void)state;
    /* Without validation data only the training loss can be checked. */
    static const char *const sets[] = {"checkpoint.keep=1", "data.val_fraction=0", NULL};
    disturb_weights(be_sick);
    free(run_expecting("sick", sets, EXIT_DIVERGED));
    disturbance = (Disturbance){0};
    char *said = run_expecting("sick", sets, EXIT_DIVERGED);
    says(said, "resume  step 7");
    says(said, "is not finite");
    assert_true(is_there("sick/checkpoints/step_00000002"));
    assert_false(is_there("sick/result.json"));
    free(said);
}

static void test_a_loss_far_above_uniform_guessing_warns_and_keeps_checkpoints(void **state)
{
    (void)state;
    disturb_weights(blow_up);
    char *said = run_expecting("blown-up", keep_one, 0);
    says(said, "far above that of uniform guessing (5.598), so no older checkpoint is removed\n");
    says(said, "the run ends at step 7 while the loss is ");
    assert_false(is_there("blown-up/checkpoints/step_00000002"));
    assert_true(is_there("blown-up/checkpoints/step_00000004"));
    assert_true(is_there("blown-up/checkpoints/step_00000006"));
    assert_true(is_there("blown-up/result.json"));
    free(said);
}

/* ---- a step without targets ------------------------------------------------------------------ */

/* Replaces the run's feed: hides all targets of the third step. */
static GptBatch hide_targets(void *context, const Action *action)
{
    Run *run = context;
    GptBatch batch = feed_batch(&run->trainer.feed, action);
    if (action->kind != ACT_EVALUATE && run->trainer.steps == 2)
        memset(batch.targets.data, 0xFF, tensor_bytes(batch.targets)); /* all -1 */
    return batch;
}

static void take_feed(Run *run)
{
    Trainer *t = &run->trainer;
    gpt_connect(t->gpt, hide_targets, run, &t->state->stats, &t->state->state.loss_seed);
}

/* The update of the step is skipped. This is no sign of divergence, so the run continues. */
static void test_a_step_without_targets_is_skipped_and_the_run_continues(void **state)
{
    (void)state;
    disturb_step(2, take_feed);
    char *said =
        run_expecting("hidden", (const char *[]){"max_consecutive_skipped_steps=1", NULL}, 0);
    says(said, "step 3: none of its targets counts, update skipped\n");
    assert_null(strstr(said, "not finite"));
    assert_int_equal(lines_of("hidden", "train"), 7);
    char *lines = events("hidden", "train");
    says(lines, "\"step\": 3, \"updates\": 2, \"samples\": 12, ");
    says(lines, "\"loss\": 0, ");
    says(lines, "\"grad_norm\": 0, \"loss_scale\": 1, \"applied\": false, \"skipped_tokens\": 64}");
    says(lines, "\"step\": 7, \"updates\": 6, \"samples\": 28, ");
    assert_null(strstr(lines, "nonfinite"));
    free(lines);
    free(said);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_only_the_main_thread_accepts_signals),
        cmocka_unit_test(test_the_first_signal_prints_what_the_run_finishes_before_it_stops),
        cmocka_unit_test(test_a_stop_in_the_last_step_says_what_the_same_command_will_do),
        cmocka_unit_test(test_a_stopped_run_with_a_config_from_stdin_resumes_from_its_folder),
        cmocka_unit_test(test_after_a_stop_with_option_resume_never_the_message_names_the_folder),
        cmocka_unit_test(test_a_second_signal_prints_which_steps_are_lost),
        cmocka_unit_test(test_after_an_asynchronous_save_a_second_signal_names_its_step),
        cmocka_unit_test(test_a_signal_in_the_first_step_saves_that_step_and_stops),
        cmocka_unit_test(test_two_SIGHUPs_stop_a_run_like_one),
        cmocka_unit_test(test_signals_that_a_run_was_started_to_ignore_do_not_stop_it),
        cmocka_unit_test(test_no_checkpoint_is_removed_while_updates_are_skipped),
        cmocka_unit_test(test_a_run_whose_last_loss_is_NaN_exits_with_code_88_also_when_restarted),
        cmocka_unit_test(test_a_loss_far_above_uniform_guessing_warns_and_keeps_checkpoints),
        cmocka_unit_test(test_a_step_without_targets_is_skipped_and_the_run_continues),
    };
    return cmocka_run_group_tests(tests, run_fixture_setup, leave_scratch);
}

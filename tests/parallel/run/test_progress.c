/* test_progress.c -- tests of the line that shows the progress of long work, on a terminal and in a
 * pipe: every kind of work has it, and it goes on while the work is busy. */
#include "model/core/log.h"
#include "parallel/trainer/host_states.h"
#include "tests/parallel/run/slow_rank.h"
#include "tests/support/trainer/run_fixture.h"
#include "tests/support/trainer/screen.h"

#include <dirent.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <cmocka.h>

static void count(void)
{
    Progress p = progress_begin();
    progress_print(&p, "too early");
    p.every = 0;
    log_set_level(LOG_NOTICE);
    progress_print(&p, "too quiet");
    log_set_level(LOG_INFO);
    log_set_rank(1, NULL);
    progress_print(&p, "another rank");
    log_set_rank(0, NULL);
    progress_print(&p, "counting %d of %d", 7, 9);
    progress_end(&p);
    puts("over");
}

static void work_long(void)
{
    enum { MICROSECONDS = 1700000 };
    Progress p = progress_begin();
    progress_print(&p, "reading all");
    usleep(MICROSECONDS); /* as if one call took so long */
    log_notice("a file is empty");
    usleep(MICROSECONDS / 2);
    error_print(EXIT_BUG, "a file is damaged");
    usleep(MICROSECONDS / 2);
    progress_end(&p);
    exit(0);
}

/* The line is drawn again, with the time so far, while the work is busy, and after a message. It is
 * not drawn after an error message, which may be the last line of the program. */
static void test_the_live_line_is_redrawn_while_the_work_is_busy(void **state)
{
    (void)state;
    char *sent;
    disturbance = (Disturbance){.first = work_long, .dry = true};
    Screen *s = screen_of_run("long", NULL, 0, &sent);
    const char *notice = strstr(sent, "notice: a file is empty"),
               *error = strstr(sent, "a file is damaged");
    const char *drawn = strstr(sent, "  reading all, 0:0");
    if (!drawn || !notice || !error || drawn > notice || strstr(notice, "reading all") == NULL ||
        strstr(error, "reading all") != NULL)
        fail_msg("%s", sent);
    assert_string_equal(s->line[0], "notice: a file is empty");
    assert_string_equal(s->line[1], "error[70] a file is damaged");
    assert_string_equal(s->line[2], "");
    free(sent);
    free(s);
    /* In a pipe such short work prints no progress. */
    disturbance.columns = 0;
    sent = run_expecting("long", NULL, 0);
    assert_null(strstr(sent, "reading all"));
    free(sent);
}

static void fail_on_another_rank(void)
{
    Progress p = progress_begin();
    p.every = 0;
    progress_print(&p, "counting %d of %d", 7, 9);
    log_set_rank(1, NULL);
    error_print(EXIT_BUG, "a file is damaged");
    exit(0);
}

/* An error of another rank, which may be another process, leaves the live line and begins below.
 * Without a live line no line feed is printed before the message. */
static void test_an_error_of_another_rank_is_printed_below_the_live_line(void **state)
{
    (void)state;
    char *sent;
    disturbance = (Disturbance){.first = fail_on_another_rank, .dry = true};
    Screen *s = screen_of_run("below", NULL, 0, &sent);
    assert_string_equal(s->line[0], "  counting 7 of 9");
    assert_string_equal(s->line[1], "error[70] rank 1: a file is damaged");
    free(sent);
    free(s);
    disturbance.columns = 0;
    sent = run_expecting("below", NULL, 0);
    assert_non_null(strstr(sent, "  counting 7 of 9\nerror[70] rank 1: a file is damaged\n"));
    free(sent);
}

/* The terminal is stopped, as by Ctrl-S, so that the thread that draws the live line blocks. */
static void fail_on_a_stopped_terminal(void)
{
    enum { MICROSECONDS = 1700000 };
    Progress p = progress_begin();
    if (freopen("stopped", "w", stderr) == NULL || tcflow(STDOUT_FILENO, TCOOFF) != 0) exit(1);
    progress_print(&p, "reading all");
    usleep(MICROSECONDS);
    if (ftrylockfile(stdout) == 0) _exit(1); /* the test needs the blocked thread */
    if (ftrylockfile(stderr) != 0) _exit(2); /* that thread shall leave stderr free */
    funlockfile(stderr);
    alarm(10); /* ends the process if it hangs */
    pid_t child = progress_fork();
    if (child == 0) {
        alarm(5);
        progress_end(&p); /* takes the lock, which the blocked thread owns in the parent */
        _exit(0);
    }
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0) _exit(3);
    error_print(EXIT_BUG, "a file is damaged");
    tcflow(STDOUT_FILENO, TCOON); /* ThreadSanitizer flushes stdout at the end */
    _exit(0);
}

static void test_an_error_is_printed_while_a_stopped_terminal_blocks_the_live_line(void **state)
{
    (void)state;
    char *sent, text[64] = "";
    disturbance = (Disturbance){.first = fail_on_a_stopped_terminal, .dry = true};
    free(screen_of_run("stop", NULL, 0, &sent));
    free(sent);
    FILE *from = fopen("stopped", "r");
    assert_non_null(from);
    assert_non_null(fgets(text, sizeof text, from));
    fclose(from);
    assert_string_equal(text, "error[70] a file is damaged\n");
}

/* Progress is printed on a terminal when it is due, only by rank 0. At the end of the work its line
 * is erased, whatever is printed next. */
static void test_progress_is_printed_when_due_and_its_line_is_erased(void **state)
{
    (void)state;
    char *sent;
    disturbance = (Disturbance){.first = count, .dry = true};
    Screen *s = screen_of_run("counted", NULL, 0, &sent);
    assert_non_null(strstr(sent, "  counting 7 of 9\033[K"));
    assert_null(strstr(sent, "too "));
    assert_null(strstr(sent, "another rank"));
    assert_string_equal(s->line[0], "over");
    free(sent);
    free(s);
}

/* Returns how many threads ("task") or open files ("fd") this process has. */
static int count_own(const char *what)
{
    char path[32];
    int n = 0;
    snprintf(path, sizeof path, "/proc/self/%s", what);
    DIR *all = opendir(path);
    if (all == NULL) exit(EXIT_SYSTEM);
    for (struct dirent *e; (e = readdir(all)) != NULL;)
        n += e->d_name[0] != '.';
    closedir(all);
    return n;
}

static int at_fork;

static void count_at_fork(void)
{
    at_fork = count_own("task");
}

/* Forks again and again while its work goes on, the first time at once. */
static void fork_at_work(void)
{
    enum { FORKS = 20, MICROSECONDS = 1700000 };
    pthread_atfork(count_at_fork, NULL, NULL);
    Progress p = progress_begin();
    progress_print(&p, "reading all");
    int all = count_own("task"), files = count_own("fd");
    for (int i = 0; i < FORKS; i++) {
        pid_t child = progress_fork();
        if (child == 0) {
            int before = count_own("task");
            p.every = 0;
            progress_print(&p, "child");
            _exit(count_own("task") == before + 1 ? EXIT_OK : EXIT_BUG);
        }
        int status = 0;
        if (child < 0 || waitpid(child, &status, 0) != child || status != 0) exit(EXIT_PEER_LOST);
        if (at_fork != all - 1 || count_own("task") != all) exit(EXIT_BUG);
    }
    if (count_own("fd") != files) exit(EXIT_INPUT_OUTPUT);
    usleep(MICROSECONDS);
    progress_end(&p);
    exit(0);
}

/* During a fork the thread that prints the progress does not exist, so no lock that it may own is
 * copied to the child. After the fork both processes start such a thread. */
static void test_a_fork_stops_the_progress_thread_and_both_processes_restart_it(void **state)
{
    (void)state;
    char *sent;
    disturbance = (Disturbance){.first = fork_at_work, .dry = true};
    free(screen_of_run("forks", NULL, 0, &sent));
    assert_non_null(strstr(sent, "  child"));
    assert_non_null(strstr(sent, "  reading all, 0:0"));
    free(sent);
}

static void be_due(Run *run)
{
    run->work.progress.every = 0;
}

/* The progress of long work is shown in the live line, which the next result replaces. */
static void test_progress_of_long_work_uses_the_live_line_only_on_a_terminal(void **state)
{
    (void)state;
    static const struct {
        WorkKind kind;
        int64_t at;
        const char *words;
    } works[] = {{WORK_STEP, 1, "  step 1: micro-batch 2 of 2, "},
                 {WORK_EVALUATION, 3, "  evaluating micro-batch 4 of 5, "},
                 {WORK_SAMPLE, 4, "  sampling token 5 of 6, "}};
    for (int i = 0; i < 3; i++) {
        char run[32], *sent;
        snprintf(run, sizeof run, "work-%d", i);
        disturbance =
            (Disturbance){.kind = works[i].kind, .at = works[i].at, .act = be_due, .each = true};
        Screen *s = screen_of_run(run, NULL, 0, &sent);
        if (strstr(sent, works[i].words) == NULL)
            fail_msg("not \"%s\" in:\n%s", works[i].words, sent);
        assert_non_null(strstr(sent, " left\033[K"));
        assert_false(screen_has(s, " left"));
        assert_false(screen_has(s, " of 7 ("));
        assert_true(s->redrawn > 0);
        screen_fits(s);
        free(sent);
        free(s);
        /* In a pipe progress is at most a line in 30 seconds. So this short run prints none, and no
         * control characters for a terminal. */
        disturbance.columns = 0;
        disturbance.act = NULL;
        snprintf(run, sizeof run, "pipe-%d", i);
        sent = run_expecting(run, NULL, 0);
        assert_null(strstr(sent, " left"));
        assert_null(strpbrk(sent, "\r\033"));
        free(sent);
    }
}

static void take_minutes(void)
{
    slow_rank = 0;
}

/* Where a command shows its progress. ONCE: on a terminal; it cannot be repeated in a pipe. */
typedef enum { EVERYWHERE, ON_A_TERMINAL, ONCE } Where;

/* Runs the command as if everything took minutes, on a terminal and then in a pipe, and fails
 * unless its progress has all of the texts where it should be shown, and none elsewhere. No live
 * line stays. */
static void shows(const char *const *arguments, Where where, const char *const *texts)
{
    disturbance.first = take_minutes;
    for (disturbance.columns = COLUMNS;; disturbance.columns = 0) {
        bool terminal = disturbance.columns > 0;
        char *sent = command_expecting(arguments, 0);
        for (int i = 0; texts[i]; i++)
            if ((strstr(sent, texts[i]) != NULL) != (terminal || where == EVERYWHERE))
                fail_msg("%s on a %s: \"%s\" in:\n%s", arguments[0], terminal ? "terminal" : "pipe",
                         texts[i], sent);
        Screen *s = calloc(1, sizeof *s);
        assert_non_null(s);
        if (terminal) screen_show(s, sent);
        assert_false(terminal && (screen_has(s, " so far") || screen_has(s, " left")));
        if (!terminal) assert_null(strpbrk(sent, "\r\033"));
        free(s);
        free(sent);
        if (!terminal || where == ONCE) return;
    }
}

#define LIST(...) ((const char *const[]){__VA_ARGS__, NULL})

static void test_all_long_tasks_print_what_they_do(void **state)
{
    (void)state;
    disturbance = (Disturbance){0};
    shows(LIST("tiny.json", "--resume", "never", "--set", "data.cache=fresh"), EVERYWHERE,
          LIST("  reading the text", "  preparing the text",
               "  allocating memory and initializing the weights", "  step 1: micro-batch 1 of 2",
               "  step 3: micro-batch 2 of 2, last loss ", "  saving step 2",
               "  evaluating micro-batch 5 of 5, ", "  sampling token 1 of 6"));
    shows(LIST("tiny.json", "--resume", "out/tiny/checkpoints/step_00000004", "--out", "on"), ONCE,
          LIST("  reading the checkpoint", "  step 5: micro-batch 1 of 2"));
    shows(LIST("tiny.json", "--dry-run", "--set", "zero_optimization.offload_optimizer.device=cpu"),
          EVERYWHERE,
          LIST("  page-locking host memory for optimizer states, 0.0 of 0.0 GB",
               "  dry run: a step of 2 x 16 tokens,"));
    shows(LIST("eval", "out/tiny"), EVERYWHERE,
          LIST("  reading the checkpoint", "  evaluating micro-batch 1 of ", " left"));
    shows(LIST("ckpt", "verify", "out/tiny"), EVERYWHERE, LIST("  verifying checkpoint 2 of 4, "));
    shows(LIST("generate", "out/tiny", "--prompt", "light", "--tokens", "3"), ON_A_TERMINAL,
          LIST("  reading the checkpoint", "  reading the prompt"));
    shows(LIST("verify", "tiny.json", "--ranks", "2", "--set", "parallel.timeout=1e8"), EVERYWHERE,
          LIST("  preparing the grid", "  preparing a single rank",
               "  step 3 of 3 on the grid: micro-batch 2 of 2",
               "  step 1 of 3 on a single rank: micro-batch 4 of 4"));
}

static void page_lock(void)
{
    static const size_t bytes[] = {100000000, 0, 200000000, 100000000}; /* never touched */
    const DeviceOptions options = {.threads = 1};
    char err[200];
    Device dev;
    HostStates states;
    take_minutes();
    if (!device_open(&dev, "cpu", &options, err, sizeof err)) exit(1);
    host_states_open(&states, &dev, bytes, sizeof bytes / sizeof *bytes);
    puts("over");
    host_states_close(&states, &dev);
    device_close(&dev);
    exit(0);
}

/* Page-locking may take minutes. It is done unit by unit (a unit is the parameters of one layer),
 * and the line says how much is done. */
static void test_page_locking_prints_its_progress(void **state)
{
#define LINE "  page-locking host memory for optimizer states, "
    static const char *const lines[] = {LINE "0.0 of 0.4 GB, ", LINE "0.1 of 0.4 GB, ",
                                        LINE "0.3 of 0.4 GB, ", " left"};
    (void)state;
    disturbance = (Disturbance){.first = page_lock, .dry = true, .columns = COLUMNS};
    for (int i = 0; i < 2; i++, disturbance.columns = 0) {
        char *sent = run_expecting("locked", NULL, 0), *at = sent;
        for (int k = 0; k < 4; k++)
            if ((at = strstr(at, lines[k])) == NULL) fail_msg("not \"%s\" in:\n%s", lines[k], sent);
        free(sent);
    }
    char *sent;
    Screen *s = screen_of_run("locked", NULL, 0, &sent);
    assert_string_equal(s->line[0], "over");
    free(sent);
    free(s);
}

/* A user who waits for the first step sees at once what it does, and only on a terminal. Short
 * work that is no step shows nothing, also before the first step. */
static void test_the_first_step_is_shown_at_once(void **state)
{
    (void)state;
    char *sent;
    disturbance = (Disturbance){0};
    free(screen_of_run("first", NULL, 0, &sent));
    assert_non_null(strstr(sent, "  step 1: micro-batch 1 of 2\033[K"));
    assert_null(strstr(sent, "  step 2: micro-batch 1 of 2"));
    free(sent);
    /* Without its result, the run is evaluated and sampled again. */
    assert_int_equal(unlink("first/result.json"), 0);
    free(screen_of_run("first", NULL, 0, &sent));
    assert_non_null(strstr(sent, "val     loss "));
    assert_null(strstr(sent, "  evaluating micro-batch"));
    free(sent);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_progress_is_printed_when_due_and_its_line_is_erased),
        cmocka_unit_test(test_the_live_line_is_redrawn_while_the_work_is_busy),
        cmocka_unit_test(test_an_error_of_another_rank_is_printed_below_the_live_line),
        cmocka_unit_test(test_an_error_is_printed_while_a_stopped_terminal_blocks_the_live_line),
        cmocka_unit_test(test_a_fork_stops_the_progress_thread_and_both_processes_restart_it),
        cmocka_unit_test(test_progress_of_long_work_uses_the_live_line_only_on_a_terminal),
        cmocka_unit_test(test_all_long_tasks_print_what_they_do),
        cmocka_unit_test(test_page_locking_prints_its_progress),
        cmocka_unit_test(test_the_first_step_is_shown_at_once),
    };
    return cmocka_run_group_tests(tests, run_fixture_setup, leave_scratch);
}

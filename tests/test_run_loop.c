/* test_run_loop.c -- what happens between steps and how a run ends: the program in a child process,
 * with what disturbs it put at a certain micro-batch of a certain evaluation. */
#include "tests/train_child.h"

#include "tests/support.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- a folder with a text and a config ------------------------------------------------------- */

static char folder[64];

static void write_file(const char *name, const char *text)
{
    char *path = text_format("%s/%s", folder, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
    free(path);
}

static char *read_file(const char *name)
{
    enum { MOST = 1 << 20 };
    char *path = text_format("%s/%s", folder, name), *text = must_calloc(1, MOST);
    FILE *f = fopen(path, "r");
    if (f == NULL) fail_msg("%s: %s", path, strerror(errno));
    text[fread(text, 1, MOST - 1, f)] = '\0';
    fclose(f);
    free(path);
    return text;
}

static bool is_there(const char *name)
{
    struct stat st;
    char *path = text_format("%s/%s", folder, name);
    bool there = lstat(path, &st) == 0;
    free(path);
    return there;
}

static const char config[] =
    "{\"model\": {\"num_layers\": 1, \"hidden_size\": 16, \"num_attention_heads\": 2,"
    " \"position\": \"rope\"}, \"device\": \"cpu\", \"cpu\": {\"threads\": 1},"
    " \"data\": {\"text\": \"text.txt\", \"tokenizer_vocab_size\": 270, \"seq_length\": 16,"
    " \"val_fraction\": 0.2},"
    " \"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": 2,"
    " \"train_steps\": 7, \"steps_per_print\": 1,"
    " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.01}},"
    " \"eval\": {\"interval\": 2, \"steps\": 5, \"sample_interval\": 2, \"sample_tokens\": 6,"
    " \"sample_prompt\": \"the\"}, \"checkpoint\": {\"save_interval\": 2, \"keep\": 0}}";

static int set_up(void **state)
{
    static const char *const words[] = {"light", "and", "the", "water", "was", "upon", "earth"};
    (void)state;
    strcpy(folder, "/tmp/test_run_loop_XXXXXX");
    if (mkdtemp(folder) == NULL) return -1;
    char *text = must_calloc(1, 1 << 16), *at = text;
    for (int i = 0; i < 2000; i++)
        at += sprintf(at, "%s%c", words[(int)(7 * drawn_uniform(71, i))], i % 9 == 8 ? '\n' : ' ');
    write_file("text.txt", text);
    write_file("tiny.json", config);
    free(text);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    char *command = text_format("rm -rf '%s'", folder);
    int code = system(command);
    free(command);
    return code;
}

/* ---- disturbances ---------------------------------------------------------------------------- */

/* What happens in the child, and when: before piece `at` of the work of this kind in the `round`-th
 * time (from 0) that there is such work. */
static struct {
    WorkKind kind;
    int64_t round, at;
    void (*act)(Run *run);
    int64_t rounds, acted; /* seen so far */
} disturbance;

static bool disturbed_watch(void *context, const Work *work)
{
    Run *run = context;
    if (work->kind == disturbance.kind && work->done == (work->kind == WORK_SAMPLE))
        disturbance.rounds++;
    if (work->kind == disturbance.kind && work->done == disturbance.at &&
        disturbance.rounds == disturbance.round + 1 && disturbance.acted++ == 0)
        disturbance.act(run);
    return run_watch(run, work);
}

static void put_watch(Run *run)
{
    run->trainer.feed.watch = disturbed_watch;
}

static void ask_by_signal(Run *run)
{
    (void)run;
    raise(SIGTERM);
}

static void ask_by_file(Run *run)
{
    char *path = text_format("%s/STOP", run->folder.path);
    FILE *f = fopen(path, "w");
    CHECK(f != NULL, "no %s", path);
    fclose(f);
    free(path);
}

static void die(Run *run)
{
    (void)run;
    raise(SIGKILL);
}

/* Runs the config into RUN; the disturbance is NULL for none. sets: "key=value", NULL-terminated.
 */
static ChildResult run_into(const char *run, const char *const *sets)
{
    const char *arguments[32] = {"tiny.json", "--out", run};
    int n = 3;
    for (; sets && *sets; sets++) {
        arguments[n++] = "--set";
        arguments[n++] = *sets;
    }
    ChildPlace place = {.folder = folder, .opened = disturbance.act ? put_watch : NULL};
    return train_in_child(&place, arguments);
}

/* The same, expecting an exit code. Prints what was said if it was another. */
static char *run_expecting(const char *run, const char *const *sets, int code)
{
    ChildResult r = run_into(run, sets);
    if (r.code != code) fail_msg("%s: exit code %d, not %d:\n%s", run, r.code, code, r.text);
    return r.text;
}

/* ---- what a run leaves ----------------------------------------------------------------------- */

/* The lines of RUN/metrics.jsonl of one event, without what differs between any two runs, one after
 * the other. */
static char *events(const char *run, const char *event)
{
    char *name = text_format("%s/metrics.jsonl", run), *text = read_file(name), *out = text;
    char *begin = text_format("{\"event\": \"%s\"", event);
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        if (strncmp(line, begin, strlen(begin)) != 0) continue;
        char *attempt = strstr(line, "\"attempt\""), *rest = strstr(line, "\"t\": ");
        char *seconds = strstr(line, "\"seconds\"");
        assert_true(attempt != NULL && rest != NULL && rest > attempt);
        rest = strchr(rest, ',');
        size_t a = (size_t)(attempt - line);
        memmove(out, line, a);
        size_t b = seconds ? (size_t)(seconds - rest) : strlen(rest);
        memmove(out + a, rest, b);
        out += a + b;
        *out++ = '\n';
    }
    *out = '\0';
    free(begin);
    free(name);
    return text;
}

/* Both runs have the same training, evaluations and samples. */
static void same_runs(const char *a, const char *b)
{
    static const char *const compared[] = {"train", "val", "sample"};
    for (int i = 0; i < 3; i++) {
        char *x = events(a, compared[i]), *y = events(b, compared[i]);
        assert_true(strlen(x) > 0);
        assert_string_equal(x, y);
        free(x);
        free(y);
    }
}

static int lines_of(const char *run, const char *event)
{
    char *text = events(run, event);
    int n = 0;
    for (char *p = text; *p; p++)
        n += *p == '\n';
    free(text);
    return n;
}

/* ---- tests ----------------------------------------------------------------------------------- */

/* The run that the others must equal in the end. */
static void test_an_undisturbed_run(void **state)
{
    (void)state;
    disturbance.act = NULL;
    char *said = run_expecting("whole", NULL, 0);
    assert_int_equal(lines_of("whole", "train"), 7);
    assert_int_equal(lines_of("whole", "val"), 4);
    assert_int_equal(lines_of("whole", "sample"), 4);
    /* Each evaluation, the last one included, is of eval.steps micro-batches. */
    char *val = events("whole", "val");
    int n = 0;
    for (const char *at = val; (at = strstr(at, "\"targets\": 160,")) != NULL; at++)
        n++;
    assert_int_equal(n, 4);
    free(val);
    /* A checkpoint is there before the evaluation of its step begins. */
    char *saved = strstr(said, "saved   step 2"), *bits = strstr(said, "bits per byte");
    assert_true(saved != NULL && bits != NULL && saved < bits);
    saved = strstr(said, "saved   step 7");
    bits = strstr(said, "bits per byte");
    for (char *next = bits; next && next < strstr(said, "done ");
         next = strstr(next + 1, "bits per"))
        bits = next;
    assert_true(saved != NULL && saved < bits);
    free(said);
}

/* A stop within an evaluation or a sample, at an interval or at the end: 85, the step is saved, the
 * unfinished work is no result, and the next start makes it and ends as if nothing had been. */
static void test_a_stop_within_an_evaluation(void **state)
{
    (void)state;
    static const struct {
        WorkKind kind;
        int64_t round, at;
        void (*act)(Run *);
        int64_t saved;
        int evaluations, samples; /* that were whole */
    } stops[] = {{WORK_EVALUATION, 0, 0, ask_by_signal, 2, 0, 0},
                 {WORK_EVALUATION, 1, 3, ask_by_signal, 4, 1, 1},
                 {WORK_EVALUATION, 1, 4, ask_by_file, 4, 1, 1},
                 {WORK_SAMPLE, 1, 2, ask_by_file, 4, 2, 1},
                 {WORK_EVALUATION, 3, 2, ask_by_file, 7, 3, 3},
                 {WORK_EVALUATION, 3, 4, ask_by_signal, 7, 3, 3}};
    for (size_t i = 0; i < sizeof stops / sizeof *stops; i++) {
        char run[32], checkpoint[64], result[64];
        snprintf(run, sizeof run, "stop-%zu", i);
        snprintf(checkpoint, sizeof checkpoint, "%s/checkpoints/step_%08d", run,
                 (int)stops[i].saved);
        snprintf(result, sizeof result, "%s/result.json", run);
        disturbance.kind = stops[i].kind;
        disturbance.round = stops[i].round;
        disturbance.at = stops[i].at;
        disturbance.act = stops[i].act;
        free(run_expecting(run, NULL, EXIT_REQUEUE));
        assert_true(is_there(checkpoint));
        assert_false(is_there(result));
        assert_int_equal(lines_of(run, "train"), stops[i].saved);
        assert_int_equal(lines_of(run, "val"), stops[i].evaluations);
        assert_int_equal(lines_of(run, "sample"), stops[i].samples);
        disturbance.act = NULL;
        free(run_expecting(run, NULL, 0));
        assert_true(is_there(result));
        if (stops[i].kind == WORK_EVALUATION) same_runs("whole", run);
    }
}

/* A death within an evaluation loses nothing either: the step before it is saved. */
static void test_a_death_within_an_evaluation(void **state)
{
    (void)state;
    for (int64_t round = 0; round < 4; round += 3) {
        char *run = text_format("death-%d", (int)round);
        disturbance.kind = WORK_EVALUATION;
        disturbance.round = round;
        disturbance.at = 3;
        disturbance.act = die;
        free(run_expecting(run, NULL, 128 + SIGKILL));
        disturbance.act = NULL;
        char *said = run_expecting(run, NULL, 0);
        char *from = text_format("resume  step %d from", round == 0 ? 2 : 7);
        if (strstr(said, from) == NULL) fail_msg("not \"%s\" in:\n%s", from, said);
        same_runs("whole", run);
        free(from);
        free(said);
        free(run);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_undisturbed_run),
        cmocka_unit_test(test_a_stop_within_an_evaluation),
        cmocka_unit_test(test_a_death_within_an_evaluation),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}

/* run_fixture.c -- starts and interrupts small runs of the program. See run_fixture.h. */
#include "tests/support/trainer/run_fixture.h"

#include "parallel/checkpoint/folder.h"
#include "tests/support/files/scratch.h"
#include "tests/support/support.h"

#include <dirent.h>
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

/* Returns the text of a file, which must exist; the caller frees it. */
static char *run_file(const char *name)
{
    char *text = take_text(name);
    if (text == NULL) fail_msg("%s: %s", name, strerror(errno));
    return text;
}

bool is_there(const char *name)
{
    struct stat st;
    return lstat(name, &st) == 0;
}

void says(const char *text, const char *what)
{
    if (strstr(text, what) == NULL) fail_msg("not \"%s\" in:\n%s", what, text);
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

int run_fixture_setup(void **state)
{
    static const char *const words[] = {"light", "and", "the", "water", "was", "upon", "earth"};
    if (enter_scratch(state) != 0) return -1;
    signal(SIGHUP, SIG_DFL); /* the tests themselves may run under nohup, */
    signal(SIGINT, SIG_DFL); /* or in the background of a script */
    char *text = must_calloc(1, 1 << 16), *at = text;
    for (int i = 0; i < 2000; i++)
        at += sprintf(at, "%s%c", words[(int)(7 * drawn_uniform(71, i))], i % 9 == 8 ? '\n' : ' ');
    put_text("text.txt", text);
    put_text("tiny.json", config);
    free(text);
    return 0;
}

/* ---- disturbances ---------------------------------------------------------------------------- */

Disturbance disturbance;

static bool disturbed_watch(void *context, const Work *work)
{
    Run *run = context;
    if (disturbance.rank < 0) {
        if (work->kind == disturbance.kind && work->done == disturbance.at) disturbance.act(run);
        return run_watch(run, work);
    }
    if (work->kind == disturbance.kind && work->done == (work->kind == WORK_SAMPLE))
        disturbance.rounds++;
    if (work->kind == disturbance.kind && work->done == disturbance.at &&
        (disturbance.each ? disturbance.rounds > disturbance.round
                          : disturbance.rounds == disturbance.round + 1))
        disturbance.act(run);
    return run_watch(run, work);
}

static void put_watch(Run *run)
{
    if (disturbance.rank < 0 || run->world->rank == disturbance.rank)
        run->trainer.feed.watch = disturbed_watch;
}

void ask_by_signal(Run *run)
{
    (void)run;
    raise(SIGTERM);
}

void ask_by_file(Run *run)
{
    char *path = text_format("%s/STOP", run->folder.path);
    FILE *f = fopen(path, "w");
    CHECK(f != NULL, "no %s", path);
    fclose(f);
    free(path);
    run->work.stop_looked_at = -1; /* makes the run look for the file at once */
}

void interrupt_twice(Run *run)
{
    (void)run;
    raise(SIGINT);
    raise(SIGINT);
}

/* Returns which of the four signals that end a run are blocked by a thread, as bits of SigBlk. */
static unsigned long long held_by(const char *thread)
{
    char line[256];
    unsigned long long held = 0;
    bool found = false;
    char *path = text_format("/proc/self/task/%s/status", thread);
    FILE *f = fopen(path, "r");
    CHECK(f != NULL, "no %s", path);
    while (fgets(line, sizeof line, f) != NULL)
        found |= sscanf(line, "SigBlk: %llx", &held) == 1;
    CHECK(found, "no SigBlk in %s", path);
    fclose(f);
    free(path);
    return held & (1ull << (SIGINT - 1) | 1ull << (SIGTERM - 1) | 1ull << (SIGUSR1 - 1) |
                   1ull << (SIGHUP - 1));
}

void count_who_hears(Run *run)
{
    int others = 0, hear = 0;
    char self[32];
    DIR *tasks = opendir("/proc/self/task");
    CHECK(tasks != NULL, "no /proc/self/task of %s", run->folder.path);
    snprintf(self, sizeof self, "%d", (int)getpid());
    CHECK(held_by(self) == 0, "the main thread holds %llx", held_by(self));
    for (struct dirent *e; (e = readdir(tasks)) != NULL;) {
        if (e->d_name[0] == '.' || strcmp(e->d_name, self) == 0) continue;
        others++;
        hear += __builtin_popcountll(held_by(e->d_name)) != 4;
    }
    closedir(tasks);
    printf("more than 3 other threads: %s; %d hear\n", others > 3 ? "yes" : "no", hear);
}

static ChildPlace disturbed_place(void)
{
    return (ChildPlace){.opened = disturbance.act ? put_watch : NULL,
                        .first = disturbance.first,
                        .columns = disturbance.columns};
}

static char *expect_end(ChildResult r, const char *what, int code)
{
    if (r.code != code) fail_msg("%s: exit code %d, not %d:\n%s", what, r.code, code, r.text);
    return r.text;
}

char *command_expecting(const char *const *arguments, int code)
{
    ChildPlace place = disturbed_place();
    return expect_end(train_in_child(&place, arguments), arguments[0], code);
}

char *run_expecting(const char *run, const char *const *sets, int code)
{
    ChildPlace place = disturbed_place();
    ChildRun child = {.config = "tiny.json",
                      .run = run,
                      .ranks = disturbance.ranks,
                      .dry = disturbance.dry,
                      .sets = sets};
    return expect_end(train_config_in_child(&place, &child), child.config, code);
}

/* ---- what a run leaves ----------------------------------------------------------------------- */

/* Shortens the text in place: keeps the lines of the event and removes the attempt, the time and
 * the seconds from each. */
char *events(const char *run, const char *event)
{
    char *name = text_format("%s/metrics.jsonl", run), *text = run_file(name), *out = text;
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

/* Compares the lines of training, evaluations and samples. */
void same_runs(const char *a, const char *b)
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

int lines_of(const char *run, const char *event)
{
    char *text = events(run, event);
    int n = 0;
    for (char *p = text; *p; p++)
        n += *p == '\n';
    free(text);
    return n;
}

void only_checkpoint(const char *run, int64_t step)
{
    char err[512];
    int64_t *steps;
    int n = checkpoint_list(run, &steps, err, sizeof err);
    if (n != 1 || steps[0] != step)
        fail_msg("%s: %d checkpoints, the newest of step %lld, not only one of step %lld", run, n,
                 n > 0 ? (long long)steps[n - 1] : -1, (long long)step);
    free(steps);
}

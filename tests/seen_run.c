/* seen_run.c -- see seen_run.h. */
#include "tests/seen_run.h"

#include "model/core/check.h"
#include "parallel/run.h"
#include "tests/checkpoint_run.h"
#include "tests/support.h"

#include <cJSON.h>
#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { MAX_ARGUMENTS = 48, WORDS = 400 };

/* A small model on one thread, with an evaluation, a sample and a save every other step. */
static const char base[] =
    "{\"model\": {\"num_layers\": 1, \"hidden_size\": 32, \"num_attention_heads\": 4},\n"
    " \"data\": {\"text\": \"text.txt\", \"cache\": \"cache\", \"tokenizer_vocab_size\": 280,"
    " \"seq_length\": 16},\n"
    " \"seed\": 7, \"device\": \"cpu\", \"cpu\": {\"threads\": 1, \"blas\": \"builtin\"},\n"
    " \"train_batch_size\": 4, \"train_micro_batch_size_per_gpu\": 2, \"train_steps\": 6,\n"
    " \"steps_per_print\": 1, \"gradient_clipping\": 1.0,\n"
    " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.01, \"weight_decay\": 0.1}},\n"
    " \"eval\": {\"interval\": 2, \"steps\": 2, \"sample_interval\": 2, \"sample_tokens\": 8},\n"
    " \"checkpoint\": {\"save_interval\": 2, \"keep\": 2}}\n";

typedef struct {
    char folder[64], before[512];
} SeenFolder;

/* ---- the folder ------------------------------------------------------------------------------ */

/* Drawn words of drawn letters; other `stream`s are other texts. As lines of JSON: the same text
 * under one key and its words in capitals under another. */
static void write_text(const char *path, uint64_t stream, bool json)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    for (int64_t line = 0, at = 0; line < 300; line++) {
        char text[512] = "", loud[512];
        for (int i = 0; i < 12; i++, at++) {
            int64_t word = (int64_t)(WORDS * drawn_uniform(stream, at));
            size_t n = strlen(text);
            for (int c = 0; c < 5; c++)
                text[n++] = (char)('a' + (int)(26 * drawn_uniform(3, 5 * word + c)));
            text[n++] = ' ';
            text[n] = '\0';
        }
        for (int i = 0; i == 0 || text[i - 1] != '\0'; i++)
            loud[i] = (char)(text[i] >= 'a' ? text[i] - 'a' + 'A' : text[i]);
        if (json)
            fprintf(f, "{\"text\": \"%s\", \"loud\": \"%s\"}\n", text, loud);
        else
            fprintf(f, "%s\n", text);
    }
    fclose(f);
}

/* Drawn tokens below 256 without a tokenizer. */
static void write_shard(const char *path, uint64_t stream)
{
    enum { COUNT = 3000 };
    int32_t header[256] = {20240520, 1, COUNT};
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    fwrite(header, sizeof header, 1, f);
    for (int64_t i = 0; i < COUNT; i++) {
        uint16_t token = (uint16_t)(256 * drawn_uniform(stream, i));
        fwrite(&token, sizeof token, 1, f);
    }
    fclose(f);
}

int seen_folder_setup(void **state)
{
    SeenFolder *p = must_calloc(1, sizeof *p);
    snprintf(p->folder, sizeof p->folder, "%s/test_seen_XXXXXX", test_scratch_folder());
    if (getcwd(p->before, sizeof p->before) == NULL || mkdtemp(p->folder) == NULL ||
        chdir(p->folder) != 0)
        return -1;
    FILE *f = fopen("base.json", "w");
    if (f == NULL) return -1;
    fputs(base, f);
    fclose(f);
    write_text("text.txt", 11, false);
    write_text("other.txt", 12, false);
    write_text("lines.jsonl", 13, true);
    write_shard("one.bin", 21);
    write_shard("two.bin", 22);
    *state = p;
    return 0;
}

int seen_folder_teardown(void **state)
{
    SeenFolder *p = *state;
    char *command = text_format("rm -rf '%s'", p->folder);
    int code = chdir(p->before) == 0 ? system(command) : -1;
    free(command);
    free(p);
    return code;
}

/* ---- the child ------------------------------------------------------------------------------- */

static void write_plan(const MemoryPlan *p)
{
    FILE *f = fopen("plan", "w");
    if (f == NULL) return;
    fprintf(f, "%zu %zu %zu %zu %zu %zu", p->weights, p->gradients, p->optimizer, p->activations,
            p->scratch, p->other);
    fclose(f);
}

/* The chapters of a run, as train.c reads them. */
static int train(int argc, char **argv)
{
    RunArguments arguments;
    Run run;
    if (!run_arguments(&arguments, argc, argv)) return EXIT_OK;
    run_configure(&run, &arguments);
    run_open_data(&run);
    run_plan(&run);
    write_plan(&run.plan);
    run_choose_folder(&run);
    run_open_trainer(&run);
    while (run.trainer.steps < run.config->train_steps) {
        trainer_step(&run.trainer);
        run_report(&run);
        run_evaluate_if_due(&run);
        run_sample_if_due(&run);
        run_save_if_due(&run);
    }
    return run_finish(&run);
}

/* Runs `command` in a child whose output goes to the file "console". */
static int in_child(int (*command)(int argc, char **argv), int argc, char **argv)
{
    int status = 0;
    fflush(stdout);
    fflush(stderr);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        int to = open("console", O_WRONLY | O_CREAT | O_TRUNC, 0600);
        if (to < 0 || dup2(to, STDOUT_FILENO) < 0 || dup2(to, STDERR_FILENO) < 0) _exit(126);
        exit(command(argc, argv));
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

/* ---- what it left ---------------------------------------------------------------------------- */

/* A whole file as a string without its NULs; empty where there is none. */
static char *contents(const char *path)
{
    FILE *f = fopen(path, "rb");
    size_t capacity = 1 << 20, n = 0;
    char *text = must_alloc(capacity + 1);
    for (int c; f != NULL && n < capacity && (c = getc(f)) != EOF;)
        if (c != '\0') text[n++] = (char)c;
    text[n] = '\0';
    if (f != NULL) fclose(f);
    return text;
}

static void squeeze_blanks(char *text)
{
    char *to = text;
    for (const char *from = text; *from; from++)
        if (*from != ' ' || (to > text && to[-1] != ' ' && to[-1] != '\n')) *to++ = *from;
    *to = '\0';
}

static void append(char **list, const char *text)
{
    char *longer = text_format("%s%s\n", *list, text);
    free(*list);
    *list = longer;
}

static void append_names(char **list, const char *folder)
{
    struct dirent **entry;
    int n = scandir(folder, &entry, NULL, alphasort);
    for (int i = 0; i < n; i++) {
        append(list, entry[i]->d_name);
        free(entry[i]);
    }
    if (n >= 0) free(entry);
}

/* One line of metrics.jsonl. */
static void take_record(Seen *out, const cJSON *record)
{
    const cJSON *event = cJSON_GetObjectItem(record, "event"),
                *loss = cJSON_GetObjectItem(record, "loss"),
                *step = cJSON_GetObjectItem(record, "step"),
                *targets = cJSON_GetObjectItem(record, "targets");
    if (!cJSON_IsString(event)) return;
    if (strcmp(event->valuestring, "train") == 0 && out->n_losses < SEEN_LOSSES)
        out->losses[out->n_losses++] = cJSON_IsNumber(loss) ? loss->valuedouble : NAN;
    if (strcmp(event->valuestring, "val") == 0) {
        char *line = text_format("evaluation after step %.0f over %.0f targets",
                                 cJSON_GetNumberValue(step), cJSON_GetNumberValue(targets));
        append(&out->files, line);
        free(line);
    }
}

void seen_run(Seen *out, const char *run, const char *const *sets, const char *const *more)
{
    char *argv[MAX_ARGUMENTS] = {"train", "base.json", "--out", (char *)(uintptr_t)run};
    int argc = 4;
    const char *const *lists[] = {sets, more};
    for (int l = 0; l < 2; l++) {
        for (int i = 0; lists[l] != NULL && lists[l][i] != NULL; i++) {
            assert_true(argc + 3 < MAX_ARGUMENTS);
            argv[argc++] = "--set";
            argv[argc++] = (char *)(uintptr_t)lists[l][i];
        }
    }
    char *clean = text_format("rm -rf '%s' plan", run);
    assert_int_equal(system(clean), 0);
    free(clean);
    *out = (Seen){.files = must_strdup("")};
    out->code = in_child(train, argc, argv);
    char *checkpoints = text_format("%s/checkpoints", run),
         *samples = text_format("%s/samples.txt", run),
         *metrics = text_format("%s/metrics.jsonl", run);
    append_names(&out->files, ".");
    append_names(&out->files, run);
    append_names(&out->files, checkpoints);
    out->samples = contents(samples);
    out->plan = contents("plan");
    out->console = contents("console");
    squeeze_blanks(out->console);
    char *records = contents(metrics), *rest = records;
    for (char *line; (line = strsep(&rest, "\n")) != NULL;) {
        cJSON *record = cJSON_Parse(line);
        take_record(out, record);
        cJSON_Delete(record);
    }
    free(records);
    free(metrics);
    free(samples);
    free(checkpoints);
}

void seen_command(Seen *out, int (*command)(int argc, char **argv), const char *const *argv)
{
    char *copy[MAX_ARGUMENTS] = {0};
    int argc = 0;
    for (; argv[argc] != NULL; argc++) {
        assert_true(argc + 1 < MAX_ARGUMENTS);
        copy[argc] = (char *)(uintptr_t)argv[argc];
    }
    *out = (Seen){0};
    out->code = in_child(command, argc, copy);
    out->console = contents("console");
}

void seen_free(Seen *seen)
{
    free(seen->samples);
    free(seen->plan);
    free(seen->files);
    free(seen->console);
    *seen = (Seen){0};
}

bool seen_same_losses(const Seen *a, const Seen *b)
{
    bool same = a->n_losses == b->n_losses;
    for (int i = 0; same && i < a->n_losses; i++)
        same = a->losses[i] == b->losses[i] || (isnan(a->losses[i]) && isnan(b->losses[i]));
    return same;
}

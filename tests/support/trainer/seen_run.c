/* seen_run.c -- runs the program in a child process and reads its files and its output. See
 * seen_run.h. */
#include "tests/support/trainer/seen_run.h"

#include "model/core/check.h"
#include "tests/support/support.h"
#include "tests/support/trainer/train_child.h"

#include <cJSON.h>
#include <dirent.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { WORDS = 400 };

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
    " \"checkpoint\": {\"save_interval\": 2, \"keep\": 3}}\n";

/* ---- the folder ------------------------------------------------------------------------------ */

/* Writes a text of random words; each `stream` gives another text. As JSON, each line has the text
 * under one key and the same in capitals under another. */
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

/* Writes a shard of random tokens below 256, without a tokenizer. */
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
    if (enter_scratch(state) != 0) return -1;
    put_text("base.json", base);
    write_text("text.txt", 11, false);
    write_text("other.txt", 12, false);
    write_text("lines.jsonl", 13, true);
    write_shard("one.bin", 21);
    write_shard("two.bin", 22);
    return 0;
}

/* Runs in the child when the run is open: writes its memory plan to a file. */
static void write_plan(Run *run)
{
    const MemoryPlan *p = &run->plan;
    char *text =
        text_format("%zu %zu %zu %zu %zu %zu %zu %zu", p->weights, p->gradients, p->buffers,
                    p->optimizer, p->activations, p->scratch, p->other, p->snapshot);
    put_text("plan", text);
    free(text);
}

/* ---- what it left ---------------------------------------------------------------------------- */

/* Returns the text of a file, or an empty text if there is none. */
static char *contents(const char *path)
{
    char *text = take_text(path);
    return text ? text : must_strdup("");
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

/* Returns the lines of a console that count what the groups of a grid have sent; runs of blanks
 * have been reduced to one. */
static char *wire_lines(const char *console)
{
    static const char *const group[] = {"pp ", "dp ", "tp ", "shard ", "kv ", "tie "};
    char *lines = must_strdup(""), *copy = must_strdup(console), *rest = copy;
    for (char *line; (line = strsep(&rest, "\n")) != NULL;)
        for (size_t i = 0; i < sizeof group / sizeof *group; i++)
            if (strncmp(line, group[i], strlen(group[i])) == 0) append(&lines, line);
    free(copy);
    return lines;
}

/* Adds one line of metrics.jsonl to the results. */
static void take_record(Seen *out, const cJSON *record)
{
    const cJSON *event = cJSON_GetObjectItem(record, "event"),
                *loss = cJSON_GetObjectItem(record, "loss"),
                *step = cJSON_GetObjectItem(record, "step"),
                *targets = cJSON_GetObjectItem(record, "targets"),
                *set = cJSON_GetObjectItem(record, "set");
    if (!cJSON_IsString(event)) return;
    if (strcmp(event->valuestring, "train") == 0 && out->n_losses < SEEN_LOSSES)
        out->losses[out->n_losses++] = cJSON_IsNumber(loss) ? loss->valuedouble : NAN;
    if (cJSON_IsString(set)) {
        char *line = text_format("set %s", set->valuestring);
        append(&out->files, line);
        free(line);
    }
    if (strcmp(event->valuestring, "val") == 0) {
        char *line = text_format("evaluation after step %.0f over %.0f targets",
                                 cJSON_GetNumberValue(step), cJSON_GetNumberValue(targets));
        append(&out->files, line);
        free(line);
        line = text_format("%.0f %.17g", cJSON_GetNumberValue(step), cJSON_GetNumberValue(loss));
        append(&out->evaluations, line);
        free(line);
    }
}

/* Appends the names of the files in each checkpoint of the run, which shows into how many files it
 * is divided. */
static void append_checkpoints(char **list, const char *checkpoints)
{
    struct dirent **entry;
    int n = scandir(checkpoints, &entry, NULL, alphasort);
    for (int i = 0; i < n; i++) {
        char *folder = text_format("%s/%s", checkpoints, entry[i]->d_name);
        if (entry[i]->d_name[0] != '.') append_names(list, folder);
        free(folder);
        free(entry[i]);
    }
    if (n >= 0) free(entry);
}

void seen_run(Seen *out, const char *run, int ranks, const char *const *sets,
              const char *const *more)
{
    seen_resume(out, run, NULL, ranks, sets, more);
}

void seen_resume(Seen *out, const char *run, const char *from, int ranks, const char *const *sets,
                 const char *const *more)
{
    const ChildRun child = {.config = "base.json",
                            .run = run,
                            .ranks = ranks,
                            .resume = from,
                            .sets = sets,
                            .more = more};
    char *clean = text_format("rm -rf '%s' plan", run);
    assert_int_equal(system(clean), 0);
    free(clean);
    ChildResult ended = train_config_in_child(&(ChildPlace){.opened = write_plan}, &child);
    *out = (Seen){.files = must_strdup(""),
                  .evaluations = must_strdup(""),
                  .code = ended.code,
                  .console = ended.text};
    char *checkpoints = text_format("%s/checkpoints", run),
         *samples = text_format("%s/samples.txt", run),
         *metrics = text_format("%s/metrics.jsonl", run),
         *events = text_format("%s/tensorboard", run);
    append_names(&out->files, ".");
    append_names(&out->files, run);
    append_names(&out->files, checkpoints);
    append_checkpoints(&out->files, checkpoints);
    append_names(&out->files, events);
    out->samples = contents(samples);
    out->plan = contents("plan");
    squeeze_blanks(out->console);
    out->wire = wire_lines(out->console);
    char *records = contents(metrics), *rest = records;
    for (char *line; (line = strsep(&rest, "\n")) != NULL;) {
        cJSON *record = cJSON_Parse(line);
        take_record(out, record);
        cJSON_Delete(record);
    }
    free(records);
    free(metrics);
    free(samples);
    free(events);
    free(checkpoints);
}

void seen_free(Seen *seen)
{
    free(seen->samples);
    free(seen->plan);
    free(seen->evaluations);
    free(seen->files);
    free(seen->wire);
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

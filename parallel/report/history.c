/* history.c -- reads metrics.jsonl line by line into lists of points. See history.h. */
#include "parallel/report/history.h"

#include "configs/config.h"
#include "model/core/check.h"
#include "model/core/fs.h"
#include "model/core/json_tree.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A line with more bytes than this is not read but counted as bad; this program does not write such
 * lines. */
enum { LINE_BYTES_MOST = 1 << 20 };
/* The largest number of sets in a history. A run that was resumed with different eval.sets may have
 * more in all than one config can have. */
enum { HISTORY_SETS_MOST = 4 * EVAL_SETS_MOST };

/* ---- lists of points --------------------------------------------------------------------------
 */

/* Makes room for one more item after `n` items, and returns the new array. The capacity is always a
 * power of two. */
static void *with_room(void *items, int64_t n, size_t size)
{
    if (n & (n - 1)) return items;
    return must_realloc(items, (n > 0 ? 2 * (size_t)n : 1) * size);
}

/* Returns how many of the `n` items come before `step`. An item has `size` bytes and begins with
 * its step. */
static int64_t count_before(const void *items, int64_t n, size_t size, int64_t step)
{
    for (; n > 0; n--) {
        int64_t at;
        memcpy(&at, (const char *)items + (size_t)(n - 1) * size, sizeof at);
        if (at < step) break;
    }
    return n;
}

/* Drops the points of a list from `step` on; `list` is the name of a member of History. */
#define DROP_FROM(h, list, step)                                                                   \
    ((h)->n_##list = count_before((h)->list, (h)->n_##list, sizeof *(h)->list, step))

/* Appends a point, and removes the list's points from its step on. */
#define ADD_POINT(h, list, point)                                                                  \
    (DROP_FROM(h, list, (point).step),                                                             \
     (h)->list = with_room((h)->list, (h)->n_##list, sizeof *(h)->list),                           \
     (h)->list[(h)->n_##list++] = (point))

static void drop_samples_from(History *h, int64_t step)
{
    int64_t all = h->n_sample;
    DROP_FROM(h, sample, step);
    for (int64_t i = h->n_sample; i < all; i++) {
        free(h->sample[i].prompt);
        free(h->sample[i].text);
    }
}

/* Drops all points from `step` on, because the run repeats these steps. */
static void drop_from(History *h, int64_t step)
{
    DROP_FROM(h, train, step);
    DROP_FROM(h, eval, step);
    for (int i = 0; i < h->n_sets; i++)
        DROP_FROM(&h->set[i], eval, step);
    DROP_FROM(h, speed, step);
    DROP_FROM(h, save, step);
    drop_samples_from(h, step);
}

/* ---- members of a line ------------------------------------------------------------------------
 */

static double number(const cJSON *line, const char *key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(line, key);
    return cJSON_IsNumber(item) && isfinite(item->valuedouble) ? item->valuedouble : NAN;
}

static const char *text(const cJSON *line, const char *key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(line, key);
    return cJSON_IsString(item) ? item->valuestring : "";
}

/* Returns the seconds under a key; a line without the key stands for zero seconds. */
static double seconds(const cJSON *line, const char *key)
{
    double value = number(line, key);
    return value > 0 ? value : 0;
}

/* ---- events -----------------------------------------------------------------------------------
 */

static bool add_train(History *h, const cJSON *line, int64_t step)
{
    TrainPoint p = {.step = step,
                    .loss = number(line, "loss"),
                    .lr = number(line, "lr"),
                    .grad_norm = number(line, "grad_norm"),
                    .loss_scale = number(line, "loss_scale")};
    if (!json_tree_count(line, "samples", &p.samples) ||
        !json_tree_count(line, "tokens", &p.tokens) ||
        !json_tree_count(line, "skipped", &h->skipped))
        return false;
    drop_from(h, step);
    ADD_POINT(h, train, p);
    return true;
}

static void add_eval(History *h, const cJSON *line, int64_t step)
{
    EvalPoint p = {
        .step = step, .loss = number(line, "loss"), .bits_per_byte = number(line, "bits_per_byte")};
    ADD_POINT(h, eval, p);
}

/* Returns the set with this name, and adds it if it is new. Returns NULL if there are too many
 * sets, or if the name is empty or too long. */
static SetHistory *set_called(History *h, const char *name)
{
    size_t bytes = strlen(name);
    for (int i = 0; i < h->n_sets; i++)
        if (strcmp(h->set[i].name, name) == 0) return &h->set[i];
    if (h->n_sets == HISTORY_SETS_MOST || bytes == 0 || bytes > EVAL_SET_NAME_MOST) return NULL;
    h->set = with_room(h->set, h->n_sets, sizeof *h->set);
    h->set[h->n_sets] = (SetHistory){.name = must_strdup(name)};
    return &h->set[h->n_sets++];
}

static bool add_set(History *h, const cJSON *line, int64_t step)
{
    SetHistory *set = set_called(h, text(line, "set"));
    if (set == NULL) return false;
    EvalPoint p = {
        .step = step, .loss = number(line, "loss"), .bits_per_byte = number(line, "bits_per_byte")};
    ADD_POINT(set, eval, p);
    return true;
}

/* Returns the part of the time in which rank 0 only communicated. NaN if it is not in the line: on
 * one rank, or without wall_clock_breakdown. */
static double exposed_part(const cJSON *line)
{
    static const char *const keys[] = {"communication", "exchange", "exposed_dp", "exposed_tp",
                                       "exposed_pp"};
    double all = number(line, "seconds"), sum = 0;
    if (!(number(line, "ranks") > 1) || !(all > 0)) return NAN;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        sum += seconds(line, keys[i]);
    return sum < all ? sum / all : 1;
}

static void add_speed(History *h, const cJSON *line, int64_t step)
{
    SpeedPoint p = {.step = step,
                    .tokens_per_second = number(line, "tokens_per_second"),
                    .exposed = exposed_part(line)};
    ADD_POINT(h, speed, p);
}

static void add_save(History *h, const cJSON *line, int64_t step)
{
    SavePoint p = {.step = step, .time = number(line, "t")};
    ADD_POINT(h, save, p);
}

static void add_sample(History *h, const cJSON *line, int64_t step)
{
    SamplePoint p = {.step = step,
                     .prompt = must_strdup(text(line, "prompt")),
                     .text = must_strdup(text(line, "text"))};
    drop_samples_from(h, step);
    ADD_POINT(h, sample, p);
}

/* Adds the figures of a line. Returns false if it is not a line of metrics.jsonl. */
static bool add_event(History *h, const cJSON *line)
{
    int64_t step;
    const char *event = text(line, "event");
    if (*event == '\0' || !json_tree_count(line, "step", &step) || step > CONFIG_MAX_STEPS)
        return false;
    if (strcmp(event, "train") == 0) return add_train(h, line, step);
    if (strcmp(event, "start") == 0) {
        drop_from(h, step + 1);
        json_tree_count(line, "train_steps", &h->train_steps);
    }
    if (strcmp(event, "val") == 0) add_eval(h, line, step);
    if (strcmp(event, "val_set") == 0) return add_set(h, line, step);
    if (strcmp(event, "speed") == 0) add_speed(h, line, step);
    if (strcmp(event, "ckpt") == 0) add_save(h, line, step);
    if (strcmp(event, "sample") == 0) add_sample(h, line, step);
    return true;
}

/* ---- the file ---------------------------------------------------------------------------------
 */

/* Reads a line without its line feed. Sets *bytes to its length, and keeps no more than
 * LINE_BYTES_MOST bytes in `line`. Returns false if the file ends first. */
static bool read_line(FILE *from, char *line, int64_t *bytes)
{
    int c;
    for (*bytes = 0; (c = getc_unlocked(from)) != EOF && c != '\n'; ++*bytes)
        if (*bytes < LINE_BYTES_MOST) line[*bytes] = (char)c;
    return c == '\n';
}

void history_read_stream(History *h, FILE *from)
{
    char *line = must_alloc(LINE_BYTES_MOST);
    int64_t bytes;
    *h = (History){0};
    while (read_line(from, line, &bytes)) {
        cJSON *tree = bytes > LINE_BYTES_MOST ? NULL : json_tree_parse(line, (size_t)bytes);
        if (!add_event(h, tree)) h->bad_lines++;
        cJSON_Delete(tree);
    }
    free(line);
}

/* Opens FOLDER/metrics.jsonl; returns NULL and sets err on failure. */
static FILE *open_metrics(const char *folder, const char *path, char *err, size_t n)
{
    struct stat st;
    int64_t bytes;
    if (stat(folder, &st) != 0 && errno == ENOENT) {
        error_set(err, n, "there is no folder %s", folder);
        return NULL;
    }
    if (access(path, F_OK) != 0 && (errno == ENOENT || errno == ENOTDIR)) {
        error_set(err, n, "%s has no metrics.jsonl; it is not the folder of a run", folder);
        return NULL;
    }
    int fd = fs_open_file(AT_FDCWD, path, path, &bytes, err, n);
    return fd < 0 ? NULL : fdopen(fd, "r");
}

bool history_read(History *h, const char *folder, char *err, size_t n)
{
    char *path = text_format("%s/metrics.jsonl", folder);
    FILE *from = open_metrics(folder, path, err, n);
    bool good = from != NULL;
    *h = (History){0};
    if (good) {
        history_read_stream(h, from);
        good = !ferror(from) || error_set(err, n, "cannot read %s: %s", path, strerror(errno));
        fclose(from);
    }
    free(path);
    return good;
}

void history_free(History *h)
{
    drop_from(h, 0);
    for (int i = 0; i < h->n_sets; i++) {
        free(h->set[i].name);
        free(h->set[i].eval);
    }
    free(h->set);
    free(h->train);
    free(h->eval);
    free(h->speed);
    free(h->save);
    free(h->sample);
    *h = (History){0};
}

/* result.c -- converts the final figures of a run to result.json and back. */
#include "parallel/run/result.h"

#include "model/core/check.h"
#include "model/core/json_tree.h"

#include <math.h>
#include <stdlib.h>

static void add_set(cJSON *sets, const SetResult *set)
{
    cJSON *o = cJSON_AddObjectToObject(sets, set->name);
    cJSON_AddNumberToObject(o, "loss", set->loss);
    if (!isnan(set->bits_per_byte)) cJSON_AddNumberToObject(o, "bits_per_byte", set->bits_per_byte);
    cJSON_AddNumberToObject(o, "targets", (double)set->targets);
}

char *run_result_text(const RunResult *r)
{
    cJSON *o = cJSON_CreateObject();
    cJSON_AddNumberToObject(o, "steps", (double)r->steps);
    cJSON_AddNumberToObject(o, "tokens", (double)r->tokens);
    cJSON_AddNumberToObject(o, "loss", r->loss);
    if (!isnan(r->val_loss)) cJSON_AddNumberToObject(o, "val_loss", r->val_loss);
    if (!isnan(r->bits_per_byte)) cJSON_AddNumberToObject(o, "bits_per_byte", r->bits_per_byte);
    if (r->batches < r->all_batches) {
        cJSON_AddNumberToObject(o, "val_batches", (double)r->batches);
        cJSON_AddNumberToObject(o, "val_all_batches", (double)r->all_batches);
    }
    if (r->patience > 0) cJSON_AddNumberToObject(o, "patience", (double)r->patience);
    if (r->best_step > 0) {
        cJSON_AddNumberToObject(o, "best_step", (double)r->best_step);
        cJSON_AddNumberToObject(o, "best_val_loss", r->best_val_loss);
    }
    cJSON *sets = r->n_sets > 0 ? cJSON_AddObjectToObject(o, "sets") : NULL;
    for (int i = 0; i < r->n_sets; i++)
        add_set(sets, &r->set[i]);
    if (r->sample) {
        cJSON_AddStringToObject(o, "prompt", r->prompt);
        cJSON_AddStringToObject(o, "sample", r->sample);
    }
    char *text = cJSON_Print(o);
    cJSON_Delete(o);
    return text;
}

static double number_of(const cJSON *object, const char *key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    return cJSON_IsNumber(item) ? item->valuedouble : NAN;
}

static char *copy_of(const cJSON *object, const char *key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    return cJSON_IsString(item) ? must_strdup(item->valuestring) : NULL;
}

/* Reads the sets, except those without a number of targets. */
static void read_sets(RunResult *r, const cJSON *sets)
{
    if (!cJSON_IsObject(sets)) return;
    r->set = must_calloc((size_t)cJSON_GetArraySize(sets) + 1, sizeof *r->set);
    for (const cJSON *s = sets->child; s != NULL; s = s->next) {
        SetResult set = {.loss = number_of(s, "loss"),
                         .bits_per_byte = number_of(s, "bits_per_byte")};
        if (!json_tree_count(s, "targets", &set.targets)) continue;
        set.name = must_strdup(s->string);
        r->set[r->n_sets++] = set;
    }
}

bool run_result_parse(RunResult *r, const char *text, size_t bytes)
{
    cJSON *o = json_tree_parse(text, bytes);
    *r = (RunResult){.loss = number_of(o, "loss"),
                     .val_loss = number_of(o, "val_loss"),
                     .bits_per_byte = number_of(o, "bits_per_byte")};
    /* Older programs wrote -1 if the number was unknown. */
    if (r->bits_per_byte < 0) r->bits_per_byte = NAN;
    bool good = json_tree_count(o, "steps", &r->steps) && json_tree_count(o, "tokens", &r->tokens);
    /* best_step and best_val_loss are valid only together. Older programs wrote neither. */
    r->best_val_loss = number_of(o, "best_val_loss");
    if (isnan(r->best_val_loss) || !json_tree_count(o, "best_step", &r->best_step)) {
        r->best_step = 0;
        r->best_val_loss = NAN;
    }
    if (!json_tree_count(o, "patience", &r->patience)) r->patience = 0;
    if (!json_tree_count(o, "val_batches", &r->batches) ||
        !json_tree_count(o, "val_all_batches", &r->all_batches))
        r->batches = r->all_batches = 0;
    if (good) {
        r->prompt = copy_of(o, "prompt");
        r->sample = copy_of(o, "sample");
        read_sets(r, cJSON_GetObjectItemCaseSensitive(o, "sets"));
    } else {
        *r = (RunResult){0};
    }
    cJSON_Delete(o);
    return good;
}

void run_result_free(RunResult *r)
{
    free(r->prompt);
    free(r->sample);
    for (int i = 0; i < r->n_sets; i++)
        free(r->set[i].name);
    free(r->set);
    *r = (RunResult){0};
}

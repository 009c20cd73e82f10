/* suggest.c -- suggests the key or value that the user probably meant by a misspelt one, by
 * Damerau-Levenshtein distance over the tables and by the names that other programs use. */
#include "configs/reader/options.h"
#include "model/core/nearest.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

/* Names that other trainers use. A name here is compared with a key's last part, in any section,
 * and with the whole key. */
static const struct {
    const char *alias, *key;
} aliases[] = {
    {"learning_rate", "optimizer.params.lr"},
    {"max_lr", "optimizer.params.lr"},
    {"batch_size", "train_batch_size"},
    {"global_batch_size", "train_batch_size"},
    {"total_batch_size", "train_batch_size"},
    {"micro_batch_size", "train_micro_batch_size_per_gpu"},
    {"train_micro_batch_size", "train_micro_batch_size_per_gpu"},
    {"per_device_train_batch_size", "train_micro_batch_size_per_gpu"},
    {"device_batch_size", "train_micro_batch_size_per_gpu"},
    {"grad_accum_steps", "gradient_accumulation_steps"},
    {"accumulation_steps", "gradient_accumulation_steps"},
    {"max_steps", "train_steps"},
    {"num_steps", "train_steps"},
    {"max_iters", "train_steps"},
    {"train_iters", "train_steps"},
    {"num_iterations", "train_steps"},
    {"max_tokens", "train_tokens"},
    {"num_tokens", "train_tokens"},
    {"total_tokens", "train_tokens"},
    {"n_layer", "model.num_layers"},
    {"n_layers", "model.num_layers"},
    {"num_hidden_layers", "model.num_layers"},
    {"n_embd", "model.hidden_size"},
    {"d_model", "model.hidden_size"},
    {"dim", "model.hidden_size"},
    {"n_head", "model.num_attention_heads"},
    {"n_heads", "model.num_attention_heads"},
    {"num_heads", "model.num_attention_heads"},
    {"n_kv_heads", "model.num_key_value_heads"},
    {"num_query_groups", "model.num_key_value_heads"},
    {"kv_channels", "model.head_dim"},
    {"d_ff", "model.intermediate_size"},
    {"ffn_hidden_size", "model.intermediate_size"},
    {"layer_norm_epsilon", "model.norm_epsilon"},
    {"rms_norm_eps", "model.norm_epsilon"},
    {"rope_type", "model.rope_scaling.type"},
    {"init_std", "model.initializer_range"},
    {"block_size", "data.seq_length"},
    {"sequence_length", "data.seq_length"},
    {"max_seq_len", "data.seq_length"},
    {"context_length", "data.seq_length"},
    {"seq_len", "data.seq_length"},
    {"max_seq_length", "data.seq_length"},
    {"n_ctx", "data.seq_length"},
    {"dataset", "data.text"},
    {"beta1", "optimizer.params.betas"},
    {"beta2", "optimizer.params.betas"},
    {"adam_beta1", "optimizer.params.betas"},
    {"adam_beta2", "optimizer.params.betas"},
    {"wd", "optimizer.params.weight_decay"},
    {"grad_clip", "gradient_clipping"},
    {"clip_grad", "gradient_clipping"},
    {"max_grad_norm", "gradient_clipping"},
    {"warmup_steps", "scheduler.params.warmup_num_steps"},
    {"warmup_iters", "scheduler.params.warmup_num_steps"},
    {"lr_scheduler", "scheduler.type"},
    {"lr_scheduler_type", "scheduler.type"},
    {"log_interval", "steps_per_print"},
    {"eval_interval", "eval.interval"},
    {"eval_steps", "eval.interval"},
    {"save_interval", "checkpoint.save_interval"},
    {"save_steps", "checkpoint.save_interval"},
    {"gradient_checkpointing", "activation_checkpointing.policy"},
    {"recompute", "activation_checkpointing.policy"},
    {"data_parallel_size", "parallel.data"},
    {"zero_stage", "zero_optimization.stage"},
    {"tensor_model_parallel_size", "parallel.tensor"},
    {"pipeline_model_parallel_size", "parallel.pipeline"},
    {"virtual_pipeline_model_parallel_size", "parallel.pipeline_chunks"},
    {"tp_size", "parallel.tensor"},
    {"pp_size", "parallel.pipeline"},
    {"tp", "parallel.tensor"},
    {"pp", "parallel.pipeline"},
    {"dp", "parallel.data"},
    {"sp", "parallel.sequence_parallel"},
    {"chunks", "parallel.pipeline_chunks"},
    {"split", "parallel.pipeline_split"},
    {"num_stages", "parallel.pipeline"},
    {"partition_method", "pipeline.partition"},
    {"tensor_parallel_size", "parallel.tensor"},
    {"pipeline_parallel_size", "parallel.pipeline"},
    {"tensor_parallel.enabled", "parallel.tensor"},
};

/* Returns key number `i` of the option table and the table of known keys taken together. Options
 * come first, so that one of this program's own keys wins a tie. */
static const char *key_of(int i)
{
    return i < option_count ? option_table[i].key : known_table[i - option_count].key;
}

/* Kinds of JSON values, as a bit set. */
enum { BOOLS = 1, NUMBERS = 2, STRINGS = 4, LISTS = 8, OBJECTS = 16, ANY_KIND = 31 };

static unsigned kind_of_value(const cJSON *value)
{
    return value == NULL || cJSON_IsNull(value) ? ANY_KIND
           : cJSON_IsBool(value)                ? BOOLS
           : cJSON_IsNumber(value)              ? NUMBERS
           : cJSON_IsString(value)              ? STRINGS
           : cJSON_IsArray(value)               ? LISTS
                                                : OBJECTS;
}

static unsigned kinds_of_option(const Option *option)
{
    static const unsigned kinds[] = {
        [OPTION_BOOL] = BOOLS,     [OPTION_INT] = NUMBERS,    [OPTION_NUMBER] = NUMBERS,
        [OPTION_BETAS] = LISTS,    [OPTION_STRING] = STRINGS, [OPTION_STRINGS] = STRINGS | LISTS,
        [OPTION_INTEGERS] = LISTS, [OPTION_CHOICE] = STRINGS, [OPTION_SETS] = OBJECTS,
    };
    return kinds[option->type] | (option->flags & OPTION_AUTO ? STRINGS : 0) |
           (option->flags & OPTION_BOOL_INT ? BOOLS : 0);
}

/* Returns the kinds of values that key number `i` of both tables takes. */
static unsigned kinds_of_key(int i)
{
    if (i < option_count) return kinds_of_option(&option_table[i]);
    const KnownKey *known = &known_table[i - option_count];
    char example = known_example(known)[0];
    switch (known->kind) {
    case KNOWN_SWITCH:
    case KNOWN_ON_SWITCH:
    case KNOWN_TOOL:
    case KNOWN_DEEP_SWITCH:
    case KNOWN_TREE: return OBJECTS;
    case KNOWN_SHORT: return OBJECTS | BOOLS;
    case KNOWN_ALIAS: return kinds_of_option(&option_table[option_find(known->stands_for)]);
    case KNOWN_IGNORED:
        return example == '"' ? STRINGS : example == 't' || example == 'f' ? BOOLS : NUMBERS;
    case KNOWN_QUIET:
    case KNOWN_UNBUILT:
    case KNOWN_WRONG: break;
    }
    return ANY_KIND;
}

/* Finds the most similar names among the keys and sections directly inside a section, which is the
 * first n bytes of `key`, that take a value of these kinds. Two equally similar names are both
 * returned. Returns the edit distance. */
static int nearest_sibling(const char *key, size_t n, unsigned kinds, Suggestion *near)
{
    const char *word = key + n;
    int best = EDIT_FAR;
    *near = (Suggestion){{0}, {0}};
    /* DeepSpeed keys that are not implemented are included: spelt correctly, they get an error of
     * their own. */
    for (int i = 0; i < option_count + known_count; i++) {
        const char *other = key_of(i);
        if (strncmp(other, key, n) != 0) continue;
        char name[EDIT_FAR];
        size_t length = strcspn(other + n, ".");
        unsigned takes = other[n + length] == '.' ? OBJECTS : kinds_of_key(i);
        snprintf(name, sizeof name, "%.*s", (int)length, other + n);
        int d = edit_distance(word, name);
        if (d > best || d == 0 || (takes & kinds) == 0) continue;
        if (d < best) {
            snprintf(near->key, sizeof near->key, "%s", name);
            near->other[0] = '\0';
        } else if (near->other[0] == '\0' && strcmp(near->key, name) != 0)
            snprintf(near->other, sizeof near->other, "%s", name);
        best = d;
    }
    return best;
}

bool suggest_is_near(const char *word, const char *name)
{
    return edit_distance(word, name) <= edit_tolerance(word);
}

bool suggest_sibling(const char *key, const cJSON *value, Suggestion *near)
{
    const char *dot = strrchr(key, '.'), *word = dot ? dot + 1 : key;
    size_t section = (size_t)(word - key);
    /* Keys that take a value of this kind (number, string, list, ...) are tried first: they are
     * more likely. */
    return nearest_sibling(key, section, kind_of_value(value), near) <= edit_tolerance(word) ||
           nearest_sibling(key, section, ANY_KIND, near) <= edit_tolerance(word);
}

const char *suggest_alias(const char *key)
{
    const char *dot = strrchr(key, '.'), *word = dot ? dot + 1 : key;
    for (size_t i = 0; i < sizeof aliases / sizeof *aliases; i++)
        if (strcmp(aliases[i].alias, word) == 0 || strcmp(aliases[i].alias, key) == 0)
            return aliases[i].key;
    return NULL;
}

void suggest_key(const char *key, const cJSON *value, Suggestion *near)
{
    const char *dot = strrchr(key, '.'), *word = dot ? dot + 1 : key, *own = suggest_alias(key);
    /* A typing error in the right section is most likely, then another program's name for the key,
     * then the right name in the wrong section. */
    if (suggest_sibling(key, value, near)) return;
    *near = (Suggestion){{0}, {0}};
    snprintf(near->key, sizeof near->key, "%s", own ? own : "");
    if (own != NULL) return;
    /* Compare with the last parts of all keys that take a value of this kind, in any section. */
    int best = edit_tolerance(word) + 1;
    for (int i = 0; i < option_count + known_count && best > 0; i++) {
        const char *other = key_of(i), *last = strrchr(other, '.');
        int d = edit_distance(word, last ? last + 1 : other);
        if (d >= best || (kinds_of_key(i) & kind_of_value(value)) == 0) continue;
        best = d;
        snprintf(near->key, sizeof near->key, "%s", other);
    }
}

void suggest_path(const char *key, char *out, size_t n)
{
    Suggestion found;
    const char *dot = strrchr(key, '.'), *near = found.key;
    suggest_key(key, NULL, &found);
    /* suggest_key returns either a whole key, or only the last part of a key that is in the same
     * section as `key`. So the section is put before it first; if that is no existing key, it was a
     * whole key. */
    snprintf(out, n, "%.*s%s", dot && near[0] ? (int)(dot + 1 - key) : 0, key, near);
    if (option_find(out) < 0 && known_find(out) < 0 && !option_is_section(out))
        snprintf(out, n, "%s", near);
}

const char *suggest_choice(const Choice *choices, const char *value)
{
    const char *near = NULL;
    /* Choices are short words. The shorter the word, the fewer wrong letters are allowed. */
    int best = 1 + (strlen(value) > 3) + (strlen(value) > 5);
    for (const Choice *c = choices; c->name != NULL; c++) {
        if (c->value >= 0 && strcasecmp(value, c->name) == 0) return c->name;
        int d = edit_distance(value, c->name);
        if (c->value < 0 || d >= best || d >= (int)strlen(c->name)) continue;
        best = d;
        near = c->name;
    }
    return near;
}

/* print.c -- prints a Config as JSON, with the origin of each value or plain, and lists the keys in
 * which two Configs differ. */
#include "configs/reader/print.h"
#include "configs/reader/load.h"
#include "model/core/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Returns the length of the sections that two keys have in common, including the last dot. */
static size_t common_sections(const char *a, const char *b)
{
    size_t same = 0;
    for (size_t i = 0; a[i] != '\0' && a[i] == b[i]; i++)
        if (a[i] == '.') same = i + 1;
    return same;
}

/* Returns the number of sections in the first n bytes of a key. */
static int depth_of(const char *key, size_t n)
{
    int depth = 0;
    for (size_t i = 0; i < n; i++)
        depth += key[i] == '.';
    return depth;
}

/* Begins a line. Plain JSON has a comma between two lines. Otherwise every line ends with a comma,
 * so that no line depends on whether another one follows. */
static void begin_line(Printer *p, int indent)
{
    if (p->plain) fprintf(p->to, p->first ? "\n" : ",\n");
    fprintf(p->to, "%*s", indent, "");
    p->first = false;
}

int print_section(Printer *p, const char *key)
{
    size_t same = common_sections(p->last, key);
    for (int d = depth_of(p->last, strlen(p->last)); d > depth_of(key, same); d--)
        fprintf(p->to, p->plain ? "\n%*s}" : "%*s},\n", 2 * d, "");
    int d = depth_of(key, same) + 1;
    for (const char *dot = strchr(key + same, '.'); dot != NULL; dot = strchr(key + same, '.')) {
        begin_line(p, 2 * d++);
        fprintf(p->to, "\"%.*s\": {%s", (int)(dot - key - (long)same), key + same,
                p->plain ? "" : "\n");
        p->first = true;
        same = (size_t)(dot - key) + 1;
    }
    p->last = key;
    return 2 * d;
}

void print_end(Printer *p)
{
    print_section(p, "");
    fprintf(p->to, p->plain ? "\n}\n" : "}\n");
}

const char *print_leaf(const char *key)
{
    const char *dot = strrchr(key, '.');
    return dot ? dot + 1 : key;
}

/* Returns whether the value is printed only as a comment, and not at all in plain JSON. That is so
 * if it was derived from other keys and must be derived again when they change, such as the
 * schedule's lengths from train_steps. */
static bool is_shown_only(const Option *option, const Origin *origin)
{
    bool follows = option->flags & OPTION_FOLLOWS || strncmp(option->key, "scheduler.", 10) == 0;
    return origin->kind == ORIGIN_DERIVED && follows && !origin->automatic;
}

/* Prints one line: the key, its value and the value's origin. A value derived from "auto" is
 * printed as "auto", with the value in the comment. */
static void print_value(Printer *p, const Option *option, const Config *config)
{
    const Origin *origin = (const Origin *)config->provenance + (option - option_table);
    bool automatic =
        origin->kind == ORIGIN_DERIVED && origin->automatic && option->flags & OPTION_FOLLOWS;
    bool shown_only = is_shown_only(option, origin);
    if (p->plain && shown_only) return;
    char *value = option_text(option, config);
    int indent = print_section(p, option->key);
    begin_line(p, indent);
    int width = indent + fprintf(p->to, "%s\"%s\": %s", shown_only ? "// " : "",
                                 print_leaf(option->key), automatic ? "\"auto\"" : value);
    if (!p->plain)
        fprintf(p->to, ",%*s // %s%s%s\n", width < 55 ? 55 - width : 0, "", origin->text,
                automatic ? ": " : "", automatic ? value : "");
    free(value);
}

static void print_config(const Config *config, bool plain, FILE *to)
{
    Printer p = {.to = to, .plain = plain, .first = true, .last = ""};
    fprintf(to, plain ? "{" : "{\n");
    /* Stores the number of ranks. A key that begins with "_" is a comment, which no reader
     * refuses. */
    if (config->world > 0) {
        begin_line(&p, 2);
        fprintf(to, "\"_world\": %lld%s", (long long)config->world, plain ? "" : ",\n");
    }
    const char *shard = ((const Origin *)config->provenance)[option_find("parallel.shard")].alias;
    if (shard != NULL) {
        begin_line(&p, 2);
        fprintf(to, "\"_shard\": \"%s\"%s", shard, plain ? "" : ",\n");
    }
    for (int i = 0; i < option_count; i++)
        /* The params of another optimizer or scheduler would be refused when the text is read
         * again. */
        if (option_applies(&option_table[i], config)) print_value(&p, &option_table[i], config);
    print_end(&p);
}

void config_print(const Config *config, FILE *to)
{
    print_config(config, false, to);
}

void config_print_json(const Config *config, FILE *to)
{
    print_config(config, true, to);
}

char *config_text(const Config *config)
{
    char *text;
    size_t size;
    FILE *to = text_stream(&text, &size);
    config_print(config, to);
    fclose(to);
    return text;
}

/* Returns whether the two configs give the same number of steps, one as a ratio and one as a
 * number. */
static bool comes_to_the_same(const Option *option, const Config *was, const Config *now)
{
    if (option->settles == NULL) return false;
    /* A run that was started with a ratio may be resumed with the number of steps, or the
     * reverse. */
    const Option *steps = &option_table[option_find(option->settles)];
    char *a = option_text(steps, was), *b = option_text(steps, now);
    bool same = option_applies(steps, was) && option_applies(steps, now) && strcmp(a, b) == 0;
    free(a);
    free(b);
    return same;
}

/* Returns whether the option is a vocabulary size that one of the configs does not know yet,
 * because its data have not been opened. Either that config gives no size. Or its size is only a
 * limit for the tokenizer that will be trained on the text, and the other config has a smaller
 * size, which resulted from such a limit. */
static bool is_not_known(const Option *option, const Config *was, const Config *now)
{
    bool trained = option->offset == offsetof(Config, data.tokenizer_vocab_size);
    if (!trained && option->offset != offsetof(Config, model.vocab_size)) return false;
    if (!trained && (was->model.vocab_size == 0 || now->model.vocab_size == 0)) return true;
    if (was->settled == now->settled) return false;
    const Config *asked = was->settled ? now : was, *got = was->settled ? was : now;
    if (!config_trains_tokenizer(asked)) return false;
    if (!trained) return got->model.vocab_size < asked->model.vocab_size;
    return asked->data.tokenizer_vocab_at_most &&
           got->data.tokenizer_vocab_size < asked->data.tokenizer_vocab_size;
}

/* Returns which effect a change of the option from its value in `was` to that in `now` has on a
 * resumed run. */
static ConfigEffect effect_of_change(const Option *option, const Config *was, const Config *now)
{
    if ((option->flags & OPTION_STATE) == 0) return option->effect;
    double a = *(double *)option_field(option, was), b = *(double *)option_field(option, now);
    return (a > 0) != (b > 0) ? EFFECT_IMPOSSIBLE : option->effect;
}

/* Returns whether both values are derived from the devices of a machine. If they differ, the same
 * config was read on different machines, or without looking for devices. */
static bool is_of_machine(const Option *option, const Config *was, const Config *now)
{
    const Origin *a = (const Origin *)was->provenance + (option - option_table),
                 *b = (const Origin *)now->provenance + (option - option_table);
    return option->flags & OPTION_MACHINE && a->kind == ORIGIN_DERIVED && b->kind == ORIGIN_DERIVED;
}

/* Returns whether, in one of the configs, config_settle has yet to determine the value. */
static bool is_open(const Option *option, const Config *was, const Config *now)
{
    const Origin *a = (const Origin *)was->provenance + (option - option_table),
                 *b = (const Origin *)now->provenance + (option - option_table);
    return option->flags & OPTION_DEVICE &&
           (a->kind == ORIGIN_DEFAULT || b->kind == ORIGIN_DEFAULT);
}

int config_diff(const Config *was, const Config *now, ConfigDifference **out)
{
    int n = 0;
    *out = must_calloc((size_t)option_count, sizeof **out);
    for (int i = 0; i < option_count; i++) {
        const Option *option = &option_table[i];
        /* Skip keys that no optimizer, scheduler or RoPE scaling of the two configs reads. */
        if (!option_applies(option, was) && !option_applies(option, now)) continue;
        if (is_not_known(option, was, now) || is_of_machine(option, was, now) ||
            is_open(option, was, now))
            continue;
        char *a = option_text(option, was), *b = option_text(option, now);
        if (strcmp(a, b) != 0 && !comes_to_the_same(option, was, now)) {
            const Origin *origin = (const Origin *)now->provenance + i;
            (*out)[n++] = (ConfigDifference){.key = option->key,
                                             .effect = effect_of_change(option, was, now),
                                             .derived = origin->kind == ORIGIN_DERIVED,
                                             .was = a,
                                             .now = b};
            continue;
        }
        free(a);
        free(b);
    }
    return n;
}

void config_diff_free(ConfigDifference *differences, int n)
{
    for (int i = 0; i < n; i++) {
        free(differences[i].was);
        free(differences[i].now);
    }
    free(differences);
}

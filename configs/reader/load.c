/* load.c -- collects errors and notices with their positions, and records where each value came
 * from; see load.h. */
#include "configs/reader/load.h"

#include "configs/reader/eval_sets.h"

#include "model/core/check.h"
#include "model/core/utf8.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Makes user-provided text safe for a message: removes control characters and cuts it after 120
 * bytes. */
static char *presentable(const char *text)
{
    size_t n = strlen(text), kept = n > 120 ? 120 : n;
    /* Do not cut inside a UTF-8 character. */
    while (kept < n && kept > 0 && ((unsigned char)text[kept] & 0xc0u) == 0x80u)
        kept--;
    char *cut = text_format("%.*s%s", (int)kept, text, kept < n ? "..." : "");
    char *out = utf8_line(cut);
    free(cut);
    return out;
}

char *load_place_text(const Load *load, ConfigPlace place)
{
    const char *of = place.set ? load->sets[place.set - 1] : load->path ? load->path : "defaults";
    char *where = presentable(of), at[40] = "";
    if (place.line > 0) snprintf(at, sizeof at, ":%d:%d", place.line, place.column);
    char *text = text_format("%s%s%s", place.set ? "--set " : "", where, at);
    free(where);
    return text;
}

/* Returns the name of a key in messages, malloc'ed. If it was given under another name, it is
 * "alias (key)". */
static char *key_text(const Load *load, const char *key)
{
    int row = option_find(key);
    const char *alias = row >= 0 ? load->origin[row].alias : NULL;
    return alias ? text_format("%s (%s)", alias, key) : presentable(key);
}

static void add_finding(Load *load, FindingKind kind, ConfigPlace place, const char *key,
                        const char *fmt, va_list args)
{
    char sentence[1024];
    vsnprintf(sentence, sizeof sentence, fmt, args);
    char *where = load_place_text(load, place), *what = key_text(load, key);
    if (load->n_findings == load->capacity) {
        load->capacity = load->capacity ? 2 * load->capacity : 16;
        load->finding = must_realloc(load->finding, (size_t)load->capacity * sizeof *load->finding);
    }
    char *text = text_format("%s: %s%s%s%s", where, kind != FINDING_ERROR ? "notice: " : "", what,
                             *what ? ": " : "", sentence);
    load->finding[load->n_findings++] =
        (Finding){.kind = kind, .place = place, .key = must_strdup(key), .text = text};
    /* Errors are counted as they are added, because load_forget may remove some of them again. */
    load->n_errors += kind == FINDING_ERROR;
    free(where);
    free(what);
}

void load_error(Load *load, ConfigPlace place, const char *key, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    if (load->n_errors < LOAD_MAX_ERRORS) add_finding(load, FINDING_ERROR, place, key, fmt, args);
    va_end(args);
}

void load_notice(Load *load, ConfigPlace place, const char *key, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    add_finding(load, FINDING_NOTICE, place, key, fmt, args);
    va_end(args);
}

void load_idle(Load *load, ConfigPlace place, const char *key, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    /* A key on the command line always gets a visible notice. */
    add_finding(load, place.set > 0 ? FINDING_NOTICE : FINDING_IDLE, place, key, fmt, args);
    va_end(args);
}

void load_routine(Load *load, ConfigPlace place, const char *key, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    add_finding(load, FINDING_ROUTINE, place, key, fmt, args);
    va_end(args);
}

void load_remedy(Load *load, const char *fmt, ...)
{
    char *text;
    size_t size;
    va_list args;
    Finding *last = load->n_findings > 0 ? &load->finding[load->n_findings - 1] : NULL;
    /* At the limit, further errors are not recorded, so the last recorded error may not be the one
     * for which this remedy is. */
    if (last == NULL || last->kind != FINDING_ERROR || load->n_errors == LOAD_MAX_ERRORS) return;
    FILE *to = text_stream(&text, &size);
    va_start(args, fmt);
    vfprintf(to, fmt, args);
    va_end(args);
    fclose(to);
    free(last->remedy);
    last->remedy = text;
}

static void forget(Load *load, const char *key, bool errors)
{
    int kept = 0;
    /* The remaining findings must keep their order: the sort at the end does not restore it for
     * findings at the same position. */
    for (int i = 0; i < load->n_findings; i++) {
        Finding *f = &load->finding[i];
        if (strcmp(f->key, key) != 0 || (f->kind == FINDING_ERROR && !errors)) {
            load->finding[kept++] = *f;
            continue;
        }
        load->n_errors -= f->kind == FINDING_ERROR;
        free(f->key);
        free(f->text);
        free(f->remedy);
    }
    load->n_findings = kept;
}

void load_forget(Load *load, const char *key)
{
    forget(load, key, true);
}

void load_forget_notices(Load *load, const char *key)
{
    forget(load, key, false);
}

/* Defaults are stored in the table as JSON text and parsed like a value in a file. */
void load_default(Load *load, int row)
{
    const Option *option = &option_table[row];
    void *field = option_field(option, load->config);
    if (option->fallback != NULL) {
        Json json;
        char err[200];
        size_t at;
        bool read =
            json_parse(&json, option->fallback, strlen(option->fallback), err, sizeof err, &at);
        CHECK(read, "default of %s: %s", option->key, err);
        assign_field(load, &json, 0, row, (ConfigPlace){0});
        json_free(&json);
    } else if (option->type == OPTION_STRING) {
        /* The field may hold a string already: options are set to their defaults again when a --set
         * overrides them. */
        free(*(char **)field);
        *(char **)field = NULL;
    } else if (option->type == OPTION_STRINGS) {
        string_list_free(field);
    } else if (option->type == OPTION_INTEGERS) {
        free(((IntegerList *)field)->item);
        *(IntegerList *)field = (IntegerList){0};
    } else if (option->type == OPTION_SETS) {
        eval_sets_free(field);
    } else if (option->type == OPTION_INT) {
        /* A number below the allowed range, which no file can contain, means "not known". */
        *(int64_t *)field = option->min >= 1 ? 0 : -1;
    } else if (option->type == OPTION_NUMBER) {
        *(double *)field = -1;
    } else if (option->type == OPTION_BOOL) {
        *(bool *)field = false;
    } else if (option->type == OPTION_CHOICE) {
        *(int *)field = 0;
    }
}

static Origin *origin_of(const Load *load, const char *key)
{
    int row = option_find(key);
    CHECK(row >= 0, "no option is called %s", key);
    return &load->origin[row];
}

bool load_given(const Load *load, const char *key)
{
    return origin_given(origin_of(load, key));
}

bool load_automatic(const Load *load, const char *key)
{
    return origin_of(load, key)->automatic;
}

bool load_wrong(const Load *load, const char *key)
{
    return origin_of(load, key)->wrong;
}

bool load_any_wrong(const Load *load, const char *const *keys)
{
    for (; *keys != NULL; keys++)
        if (load_wrong(load, *keys)) return true;
    return false;
}

ConfigPlace load_place(const Load *load, const char *key)
{
    const Origin *origin = origin_of(load, key);
    /* A derived value has no position of its own, so the message points at the start of the
     * config. */
    bool somewhere = origin->place.set > 0 || origin->place.line > 0;
    return somewhere ? origin->place : load->root;
}

void load_derived(Load *load, const char *key)
{
    origin_of(load, key)->kind = ORIGIN_DERIVED;
}

void load_follow(Load *load, const char *key, int64_t *field, int64_t value)
{
    /* A given value is never overwritten, even if it contradicts others: the rules report that
     * later. */
    if (load_given(load, key) || value <= 0) return;
    *field = value;
    load_derived(load, key);
}

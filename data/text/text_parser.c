/* text_parser.c -- parses plain text and JSON lines piece by piece; see text_parser.h. */
#include "data/text/text_parser.h"

#include "model/core/check.h"
#include "model/core/files.h"
#include "model/core/json_tree.h"
#include "model/core/shell_text.h"
#include "model/core/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Returns whether name[0..size) ends with `ending`, and shortens *size by its length if so. */
static bool take_ending(const char *name, size_t *size, const char *ending)
{
    size_t length = strlen(ending);
    bool ends = *size >= length && memcmp(name + *size - length, ending, length) == 0;
    if (ends) *size -= length;
    return ends;
}

void text_parser_begin(TextParser *p, Text *text, const char *name, const TextOptions *options)
{
    size_t size = strlen(name);
    *p = (TextParser){.text = text, .name = name, .line = 1, .documents_before = text->n_documents};
    if (options) p->options = *options;
    if (p->options.text_key == NULL) p->options.text_key = "text";
    if (p->options.key_option == NULL) p->options.key_option = "--set data.text_key=";
    if (p->options.skip_option == NULL) p->options.skip_option = "--set data.skip_bad_lines=true";
    if (!take_ending(name, &size, ".gz")) take_ending(name, &size, ".zst");
    p->lines = take_ending(name, &size, ".jsonl") || take_ending(name, &size, ".json");
}

void text_parser_free(TextParser *p)
{
    free(p->kept);
    p->kept = NULL;
}

/* Removes the first `size` kept bytes. */
static void drop(TextParser *p, int64_t size)
{
    memmove(p->kept, p->kept + size, (size_t)(p->n_kept - size));
    p->n_kept -= size;
    p->at += size;
}

/* ---- plain text ------------------------------------------------------------------------------ */

/* Moves all complete characters to the text. The first bytes of an incomplete character are kept,
 * unless the file has ended. */
static bool parse_plain(TextParser *p, bool last, char *err, size_t n)
{
    enum { LONGEST = 4 }; /* bytes of a character */
    int64_t mark = 0;
    if (p->at == 0) {
        if (p->n_kept < 3 && !last) return true; /* the mark may still come */
        mark = text_mark_length(p->kept, p->n_kept);
        p->text->notes.marks += mark > 0;
    }
    int64_t valid = text_valid_bytes(p->kept, p->n_kept);
    bool cut = !last && p->n_kept - valid < LONGEST && p->n_kept > valid && p->kept[valid] != 0;
    if (valid < p->n_kept && !cut) return text_refuse_byte(p->name, p->at, p->kept, valid, err, n);
    if (!text_append(p->text, p->kept + mark, valid - mark, err, n)) return false;
    drop(p, valid);
    return true;
}

/* ---- JSON lines ------------------------------------------------------------------------------ */

static bool is_blank(const uint8_t *line, int64_t size)
{
    for (int64_t i = 0; i < size; i++)
        if (line[i] != ' ' && line[i] != '\t' && line[i] != '\r') return false;
    return true;
}

/* Sets `err` to an error that lists the keys of the line and says which option chooses one of
 * them. */
static bool refuse_key(const TextParser *p, const char *place, const cJSON *object, char *err,
                       size_t n)
{
    enum { SHOWN = 8 };
    char keys[400] = "";
    const cJSON *best = NULL;
    int count = 0;
    for (const cJSON *item = object->child; item != NULL; item = item->next, count++) {
        if (count == SHOWN) snprintf(keys + strlen(keys), sizeof keys - strlen(keys), ", ...");
        if (count < SHOWN)
            snprintf(keys + strlen(keys), sizeof keys - strlen(keys), "%s\"%.40s\"",
                     count ? ", " : "", item->string);
        /* The longest string is most likely the text. */
        if (cJSON_IsString(item) &&
            (best == NULL || strlen(item->valuestring) > strlen(best->valuestring)))
            best = item;
    }
    /* utf8_line makes this printable: `keys` may be cut inside a character, and keys may have
     * control characters. */
    char *shown = utf8_line(keys), *name = best ? utf8_line(best->string) : NULL;
    bool printable = best && strcmp(name, best->string) == 0;
    /* Quoted, because a key in the data may contain any characters. */
    char *word = printable ? shell_quoted(name) : NULL;
    if (best)
        error_set(err, n, "%s has no string called \"%s\"; it has %s%s%s%s", place,
                  p->options.text_key, shown, word ? ": write " : "",
                  word ? p->options.key_option : "", word ? word : "");
    else
        error_set(err, n, "%s has no string called \"%s\"; it has %s%s", place, p->options.text_key,
                  count ? shown : "no keys", count ? ", none of them a string" : "");
    free(shown);
    free(name);
    free(word);
    return false;
}

/* Returns the jq filter that converts a file with this first line to JSON lines; NULL if the line
 * is not the beginning of an array of objects or of an indented object. */
static const char *lines_filter(const uint8_t *line, int64_t size)
{
    int64_t at = 0;
    while (at < size && is_blank(line + at, 1))
        at++;
    if (at == size || (line[at] != '[' && line[at] != '{')) return NULL;
    const char *filter = line[at++] == '[' ? "'.[]'" : ".";
    while (at < size && is_blank(line + at, 1))
        at++;
    return at == size || (*filter != '.' && line[at] == '{') ? filter : NULL;
}

/* Sets `err` for a file of JSON that does not have one object per line: what the file is, and how
 * to convert it. */
static void refuse_document(const TextParser *p, const char *place, const char *filter, char *err,
                            size_t n)
{
    size_t size = strlen(p->name);
    const char *unpack = take_ending(p->name, &size, ".gz")    ? "gunzip -c "
                         : take_ending(p->name, &size, ".zst") ? "unzstd -c "
                                                               : NULL;
    /* The command must not overwrite the file that it reads. */
    bool taken = strcmp(path_name(p->name), "lines.jsonl") == 0;
    char *file = shell_quoted_path(p->name);
    error_set(err, n,
              "%s is not a JSON object, because the file is one JSON document; write one object "
              "per line: %s%s%sjq -c %s%s%s > %s",
              place, unpack ? unpack : "", unpack ? file : "", unpack ? " | " : "", filter,
              unpack ? "" : " ", unpack ? "" : file, taken ? "documents.jsonl" : "lines.jsonl");
    free(file);
}

/* Parses a line. Returns its object, and sets *found to the text in it; NULL, with `err` set, if
 * the line is bad. */
static cJSON *parse_line(const TextParser *p, const char *place, const uint8_t *line, int64_t size,
                         const cJSON **found, char *err, size_t n)
{
    int64_t valid = text_valid_bytes(line, size);
    *found = NULL;
    if (valid < size) {
        text_refuse_byte(place, p->at, line, valid, err, n);
        return NULL;
    }
    /* The JSON parser ends strings at NUL, so the rest of a text after \u0000 would be lost
     * silently. */
    if (json_has_nul((const char *)line, (size_t)size)) {
        error_set(err, n, "%s has the escape \\u0000, so this is not text", place);
        return NULL;
    }
    cJSON *object = json_tree_parse((const char *)line, (size_t)size);
    const char *filter = p->line == 1 ? lines_filter(line, size) : NULL;
    if (!cJSON_IsObject(object) && filter) {
        refuse_document(p, place, filter, err, n);
    } else if (!cJSON_IsObject(object)) {
        error_set(err, n, "%s is not a JSON object%s%s", place,
                  p->options.skip_bad_lines ? "" : "; to leave such lines out, write ",
                  p->options.skip_bad_lines ? "" : p->options.skip_option);
    } else {
        *found = cJSON_GetObjectItemCaseSensitive(object, p->options.text_key);
        if (cJSON_IsString(*found)) return object;
        refuse_key(p, place, object, err, n);
    }
    cJSON_Delete(object);
    return NULL;
}

/* Counts a bad line that is skipped. */
static void skip_line(TextParser *p, const char *why)
{
    TextNotes *notes = &p->text->notes;
    p->skipped++;
    if (notes->bad_lines++ == 0) notes->first_bad = must_strdup(why);
}

/* Adds the document of a line that is not blank. */
static bool add_line(TextParser *p, const uint8_t *line, int64_t size, char *err, size_t n)
{
    char *place = text_format("%s:%lld", p->name, (long long)p->line), why[1024];
    const cJSON *found;
    p->text->notes.lines++;
    cJSON *object = parse_line(p, place, line, size, &found, why, sizeof why);
    bool good = object != NULL;
    if (good) {
        good = text_add_document(p->text, place, 0, (const uint8_t *)found->valuestring,
                                 (int64_t)strlen(found->valuestring), err, n);
    } else if (p->options.skip_bad_lines) {
        skip_line(p, why);
        good = true;
    } else {
        error_set(err, n, "%s", why);
    }
    cJSON_Delete(object);
    free(place);
    return good;
}

/* Adds a document for every complete line. Bytes after the last line feed are kept, unless the file
 * has ended. */
static bool parse_lines(TextParser *p, bool last, char *err, size_t n)
{
    int64_t done = 0, start = p->at;
    if (start == 0) {
        if (p->n_kept < 3 && !last) return true; /* the mark may still come */
        done = text_mark_length(p->kept, p->n_kept);
        p->text->notes.marks += done > 0;
    }
    bool good = true;
    while (good && done < p->n_kept) {
        int64_t from = done > p->searched ? done : p->searched;
        const uint8_t *end = memchr(p->kept + from, '\n', (size_t)(p->n_kept - from));
        if (end == NULL && !last) break;
        int64_t size = (end ? end - p->kept : p->n_kept) - done;
        p->at = start + done; /* for the offsets in error messages */
        good = is_blank(p->kept + done, size) || add_line(p, p->kept + done, size, err, n);
        p->line++;
        done += size + (end != NULL);
        p->searched = done;
    }
    p->at = start;
    drop(p, done);
    p->searched = p->n_kept;
    return good;
}

/* ---- both ------------------------------------------------------------------------------------ */

static bool parse(TextParser *p, bool last, char *err, size_t n)
{
    return p->lines ? parse_lines(p, last, err, n) : parse_plain(p, last, err, n);
}

bool text_parser_add(TextParser *p, const void *bytes, int64_t size, char *err, size_t n)
{
    if (size == 0) return true;
    if (size > p->capacity - p->n_kept) {
        p->capacity = p->n_kept + size + p->n_kept / 2;
        p->kept = must_realloc(p->kept, (size_t)p->capacity);
    }
    memcpy(p->kept + p->n_kept, bytes, (size_t)size);
    p->n_kept += size;
    return parse(p, false, err, n);
}

bool text_parser_end(TextParser *p, char *err, size_t n)
{
    if (p->at == 0 && p->n_kept == 0) return error_set(err, n, "%s is empty", p->name);
    if (!parse(p, true, err, n)) return false;
    if (!p->lines)
        text_end_document(p->text);
    else if (p->text->n_documents == p->documents_before)
        return p->skipped == 0 ? error_set(err, n, "%s has no lines", p->name)
                               : error_set(err, n, "%s has no good line: %s", p->name,
                                           p->text->notes.first_bad);
    return true;
}

bool text_add_file(Text *text, const char *name, const char *contents, size_t size,
                   const TextOptions *options, char *err, size_t n)
{
    TextParser p;
    text_parser_begin(&p, text, name, options);
    bool good = text_parser_add(&p, contents, (int64_t)size, err, n) && text_parser_end(&p, err, n);
    text_parser_free(&p);
    return good;
}

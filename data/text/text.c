/* text.c -- reads plain text and JSON lines into documents, and finds where validation begins; see
 * text.h. */
#include "data/text/text.h"

#include "model/core/check.h"
#include "model/core/files.h"
#include "model/core/json_tree.h"
#include "model/core/utf8.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Makes room for a document of `more` bytes. */
static void reserve(Text *text, int64_t more)
{
    if (more > text->capacity - text->size || text->bytes == NULL) {
        text->capacity = 2 * text->size + more + 1; /* at least 1, so that bytes is never NULL */
        text->bytes = must_realloc(text->bytes, (size_t)text->capacity);
    }
    if (text->n_documents == text->documents_capacity) {
        text->documents_capacity = 2 * text->documents_capacity + 16;
        text->document_end = must_realloc(text->document_end, (size_t)text->documents_capacity *
                                                                  sizeof *text->document_end);
    }
}

void text_free(Text *text)
{
    free(text->bytes);
    free(text->document_end);
    *text = (Text){0};
}

/* Refuses NUL and invalid UTF-8. `base` is the offset of `bytes` in its file. */
static bool check_bytes(const char *place, int64_t base, const uint8_t *bytes, int64_t size,
                        char *err, size_t n)
{
    for (int64_t at = 0; at < size;) {
        uint32_t code;
        int length = utf8_decode(bytes + at, size - at, &code);
        if (length == 0)
            return error_set(err, n,
                             "%s: byte %lld (0x%02x) is not valid UTF-8; convert the file, for "
                             "example with iconv -f latin1 -t utf-8",
                             place, (long long)base + at, bytes[at]);
        if (code == 0)
            return error_set(err, n, "%s: byte %lld is NUL, so this is not text", place,
                             (long long)base + at);
        at += length;
    }
    return true;
}

/* Returns the length of the byte-order mark at the start, or 0 if there is none. */
static int64_t mark_length(const uint8_t *bytes, int64_t size)
{
    return size >= 3 && bytes[0] == 0xEF && bytes[1] == 0xBB && bytes[2] == 0xBF ? 3 : 0;
}

bool text_add_document(Text *text, const char *place, int64_t base, const uint8_t *bytes,
                       int64_t size, char *err, size_t n)
{
    if (!check_bytes(place, base, bytes, size, err, n)) return false;
    reserve(text, size);
    uint8_t *start = text->bytes + text->size, *to = start;
    /* Dropping bytes only makes the document shorter, so `size` bytes are enough. */
    for (int64_t i = mark_length(bytes, size); i < size; i++) {
        /* Some tools convert LF to CRLF twice, so drop every CR before an LF. */
        while (bytes[i] == '\n' && to > start && to[-1] == '\r')
            to--;
        *to++ = bytes[i];
    }
    text->size = to - text->bytes;
    text->document_end[text->n_documents++] = text->size;
    return true;
}

/* Adds the document of one JSON line: the string with the key `text_key`. */
static bool add_json_line(Text *text, const char *place, int64_t base, const char *line,
                          int64_t size, const char *text_key, char *err, size_t n)
{
    if (!check_bytes(place, base, (const uint8_t *)line, size, err, n)) return false;
    /* The JSON parser ends strings at NUL, so the rest of such a document would be lost
     * silently. */
    if (json_has_nul(line, (size_t)size))
        return error_set(err, n, "%s has the escape \\u0000, so this is not text", place);
    cJSON *object = json_tree_parse(line, (size_t)size);
    bool good = cJSON_IsObject(object);
    cJSON *found = good ? cJSON_GetObjectItemCaseSensitive(object, text_key) : NULL;
    if (!good)
        error_set(err, n, "%s is not a JSON object", place);
    else if (!cJSON_IsString(found))
        good = error_set(err, n, "%s has no string called \"%s\" (data.text_key)", place, text_key);
    else
        good = text_add_document(text, place, 0, (const uint8_t *)found->valuestring,
                                 (int64_t)strlen(found->valuestring), err, n);
    cJSON_Delete(object);
    return good;
}

static bool is_blank(const char *line, int64_t size)
{
    for (int64_t i = 0; i < size; i++)
        if (line[i] != ' ' && line[i] != '\t' && line[i] != '\r') return false;
    return true;
}

/* Adds a document for every line that is not blank. */
static bool add_json_lines(Text *text, const char *name, const char *contents, int64_t size,
                           const char *text_key, char *err, size_t n)
{
    int64_t at = mark_length((const uint8_t *)contents, size), before = text->n_documents;
    for (int64_t number = 1; at < size; number++) {
        const char *end = memchr(contents + at, '\n', (size_t)(size - at));
        int64_t length = (end ? end - contents : size) - at;
        if (!is_blank(contents + at, length)) {
            char *place = text_format("%s:%lld", name, (long long)number);
            bool good = add_json_line(text, place, at, contents + at, length, text_key, err, n);
            free(place);
            if (!good) return false;
        }
        at += length + 1;
    }
    if (text->n_documents == before) return error_set(err, n, "%s has no lines", name);
    return true;
}

static bool ends_with(const char *name, const char *ending)
{
    size_t a = strlen(name), b = strlen(ending);
    return a >= b && strcmp(name + a - b, ending) == 0;
}

static bool refuse_empty(const char *name, char *err, size_t n)
{
    return error_set(err, n, "%s is empty", name);
}

bool text_add_file(Text *text, const char *name, const char *contents, size_t size,
                   const char *text_key, char *err, size_t n)
{
    if (size == 0) return refuse_empty(name, err, n);
    if (ends_with(name, ".jsonl") || ends_with(name, ".json"))
        return add_json_lines(text, name, contents, (int64_t)size, text_key, err, n);
    return text_add_document(text, name, 0, (const uint8_t *)contents, (int64_t)size, err, n);
}

bool text_read_files(Text *text, const StringList *patterns, const char *text_key, char *err,
                     size_t n, ExitCode *code)
{
    StringList files;
    *code = EXIT_MISSING;
    if (!file_list(patterns, &files, err, n)) return false;
    bool good = true;
    for (int i = 0; good && i < files.count; i++) {
        char *contents;
        size_t size;
        *code = EXIT_MISSING;
        good = file_read(files.item[i], &contents, &size, NULL, err, n);
        if (!good) break;
        *code = EXIT_DAMAGED;
        good = text_add_file(text, files.item[i], contents, size, text_key, err, n);
        free(contents);
    }
    string_list_free(&files);
    return good;
}

bool text_check_files(const StringList *patterns, char *err, size_t n, ExitCode *code)
{
    StringList files;
    *code = EXIT_MISSING;
    if (!file_list(patterns, &files, err, n)) return false;
    bool good = true;
    for (int i = 0; good && i < files.count; i++) {
        size_t size = 0;
        good = file_check(files.item[i], &size, err, n);
        if (!good || size > 0) continue;
        *code = EXIT_DAMAGED;
        good = refuse_empty(files.item[i], err, n);
    }
    string_list_free(&files);
    return good;
}

int64_t text_split(const Text *text, double fraction)
{
    int64_t at = (int64_t)floor((1.0 - fraction) * (double)text->size);
    if (at <= 0) return 0;
    if (at >= text->size) return text->size;
    /* The end of a document counts as the end of a line, even without an LF. */
    int64_t document = 0, line = at;
    while (text->document_end[document] < at)
        document++;
    int64_t end = text->document_end[document];
    while (line < end && text->bytes[line - 1] != '\n')
        line++;
    if (line < text->size) return line;
    /* The rest is one line, so cut between two characters. */
    while (at < text->size && (text->bytes[at] & 0xC0) == 0x80)
        at++;
    return at;
}

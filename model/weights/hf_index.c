/* hf_index.c -- implements hf_index.h. */
#include "model/weights/hf_index.h"

#include "model/core/check.h"
#include "model/core/json_cursor.h"
#include "model/weights/safetensors.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_DEPTH = 16 };

static bool skip_value(JsonCursor *j, int depth);

static bool skip_string(JsonCursor *j)
{
    char *text = json_take_string(j);
    free(text);
    return text != NULL;
}

static bool skip_members(JsonCursor *j, bool object, int depth)
{
    char close = object ? '}' : ']';
    if (depth == MOST_DEPTH) return json_error(j, "values are nested too deeply");
    if (json_take(j, close)) return true;
    do {
        if (object && !(skip_string(j) && json_expect(j, ':'))) return false;
        if (!skip_value(j, depth + 1)) return false;
    } while (json_take(j, ','));
    return json_expect(j, close);
}

/* Skips a value of any kind. For a word or a number, only its characters are checked. */
static bool skip_value(JsonCursor *j, int depth)
{
    if (json_take(j, '{')) return skip_members(j, true, depth);
    if (json_take(j, '[')) return skip_members(j, false, depth);
    if (j->failed) return false;
    if (j->at < j->end && *j->at == '"') return skip_string(j);
    const char *from = j->at;
    while (j->at < j->end && *j->at != '\0' &&
           strchr("+-.0123456789abcdefghijklmnopqrstuvwxyzE", *j->at) != NULL)
        j->at++;
    return j->at > from || json_error(j, "a value is needed here");
}

static int by_tensor(const void *a, const void *b)
{
    return strcmp(((const HfIndexEntry *)a)->tensor, ((const HfIndexEntry *)b)->tensor);
}

/* Returns the number of the file in the list, and adds it if it is new. The last file is tried
 * first, because adjacent entries are usually in the same file. */
static int file_number(StringList *files, const char *name)
{
    for (int i = files->count; i-- > 0;)
        if (strcmp(files->item[i], name) == 0) return i;
    string_list_add(files, name);
    return files->count - 1;
}

static bool plain_file_name(const char *name)
{
    static const char ending[] = ".safetensors";
    size_t n = strlen(name), e = sizeof ending - 1;
    return safetensors_name_valid(name) && name[0] != '.' && n > e &&
           strcmp(name + n - e, ending) == 0;
}

enum { MOST_FILES = 1000, FIRST_CAPACITY = 256 };

static bool parse_entry(JsonCursor *j, HfIndex *out, int *capacity)
{
    char *tensor = json_take_string(j);
    char *file = tensor && json_expect(j, ':') ? json_take_string(j) : NULL;
    bool good = file != NULL;
    if (good && !safetensors_name_valid(tensor))
        good = json_error(j, "a tensor's name is not made of letters, digits, '.', '_' and '-'");
    if (good && !plain_file_name(file))
        good = json_error(j,
                          "%.40s is to be in \"%.80s\": only plain names of .safetensors files in "
                          "the same folder are read",
                          tensor, file);
    if (good && out->files.count == MOST_FILES) good = json_error(j, "too many files");
    if (good && out->n == *capacity) {
        *capacity = *capacity ? 2 * *capacity : FIRST_CAPACITY;
        out->entry = must_realloc(out->entry, (size_t)*capacity * sizeof *out->entry);
    }
    if (good)
        out->entry[out->n++] =
            (HfIndexEntry){.tensor = tensor, .file = file_number(&out->files, file)};
    else
        free(tensor);
    free(file);
    return good;
}

static bool parse_map(JsonCursor *j, HfIndex *out)
{
    int capacity = 0;
    if (!json_expect(j, '{')) return false;
    if (json_take(j, '}')) return json_error(j, "weight_map names no tensor");
    do {
        if (!parse_entry(j, out, &capacity)) return false;
    } while (json_take(j, ','));
    if (!json_expect(j, '}')) return false;
    qsort(out->entry, (size_t)out->n, sizeof *out->entry, by_tensor);
    for (int i = 1; i < out->n; i++)
        if (by_tensor(&out->entry[i - 1], &out->entry[i]) == 0)
            return json_error(j, "weight_map names %.80s twice", out->entry[i].tensor);
    return true;
}

static bool parse_all(JsonCursor *j, HfIndex *out)
{
    if (!json_expect(j, '{')) return false;
    if (json_take(j, '}')) return json_error(j, "there is no weight_map");
    do {
        char *key = json_take_string(j);
        if (key == NULL) return false;
        bool map = strcmp(key, "weight_map") == 0;
        free(key);
        if (!json_expect(j, ':')) return false;
        if (map && out->n > 0) return json_error(j, "weight_map is there twice");
        if (!(map ? parse_map(j, out) : skip_value(j, 0))) return false;
    } while (json_take(j, ','));
    if (!json_expect(j, '}') || !json_expect_end(j)) return false;
    return out->n > 0 || json_error(j, "there is no weight_map");
}

bool hf_index_parse(HfIndex *out, const char *text, size_t bytes, char *err, size_t n)
{
    JsonCursor j = {.start = text, .at = text, .end = text + bytes, .err = err, .n = n};
    *out = (HfIndex){0};
    if (parse_all(&j, out)) return true;
    hf_index_free(out);
    return false;
}

void hf_index_free(HfIndex *index)
{
    for (int i = 0; i < index->n; i++)
        free(index->entry[i].tensor);
    free(index->entry);
    string_list_free(&index->files);
    *index = (HfIndex){0};
}

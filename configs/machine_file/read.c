/* read.c -- reads a machine file and lists all that is wrong with it; see hardware.h. */
#include "configs/machine_file/keys.h"

#include "configs/reader/options.h"

#include "model/core/check.h"
#include "model/core/json.h"
#include "model/core/json_write.h"
#include "model/core/nearest.h"
#include "model/core/utf8.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* The state of reading one file. Positions (`at`) are offsets in its text. */
typedef struct {
    const char *path;
    Json json;
    Hardware *hardware;
    /* per key: 1 + the number of the JSON node of its value, or of its source; 0: it has none */
    int given[MACHINE_KEYS], source[MACHINE_KEYS];
    struct {
        size_t at;
        char *text;
    } mistake[2 * MACHINE_KEYS];
    int mistakes;
} Reading;

/* MANY: up to this many missing keys or sources are reported one by one. */
enum { MOST_MISTAKES = 2 * MACHINE_KEYS, MANY = 4 };

/* Records a mistake. Only the first MOST_MISTAKES are kept; a file that has more is hardly a
 * machine file. */
static void mistake(Reading *r, size_t at, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static void mistake(Reading *r, size_t at, const char *fmt, ...)
{
    char sentence[512];
    va_list args;
    if (r->mistakes == MOST_MISTAKES) return;
    va_start(args, fmt);
    utf8_format(sentence, sizeof sentence, fmt, args);
    va_end(args);
    r->mistake[r->mistakes].at = at;
    r->mistake[r->mistakes++].text = must_strdup(sentence);
}

static size_t value_at(const Reading *r, int node)
{
    return r->json.node[node].value_at;
}

/* Writes a string, a number, true, false or null as the user wrote it; of a list or an object, only
 * its type. */
static const char *shown(const Reading *r, int node, char out[72])
{
    const cJSON *item = r->json.node[node].item;
    const char *text = r->json.text + value_at(r, node);
    if (cJSON_IsString(item)) return json_quote(out, 64, item->valuestring);
    if (cJSON_IsNumber(item))
        snprintf(out, 72, "%.*s", (int)strspn(text, "0123456789+-.eE"), text);
    else
        snprintf(out, 72, "%s", json_kind(item));
    return out;
}

static void refuse(Reading *r, const MachineKey *key, int node)
{
    char given[72];
    if (machine_key_is_number(key))
        mistake(r, value_at(r, node), "%s: %s does not fit; write %s from %g to %g, such as %s",
                key->name, shown(r, node, given), key->unit, key->least, key->most, key->example);
    else
        mistake(r, value_at(r, node), "%s: %s does not fit; write %s", key->name,
                shown(r, node, given), key->unit);
}

static void set_number(Reading *r, const MachineKey *key, int node)
{
    const cJSON *item = r->json.node[node].item;
    char *field = (char *)r->hardware + key->at;
    int64_t whole = 0;
    bool fits = cJSON_IsNumber(item) && item->valuedouble >= key->least &&
                item->valuedouble <= key->most &&
                (key->type == KEY_NUMBER || json_integer(&r->json, node, &whole));
    if (!fits)
        refuse(r, key, node);
    else if (key->type == KEY_NUMBER)
        *(double *)(void *)field = item->valuedouble;
    else if (key->type == KEY_INT64)
        *(int64_t *)(void *)field = whole;
    else
        *(int *)(void *)field = (int)whole;
}

static void set_value(Reading *r, const MachineKey *key, int node)
{
    const char *text = cJSON_GetStringValue(r->json.node[node].item);
    if (machine_key_is_number(key)) {
        set_number(r, key, node);
    } else if (key->type == KEY_TEXT) {
        size_t length = text ? strlen(text) : 0;
        if (text == NULL || (double)length < key->least || (double)length > key->most)
            refuse(r, key, node);
        else
            memcpy((char *)r->hardware + key->at, text, length + 1);
    } else {
        r->hardware->cuda = text != NULL && strcmp(text, "cuda") == 0;
        if (text == NULL || (!r->hardware->cuda && strcmp(text, "cpu") != 0)) refuse(r, key, node);
    }
}

/* Reports a key that does not exist, or that occurs twice in the object `parent`. `row`: the key's
 * row in the table, or -1; `sources`: `parent` is the object `sources`. Returns whether it reported
 * an error. */
static bool is_mistaken(Reading *r, int parent, int node, int row, bool sources)
{
    const JsonNode *at = &r->json.node[node];
    char near[128], quoted[64];
    if (json_duplicate(&r->json, parent, node)) {
        mistake(r, at->key_at, "%s: the key is there twice; remove one",
                json_quote(quoted, sizeof quoted, at->item->string));
        return true;
    }
    if (row >= 0 && (!sources || machine_key_is_number(&machine_key[row]))) return false;
    did_you_mean(near, sizeof near,
                 nearest_name(at->item->string, machine_key, MACHINE_KEYS, sizeof *machine_key),
                 sources ? "sources has the keys of the file's numbers" : "remove it");
    mistake(r, at->key_at, "%s%s: unknown key%s", sources ? "sources." : "",
            json_quote(quoted, sizeof quoted, at->item->string), near);
    return true;
}

static void read_sources(Reading *r, int parent)
{
    const JsonNode *node = r->json.node;
    if (!cJSON_IsObject(node[parent].item)) {
        mistake(r, value_at(r, parent), "sources: %s does not fit; write an object",
                json_kind(node[parent].item));
        return;
    }
    for (int i = parent + 1; i < node[parent].end; i = node[i].end) {
        int row = machine_key_find(node[i].item->string);
        if (is_mistaken(r, parent, i, row, true)) continue;
        const char *text = cJSON_GetStringValue(node[i].item);
        if (text == NULL || text[strspn(text, " ")] == '\0')
            mistake(r, value_at(r, i), "sources.%s: write where the number is from, as a string",
                    machine_key[row].name);
        r->source[row] = 1 + i;
    }
}

/* Reports one mistake for many keys: their number, and the first of them. */
static void mistake_of_many(Reading *r, size_t at, const bool *concerns, int count,
                            const char *problem, const char *advice)
{
    enum { NAMED = 3 };
    char names[128] = "";
    for (int row = 0, named = 0; row < MACHINE_KEYS && named < NAMED; row++)
        if (concerns[row]) {
            size_t length = strlen(names);
            snprintf(names + length, sizeof names - length, "%s%s", named++ ? ", " : "",
                     machine_key[row].name);
        }
    mistake(r, at, "%d %s, such as %s; %s", count, problem, names, advice);
}

static void find_missing_keys(Reading *r)
{
    bool missing[MACHINE_KEYS];
    int count = 0;
    for (int row = 0; row < MACHINE_KEYS; row++)
        count += missing[row] = !r->given[row];
    if (count > MANY)
        mistake_of_many(r, value_at(r, 0), missing, count, "keys are missing",
                        "begin with the file that `./train bench machine` prints, or with a "
                        "preset of configs/machines");
    for (int row = 0; row < MACHINE_KEYS && count <= MANY; row++) {
        const MachineKey *key = &machine_key[row];
        if (missing[row])
            mistake(r, value_at(r, 0), "%s: the key is missing; write %s, such as \"%s\": %s",
                    key->name, key->unit, key->name, key->example);
    }
}

/* Reports numbers without a source. `sources`: the node of the object `sources`. */
static void find_missing_sources(Reading *r, int sources)
{
    bool missing[MACHINE_KEYS];
    int count = 0;
    for (int row = 0; row < MACHINE_KEYS; row++)
        count += missing[row] =
            r->given[row] && machine_key_is_number(&machine_key[row]) && !r->source[row];
    if (count > MANY)
        mistake_of_many(r, value_at(r, sources), missing, count, "numbers have no source",
                        "write where each is from, as \"sources\": {\"KEY\": \"...\"}");
    for (int row = 0; row < MACHINE_KEYS && count <= MANY; row++)
        if (missing[row])
            mistake(r, r->json.node[r->given[row] - 1].key_at,
                    "%s: the number has no source; write where it is from, as \"sources\": "
                    "{\"%s\": \"...\"}",
                    machine_key[row].name, machine_key[row].name);
}

/* Returns the offset, in the file's text, of the value of a key that is given. */
static size_t place_of(const Reading *r, const char *key)
{
    return value_at(r, r->given[machine_key_find(key)] - 1);
}

/* Reports numbers that are valid for a CPU, but not for a GPU. */
static void check_limits(Reading *r)
{
    for (int i = 0; i < MACHINE_KEYS; i++) {
        const MachineKey *key = &machine_key[i];
        char given[72];
        if (key->type != KEY_NUMBER) continue;
        HardwareLimits limits = machine_key_limits(key, r->hardware->cuda);
        double x = machine_key_number(r->hardware, key);
        if (x < limits.least || x > limits.most)
            mistake(r, place_of(r, key->name),
                    "%s: %s does not fit a GPU; write %s from %g to %g, such as %s", key->name,
                    shown(r, r->given[i] - 1, given), key->unit, limits.least, limits.most,
                    key->example);
    }
}

/* Checks numbers against each other. Called only if each number is valid by itself. */
static void check_together(Reading *r)
{
    const Hardware *h = r->hardware;
    if (h->cuda && h->device.capability == 0)
        mistake(r, place_of(r, "capability"),
                "capability: 0 is a CPU, but device is \"cuda\"; write 80 for an A100, 90 for an "
                "H100, or device \"cpu\"");
    if (h->cuda && h->device.bytes == 0)
        mistake(r, place_of(r, "device_bytes"),
                "device_bytes: 0 is a CPU, but device is \"cuda\"; write the bytes of a GPU's "
                "memory, or device \"cpu\"");
    if (!h->cuda && h->device.capability != 0)
        mistake(r, place_of(r, "capability"),
                "capability: a CPU has none; write 0, or device \"cuda\"");
    if (!h->cuda && h->device.bytes != 0)
        mistake(r, place_of(r, "device_bytes"),
                "device_bytes: a CPU's memory is host_bytes; write 0, or device \"cuda\"");
    if (!h->cuda && h->host_bandwidth != 0)
        mistake(r, place_of(r, "host_bandwidth"),
                "host_bandwidth: a CPU's memory is the host's; write 0, or device \"cuda\"");
    if (h->workspace_bytes > 0 && h->workspace_bytes >= (h->cuda ? h->device.bytes : h->host_bytes))
        mistake(r, place_of(r, "workspace_bytes"),
                "workspace_bytes: %lld are not less than the memory; write fewer",
                (long long)h->workspace_bytes);
    if (r->mistakes == 0) check_limits(r);
}

/* Returns whether the object has keys of a config, and none of a machine file other than `device`,
 * which both have. */
static bool is_config(const Reading *r)
{
    const JsonNode *node = r->json.node;
    int of_config = 0;
    for (int i = 1; i < node[0].end; i = node[i].end) {
        const char *key = node[i].item->string;
        bool both = option_find(key) >= 0 || option_is_section(key);
        if (!both && (machine_key_find(key) >= 0 || strcmp(key, "sources") == 0)) return false;
        of_config += both;
    }
    return of_config > 0;
}

/* Reports a document that is not a machine file at all. Returns whether it reported an error. */
static bool is_something_else(Reading *r)
{
    const cJSON *root = r->json.node[0].item;
    if (!cJSON_IsObject(root))
        mistake(r, value_at(r, 0), "%s is not a machine file; write an object: { ... }",
                json_kind(root));
    else if (is_config(r))
        mistake(r, value_at(r, 0),
                "this is a config, not a machine file; write the name of a preset of "
                "configs/machines, or a file that `./train bench machine` prints");
    return r->mistakes > 0;
}

static void read_root(Reading *r)
{
    const JsonNode *node = r->json.node;
    int sources = 0; /* 1 + the node of the object `sources`; 0: none */
    if (is_something_else(r)) return;
    for (int i = 1; i < node[0].end; i = node[i].end) {
        bool is_sources = strcmp(node[i].item->string, "sources") == 0;
        int row = is_sources ? 0 : machine_key_find(node[i].item->string);
        if (is_mistaken(r, 0, i, row, false)) continue;
        if (is_sources) {
            sources = 1 + i;
            read_sources(r, i);
        } else {
            r->given[row] = 1 + i;
            set_value(r, &machine_key[row], i);
        }
    }
    /* If the object `sources` is missing, this is the only error about sources. */
    if (!sources)
        mistake(r, value_at(r, 0),
                "sources: the key is missing; write an object that says of "
                "each number where it is from");
    find_missing_keys(r);
    if (sources && cJSON_IsObject(node[sources - 1].item)) find_missing_sources(r, sources - 1);
    if (r->mistakes == 0) check_together(r);
}

static int by_place(const void *a, const void *b)
{
    size_t x = *(const size_t *)a, y = *(const size_t *)b;
    return (x > y) - (x < y);
}

/* Writes the mistakes to `err`, sorted by position, one on each line, and frees them. */
static void print_mistakes(Reading *r, char *err, size_t n)
{
    char *text, *path = utf8_line(r->path);
    size_t bytes;
    FILE *to = text_stream(&text, &bytes);
    /* A stable insertion sort, so mistakes at the same position keep their order. It is fast
     * enough, because there are few mistakes. */
    for (int i = 1; i < r->mistakes; i++)
        for (int k = i; k > 0 && by_place(&r->mistake[k - 1].at, &r->mistake[k].at) > 0; k--) {
            size_t at = r->mistake[k].at;
            char *sentence = r->mistake[k].text;
            r->mistake[k] = r->mistake[k - 1];
            r->mistake[k - 1].at = at;
            r->mistake[k - 1].text = sentence;
        }
    for (int i = 0; i < r->mistakes; i++) {
        int line, column;
        json_place(&r->json, r->mistake[i].at, &line, &column);
        fprintf(to, "%s%s:%d:%d: %s", i ? "\n" : "", path, line, column, r->mistake[i].text);
        free(r->mistake[i].text);
    }
    fclose(to);
    error_set(err, n, "%s", text);
    free(text);
    free(path);
}

bool hardware_parse(Hardware *hardware, const char *path, const char *text, size_t length,
                    char *err, size_t n)
{
    Reading r = {.path = path, .hardware = hardware};
    size_t at = 0;
    char syntax[256];
    *hardware = (Hardware){0};
    if (!json_parse(&r.json, text, length, syntax, sizeof syntax, &at))
        mistake(&r, at, "%s", syntax);
    else
        read_root(&r);
    bool good = r.mistakes == 0;
    if (!good) print_mistakes(&r, err, n);
    json_free(&r.json);
    return good;
}

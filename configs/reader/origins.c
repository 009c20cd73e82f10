/* origins.c -- prints the value and the origin of every key as JSON, for the file next to a stored
 * config. */
#include "configs/reader/options.h"

#include "configs/reader/load.h"
#include "model/core/json_tree.h"

#include <stdlib.h>
#include <string.h>

/* Returns the origin that `earlier`, an object printed by config_print_origins, has for this key
 * and value; NULL if it has none. */
static const char *earlier_origin(const cJSON *earlier, const char *key, const char *value)
{
    const cJSON *entry = cJSON_GetObjectItemCaseSensitive(earlier, key);
    const cJSON *was = cJSON_GetObjectItemCaseSensitive(entry, "value");
    const cJSON *origin = cJSON_GetObjectItemCaseSensitive(entry, "origin");
    cJSON *now = json_tree_parse(value, strlen(value));
    bool same = was != NULL && now != NULL && cJSON_Compare(was, now, true);
    cJSON_Delete(now);
    return same && cJSON_IsString(origin) ? origin->valuestring : NULL;
}

void config_print_origins(const Config *config, const char *earlier, size_t bytes, FILE *to)
{
    const Origin *origin = config->provenance;
    cJSON *before = earlier ? json_tree_parse(earlier, bytes) : NULL;
    const char *separator = "{";
    for (int i = 0; i < option_count; i++) {
        const Option *option = &option_table[i];
        if (!option_applies(option, config)) continue;
        char *value = option_text(option, config);
        const char *kept = earlier_origin(before, option->key, value);
        fprintf(to, "%s\n  \"%s\": {\"value\": %s, \"origin\": ", separator, option->key, value);
        json_print_string(to, kept ? kept : origin[i].text);
        fprintf(to, "}");
        separator = ",";
        free(value);
    }
    fprintf(to, "\n}\n");
    cJSON_Delete(before);
}

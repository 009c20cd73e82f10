/* json_tree.c -- implements json_tree.h: cJSON with stricter checks. */
#include "model/core/json_tree.h"

#include <math.h>
#include <string.h>

bool json_has_nul(const char *text, size_t size)
{
    for (size_t i = 0; i + 5 < size; i++) {
        if (text[i] != '\\') continue;
        if (memcmp(text + i, "\\u0000", 6) == 0) return true;
        i++; /* skip the escaped character, which may be a backslash */
    }
    return false;
}

cJSON *json_tree_parse(const char *text, size_t size)
{
    const char *end = NULL;
    if (json_has_nul(text, size)) return NULL;
    cJSON *value = cJSON_ParseWithLengthOpts(text, size, &end, 0);
    if (value == NULL) return NULL;
    for (; end < text + size; end++)
        if (*end != ' ' && *end != '\t' && *end != '\r' && *end != '\n') {
            cJSON_Delete(value);
            return NULL;
        }
    return value;
}

bool json_tree_count(const cJSON *object, const char *key, int64_t *out)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    double x = cJSON_IsNumber(item) ? item->valuedouble : -1;
    if (!(x >= 0 && x <= 0x1p53) || x != floor(x)) return false;
    *out = (int64_t)x;
    return true;
}

/* json_parse.h -- cJSON, but nothing may follow the value, and no string may hold a NUL, at which C
 * would cut it. */
#ifndef MODEL_CORE_JSON_PARSE_H
#define MODEL_CORE_JSON_PARSE_H

#include <cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

/* Whether a text of JSON has the escape \u0000. */
static inline bool json_has_nul(const char *text, size_t size)
{
    for (size_t i = 0; i + 5 < size; i++) {
        if (text[i] != '\\') continue;
        if (memcmp(text + i, "\\u0000", 6) == 0) return true;
        i++; /* the escaped character, a backslash perhaps */
    }
    return false;
}

/* The one JSON value in text[0..size), white space around it allowed; NULL if it is anything else.
 * Free with cJSON_Delete. */
static inline cJSON *json_parse(const char *text, size_t size)
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

#endif

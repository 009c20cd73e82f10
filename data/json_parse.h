/* json_parse.h -- cJSON, but nothing may follow the value. */
#ifndef DATA_JSON_PARSE_H
#define DATA_JSON_PARSE_H

#include <cJSON.h>
#include <stddef.h>

/* The one JSON value in text[0..size), white space around it allowed; NULL if it is anything else.
 * Free with cJSON_Delete. */
static inline cJSON *json_parse(const char *text, size_t size)
{
    const char *end = NULL;
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

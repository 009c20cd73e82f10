/* utf8.c -- text from outside (paths, host names, drawn samples) as UTF-8; see utf8.h. */
#include "data/utf8.h"

#include "model/core/check.h"

#include <string.h>

char *utf8_clean(const char *text)
{
    size_t left = strlen(text), n = 0;
    char *clean = must_alloc(3 * left + 1);
    while (left > 0) {
        uint32_t code;
        int length = utf8_decode((const uint8_t *)text, (int64_t)left, &code);
        if (length > 0)
            memcpy(clean + n, text, (size_t)length);
        else
            memcpy(clean + n, "\xEF\xBF\xBD", 3);
        n += length > 0 ? (size_t)length : 3;
        text += length > 0 ? length : 1;
        left -= length > 0 ? (size_t)length : 1;
    }
    clean[n] = '\0';
    return clean;
}

char *utf8_line(const char *text)
{
    char *line = utf8_clean(text);
    for (char *c = line; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f) *c = '?';
    return line;
}

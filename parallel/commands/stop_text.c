/* stop_text.c -- see stop_text.h. */
#include "parallel/commands/stop_text.h"

#include "model/core/check.h"

#include <stdlib.h>
#include <string.h>

/* Returns the length of the longest stop text with which the held bytes end; 0: there is none. */
static size_t complete(const StopText *t)
{
    size_t longest = 0;
    for (int i = 0; i < t->stops->count; i++) {
        size_t n = strlen(t->stops->item[i]);
        if (n > longest && n <= t->count &&
            memcmp(t->held + t->count - n, t->stops->item[i], n) == 0)
            longest = n;
    }
    return longest;
}

/* Returns the length of the longest end of the held bytes with which a stop text begins. */
static size_t begun(const StopText *t)
{
    for (size_t from = 0; from < t->count; from++)
        for (int i = 0; i < t->stops->count; i++)
            if (strncmp(t->held + from, t->stops->item[i], t->count - from) == 0)
                return t->count - from;
    return 0;
}

size_t stop_text_add(StopText *t, const uint8_t *bytes, int64_t size)
{
    for (int64_t i = 0; i < size; i++) {
        if (t->count == t->capacity) {
            t->capacity = 2 * t->capacity + 64;
            t->held = must_realloc(t->held, t->capacity);
        }
        t->held[t->count++] = (char)bytes[i];
        size_t stop = complete(t);
        if (stop == 0) continue;
        t->found = true;
        return t->count - stop;
    }
    return t->count - begun(t);
}

void stop_text_drop(StopText *t, size_t n)
{
    t->count -= n;
    if (t->count > 0) memmove(t->held, t->held + n, t->count);
}

void stop_text_restart(StopText *t)
{
    t->count = 0;
    t->found = false;
}

void stop_text_free(StopText *t)
{
    free(t->held);
    *t = (StopText){0};
}

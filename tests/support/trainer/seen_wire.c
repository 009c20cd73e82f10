/* seen_wire.c -- finds rows and counts in the printed table of comms_logger. See seen_wire.h. */
#include "tests/support/trainer/seen_wire.h"

#include "model/core/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

char *seen_rows(const Seen *seen)
{
    char *rows = must_strdup(seen->wire);
    /* The first row "tp all-reduce f64 ..." counts the sum of the norm. */
    const char *end = strstr(rows, " f64 ");
    char *first = text_format("\n%.*s f64", end ? (int)(end - rows) : 0, rows),
         *again = strstr(rows, first);
    if (again != NULL) again[1] = '\0';
    free(first);
    return rows;
}

/* Parses a number with commas, such as "132,608". */
static int64_t number(const char **at)
{
    int64_t value = 0;
    while (**at == ' ')
        (*at)++;
    for (; (**at >= '0' && **at <= '9') || **at == ','; (*at)++)
        if (**at != ',') value = 10 * value + (**at - '0');
    return value;
}

SeenCount seen_count(const Seen *seen, const char *row)
{
    char *rows = seen_rows(seen), *with_line = text_format("\n%s", rows),
         *begin = text_format("\n%s ", row);
    const char *at = strstr(with_line, begin);
    SeenCount c = {0};
    if (at != NULL) {
        at += strlen(begin);
        c.calls = number(&at);
        c.elements = number(&at);
    }
    free(begin);
    free(with_line);
    free(rows);
    return c;
}

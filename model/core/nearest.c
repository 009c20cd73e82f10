/* nearest.c -- implements nearest.h with the Damerau-Levenshtein distance. */
#include "model/core/nearest.h"

#include <stdio.h>
#include <string.h>

#define LESSER(a, b) ((a) < (b) ? (a) : (b))

int edit_distance(const char *a, const char *b)
{
    int na = (int)strnlen(a, EDIT_FAR), nb = (int)strnlen(b, EDIT_FAR), d[3][EDIT_FAR + 1];
    if (na == EDIT_FAR || nb == EDIT_FAR) return EDIT_FAR;
    /* d[i][j] is the number of edits from the first i letters of a to the first j letters of b. A
     * row depends on the two rows before it (two because of swaps), so three rows are used in
     * rotation. */
    for (int j = 0; j <= nb; j++)
        d[0][j] = j;
    for (int i = 1; i <= na; i++) {
        int *row = d[i % 3], *above = d[(i + 2) % 3], *above2 = d[(i + 1) % 3];
        row[0] = i;
        for (int j = 1; j <= nb; j++) {
            int best = above[j - 1] + (a[i - 1] != b[j - 1]); /* letter kept or replaced */
            best = LESSER(best, above[j] + 1);                /* letter deleted */
            best = LESSER(best, row[j - 1] + 1);              /* letter inserted */
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                best = LESSER(best, above2[j - 2] + 1);
            row[j] = best;
        }
    }
    return d[na % 3][nb];
}

int edit_tolerance(const char *word)
{
    size_t n = strlen(word);
    return n <= 2 ? 0 : n <= 4 ? 1 : 2;
}

const char *nearest_name(const char *word, const void *rows, size_t count, size_t stride)
{
    const char *near = NULL;
    int best = edit_tolerance(word) + 1;
    for (size_t i = 0; i < count; i++) {
        const char *name = *(const char *const *)(const void *)((const char *)rows + i * stride);
        int d = edit_distance(word, name);
        if (d >= best) continue; /* among equally near names, the first wins */
        best = d;
        near = name;
    }
    return near;
}

const char *did_you_mean(char *buf, size_t n, const char *near, const char *advice)
{
    if (near)
        snprintf(buf, n, "; did you mean \"%s\"?", near);
    else
        snprintf(buf, n, "; %s", advice);
    return buf;
}

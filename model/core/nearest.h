/* nearest.h -- "did you mean ...?": the name that is nearest to a misspelt word. */
#ifndef MODEL_CORE_NEAREST_H
#define MODEL_CORE_NEAREST_H

#include <stddef.h>

/* Words of this length and more are not compared: they are this far from any other. */
enum { EDIT_FAR = 64 };

/* Edits (insert, delete, replace, swap of neighbours) from a to b. */
int edit_distance(const char *a, const char *b);
/* How many edits may be a slip in this word: two turn any short word into any other. */
int edit_tolerance(const char *word);

/* The nearest name within the word's tolerance, of `count` rows of `stride` bytes that begin with a
 * `const char *`, their name. NULL when none is near. */
const char *nearest_name(const char *word, const void *rows, size_t count, size_t stride);
/* "; did you mean "NAME"?" with that name, or "; " and the advice: the end of a sentence. */
const char *did_you_mean(char *buf, size_t n, const char *near, const char *advice);

#endif

/* nearest.h -- finds the known name that is nearest to a misspelt word, for "did you mean ...?". */
#ifndef MODEL_CORE_NEAREST_H
#define MODEL_CORE_NEAREST_H

#include <stddef.h>

/* Words of this length or longer are not compared; their distance counts as this value. */
enum { EDIT_FAR = 64 };

/* Returns the number of edits (insert, delete, replace, swap two neighbours) from a to b. */
int edit_distance(const char *a, const char *b);
/* Returns the largest number of edits that counts as a typing error in this word. It is smaller for
 * short words, because two edits can turn a short word into any other. */
int edit_tolerance(const char *word);

/* Returns the name nearest to `word`, or NULL if every name is more than edit_tolerance(word) edits
 * away. `rows` has `count` rows of `stride` bytes; each begins with a `const char *`, the name. */
const char *nearest_name(const char *word, const void *rows, size_t count, size_t stride);
/* Writes the end of an error message to buf and returns buf: "; did you mean "NAME"?" if `near` is
 * not NULL, otherwise "; " and the advice. */
const char *did_you_mean(char *buf, size_t n, const char *near, const char *advice);

#endif

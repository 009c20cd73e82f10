/* json_write.h -- writes strings and numbers as JSON. Callers print the brackets, commas and
 * keys. */
#ifndef MODEL_CORE_JSON_WRITE_H
#define MODEL_CORE_JSON_WRITE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* Prints `text` in quotes as valid JSON whatever its bytes are. Each invalid UTF-8 byte (in a path,
 * a host name or a cut sample) becomes U+FFFD. */
void json_print_string(FILE *to, const char *text);
/* Like json_print_string, but returns the text; the caller frees. */
char *json_string(const char *text);
/* Writes the quoted text to out[0..n), n >= 8, and returns out. A text that is too long is cut
 * between two characters and ends in "..." inside the quotes. Invalid UTF-8 bytes are kept. 6 *
 * strlen(text) + 3 bytes are always enough. */
char *json_quote(char *out, size_t n, const char *text);

/* Prints x with 17 significant digits, so that programs read back the same double. Prints null and
 * returns false if x is infinite or NaN. */
bool json_print_number(FILE *to, double x);
/* Writes x as the shortest number that reads back as x, for people to read. The decimal separator
 * is a point in every locale. */
void json_number(double x, char *out, size_t n);

#endif

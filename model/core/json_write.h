/* json_write.h -- strings and numbers as JSON. Whatever is between them, callers print. */
#ifndef MODEL_CORE_JSON_WRITE_H
#define MODEL_CORE_JSON_WRITE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* Writes `text` in quotes. Whatever its bytes, every reader takes it: what is no UTF-8 (a path, a
 * host's name, half a character at the end of a sample) becomes U+FFFD. */
void json_print_string(FILE *to, const char *text);
/* The same as a string; the caller frees. */
char *json_string(const char *text);
/* The same into out[0..n), n >= 8, cut at the end of the buffer between two characters, with "..."
 * inside the quotes; bytes that are no UTF-8 are kept. Six bytes for each of the text's and three
 * more are always enough. Returns out. */
char *json_quote(char *out, size_t n, const char *text);

/* x with 17 digits, in records: always as long, and so cheap. False, and null, for what JSON cannot
 * hold. */
bool json_print_number(FILE *to, double x);
/* x as the shortest number that reads back to it, for people; with a point whatever the locale. */
void json_number(double x, char *out, size_t n);

#endif

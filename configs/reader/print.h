/* print.h -- prints keys as nested sections of JSON; private to configs/. */
#ifndef CONFIGS_READER_PRINT_H
#define CONFIGS_READER_PRINT_H

#include <stdbool.h>
#include <stdio.h>

typedef struct {
    FILE *to;
    bool plain;       /* strict JSON: no comments, and commas only between values */
    bool first;       /* the next line is the first in its section */
    const char *last; /* the key printed last; "": none */
} Printer;

/* Closes the sections of the last key that do not contain `key`, opens those of `key` that are not
 * open, and returns the indentation for `key`. */
int print_section(Printer *p, const char *key);
/* Closes all sections and the object around them. */
void print_end(Printer *p);
/* Returns the key without its sections. */
const char *print_leaf(const char *key);

#endif

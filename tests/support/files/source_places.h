/* source_places.h -- lists the places in the program's sources that call a function, and finds the
 * place that a return address in the running program belongs to. Uses addr2line, so the program
 * must be built with line numbers. Source paths are relative to the current folder. */
#ifndef TESTS_SUPPORT_FILES_SOURCE_PLACES_H
#define TESTS_SUPPORT_FILES_SOURCE_PLACES_H

#include <stdbool.h>

/* The place of a call: file, line and calling function, such as "parallel/zero/reduce.c", 72 and
 * "reduce_bucket". */
typedef struct {
    char file[64], function[48];
    int line;
} SourcePlace;
enum { SOURCE_MOST_PLACES = 64 };
typedef struct {
    SourcePlace of[SOURCE_MOST_PLACES];
    int n;
} SourcePlaces;

/* Adds all calls of `function` in the files that match the pattern. */
void source_places_add(SourcePlaces *places, const char *pattern, const char *function);
/* Sets out[i] to the place of the call that returns to address[i], or to NULL if there is none. The
 * compiler may turn a function's last call into a jump, which returns to the caller of the
 * function. In that case out[i] is the last listed call in that function. */
void source_places_of(const SourcePlaces *places, const void *const *address, int n,
                      const SourcePlace **out);

#endif

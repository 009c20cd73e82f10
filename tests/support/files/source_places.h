/* source_places.h -- the places of the program's sources where a function is called, and which of
 * them an address of the running program belongs to. Asks addr2line, so the program has line
 * numbers; sources are read below the folder that the test runs in. */
#ifndef TESTS_SUPPORT_FILES_SOURCE_PLACES_H
#define TESTS_SUPPORT_FILES_SOURCE_PLACES_H

#include <stdbool.h>

/* A call: "parallel/zero/reduce.c", 72, "reduce_bucket". */
typedef struct {
    char file[64], function[48];
    int line;
} SourcePlace;
enum { SOURCE_MOST_PLACES = 64 };
typedef struct {
    SourcePlace of[SOURCE_MOST_PLACES];
    int n;
} SourcePlaces;

/* Adds all calls of `function` in the files that the pattern fits. */
void source_places_add(SourcePlaces *places, const char *pattern, const char *function);
/* out[i] = the one that returns to address[i]; NULL: none of them. A function's last call may be a
 * jump that returns to who called the function: then it is the last one of that. */
void source_places_of(const SourcePlaces *places, const void *const *address, int n,
                      const SourcePlace **out);

#endif

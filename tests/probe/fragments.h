/* fragments.h -- a table that says which matrix element is in which slot of which lane, and
 * functions that print it. A slot is a register or, for 16-bit elements, half of one, low half
 * first. */
#ifndef TESTS_PROBE_FRAGMENTS_H
#define TESTS_PROBE_FRAGMENTS_H

#include "tests/probe/probe.h"

enum { LANES = 32, MAX_SLOTS = 8 };

/* A matrix element; row -1 means that none was found. */
typedef struct {
    int row, col;
} Place;

typedef struct {
    Place at[LANES][MAX_SLOTS];
    int slots, per_register;
} Map;

/* Prints one line per lane: `map.NAME.laneL = rR:(row,column)...`. */
static inline void map_print(const char *name, const Map *map)
{
    char own_name[160]; /* a copy, because probe_name reuses its buffers */
    snprintf(own_name, sizeof own_name, "%s", name);
    for (int lane = 0; lane < LANES; lane++) {
        char text[256];
        int at = 0;
        for (int i = 0; i < map->slots; i++) {
            Place p = map->at[lane][i];
            if (i % map->per_register == 0)
                at += snprintf(text + at, sizeof text - (size_t)at, "%sr%d:", i ? " " : "",
                               i / map->per_register);
            at += snprintf(text + at, sizeof text - (size_t)at, "(%d,%d)", p.row, p.col);
        }
        probe_word(probe_name("map.%s.lane%d", own_name, lane), text);
    }
}

/* Prints `NAME.expected = match`, or in how many slots the two maps differ. */
static inline void map_print_verdict(const char *name, const Map *map, const Map *expected)
{
    int differing = 0;
    for (int lane = 0; lane < LANES; lane++)
        for (int i = 0; i < map->slots; i++)
            differing += map->at[lane][i].row != expected->at[lane][i].row ||
                         map->at[lane][i].col != expected->at[lane][i].col;
    probe_word(probe_name("%s.expected", name),
               differing ? probe_name("differs in %d of %d slots", differing, LANES * map->slots)
                         : "match");
}

#endif

/* walk.h -- struct Walk, the state of walking through one JSON document: a config file, or the
 * value of one --set; private to configs/. */
#ifndef CONFIGS_READER_WALK_H
#define CONFIGS_READER_WALK_H

#include "configs/reader/load.h"

#define PATH_SIZE 256

typedef struct {
    Load *load;
    Json *json;
    int set; /* 0: the file; otherwise the number of the --set */
} Walk;

/* Return the position of a node's key and of its value. For a --set, both are the --set itself. */
ConfigPlace walk_key(const Walk *w, int node);
ConfigPlace walk_value(const Walk *w, int node);
/* Writes "prefix.key" to `out`. */
void walk_join(char out[PATH_SIZE], const char *prefix, const char *key);

/* assign_known.c: handles a DeepSpeed key that is not implemented here: refuses its value, adds a
 * notice, or ignores it silently. */
void check_known(const Walk *w, int node, const KnownKey *known);
/* Returns the row of the known section that contains `key`, if the section as a whole is accepted
 * or refused; -1 if there is none. */
int enclosing_tree(const char *key);
/* Handles a key in the section that enclosing_tree has found (row `tree`): the key has no row in
 * the table, and was given by --set, with dots in its name, or next to keys that have rows. */
void check_inside(const Walk *w, int node, const char *path, int tree);
/* Reports keys that are given under two different names: in the file or, if `sets` is true, in
 * --set options. */
void check_other_names(Load *load, bool sets);
/* Handles a key that no table has: an error with a suggestion, or a notice. */
void check_unknown(const Walk *w, int node, const char *path);

#endif

/* walk.h -- a walk through one document, the file or the value of one --set; private
 * to configs/. */
#ifndef CONFIGS_READER_WALK_H
#define CONFIGS_READER_WALK_H

#include "configs/reader/load.h"

#define PATH_SIZE 256

typedef struct {
    Load *load;
    Json *json;
    int set; /* 0: the file */
} Walk;

/* Places of a node's key and value; of a --set, the --set. */
ConfigPlace walk_key(const Walk *w, int node);
ConfigPlace walk_value(const Walk *w, int node);
/* "prefix.key". */
void walk_join(char out[PATH_SIZE], const char *prefix, const char *key);

/* assign_known.c: the value of a key of DeepSpeed's that is not honoured: refused, noticed or
 * passed in silence. */
void check_known(const Walk *w, int node, const KnownKey *known);
/* The known section with anything inside, passed or refused as a whole, that `key` lies in; -1 if
 * none. */
int enclosing_tree(const char *key);
/* A key that has no row of its own and lies in such a section, where it was given by itself: by
 * --set, with dots in its name, or beside keys that have rows. */
void check_inside(const Walk *w, int node, const char *path, int tree);
/* Two names of one key in the file. */
void check_other_names(const Walk *w);
void refuse_unknown(const Walk *w, int node, const char *path);

#endif

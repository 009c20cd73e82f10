/* prepared.h -- lists the folders of prepared tokens in a cache. */
#ifndef DATA_TEXT_PREPARED_H
#define DATA_TEXT_PREPARED_H

#include "data/text/meta.h"

typedef enum {
    PREPARED_WHOLE,      /* it has a meta.json of this program */
    PREPARED_DAMAGED,    /* its meta.json cannot be read or is not this program's */
    PREPARED_UNFINISHED, /* its writer was killed */
    /* Its writer is running: it holds the lock on the folder (temporary.h). Where files cannot be
     * locked: its writer may be running. */
    PREPARED_IN_USE,
} PreparedState;

/* Called for one folder, with its path. `meta` is NULL unless the folder is PREPARED_WHOLE. Returns
 * false to end the walk. */
typedef bool PreparedVisit(const char *folder, PreparedState state, const Meta *meta,
                           void *context);
/* Calls `visit` for each folder of prepared tokens in `cache`, in the order of their names. A
 * folder that is not PREPARED_WHOLE is visited only if its name has the form that this program
 * uses. A cache that does not exist is empty. Returns false and sets `err` if the cache cannot be
 * read. */
bool prepared_visit(const char *cache, PreparedVisit *visit, void *context, char *err, size_t n);

#endif

/* prepared.h -- walks over the folders of prepared tokens in a cache. */
#ifndef DATA_TEXT_PREPARED_H
#define DATA_TEXT_PREPARED_H

#include "data/text/meta.h"

/* Called for one folder, with its path. Returns false to end the walk. */
typedef bool PreparedVisit(const char *folder, const Meta *meta, void *context);
/* Calls `visit` for each folder in `cache` that has a meta.json of this program, in the order of
 * their names. Folders of a preparation that is not finished are left out. A cache that does not
 * exist is empty. Returns false and sets `err` if the cache cannot be read. */
bool prepared_visit(const char *cache, PreparedVisit *visit, void *context, char *err, size_t n);

#endif

/* manifest_fields.h -- what the writer and the reader of manifest.json share: the numbers of its
 * structs, in the order in which they are written. Private to manifest.c and manifest_parse.c. */
#ifndef PARALLEL_CHECKPOINT_MANIFEST_FIELDS_H
#define PARALLEL_CHECKPOINT_MANIFEST_FIELDS_H

#include "parallel/checkpoint/manifest.h"

#define MANIFEST_FORMAT "train.c checkpoint"

typedef struct {
    const char *name;
    size_t offset; /* in the struct, whose fields are all of 8 bytes */
    bool is_double;
} ManifestField;

enum { MANIFEST_STATE_FIELDS = 12, MANIFEST_WORLD_FIELDS = 7 };
extern const ManifestField manifest_state_field[MANIFEST_STATE_FIELDS];
extern const ManifestField manifest_world_field[MANIFEST_WORLD_FIELDS];

#endif

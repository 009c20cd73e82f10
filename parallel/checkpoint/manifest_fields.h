/* manifest_fields.h -- lists the numeric fields of StepState and ManifestWorld in the order in
 * which manifest.json has them; used by its writer and its reader. Private to manifest.c and
 * manifest_parse.c. */
#ifndef PARALLEL_CHECKPOINT_MANIFEST_FIELDS_H
#define PARALLEL_CHECKPOINT_MANIFEST_FIELDS_H

#include "parallel/checkpoint/manifest.h"

#define MANIFEST_FORMAT "train.c checkpoint"

typedef struct {
    const char *name;
    size_t offset; /* offset in the struct; every field has 8 bytes */
    bool is_double;
} ManifestField;

/* MANIFEST_STATE_FIELDS: the numbers of a StepState before its list `losses`. Manifests of versions
 * 1 and 2 have only the first MANIFEST_STATE_FIELDS_2 of them. */
enum { MANIFEST_STATE_FIELDS_2 = 12, MANIFEST_STATE_FIELDS = 18, MANIFEST_WORLD_FIELDS = 7 };
extern const ManifestField manifest_state_field[MANIFEST_STATE_FIELDS];
extern const ManifestField manifest_world_field[MANIFEST_WORLD_FIELDS];

#endif

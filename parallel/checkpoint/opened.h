/* opened.h -- a checkpoint that is open. Private to parallel/checkpoint: open.c, verify.c, read.c.
 */
#ifndef PARALLEL_CHECKPOINT_OPENED_H
#define PARALLEL_CHECKPOINT_OPENED_H

#include "parallel/checkpoint/checkpoint.h"

struct Checkpoint {
    char *path;
    int folder;
    int *file;   /* of the manifest's files: -1 where not open */
    int passing; /* the one that is open although there are too many to keep; -1: none */
    Manifest manifest;
    bool verified; /* all data had their checksums when it was read */
};

/* Reads `bytes` bytes at `at` of a tensor's data. False with a sentence. */
bool opened_read(Checkpoint *c, const ManifestTensor *t, void *to, size_t bytes, int64_t at,
                 char *err, size_t n);
/* Says which chunk (from 0) of a tensor lacks its checksum; returns false. */
bool opened_chunk_error(const Checkpoint *c, const ManifestTensor *t, int chunk, char *err,
                        size_t n);

#endif

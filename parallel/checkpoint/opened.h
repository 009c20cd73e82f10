/* opened.h -- the struct of an open checkpoint, and reads of its data. Private to open.c, verify.c
 * and read.c of parallel/checkpoint. */
#ifndef PARALLEL_CHECKPOINT_OPENED_H
#define PARALLEL_CHECKPOINT_OPENED_H

#include "parallel/checkpoint/checkpoint.h"

struct Checkpoint {
    char *path;
    int folder;
    int *file; /* descriptor of each of the manifest's files; -1: not open */
    /* The only file that is open if there are too many to keep all open; -1: none. */
    int passing;
    Manifest manifest;
    bool verified; /* all data matched their checksums when they were read */
    bool damaged;  /* data that were read, or the size of a file, are not as they were saved */
};

/* Reads `bytes` bytes of a tensor's data, beginning at its byte `at`. Returns false and sets `err`
 * on failure; if the size of the file has changed, also sets c->damaged. */
bool opened_read(Checkpoint *c, const ManifestTensor *t, void *to, size_t bytes, int64_t at,
                 char *err, size_t n);
/* Sets `err` to a message that chunk `chunk` (from 0) of a tensor does not match its checksum,
 * and c->damaged; returns false. */
bool opened_chunk_error(Checkpoint *c, const ManifestTensor *t, int chunk, char *err, size_t n);

#endif

/* held.h -- holds all tensors of a checkpoint in memory, to compare checkpoints bit for bit. */
#ifndef TESTS_SUPPORT_CHECKPOINT_HELD_H
#define TESTS_SUPPORT_CHECKPOINT_HELD_H

#include "parallel/checkpoint/checkpoint.h"

/* All tensors of a checkpoint, whole, sorted by name. */
typedef struct {
    Checkpoint *c;
    CheckpointIo io;
    Piece *piece;
    int n;
} Held;

/* Reads the newest checkpoint of the run in `folder`; a failure fails the test. */
void held_open(Held *h, const char *folder);
void held_close(Held *h);
/* Returns the bytes of all tensors. */
int64_t held_bytes(const Held *h);
/* Returns the tensor called `name`; fails the test if there is none. */
const Piece *held_find(const Held *h, const char *name);
/* Fails the test unless both have the same state and the same tensors, bit for bit. */
void held_equal(const Held *a, const Held *b, const char *what);

#endif

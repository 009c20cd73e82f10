/* held.c -- reads all tensors of a checkpoint and compares them. See held.h. */
#include "tests/support/checkpoint/held.h"

#include "model/core/check.h"
#include "tests/support/checkpoint/whole_pieces.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static int by_name(const void *a, const void *b)
{
    return strcmp(((const Piece *)a)->name, ((const Piece *)b)->name);
}

void held_open(Held *h, const char *folder)
{
    char err[1024];
    *h = (Held){0};
    checkpoint_io_open(&h->io, NULL, NULL);
    if (!checkpoint_open_newest(&h->io, folder, &h->c, err, sizeof err) || h->c == NULL)
        fail_msg("%s", err);
    const Manifest *m = checkpoint_manifest(h->c);
    h->piece = must_calloc((size_t)m->n_tensors, sizeof *h->piece);
    for (int part = 0; part < CHECKPOINT_PARTS; part++) {
        int first = h->n;
        for (int i = 0; i < m->n_tensors; i++) {
            const SafetensorsEntry *e = &m->tensor[i].entry;
            if ((int)m->file[m->tensor[i].file].part != part) continue;
            Tensor t = {.dtype = e->dtype, .ndim = e->ndim};
            memcpy(t.dim, e->dim, sizeof t.dim);
            t.ld = tensor_cols(t);
            t.data = must_alloc((size_t)e->bytes);
            h->piece[h->n++] = piece_whole(e->name, t);
        }
        if (!checkpoint_read(&h->io, h->c, (CheckpointPart)part, h->piece + first, h->n - first,
                             err, sizeof err))
            fail_msg("%s", err);
    }
    qsort(h->piece, (size_t)h->n, sizeof *h->piece, by_name);
}

int64_t held_bytes(const Held *h)
{
    int64_t bytes = 0;
    for (int i = 0; i < h->n; i++)
        bytes += (int64_t)tensor_bytes(h->piece[i].data);
    return bytes;
}

void held_close(Held *h)
{
    for (int i = 0; i < h->n; i++)
        free(h->piece[i].data.data);
    free(h->piece);
    checkpoint_close(h->c);
    checkpoint_io_close(&h->io);
}

void held_equal(const Held *a, const Held *b, const char *what)
{
    assert_int_equal(a->n, b->n);
    assert_memory_equal(&checkpoint_manifest(a->c)->state, &checkpoint_manifest(b->c)->state,
                        sizeof(StepState));
    for (int i = 0; i < a->n; i++) {
        const Piece *x = &a->piece[i], *y = &b->piece[i];
        assert_string_equal(x->name, y->name);
        assert_int_equal(tensor_bytes(x->data), tensor_bytes(y->data));
        if (memcmp(x->data.data, y->data.data, tensor_bytes(x->data)) != 0)
            fail_msg("%s: %s differs", what, x->name);
    }
}

const Piece *held_find(const Held *h, const char *name)
{
    const Piece key = {.name = name};
    const Piece *found = bsearch(&key, h->piece, (size_t)h->n, sizeof *h->piece, by_name);
    if (found == NULL) fail_msg("no tensor %s", name);
    return found;
}

/* holdings.c -- exchanges the ranks' extents, which say what elements of a tensor each rank has, a
 * few tensors at a time, and sorts those of a rank's own files by tensor. See holdings.h. */
#include "parallel/checkpoint/holdings.h"

#include "model/core/check.h"
#include "model/core/min_max.h"
#include "parallel/checkpoint/io.h"

#include <stdlib.h>
#include <string.h>

/* So many tensors are exchanged at a time, because in a large world the extents of all ranks for
 * all tensors would take hundreds of megabytes on each rank. */
enum { AT_ONCE = 64 };

/* Tensors [from, from + n) of a file. */
typedef struct {
    int file, from, n;
} Batch;

/* One extent in the form in which it is sent to the other ranks; `tensor` is its number in the
 * batch. */
typedef struct {
    int64_t tensor, from, count, first, cols, whole_cols;
} Sent;
enum { SENT_WORDS = sizeof(Sent) / sizeof(int64_t) };

/* The extents of all ranks for a batch, ordered by rank. */
typedef struct {
    Sent *all;
    int64_t *count, total; /* of each rank; their sum */
} Extents;

/* Returns the piece of a batch's tensor. */
static const Piece *piece_of(const CheckpointContents *contents, const Layout *l, const Batch *b,
                             int i)
{
    return contents_piece(contents, l->piece[l->file[b->file].first + b->from + i]);
}

static int64_t own_extents(const CheckpointContents *contents, const Layout *l, const Batch *b,
                           Sent *out)
{
    int64_t n = 0;
    for (int i = 0; i < b->n; i++) {
        const Piece *p = piece_of(contents, l, b, i);
        /* With ZeRO most ranks have no elements of most tensors. */
        if (p->extent.count == 0) continue;
        CHECK(tensor_count(p->data) == p->extent.count && p->data.dtype == p->dtype,
              "%s: %lld elements for an extent of %lld", p->name, (long long)tensor_count(p->data),
              (long long)p->extent.count);
        out[n++] = (Sent){i,
                          p->extent.from,
                          p->extent.count,
                          p->extent.first,
                          p->extent.cols,
                          p->extent.whole_cols};
    }
    return n;
}

/* Gathers the extents of all ranks. The caller frees both arrays. */
static Extents all_extents(CheckpointIo *io, const Sent *own, int64_t n_own)
{
    int ranks = checkpoint_io_ranks(io), rank = checkpoint_io_rank(io);
    Extents e = {.count = must_calloc((size_t)ranks, sizeof *e.count)};
    int64_t *n = e.count, before = 0;
    n[rank] = n_own;
    if (ranks > 1)
        comm_all_gather(io->world, NULL, tensor_1d(n, I64, ranks), tensor_1d(&n[rank], I64, 1));
    for (int r = 0; r < ranks; r++) {
        if (r < rank) before += n[r];
        e.total += n[r];
    }
    e.all = must_calloc((size_t)e.total + 1, sizeof *e.all);
    memcpy(e.all + before, own, (size_t)n_own * sizeof *own);
    /* The lists differ in length, and an all-gather needs equal parts. But the other ranks have
     * zeros where this one has its list, so a sum gathers them all in one call. */
    if (ranks > 1)
        comm_all_reduce(io->world, NULL, tensor_1d(e.all, I64, e.total * SENT_WORDS), REDUCE_SUM);
    return e;
}

/* Ends the program unless the ranks together have each element of every tensor of the batch. An
 * element that no rank has would be saved with an undefined value. */
static void check_cover(const Extents *e, const CheckpointContents *contents, const Layout *l,
                        const Batch *b)
{
    /* Counting the elements is enough to find the two likely mistakes: a part that no rank lists,
     * and a replica that two ranks list. */
    int64_t count[AT_ONCE] = {0};
    for (int64_t i = 0; i < e->total; i++)
        count[e->all[i].tensor] += e->all[i].count;
    for (int i = 0; i < b->n; i++) {
        const Piece *p = piece_of(contents, l, b, i);
        CHECK(count[i] == piece_elements(p),
              "%s: all ranks together have %lld of its %lld elements", p->name, (long long)count[i],
              (long long)piece_elements(p));
    }
}

/* Appends the batch's extents to the holdings of its file, sorted by tensor; within a tensor they
 * stay in the order of ranks. */
static void append(FileHoldings *h, const Extents *e, const Batch *b)
{
    /* A counting sort: next[i] is the position of the next holding of tensor i. */
    int *first = h->first + b->from, next[AT_ONCE];
    for (int i = 0; i < b->n; i++)
        first[i + 1] = 0;
    for (int64_t i = 0; i < e->total; i++)
        first[e->all[i].tensor + 1]++;
    for (int i = 0; i < b->n; i++) {
        next[i] = first[i];
        first[i + 1] += first[i];
    }
    h->of = must_realloc(h->of, (size_t)(first[b->n] + 1) * sizeof *h->of);
    for (int64_t i = 0, rank = 0, of_rank = 0; i < e->total; i++, of_rank++) {
        while (of_rank == e->count[rank]) {
            rank++;
            of_rank = 0;
        }
        const Sent *s = &e->all[i];
        h->of[next[s->tensor]++] = (Holding){.rank = (int)rank,
                                             .extent = {.from = s->from,
                                                        .count = s->count,
                                                        .first = s->first,
                                                        .cols = s->cols,
                                                        .whole_cols = s->whole_cols}};
    }
}

/* Exchanges what all ranks have of one file. */
static void gather_file(FileHoldings *out, CheckpointIo *io, const CheckpointContents *contents,
                        const Layout *layout, int file)
{
    int tensors = layout->file[file].n;
    bool writes = layout->file[file].writer == checkpoint_io_rank(io);
    Sent own[AT_ONCE];
    if (writes) out->first = must_calloc((size_t)tensors + 1, sizeof *out->first);
    for (Batch b = {.file = file}; b.from < tensors; b.from += AT_ONCE) {
        b.n = (int)min_i64(AT_ONCE, tensors - b.from);
        Extents e = all_extents(io, own, own_extents(contents, layout, &b, own));
        check_cover(&e, contents, layout, &b);
        if (writes) append(out, &e, &b);
        free(e.all);
        free(e.count);
    }
}

void holdings_gather(Holdings *out, CheckpointIo *io, const CheckpointContents *contents,
                     const Layout *layout)
{
    out->files = layout->manifest.n_files;
    out->file = must_calloc((size_t)out->files + 1, sizeof *out->file);
    for (int f = 0; f < out->files; f++)
        gather_file(&out->file[f], io, contents, layout, f);
}

void holdings_free(Holdings *h)
{
    for (int f = 0; f < h->files; f++) {
        free(h->file[f].first);
        free(h->file[f].of);
    }
    free(h->file);
    *h = (Holdings){0};
}

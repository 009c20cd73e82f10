/* holdings.c -- exchanges the ranks' extents, which say what elements of a tensor each rank has,
 * and sorts them by tensor. See holdings.h. */
#include "parallel/checkpoint/holdings.h"

#include "model/core/check.h"
#include "parallel/checkpoint/io.h"
#include "parallel/checkpoint/layout.h"

#include <stdlib.h>
#include <string.h>

/* One extent in the form in which it is sent to the other ranks. */
typedef struct {
    int64_t piece, from, count, first, cols, whole_cols;
} Sent;
enum { SENT_WORDS = sizeof(Sent) / sizeof(int64_t) };

static int64_t own_extents(const CheckpointContents *contents, int n_pieces, Sent *out)
{
    int64_t n = 0;
    for (int i = 0; i < n_pieces; i++) {
        const Piece *p = contents_piece(contents, i);
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

/* Gathers the extents of all ranks, ordered by rank. Sets *count to the number of extents of each
 * rank, and *total to their sum. The caller frees both arrays. */
static Sent *all_extents(CheckpointIo *io, const Sent *own, int64_t n_own, int64_t **count,
                         int64_t *total)
{
    int ranks = checkpoint_io_ranks(io), rank = checkpoint_io_rank(io);
    int64_t *n = must_calloc((size_t)ranks, sizeof *n), before = 0;
    n[rank] = n_own;
    if (ranks > 1)
        comm_all_gather(io->world, NULL, tensor_1d(n, I64, ranks), tensor_1d(&n[rank], I64, 1));
    *total = 0;
    for (int r = 0; r < ranks; r++)
        *total += n[r];
    Sent *all = must_calloc((size_t)*total + 1, sizeof *all);
    for (int r = 0; r < rank; r++)
        before += n[r];
    memcpy(all + before, own, (size_t)n_own * sizeof *own);
    /* The lists differ in length, and an all-gather needs equal parts. But the other ranks have
     * zeros where this one has its list, so a sum gathers them all in one call. */
    if (ranks > 1)
        comm_all_reduce(io->world, NULL, tensor_1d(all, I64, *total * SENT_WORDS), REDUCE_SUM);
    *count = n;
    return all;
}

/* Ends the program unless the ranks together have each element of every piece. An element that no
 * rank has would be saved with an undefined value. */
static void check_cover(const Holdings *h, const CheckpointContents *contents, int n_pieces)
{
    for (int i = 0; i < n_pieces; i++) {
        /* Counting the elements is enough to find the two likely mistakes: a part that no rank
         * lists, and a replica that two ranks list. */
        const Piece *p = contents_piece(contents, i);
        int64_t count = 0;
        for (int k = h->first[i]; k < h->first[i + 1]; k++)
            count += h->of[k].extent.count;
        CHECK(count == piece_elements(p), "%s: all ranks together have %lld of its %lld elements",
              p->name, (long long)count, (long long)piece_elements(p));
    }
}

void holdings_gather(Holdings *out, CheckpointIo *io, const CheckpointContents *contents)
{
    int n_pieces = contents->n_weights + contents->n_slots;
    Sent *own = must_calloc((size_t)n_pieces + 1, sizeof *own);
    int64_t *count, total, n_own = own_extents(contents, n_pieces, own);
    Sent *all = all_extents(io, own, n_own, &count, &total);
    int *next = out->first = must_calloc((size_t)n_pieces + 2, sizeof *out->first);
    out->of = must_calloc((size_t)total + 1, sizeof *out->of);
    /* A counting sort by piece; within a piece the holdings stay in the order of ranks. During the
     * sort, first[i + 1] is the position of the next holding of piece i. */
    for (int64_t i = 0; i < total; i++)
        next[all[i].piece + 2]++;
    for (int i = 2; i <= n_pieces + 1; i++)
        next[i] += next[i - 1];
    for (int64_t i = 0, rank = 0, of_rank = 0; i < total; i++, of_rank++) {
        while (of_rank == count[rank]) {
            rank++;
            of_rank = 0;
        }
        const Sent *s = &all[i];
        out->of[next[s->piece + 1]++] = (Holding){.rank = (int)rank,
                                                  .extent = {.from = s->from,
                                                             .count = s->count,
                                                             .first = s->first,
                                                             .cols = s->cols,
                                                             .whole_cols = s->whole_cols}};
    }
    check_cover(out, contents, n_pieces);
    free(own);
    free(all);
    free(count);
}

void holdings_free(Holdings *h)
{
    free(h->first);
    free(h->of);
    *h = (Holdings){0};
}

/* holdings.c -- sends the ranks' extents (which elements of a tensor each rank has) to the writers,
 * which sort them by tensor. See holdings.h. */
#include "parallel/checkpoint/holdings.h"

#include "model/core/check.h"
#include "parallel/checkpoint/io.h"

#include <stdlib.h>

/* One extent in the form in which it is sent to a writer; `tensor` is the number of its tensor in
 * the file. */
typedef struct {
    int64_t tensor, from, count, first, cols, whole_cols;
} Sent;
enum { SENT_WORDS = sizeof(Sent) / sizeof(int64_t) };

/* The extents of all ranks for one file, ordered by rank. */
typedef struct {
    Sent *all;
    /* count[rank]: number of the rank's extents; total: of all ranks; room: how many `all` has room
     * for. */
    int64_t *count, total, room;
} Extents;

/* Returns this rank's piece of tensor number i of the file. */
static const Piece *piece_of(const CheckpointContents *contents, const Layout *l, int file, int i)
{
    return contents_piece(contents, l->piece[l->file[file].first + i]);
}

/* Writes this rank's extents of the tensors of a file to out[0..tensors of the file). Returns their
 * number. */
static int64_t own_extents(const CheckpointContents *contents, const Layout *l, int file, Sent *out)
{
    int64_t n = 0;
    for (int i = 0; i < l->file[file].n; i++) {
        const Piece *p = piece_of(contents, l, file, i);
        /* Empty extents are not sent: with ZeRO most ranks have no elements of most tensors. */
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

static Tensor words(Sent *sent, int64_t n)
{
    return tensor_1d(sent, I64, n * SENT_WORDS);
}

static void send_extents(CheckpointIo *io, int writer, Sent *own, int64_t n)
{
    comm_send(io->world, NULL, tensor_1d(&n, I64, 1), writer);
    if (n > 0) comm_send(io->world, NULL, words(own, n), writer);
}

/* Appends room for n extents of the next rank, and returns it. */
static Sent *make_room(Extents *e, int rank, int64_t n)
{
    if (e->total + n > e->room) {
        e->room = 2 * (e->total + n);
        e->all = must_realloc(e->all, (size_t)e->room * sizeof *e->all);
    }
    e->count[rank] = n;
    e->total += n;
    return e->all + e->total - n;
}

/* On the writer: receives the other ranks' extents, one rank after the other. */
static Extents receive_extents(CheckpointIo *io, const CheckpointContents *contents,
                               const Layout *layout, int file)
{
    int ranks = checkpoint_io_ranks(io);
    int64_t n = layout->file[file].n + 1;
    Extents e = {.count = must_calloc((size_t)ranks, sizeof *e.count),
                 .all = must_calloc((size_t)n, sizeof *e.all),
                 .room = n};
    for (int r = 0; r < ranks; r++) {
        if (r == checkpoint_io_rank(io)) {
            Sent *own = make_room(&e, r, n);
            e.total -= n;
            e.count[r] = own_extents(contents, layout, file, own);
            e.total += e.count[r];
            continue;
        }
        int64_t theirs = 0;
        comm_receive(io->world, NULL, tensor_1d(&theirs, I64, 1), r);
        Sent *room = make_room(&e, r, theirs);
        if (theirs > 0) comm_receive(io->world, NULL, words(room, theirs), r);
    }
    return e;
}

/* Ends the program unless the ranks together have each element of every tensor of the file. An
 * element that no rank has would be saved with an undefined value. */
static void check_cover(const FileHoldings *h, const CheckpointContents *contents, const Layout *l,
                        int file)
{
    for (int i = 0; i < l->file[file].n; i++) {
        /* Counting the elements is enough to find the two likely mistakes: a part that no rank
         * lists, and a replica that two ranks list. */
        const Piece *p = piece_of(contents, l, file, i);
        int64_t count = 0;
        for (int k = h->first[i]; k < h->first[i + 1]; k++)
            count += h->of[k].extent.count;
        CHECK(count == piece_elements(p), "%s: all ranks together have %lld of its %lld elements",
              p->name, (long long)count, (long long)piece_elements(p));
    }
}

/* Sorts the extents by tensor, with a counting sort. Within a tensor they stay in rank order. */
static FileHoldings sort_extents(const Extents *e, int tensors)
{
    /* `next` becomes h.first. While the extents are being placed, next[i + 1] is the position in
     * h.of of the next holding of tensor i; at the end it is where tensor i + 1 begins. */
    int *next = must_calloc((size_t)tensors + 2, sizeof *next);
    FileHoldings h = {.first = next, .of = must_calloc((size_t)e->total + 1, sizeof *h.of)};
    for (int64_t i = 0; i < e->total; i++)
        next[e->all[i].tensor + 2]++;
    for (int i = 2; i <= tensors + 1; i++)
        next[i] += next[i - 1];
    for (int64_t i = 0, rank = 0, of_rank = 0; i < e->total; i++, of_rank++) {
        while (of_rank == e->count[rank]) {
            rank++;
            of_rank = 0;
        }
        const Sent *s = &e->all[i];
        h.of[next[s->tensor + 1]++] = (Holding){.rank = (int)rank,
                                                .extent = {.from = s->from,
                                                           .count = s->count,
                                                           .first = s->first,
                                                           .cols = s->cols,
                                                           .whole_cols = s->whole_cols}};
    }
    return h;
}

static void receive_file(FileHoldings *out, CheckpointIo *io, const CheckpointContents *contents,
                         const Layout *layout, int file)
{
    Extents e = receive_extents(io, contents, layout, file);
    *out = sort_extents(&e, layout->file[file].n);
    check_cover(out, contents, layout, file);
    free(e.all);
    free(e.count);
}

void holdings_gather(Holdings *out, CheckpointIo *io, const CheckpointContents *contents,
                     const Layout *layout)
{
    Sent *own = must_calloc((size_t)layout->n_pieces + 1, sizeof *own);
    out->files = layout->manifest.n_files;
    out->file = must_calloc((size_t)out->files + 1, sizeof *out->file);
    /* All ranks go through the files in the same order. A rank therefore only waits for ranks that
     * are at the same file or an earlier one, so no deadlock is possible. */
    for (int f = 0; f < out->files; f++)
        if (layout->file[f].writer == checkpoint_io_rank(io))
            receive_file(&out->file[f], io, contents, layout, f);
        else
            send_extents(io, layout->file[f].writer, own, own_extents(contents, layout, f, own));
    free(own);
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

/* write.c -- gathers the pieces of all ranks and writes them to the tensor files. See write.h.
 *
 * The writers work in rounds: in each round, every writer writes one window of its file. All ranks
 * go through the same list of windows in the same order and know which rank has which part of a
 * window. A rank that has a part sends it to the window's writer, which receives from one rank
 * after the other. A rank only ever waits for ranks that are at the same window or an earlier one,
 * so no deadlock is possible. While the disk of one writer is busy, the other writers continue. */
#include "parallel/checkpoint/write.h"

#include "model/core/check.h"
#include "model/core/crc32c.h"
#include "parallel/checkpoint/holdings.h"
#include "parallel/checkpoint/io.h"
#include "parallel/checkpoint/out_file.h"

#include <string.h>

typedef struct {
    CheckpointIo *io;
    const CheckpointContents *contents;
    Layout *layout;
    Holdings holdings;
    Snapshot
        *snapshot; /* the windows are stored there instead of in files; NULL: files are written */
    OutFile out;
} Writing;

/* ---- one window ------------------------------------------------------------------------------ */

/* A window of a file: elements [from, end) of one tensor, all in one chunk. */
typedef struct {
    int tensor; /* index into Manifest.tensor */
    int64_t from, end;
} Window;

/* Advances *at to the file's next window; returns false after the last one. The initial value is
 * {.tensor = file->first}. */
static bool next_window(const Writing *w, const LayoutFile *file, Window *at)
{
    const Manifest *m = &w->layout->manifest;
    if (at->tensor < file->first + file->n) {
        const SafetensorsEntry *e = &m->tensor[at->tensor].entry;
        if (at->end * (int64_t)dtype_size(e->dtype) == e->bytes)
            *at = (Window){at->tensor + 1, 0, 0};
    }
    if (at->tensor == file->first + file->n) return false;
    /* A window never crosses the end of a chunk, so each window belongs to exactly one checksum.
     * Windows of a chunk come in order, as the CRC needs. */
    const SafetensorsEntry *e = &m->tensor[at->tensor].entry;
    int64_t size = (int64_t)dtype_size(e->dtype), from = at->end * size,
            chunk = manifest_chunk_bytes(e), end = (from / chunk + 1) * chunk,
            most = from + (int64_t)CHECKPOINT_WINDOW;
    if (end > e->bytes) end = e->bytes;
    if (end > most) end = most;
    at->from = from / size;
    at->end = end / size;
    return true;
}

static Tensor message(const void *data, int64_t count, size_t size)
{
    return tensor_1d((void *)(uintptr_t)data, U8, count * (int64_t)size);
}

/* A window on its way to its file. */
typedef struct {
    int file;
    Window at;
    int half;         /* which half of the staging buffer it uses */
    bool own;         /* this rank writes the file */
    int64_t count;    /* number of elements that this rank has */
    const void *data; /* their values, where the host can read them; on the writer: the window */
} Turn;

static const Piece *piece_of(const Writing *w, const Turn *t)
{
    return contents_piece(w->contents, w->layout->piece[t->at.tensor]);
}

/* Returns the memory for this rank's part of the window. The writer assembles the window in the
 * snapshot, if there is one, or in the window's half of the staging buffer. The other ranks pack
 * their part into that half. */
static void *place_of(const Writing *w, const Turn *t)
{
    if (t->own && w->snapshot) return snapshot_at(w->snapshot, w->layout, t->at.tensor, t->at.from);
    return checkpoint_io_half(w->io, t->half);
}

/* Reads a window of weights that are not in memory. */
static void read_part(Writing *w, Turn *t)
{
    const WeightReader *reader = w->contents->reader;
    OutFile *out = &w->out;
    void *half = checkpoint_io_half(w->io, t->half);
    t->count = t->at.end - t->at.from;
    t->data = half;
    out->good = out->good && reader->read(reader->context, w->layout->piece[t->at.tensor],
                                          t->at.from, t->count, half, out->err, out->n);
}

/* Begins to copy this rank's part of the window: on the writer to its place in the window, on other
 * ranks into the staging buffer, packed as one message. */
static void fetch_part(Writing *w, Turn *t)
{
    if (w->contents->reader) {
        read_part(w, t);
        return;
    }
    const Piece *piece = piece_of(w, t);
    Stretch s;
    bool one;
    t->count = extent_count(&piece->extent, t->at.from, t->at.end, &s, &one);
    void *place = place_of(w, t);
    t->data = place;
    if (t->count == 0) return;
    /* The usual case, with one rank or an uncut tensor: the writer itself has the whole window. */
    if (one && (!t->own || t->count == t->at.end - t->at.from))
        t->data = checkpoint_io_fetch(w->io, piece, s, place);
    else
        checkpoint_io_take(w->io, piece, t->at.from, t->at.end, place, !t->own);
}

/* Sends this rank's part of the window to the window's writer. */
static void send_part(Writing *w, const Turn *t)
{
    /* The writer knows from the holdings how much each rank sends, and which ranks send nothing.
     * Messages therefore need no header. */
    if (t->count > 0)
        comm_send(w->io->world, NULL, message(t->data, t->count, dtype_size(piece_of(w, t)->dtype)),
                  w->layout->file[t->file].writer);
}

/* Receives the part of the window that rank h->rank has, and stores it at its place in the window.
 */
static void receive_part(Writing *w, const Turn *t, const Holding *h, size_t size)
{
    Stretch s;
    bool one;
    char *window = place_of(w, t);
    int64_t count = extent_count(&h->extent, t->at.from, t->at.end, &s, &one);
    if (count == 0) return;
    /* A single stretch is received in place. Several stretches arrive packed, in the other half of
     * the staging buffer. */
    void *to =
        one ? window + (size_t)(s.at - t->at.from) * size : checkpoint_io_half(w->io, 1 - t->half);
    comm_receive(w->io->world, NULL, message(to, count, size), h->rank);
    if (!one) checkpoint_io_spread(&h->extent, t->at.from, t->at.end, size, to, window);
}

/* Completes the writer's window with the other ranks' parts. */
static void receive_parts(Writing *w, const Turn *t)
{
    const FileHoldings *holdings = &w->holdings.file[t->file];
    int own = t->at.tensor - w->layout->file[t->file].first; /* the tensor's number in its file */
    if (t->count == t->at.end - t->at.from) return;
    for (int i = holdings->first[own]; i < holdings->first[own + 1]; i++) {
        const Holding *h = &holdings->of[i];
        if (h->rank != checkpoint_io_rank(w->io))
            receive_part(w, t, h, dtype_size(piece_of(w, t)->dtype));
    }
}

/* Appends the window to the file and updates the checksum of its chunk, or stores it in the
 * snapshot. */
static void write_window(Writing *w, const Turn *t)
{
    ManifestTensor *m = &w->layout->manifest.tensor[t->at.tensor];
    int64_t size = (int64_t)dtype_size(m->entry.dtype);
    size_t bytes = (size_t)((t->at.end - t->at.from) * size);
    uint32_t *crc = &m->chunk[t->at.from * size / manifest_chunk_bytes(&m->entry)];
    if (w->snapshot) {
        /* Data in host memory are not fetched, so they are still in the piece's own memory. */
        void *place = place_of(w, t);
        if (t->data != place) memcpy(place, t->data, bytes);
        return;
    }
    if (!w->out.good) return;
    *crc = crc32c(*crc, t->data, bytes);
    out_file_put(&w->out, t->data, bytes);
}

/* Does this rank's part of the work for a window whose data are being fetched. Meanwhile the device
 * fetches the data of the next window, if there is one. */
static void do_turn(Writing *w, const Turn *t, Turn *next)
{
    checkpoint_io_await(w->io);
    /* Even if the disk has failed, the window is completed: the other ranks send it in any case and
     * would wait forever if the writer did not receive. */
    if (t->own) receive_parts(w, t);
    /* The other half of the staging buffer is free only from here on. */
    if (next) fetch_part(w, next);
    if (t->own)
        write_window(w, t);
    else
        send_part(w, t);
}

/* ---- all files --------------------------------------------------------------------------------
 */

/* The files [first, end) of a part, and the window that each has reached. `file` is the next one to
 * write a window in this round. */
typedef struct {
    int first, end, file;
    bool more; /* some file has had a window in this round */
    Window at[CHECKPOINT_MAX_WRITERS];
} Rounds;

/* Sets *t to the next window of the part; returns false after the last one. */
static bool next_turn(const Writing *w, Rounds *r, Turn *t)
{
    for (;;) {
        if (r->file == r->end) {
            if (!r->more) return false;
            r->file = r->first;
            r->more = false;
        }
        int f = r->file++;
        Window *at = &r->at[f - r->first];
        if (!next_window(w, &w->layout->file[f], at)) continue;
        r->more = true;
        *t = (Turn){.file = f,
                    .at = *at,
                    .half = 1 - t->half,
                    .own = w->layout->file[f].writer == checkpoint_io_rank(w->io)};
        return true;
    }
}

/* Creates file `f`, which this rank writes, and writes its header. */
static void begin_file(Writing *w, int f)
{
    const ManifestFile *file = &w->layout->manifest.file[f];
    out_file_begin(&w->out, file->name);
    out_file_put(&w->out, w->layout->file[f].header, (size_t)file->header_bytes);
}

/* Writes all files of a part in rounds, one window of each file per round. This rank may be the
 * writer of one of them. */
static void write_part(Writing *w, CheckpointPart part)
{
    const Layout *l = w->layout;
    Rounds r = {.end = l->manifest.n_files};
    int own = -1;
    while (r.first < r.end && l->manifest.file[r.first].part != part)
        r.first++;
    while (l->manifest.file[r.end - 1].part != part)
        r.end--;
    r.file = r.first;
    for (int f = r.first; f < r.end; f++) {
        r.at[f - r.first] = (Window){.tensor = l->file[f].first};
        if (l->file[f].writer == checkpoint_io_rank(w->io)) own = f;
    }
    if (own >= 0 && !w->snapshot) begin_file(w, own);
    /* The windows alternate between the files: while the disk of one writer is busy, the ranks that
     * have sent it their parts already send to the next writer. All ranks go through the same list
     * of windows, which prevents a deadlock. */
    Turn now = {0}, next = {0};
    bool more = next_turn(w, &r, &now);
    if (more) fetch_part(w, &now);
    while (more) {
        next = now;
        more = next_turn(w, &r, &next);
        do_turn(w, &now, more ? &next : NULL);
        now = next;
    }
    if (own >= 0 && !w->snapshot) out_file_end(&w->out);
}

/* Gathers the parts of all ranks, window by window, and writes or stores the windows of this rank's
 * files. */
static void gather(Writing *w)
{
    holdings_gather(&w->holdings, w->io, w->contents, w->layout);
    for (int part = 0; part < CHECKPOINT_PARTS; part++)
        write_part(w, (CheckpointPart)part);
    holdings_free(&w->holdings);
}

void collect_checksums(CheckpointIo *io, Layout *layout)
{
    const Manifest *m = &layout->manifest;
    for (int f = 0; f < m->n_files; f++) {
        const LayoutFile *file = &layout->file[f];
        int rank = checkpoint_io_rank(io);
        /* Rank 0 has the checksums of its own files, and ranks other than 0 need none: only rank 0
         * writes the manifest. */
        if (file->writer == 0 || (rank != 0 && rank != file->writer)) continue;
        for (int i = file->first; i < file->first + file->n; i++) {
            Tensor chunks = message(m->tensor[i].chunk, m->tensor[i].n_chunks, sizeof(uint32_t));
            if (rank == 0)
                comm_receive(io->world, NULL, chunks, file->writer);
            else
                comm_send(io->world, NULL, chunks, 0);
        }
    }
}

bool write_tensors(CheckpointIo *io, const CheckpointContents *contents, Layout *layout,
                   const char *folder, char *err, size_t n)
{
    Writing w = {.io = io, .contents = contents, .layout = layout};
    if (checkpoint_io_far(io))
        fs_await(folder); /* if the wait fails, opening the folder reports why */
    /* A rank that cannot open the folder still takes part in all communication below, without
     * writing. */
    w.out = out_file_open(io->fs, folder, err, n);
    gather(&w);
    collect_checksums(io, layout);
    out_file_close(&w.out);
    return w.out.good;
}

void store_tensors(CheckpointIo *io, const CheckpointContents *contents, Layout *layout,
                   Snapshot *snapshot)
{
    CHECK(contents->reader == NULL, "a snapshot of weights that are not in memory");
    gather(&(Writing){.io = io, .contents = contents, .layout = layout, .snapshot = snapshot});
}

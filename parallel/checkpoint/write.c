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
#include "model/core/files.h"
#include "parallel/checkpoint/holdings.h"
#include "parallel/checkpoint/io.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    CheckpointIo *io;
    const CheckpointContents *contents;
    Layout *layout;
    Holdings holdings;
    const char *folder;
    int folder_fd;
    int fd;     /* descriptor of the file being written; -1: none is open */
    char *path; /* path of that file */
    bool good;  /* false after an error: nothing more is written */
    char *err;
    size_t n;
} Writing;

/* ---- one file -------------------------------------------------------------------------------- */

static int create_file(const FsOps *fs, int folder, const char *path, char *err, size_t n)
{
    /* The folder is new and has a random name, so a file that exists in it already was made by
     * somebody else. A symbolic link would redirect the data to another place; O_NOFOLLOW refuses
     * it. */
    int flags = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW;
    int fd = fs->open(fs->self, folder, path_name(path), flags, 0666);
    if (fd < 0) error_set(err, n, "cannot create %s: %s", path, strerror(errno));
    return fd;
}

/* Syncs and closes a file. The result of close counts, because some file systems report an earlier
 * write error only then. If an error has been reported before (`good` is false), the file is closed
 * without another message. */
static bool finish_file(const FsOps *fs, int fd, const char *path, bool good, char *err, size_t n)
{
    good = good && fs_sync(fs, fd, path, err, n);
    if (fs->close(fs->self, fd) != 0 && good)
        good = error_set(err, n, "cannot write %s: %s", path, strerror(errno));
    return good;
}

bool write_whole_file(const FsOps *fs, int folder, const char *path, const void *data, size_t bytes,
                      char *err, size_t n)
{
    int fd = create_file(fs, folder, path, err, n);
    return fd >= 0 &&
           finish_file(fs, fd, path, fs_write_all(fs, fd, data, bytes, path, err, n), err, n);
}

static void put_bytes(Writing *w, const void *data, size_t bytes)
{
    w->good = w->good && fs_write_all(w->io->fs, w->fd, data, bytes, w->path, w->err, w->n);
}

/* Creates file `f`, which this rank writes, and writes its header. */
static void begin_file(Writing *w, int f)
{
    const ManifestFile *file = &w->layout->manifest.file[f];
    w->path = text_format("%s/%s", w->folder, file->name);
    if (w->good) w->fd = create_file(w->io->fs, w->folder_fd, w->path, w->err, w->n);
    w->good = w->good && w->fd >= 0;
    put_bytes(w, w->layout->file[f].header, (size_t)file->header_bytes);
}

static void end_file(Writing *w)
{
    if (w->fd >= 0) w->good = finish_file(w->io->fs, w->fd, w->path, w->good, w->err, w->n);
    w->fd = -1;
    free(w->path);
    w->path = NULL;
}

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
    int half;         /* of the staging buffer */
    bool own;         /* this rank writes the file */
    int64_t count;    /* number of elements that this rank has */
    const void *data; /* where the host finds them; for the writer, the window */
} Turn;

static const Piece *piece_of(const Writing *w, const Turn *t)
{
    return contents_piece(w->contents, w->layout->piece[t->at.tensor]);
}

/* Reads a window of weights that are not in memory. */
static void read_part(Writing *w, Turn *t)
{
    const WeightReader *reader = w->contents->reader;
    void *half = checkpoint_io_half(w->io, t->half);
    t->count = t->at.end - t->at.from;
    t->data = half;
    w->good = w->good && reader->read(reader->context, w->layout->piece[t->at.tensor], t->at.from,
                                      t->count, half, w->err, w->n);
}

/* Begins to copy this rank's part of the window into its half of the staging buffer: for the writer
 * to its place there, for others as one message. */
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
    t->data = checkpoint_io_half(w->io, t->half);
    if (t->count == 0) return;
    /* The usual case, with one rank or an uncut tensor: the writer itself has the whole window. */
    if (one && (!t->own || t->count == t->at.end - t->at.from))
        t->data = checkpoint_io_fetch(w->io, piece, s, checkpoint_io_half(w->io, t->half));
    else
        checkpoint_io_take(w->io, piece, t->at.from, t->at.end, checkpoint_io_half(w->io, t->half),
                           !t->own);
}

/* Sends this rank's part of the window to the window's writer. */
static void send_part(Writing *w, const Turn *t)
{
    /* The writer knows from the holdings how much each rank sends, and that this rank sends
     * nothing. Messages therefore need no header. */
    if (t->count > 0)
        comm_send(w->io->world, NULL, message(t->data, t->count, dtype_size(piece_of(w, t)->dtype)),
                  w->layout->file[t->file].writer);
}

/* Receives the part of the window that rank h->rank has, and puts it in its place there. */
static void receive_part(Writing *w, const Turn *t, const Holding *h, size_t size)
{
    Stretch s;
    bool one;
    char *window = checkpoint_io_half(w->io, t->half);
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
    int own = t->at.tensor - w->layout->file[t->file].first; /* its number in the file */
    if (t->count == t->at.end - t->at.from) return;
    for (int i = holdings->first[own]; i < holdings->first[own + 1]; i++) {
        const Holding *h = &holdings->of[i];
        if (h->rank != checkpoint_io_rank(w->io))
            receive_part(w, t, h, dtype_size(piece_of(w, t)->dtype));
    }
}

/* Appends the window to the file and updates the checksum of its chunk. */
static void write_window(Writing *w, const Turn *t)
{
    ManifestTensor *m = &w->layout->manifest.tensor[t->at.tensor];
    int64_t size = (int64_t)dtype_size(m->entry.dtype);
    size_t bytes = (size_t)((t->at.end - t->at.from) * size);
    uint32_t *crc = &m->chunk[t->at.from * size / manifest_chunk_bytes(&m->entry)];
    if (!w->good) return;
    *crc = crc32c(*crc, t->data, bytes);
    put_bytes(w, t->data, bytes);
}

/* Does this rank's part of the work for a window whose data are being fetched. Meanwhile the device
 * fetches those of the next one, if there is one. */
static void do_turn(Writing *w, const Turn *t, Turn *next)
{
    checkpoint_io_await(w->io);
    /* Even if the disk has failed, the window is completed: the other ranks send it in any case and
     * would wait forever if the writer did not receive. */
    if (t->own) receive_parts(w, t);
    /* Only now the other half of the staging buffer is free. */
    if (next) fetch_part(w, next);
    if (t->own)
        write_window(w, t);
    else
        send_part(w, t);
}

/* ---- all files --------------------------------------------------------------------------------
 */

/* The files of a part, and the window that each has reached. */
typedef struct {
    int first, end, file;
    bool more; /* a file has had a window in this round */
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
    if (own >= 0) begin_file(w, own);
    /* While the disk of one writer is busy, its senders already serve the next writer. All ranks go
     * through the same list of windows, which prevents a deadlock. */
    Turn now = {0}, next = {0};
    bool more = next_turn(w, &r, &now);
    if (more) fetch_part(w, &now);
    while (more) {
        next = now;
        more = next_turn(w, &r, &next);
        do_turn(w, &now, more ? &next : NULL);
        now = next;
    }
    if (own >= 0) end_file(w);
}

/* Sends the other writers' checksums to rank 0, which writes the manifest. */
static void collect_checksums(Writing *w)
{
    const Manifest *m = &w->layout->manifest;
    for (int f = 0; f < m->n_files; f++) {
        const LayoutFile *file = &w->layout->file[f];
        int rank = checkpoint_io_rank(w->io);
        /* Rank 0 has the checksums of its own files, and ranks other than 0 need none: only rank 0
         * writes the manifest. */
        if (file->writer == 0 || (rank != 0 && rank != file->writer)) continue;
        for (int i = file->first; i < file->first + file->n; i++) {
            Tensor chunks = message(m->tensor[i].chunk, m->tensor[i].n_chunks, sizeof(uint32_t));
            if (rank == 0)
                comm_receive(w->io->world, NULL, chunks, file->writer);
            else
                comm_send(w->io->world, NULL, chunks, 0);
        }
    }
}

bool write_tensors(CheckpointIo *io, const CheckpointContents *contents, Layout *layout,
                   const char *folder, char *err, size_t n)
{
    Writing w = {.io = io,
                 .contents = contents,
                 .layout = layout,
                 .folder = folder,
                 .fd = -1,
                 .err = err,
                 .n = n};
    holdings_gather(&w.holdings, io, contents, layout);
    if (checkpoint_io_far(io)) fs_await(folder); /* if it fails, opening the folder says why */
    w.folder_fd = fs_open_folder(folder, err, n);
    /* A rank that cannot open the folder still takes part in all communication below, without
     * writing. */
    w.good = w.folder_fd >= 0;
    for (int part = 0; part < CHECKPOINT_PARTS; part++)
        write_part(&w, (CheckpointPart)part);
    collect_checksums(&w);
    if (w.folder_fd >= 0) close(w.folder_fd);
    holdings_free(&w.holdings);
    return w.good;
}

/* write.c -- see write.h.
 *
 * Rounds: in each, every writer in turn moves one window of its file's data on. All ranks go
 * through the same list of windows in the same order, and of each window know who has what: a rank
 * that has part of it sends that to the window's writer, who receives from one rank after the
 * other. Whoever waits, waits for a rank that is at the same window or at an earlier one, so
 * nobody waits in a circle; and while one writer's disk is busy the others go on. */
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
    int fd;     /* of the file under way; -1: none is open */
    char *path; /* of that file */
    bool good;  /* false: nothing more is written */
    char *err;
    size_t n;
} Writing;

/* ---- one file -------------------------------------------------------------------------------- */

static int create_file(const FsOps *fs, int folder, const char *path, char *err, size_t n)
{
    /* The folder is new and has a random name. What is in it already is somebody else's, and a link
     * would lead the data out of it. */
    int flags = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW;
    int fd = fs->open(fs->self, folder, path_name(path), flags, 0666);
    if (fd < 0) error_set(err, n, "cannot create %s: %s", path, strerror(errno));
    return fd;
}

/* Some file systems report an error of an earlier write only in close, so its result counts, too.
 * What has failed before is closed without another sentence. */
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

/* Begins file `f`, this rank's, with its header. */
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

/* A file's next window: elements [from, end) of a tensor, inside one chunk. */
typedef struct {
    int tensor; /* of the manifest */
    int64_t from, end;
} Window;

/* Moves on to the file's next window; false after its last one. Starts from {.tensor = first}. */
static bool next_window(const Writing *w, const LayoutFile *file, Window *at)
{
    const Manifest *m = &w->layout->manifest;
    if (at->tensor < file->first + file->n) {
        const SafetensorsEntry *e = &m->tensor[at->tensor].entry;
        if (at->end * (int64_t)dtype_size(e->dtype) == e->bytes)
            *at = (Window){at->tensor + 1, 0, 0};
    }
    if (at->tensor == file->first + file->n) return false;
    /* It ends with its chunk, so that each window goes into one checksum, and that in order. */
    const SafetensorsEntry *e = &m->tensor[at->tensor].entry;
    int64_t size = (int64_t)dtype_size(e->dtype), from = at->end * size,
            chunk = manifest_chunk_bytes(e), end = (from / chunk + 1) * chunk,
            most = from + (int64_t)checkpoint_io_window(w->io);
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

/* What this rank has of the window, to its writer. */
static void send_window(Writing *w, Window at, int writer)
{
    const Piece *piece = contents_piece(w->contents, w->layout->piece[at.tensor]);
    Stretch s;
    bool one;
    int64_t count = extent_count(&piece->extent, at.from, at.end, &s, &one);
    const void *data = w->io->staging;
    /* The writer knows from the holdings that nothing comes, and how much otherwise: so no message
     * needs a header. */
    if (count == 0) return;
    if (one)
        data = checkpoint_io_fetch(w->io, piece, s, w->io->staging);
    else
        checkpoint_io_take(w->io, piece, at.from, at.end, w->io->staging, true);
    comm_send(w->io->world, NULL, message(data, count, dtype_size(piece->dtype)), writer);
}

/* What rank h->rank has of the window, to its place there. */
static void receive_window(Writing *w, Window at, const Holding *h, size_t size)
{
    Stretch s;
    bool one;
    char *window = w->io->staging;
    int64_t count = extent_count(&h->extent, at.from, at.end, &s, &one);
    if (count == 0) return;
    /* One stretch lands where it belongs; several come packed into the other half of the buffer. */
    void *to = one ? window + (size_t)(s.at - at.from) * size : checkpoint_io_inbox(w->io);
    comm_receive(w->io->world, NULL, message(to, count, size), h->rank);
    if (!one) checkpoint_io_spread(&h->extent, at.from, at.end, size, to, window);
}

/* All ranks' parts of the window, where its writer can read them. */
static const void *gather_window(Writing *w, Window at)
{
    int p = w->layout->piece[at.tensor];
    const Piece *piece = contents_piece(w->contents, p);
    /* The usual case, of one rank and of what is not cut: the writer has all of it. */
    Stretch s;
    if (extent_stretch(&piece->extent, at.from, at.end, &s) && s.count == at.end - at.from)
        return checkpoint_io_fetch(w->io, piece, s, w->io->staging);
    for (int i = w->holdings.first[p]; i < w->holdings.first[p + 1]; i++) {
        const Holding *h = &w->holdings.of[i];
        if (h->rank == checkpoint_io_rank(w->io))
            checkpoint_io_take(w->io, piece, at.from, at.end, w->io->staging, false);
        else
            receive_window(w, at, h, dtype_size(piece->dtype));
    }
    return w->io->staging;
}

/* Writes the window at the end of the file, and adds it to its chunk's checksum. */
static void write_window(Writing *w, Window at)
{
    ManifestTensor *t = &w->layout->manifest.tensor[at.tensor];
    int64_t size = (int64_t)dtype_size(t->entry.dtype);
    size_t bytes = (size_t)((at.end - at.from) * size);
    uint32_t *crc = &t->chunk[at.from * size / manifest_chunk_bytes(&t->entry)];
    /* Gathered also when the disk has failed: the others send this window in any case, and would
     * wait for ever for a writer that does not receive. */
    const void *data = gather_window(w, at);
    if (!w->good) return;
    *crc = crc32c(*crc, data, bytes);
    put_bytes(w, data, bytes);
}

/* ---- all files --------------------------------------------------------------------------------
 */

/* The files of a part, this rank's among them or not, side by side. */
static void write_part(Writing *w, CheckpointPart part)
{
    const Layout *l = w->layout;
    int own = -1, first = 0, end = l->manifest.n_files;
    Window at[CHECKPOINT_MAX_WRITERS];
    while (first < end && l->manifest.file[first].part != part)
        first++;
    while (l->manifest.file[end - 1].part != part)
        end--;
    for (int f = first; f < end; f++) {
        at[f - first] = (Window){.tensor = l->file[f].first};
        if (l->file[f].writer == checkpoint_io_rank(w->io)) own = f;
    }
    if (own >= 0) begin_file(w, own);
    /* A window of each file a round: while one writer's disk is busy its senders are at work for
     * the next. Every rank goes through this same list, which is why nobody waits in a circle. */
    for (bool more = true; more;) {
        more = false;
        for (int f = first; f < end; f++) {
            if (!next_window(w, &l->file[f], &at[f - first])) continue;
            more = true;
            if (f == own)
                write_window(w, at[f - first]);
            else
                send_window(w, at[f - first], l->file[f].writer);
        }
    }
    if (own >= 0) end_file(w);
}

/* The other writers' checksums to rank 0, which writes the manifest. */
static void collect_checksums(Writing *w)
{
    const Manifest *m = &w->layout->manifest;
    for (int f = 0; f < m->n_files; f++) {
        const LayoutFile *file = &w->layout->file[f];
        int rank = checkpoint_io_rank(w->io);
        /* Rank 0 has its own, and the others need none: the manifest is rank 0's. */
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
    holdings_gather(&w.holdings, io, contents);
    w.folder_fd = fs_open_folder(folder, err, n);
    /* A rank that cannot even open the folder goes through all that follows without writing. */
    w.good = w.folder_fd >= 0;
    for (int part = 0; part < CHECKPOINT_PARTS; part++)
        write_part(&w, (CheckpointPart)part);
    collect_checksums(&w);
    if (w.folder_fd >= 0) close(w.folder_fd);
    holdings_free(&w.holdings);
    return w.good;
}

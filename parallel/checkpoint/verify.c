/* verify.c -- comparing all data of a checkpoint with their checksums, and finding the newest one
 * whose data have theirs. See checkpoint.h. */
#include "model/core/check.h"
#include "model/core/crc32c.h"
#include "model/core/files.h"
#include "model/core/log.h"
#include "parallel/checkpoint/folder.h"
#include "parallel/checkpoint/io.h"
#include "parallel/checkpoint/opened.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Reads chunk `i` of a tensor, in pieces, for it may be larger than the staging buffer. */
static bool verify_chunk(CheckpointIo *io, Checkpoint *c, const ManifestTensor *t, int i, char *err,
                         size_t n)
{
    int64_t chunk = manifest_chunk_bytes(&t->entry), at = i * chunk,
            end = at + chunk < t->entry.bytes ? at + chunk : t->entry.bytes;
    uint32_t crc = 0;
    while (at < end) {
        int64_t left = end - at;
        size_t piece =
            left < (int64_t)CHECKPOINT_STAGING_BYTES ? (size_t)left : CHECKPOINT_STAGING_BYTES;
        if (!opened_read(c, t, io->staging, piece, at, err, n)) return false;
        crc = crc32c(crc, io->staging, piece);
        at += (int64_t)piece;
    }
    return crc == t->chunk[i] || opened_chunk_error(c, t, i, err, n);
}

bool checkpoint_verify(CheckpointIo *io, Checkpoint *c, char *err, size_t n)
{
    bool good = true;
    int64_t bytes = 0, total = 0;
    int rank = checkpoint_io_rank(io), ranks = checkpoint_io_ranks(io);
    for (int i = 0; i < c->manifest.n_tensors; i++)
        total += c->manifest.tensor[i].entry.bytes;
    /* A rank's share are the chunks that begin in its part of all bytes: neighbours, so that each
     * reads few files, and those from end to end. */
    for (int i = 0; good && i < c->manifest.n_tensors; i++) {
        const ManifestTensor *t = &c->manifest.tensor[i];
        int64_t chunk = manifest_chunk_bytes(&t->entry);
        for (int k = 0; good && k < t->n_chunks; k++) {
            /* Every chunk begins in one rank's part, so that all are compared, and once. */
            double begins = (double)(bytes + k * chunk) / (double)total;
            if ((int)(begins * ranks) == rank) good = verify_chunk(io, c, t, k, err, n);
        }
        bytes += t->entry.bytes;
    }
    /* Remembered, so that reading does not compare them all again. */
    c->verified = checkpoint_io_agree(io, good, err, n);
    return c->verified;
}

/* Whether the file `name` holds exactly this text; its size is compared before it is read. */
static bool holds_text(const Checkpoint *c, const char *name, const char *text, size_t bytes,
                       char *err, size_t n)
{
    static const char whose[] = "Hugging Face's loaders need it, resuming does not";
    char *path = text_format("%s/%s", c->path, name), *found = NULL, why[1024];
    int64_t size = 0;
    int fd = fs_open_file(c->folder, name, path, &size, why, sizeof why);
    bool good = fd >= 0, same = good && size == (int64_t)bytes;
    if (same) good = file_read_open(fd, bytes, path, &found, why, sizeof why);
    if (!good)
        error_set(err, n, "%s; %s", why, whose);
    else if (!same || memcmp(found, text, bytes) != 0)
        good =
            error_set(err, n, "%s is damaged: it is not the index that was saved; %s", path, whose);
    if (fd >= 0) close(fd);
    free(found);
    free(path);
    return good;
}

bool checkpoint_verify_indexes(const Checkpoint *c, char *err, size_t n)
{
    bool good = true;
    for (int part = 0; good && part < CHECKPOINT_PARTS; part++) {
        size_t bytes;
        char *text = manifest_print_index(&c->manifest, (CheckpointPart)part, &bytes);
        if (text == NULL) continue;
        good = holds_text(c, checkpoint_index_name((CheckpointPart)part), text, bytes, err, n);
        free(text);
    }
    return good;
}

/* ---- the newest ------------------------------------------------------------------------------ */

/* How a search for the newest checkpoint that verifies ended. */
typedef enum {
    SEARCH_FOUND,
    SEARCH_NONE_VERIFIES,
    SEARCH_DENIED,   /* the newest one left to try must not be read */
    SEARCH_OUTDATED, /* none verifies, but some of the list have been removed since it was made */
} SearchResult;

/* Tries the steps of a list, newest first. *out is the first that verifies; `why` is the reason
 * against the last one that was tried. A listed folder that is gone is no reason for a warning: a
 * live run prunes only after it has committed a newer checkpoint, which a new list will name. One
 * that must not be read ends the search, because it may be whole: to go on from an older one would
 * silently throw steps away. */
static SearchResult search_newest(CheckpointIo *io, const char *run, const int64_t *steps,
                                  int n_steps, Checkpoint **out, char *why, size_t n)
{
    bool outdated = false;
    for (int i = 0; i < n_steps; i++) {
        char *path = checkpoint_path(run, steps[i]);
        Checkpoint *c = NULL;
        bool whole =
            checkpoint_open_everywhere(io, path, &c, why, n) && checkpoint_verify(io, c, why, n);
        bool gone = !whole && checkpoint_gone(path);
        checkpoint_io_share(io, &gone, sizeof gone);
        free(path);
        if (whole) {
            *out = c;
            return SEARCH_FOUND;
        }
        checkpoint_close(c);
        outdated |= gone;
        if (gone) continue;
        if (error_exit_code(why, EXIT_DAMAGED) == EXIT_PERMISSION) return SEARCH_DENIED;
        if (checkpoint_io_leads(io))
            log_warning("%s; this checkpoint is refused%s", why,
                        i + 1 < n_steps ? ", an older one is tried" : "");
    }
    return outdated ? SEARCH_OUTDATED : SEARCH_NONE_VERIFIES;
}

int checkpoint_list_everywhere(CheckpointIo *io, const char *run, int64_t **steps, char *err,
                               size_t n)
{
    /* Two ranks that list the folder of a live run themselves may find different steps, and would
     * then wait for each other in different calls. */
    bool leads = checkpoint_io_leads(io);
    *steps = NULL;
    int count = leads ? checkpoint_list(run, steps, err, n) : 0;
    checkpoint_io_share(io, &count, sizeof count);
    if (!checkpoint_io_agree(io, count >= 0, err, n)) return -1;
    if (!leads) *steps = must_calloc((size_t)count + 1, sizeof **steps);
    if (count > 0) checkpoint_io_share(io, *steps, (size_t)count * sizeof **steps);
    return count;
}

bool checkpoint_open_newest(CheckpointIo *io, const char *run, Checkpoint **out, char *err,
                            size_t n)
{
    char why[1024] = "";
    SearchResult result = SEARCH_OUTDATED;
    int n_steps = 0;
    *out = NULL;
    /* A list that is outdated is made again, but not for ever: a run that saves as fast as this
     * reads would keep both busy. */
    for (int i = 0; result == SEARCH_OUTDATED && i < CHECKPOINT_LIST_ATTEMPTS; i++) {
        int64_t *steps;
        n_steps = checkpoint_list_everywhere(io, run, &steps, err, n);
        if (n_steps > 0) result = search_newest(io, run, steps, n_steps, out, why, sizeof why);
        free(steps);
        if (n_steps <= 0) return n_steps == 0;
    }
    if (result == SEARCH_FOUND) return true;
    if (result == SEARCH_DENIED)
        return error_set(err, n, "%s; it may be whole, so no older checkpoint is taken for it",
                         why);
    return error_set(err, n, "none of the %d checkpoints of %s can be used; the last: %s", n_steps,
                     run, why);
}

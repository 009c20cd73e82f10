/* verify.c -- compares all data of a checkpoint with their checksums, and finds the newest
 * checkpoint that passes. See checkpoint.h. */
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

/* Compares chunk `i` of a tensor with its checksum. Reads it in several parts, because it may be
 * larger than the staging buffer. */
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
    /* The data of all tensors, taken as one sequence of bytes, are cut into one equal range per
     * rank. A rank verifies the chunks that begin in its range. They are neighbours, so each rank
     * reads few files, and reads them sequentially. */
    for (int i = 0; good && i < c->manifest.n_tensors; i++) {
        const ManifestTensor *t = &c->manifest.tensor[i];
        int64_t chunk = manifest_chunk_bytes(&t->entry);
        for (int k = 0; good && k < t->n_chunks; k++) {
            /* Every chunk begins in the range of exactly one rank, so each is compared exactly
             * once. */
            double begins = (double)(bytes + k * chunk) / (double)total;
            if ((int)(begins * ranks) == rank) good = verify_chunk(io, c, t, k, err, n);
        }
        bytes += t->entry.bytes;
    }
    /* Remembered, so checkpoint_read does not compare all checksums again. */
    c->verified = checkpoint_io_agree(io, good, err, n);
    return c->verified;
}

/* Returns whether the file `name` contains exactly this text; sets `err` if not. Its size is
 * compared before it is read. */
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

/* The result of a search for the newest checkpoint that verifies. */
typedef enum {
    SEARCH_FOUND,
    SEARCH_NONE_VERIFIES,
    SEARCH_DENIED,   /* no permission to read a checkpoint, and no newer one verifies */
    SEARCH_OUTDATED, /* none verifies, but listed ones have been removed meanwhile */
} SearchResult;

/* Tries the steps of a list, newest first, and sets *out to the first checkpoint that verifies.
 * `why` is set to the reason why the last one tried was rejected. A listed folder that no longer
 * exists causes no warning: a process that is still training prunes only after it has committed a
 * newer checkpoint, which a new list will contain. A checkpoint without read permission ends the
 * search. It may be intact, and resuming from an older one would silently lose steps. */
static SearchResult search_newest(CheckpointIo *io, const char *run, const int64_t *steps,
                                  int n_steps, Checkpoint **out, char *why, size_t n)
{
    bool outdated = false;
    for (int i = 0; i < n_steps; i++) {
        char *path = checkpoint_path(run, steps[i]);
        Checkpoint *c = NULL;
        bool whole = checkpoint_io_agree(io, checkpoint_not_linked(path, why, n), why, n) &&
                     checkpoint_open_everywhere(io, path, &c, why, n) &&
                     checkpoint_verify(io, c, why, n);
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
    /* If each rank listed the folder itself while a run saves and prunes, two ranks could see
     * different steps. They would then make different collective calls and deadlock. */
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
    /* An outdated list is read again, but only a limited number of times: a run that saves as fast
     * as this loop reads could keep it busy forever. */
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

bool checkpoint_open_before(CheckpointIo *io, const char *run, int64_t before, int64_t interval,
                            Checkpoint **out, char *err, size_t n)
{
    char why[1024] = "";
    int64_t *steps, *earlier;
    int n_steps = checkpoint_list_everywhere(io, run, &steps, err, n), n_earlier = 0;
    *out = NULL;
    if (n_steps < 0) return false;
    earlier = must_calloc((size_t)n_steps + 1, sizeof *earlier);
    /* Step 0 is left out, because its checkpoint may have only weights. */
    for (int planned = interval > 0; planned >= 0; planned--)
        for (int i = 0; i < n_steps; i++)
            if (steps[i] > 0 && steps[i] < before &&
                (interval > 0 && steps[i] % interval == 0) == (planned == 1))
                earlier[n_earlier++] = steps[i];
    SearchResult result = n_earlier == 0
                              ? SEARCH_NONE_VERIFIES
                              : search_newest(io, run, earlier, n_earlier, out, why, sizeof why);
    free(earlier);
    free(steps);
    if (result == SEARCH_DENIED || result == SEARCH_OUTDATED) return error_set(err, n, "%s", why);
    return true;
}

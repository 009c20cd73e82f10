/* save.c -- saves a checkpoint: writes a temporary folder, syncs it, reads it back and renames it.
 * See checkpoint.h.
 *
 * The steps of a save, and what a crash during or after each of them leaves:
 *   1. Make RUN/checkpoints/step_N.tmp-ID. Each writer writes and fsyncs its files there. When all
 *      ranks agree that their files are good, write and fsync the manifest and fsync the folder.
 *      Crash: a temporary folder remains. Readers ignore it, and the next save removes it.
 *   2. Open the folder as any reader would. If that fails, the save fails and nothing has changed.
 *   3. If step_N exists already and is not this save, rename it. Crash: step N does not exist; a
 *      resume takes the newest of the other checkpoints.
 *   4. Rename the temporary folder to step_N: from now on it is a checkpoint. Crash: the disk has
 *      either the old name or the new one, and the content is complete under both.
 *   5. fsync RUN/checkpoints and RUN: from now on the checkpoint also survives a power failure.
 * Rank 0 does everything except for the other writers' files. The ranks agree on whether all went
 * well after the temporary folder is made, after all writers' files are synced, and at the end. */
#include "parallel/checkpoint/checkpoint.h"

#include "model/core/check.h"
#include "model/core/files.h"
#include "parallel/checkpoint/commit.h"
#include "parallel/checkpoint/folder.h"
#include "parallel/checkpoint/io.h"
#include "parallel/checkpoint/prune.h"
#include "parallel/checkpoint/write.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

/* Returns whether `good` is true on every rank. All ranks get the same result, and the error
 * message of the lowest rank that failed. */
static bool agree(CheckpointIo *io, Save *s, bool good)
{
    return checkpoint_io_agree(io, good, s->err, s->n);
}

/* Checks on all ranks what exists under the final name. Sets *saved if it is this step and
 * verifies. Otherwise sets s->aside to the name to which it will be moved. A damaged checkpoint
 * becomes trash, which is removed at the end of the save. A checkpoint that holds another step must
 * have been renamed by a user; it is kept under a name that contains its step. Returns false if
 * there is no permission to read it: it may be intact, and must then not be replaced. */
static bool inspect_final(CheckpointIo *io, Save *s, int64_t own_step, bool *saved)
{
    char why[1024];
    const char *final = path_name(s->final);
    Checkpoint *c = NULL;
    *saved = false;
    bool there = !s->leads || !checkpoint_gone(s->final);
    checkpoint_io_share(io, &there, sizeof there);
    if (!there) return true;
    if (checkpoint_io_far(io)) fs_await(s->final);
    bool opens = checkpoint_not_linked(s->final, why, sizeof why) &&
                 checkpoint_open_unnamed(s->final, &c, why, sizeof why);
    opens = checkpoint_io_agree(io, opens, why, sizeof why);
    int64_t step = opens ? checkpoint_manifest(c)->state.steps : -1;
    *saved = opens && step == own_step && checkpoint_verify(io, c, why, sizeof why);
    checkpoint_close(c);
    if (*saved) return true;
    if (opens && step != own_step) {
        s->aside = text_format("%s.holds-%" PRId64 "-%s", final, step, s->save_id);
        s->aside_warning =
            text_format("%s held step %" PRId64 ": it was moved to %s", s->final, step, s->aside);
        return true;
    }
    if (error_exit_code(why, EXIT_OK) == EXIT_PERMISSION) return error_set(s->err, s->n, "%s", why);
    s->aside = text_format(".trash-%s-%s", final, s->save_id);
    s->aside_warning = text_format("a damaged checkpoint makes way for a new one: %s", why);
    return true;
}

/* Steps 1 and 2 of the list above: writes and syncs the temporary folder with all its files, and
 * opens it. */
static bool write_content(CheckpointIo *io, Save *s, const CheckpointContents *contents)
{
    if (!agree(io, s, save_make_temporary(s))) return false;
    bool good = write_tensors(io, contents, &s->layout, s->temporary, s->err, s->n);
    /* The manifest is written last: if a folder has a manifest, all the files that it names are
     * there and synced. */
    return agree(io, s, good) && save_complete(s);
}

/* Writes and commits the save. If either fails on any rank, or if this is a trial, removes
 * everything that was written. */
static bool save_anew(CheckpointIo *io, Save *s, const CheckpointContents *contents)
{
    layout_build(&s->layout, contents, checkpoint_io_ranks(io), s->save_id);
    save_remove_leftovers(s); /* leftovers may fill the disk */
    bool good = write_content(io, s, contents);
    good = agree(io, s, good && (contents->trial || save_commit(s)));
    if (!good || contents->trial) save_remove_temporary(s);
    if (good) save_remove_leftovers(s);
    return good;
}

bool checkpoint_write(CheckpointIo *io, const char *run, const CheckpointContents *contents,
                      char *err, size_t n)
{
    Save s;
    char save_id[SAVE_ID_DIGITS + 1] = "";
    bool saved = false;
    /* All ranks use the same id: it is in the name of the temporary folder and in every rank's
     * files. */
    if (checkpoint_io_leads(io)) save_draw_id(save_id);
    checkpoint_io_share(io, save_id, sizeof save_id);
    save_begin(&s, io, run, contents->state->steps, save_id, err, n);
    bool good = agree(io, &s, save_open_parent(&s));
    if (good && !contents->trial) good = inspect_final(io, &s, contents->state->steps, &saved);
    if (good && !saved) good = save_anew(io, &s, contents);
    save_end(&s);
    return good;
}

bool checkpoint_write_making_room(CheckpointIo *io, const char *run,
                                  const CheckpointContents *contents, char *err, size_t n)
{
    /* A user's quota can be exhausted while the disk has free space (EDQUOT). Both cases count as a
     * full disk. */
    while (!checkpoint_write(io, run, contents, err, n)) {
        bool full = error_says(err, ENOSPC) || error_says(err, EDQUOT);
        if (!full || checkpoint_make_room(io, run, checkpoint_bytes(contents)) == 0) return false;
    }
    return true;
}

int64_t checkpoint_bytes(const CheckpointContents *contents)
{
    size_t text = strlen(contents->config) + strlen(contents->machine) + strlen(contents->code) +
                  strlen(contents->data);
    int64_t writers = contents->writers > 1 ? contents->writers : 1;
    /* Texts are counted twice, because JSON escapes make them longer. A tensor has an entry in its
     * header and one in the manifest: 400 bytes and twice its name, and 12 bytes for the checksum
     * of each chunk. With several writers it also has an entry in an index, and longer file
     * names. */
    int64_t total = 8192 + 2 * (int64_t)text + 1024 * (writers - 1);
    for (int i = 0; i < contents->n_weights + contents->n_slots; i++) {
        SafetensorsEntry e = layout_entry(contents_piece(contents, i));
        total +=
            e.bytes + 400 + 2 * (int64_t)strlen(e.name) + 12 * (int64_t)manifest_chunk_count(&e);
        if (writers > 1) total += 80 + (int64_t)strlen(e.name);
    }
    return total;
}

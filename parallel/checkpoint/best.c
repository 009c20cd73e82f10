/* best.c -- reads and writes RUN/checkpoints/best.json, which names the checkpoint with the lowest
 * validation loss, and opens that checkpoint. See checkpoint.h. */
#include "parallel/checkpoint/best.h"

#include "model/core/check.h"
#include "model/core/files.h"
#include "model/core/json_tree.h"
#include "model/core/json_write.h"
#include "parallel/checkpoint/folder.h"
#include "parallel/checkpoint/io.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Returns "RUN/checkpoints/best.json"; the caller frees it. */
static char *best_path(const char *run)
{
    return text_format("%s/checkpoints/best.json", run);
}

/* ---- the file -------------------------------------------------------------------------------- */

bool best_parse(CheckpointBest *best, const char *text, size_t bytes)
{
    cJSON *o = json_tree_parse(text, bytes);
    const cJSON *loss = cJSON_GetObjectItemCaseSensitive(o, "val_loss"),
                *id = cJSON_GetObjectItemCaseSensitive(o, "save_id");
    *best = (CheckpointBest){0};
    bool good = json_tree_count(o, "step", &best->step) && best->step >= 1 &&
                cJSON_IsNumber(loss) && isfinite(loss->valuedouble) && cJSON_IsString(id) &&
                manifest_save_id_valid(id->valuestring);
    if (good) {
        best->val_loss = loss->valuedouble;
        memcpy(best->save_id, id->valuestring, SAVE_ID_DIGITS);
    } else {
        *best = (CheckpointBest){0};
    }
    cJSON_Delete(o);
    return good;
}

char *best_text(const CheckpointBest *best)
{
    char *text;
    size_t n;
    FILE *to = text_stream(&text, &n);
    fprintf(to, "{\"step\": %lld, \"val_loss\": ", (long long)best->step);
    json_print_number(to, best->val_loss);
    fprintf(to, ", \"save_id\": \"%s\"}\n", best->save_id);
    fclose(to);
    return text;
}

bool checkpoint_best_read(const char *run, CheckpointBest *best, char *err, size_t n)
{
    char *path = best_path(run), *text = NULL;
    size_t bytes;
    *best = (CheckpointBest){0};
    bool good = access(path, F_OK) != 0 && checkpoint_gone(path);
    if (!good && file_read_own(path, &text, &bytes, err, n))
        good = best_parse(best, text, bytes) ||
               error_set(err, n, "%s is damaged: it does not name a checkpoint", path);
    free(text);
    free(path);
    return good;
}

/* Completes the record with the id of the step's save, and writes it. Only rank 0 calls this. */
static bool write_best(CheckpointIo *io, const char *run, CheckpointBest *best, char *err, size_t n)
{
    char *folder = checkpoint_path(run, best->step), *path = best_path(run);
    Checkpoint *c = NULL;
    bool good = checkpoint_open(folder, &c, err, n);
    if (good) {
        memcpy(best->save_id, checkpoint_manifest(c)->save_id, sizeof best->save_id);
        char *text = best_text(best);
        good = file_write(io->fs, path, text, strlen(text), err, n);
        free(text);
    }
    checkpoint_close(c);
    free(path);
    free(folder);
    return good;
}

bool checkpoint_best_write(CheckpointIo *io, const char *run, CheckpointBest *best, char *err,
                           size_t n)
{
    bool good = !checkpoint_io_leads(io) || write_best(io, run, best, err, n);
    good = checkpoint_io_agree(io, good, err, n);
    if (good) checkpoint_io_share(io, best, sizeof *best);
    return good;
}

bool checkpoint_best_forget(const char *run, char *err, size_t n)
{
    char *path = best_path(run);
    bool gone = unlink(path) == 0 || errno == ENOENT ||
                error_set(err, n, "cannot remove %s: %s", path, strerror(errno));
    free(path);
    return gone;
}

/* ---- the checkpoint -------------------------------------------------------------------------- */

/* Opens the checkpoint that the record names, without reading its data. A checkpoint of the same
 * step but of another save is refused: the recorded loss is not its loss. */
static bool open_recorded(const char *run, const CheckpointBest *best, Checkpoint **out, char *err,
                          size_t n)
{
    char *path = checkpoint_path(run, best->step);
    bool good = checkpoint_open(path, out, err, n);
    if (good && strcmp(checkpoint_manifest(*out)->save_id, best->save_id) != 0) {
        error_set(err, n, "%s is of save %s, best.json beside it names save %s", path,
                  checkpoint_manifest(*out)->save_id, best->save_id);
        checkpoint_close(*out);
        *out = NULL;
        good = false;
    }
    free(path);
    return good;
}

bool checkpoint_best_find(const char *run, CheckpointBest *best, Checkpoint **out, char *err,
                          size_t n)
{
    *out = NULL;
    return checkpoint_best_read(run, best, err, n) &&
           (best->step == 0 || open_recorded(run, best, out, err, n));
}

bool checkpoint_best_open(CheckpointIo *io, const char *run, Checkpoint **out, CheckpointBest *best,
                          char *err, size_t n)
{
    bool again = true;
    *out = NULL;
    for (int i = 0; again && i < CHECKPOINT_LIST_ATTEMPTS; i++) {
        /* Only rank 0 reads the record: while a run is training, another rank could already see a
         * newer record. */
        bool read = !checkpoint_io_leads(io) || checkpoint_best_read(run, best, err, n);
        if (!checkpoint_io_agree(io, read, err, n)) return false;
        checkpoint_io_share(io, best, sizeof *best);
        if (best->step == 0) return true;
        if (checkpoint_io_agree(io, open_recorded(run, best, out, err, n), err, n) &&
            checkpoint_verify(io, *out, err, n))
            return true;
        checkpoint_close(*out);
        *out = NULL;
        /* A run that is still training removes the best checkpoint only after it has recorded a
         * better one. If that has happened, the better one is tried. */
        char *path = checkpoint_path(run, best->step);
        CheckpointBest now;
        again = checkpoint_gone(path) && checkpoint_best_read(run, &now, err, n) &&
                now.step != best->step;
        checkpoint_io_share(io, &again, sizeof again);
        free(path);
    }
    return false;
}

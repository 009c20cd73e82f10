/* ckpt_table.c -- prints the rows of `./train ckpt list`. See ckpt_table.h. */
#include "parallel/commands/ckpt_table.h"

#include "model/core/check.h"
#include "model/core/figures.h"
#include "model/core/utf8.h"
#include "parallel/grid/grid.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

/* Returns the part of a path before its last name; "." if there is none. The caller frees it. */
static char *folder_of(const char *path)
{
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/')
        n--;
    while (n > 0 && path[n - 1] != '/')
        n--;
    while (n > 1 && path[n - 1] == '/')
        n--;
    return n > 0 ? text_format("%.*s", (int)n, path) : must_strdup(".");
}

void ckpt_table_begin(CkptTable *table, const char *checkpoint, const CheckpointBest *best)
{
    char ignored[512];
    *table = (CkptTable){.folder = folder_of(checkpoint), .best = *best};
    char *run = text_format("%s/../..", checkpoint);
    /* A checkpoint may lie outside a run's folder; then its losses are not known. */
    history_read(&table->history, run, ignored, sizeof ignored);
    free(run);
}

/* Writes a loss with four decimals, or "-" if it is not known. */
static Figure loss_text(double loss)
{
    Figure f = {"-"};
    if (!isnan(loss)) snprintf(f.text, sizeof f.text, "%.4f", loss);
    return f;
}

/* Returns the mean loss of a step's batch; NaN if it is not known. */
static double train_loss(const History *h, int64_t step)
{
    for (int64_t i = h->n_train - 1; i >= 0; i--)
        if (h->train[i].step <= step) return h->train[i].step == step ? h->train[i].loss : NAN;
    return NAN;
}

/* Returns the validation loss at a step; NaN if it was not evaluated then. */
static double val_loss(const History *h, int64_t step)
{
    for (int64_t i = h->n_eval - 1; i >= 0; i--)
        if (h->eval[i].step <= step) return h->eval[i].step == step ? h->eval[i].loss : NAN;
    return NAN;
}

/* Returns when the step was saved, according to its run's metrics; NaN if they do not contain it.
 */
static double noted_time(const History *h, int64_t step)
{
    for (int64_t i = h->n_save - 1; i >= 0; i--)
        if (h->save[i].step <= step) return h->save[i].step == step ? h->save[i].time : NAN;
    return NAN;
}

/* Writes when the checkpoint was saved, in UTC. If the metrics of its run do not contain the save,
 * takes the modification time of the manifest, the last file that a save writes. In a copy of the
 * checkpoint this time may be a later one. */
static void saved_text(const History *h, int64_t step, const char *path, char *text, size_t n)
{
    struct stat info;
    struct tm when;
    double noted = noted_time(h, step);
    char *manifest = text_format("%s/manifest.json", path);
    bool known = noted > 0 && noted < 1e11;
    time_t at = known ? (time_t)noted : 0;
    if (!known && stat(manifest, &info) == 0) at = info.st_mtime;
    snprintf(text, n, "-");
    if (at > 0 && gmtime_r(&at, &when) != NULL) strftime(text, n, "%Y-%m-%d %H:%M", &when);
    free(manifest);
}

/* Writes the ranks that saved the checkpoint, such as "dp 2 x tp 2, ZeRO 1". */
static void world_text(const ManifestWorld *w, char *text, size_t n)
{
    GridPlace size = {.pp = (int)w->pp, .dp = (int)w->dp, .cp = (int)w->cp, .tp = (int)w->tp};
    char axes[64];
    if (w->ranks > 1)
        snprintf(text, n, "%s, ZeRO %" PRId64, grid_size_text(size, axes, sizeof axes),
                 w->zero_stage);
    else
        snprintf(text, n, "1 rank");
}

void ckpt_table_row(CkptTable *table, const Checkpoint *checkpoint)
{
    const Manifest *m = checkpoint_manifest(checkpoint);
    const char *path = checkpoint_folder(checkpoint), *slash = strrchr(path, '/');
    char saved[32], world[96];
    double val = val_loss(&table->history, m->state.steps);
    bool best = table->best.step > 0 && table->best.step == m->state.steps &&
                strcmp(table->best.save_id, m->save_id) == 0;
    if (isnan(val) && best) val = table->best.val_loss;
    if (table->rows++ == 0) {
        char *folder = utf8_escaped(table->folder);
        printf("in %s:\n%-13s %8s %8s %10s  %-16s  %s\n", folder, "checkpoint", "loss", "val loss",
               "size", "saved (UTC)", "ranks");
        free(folder);
    }
    int64_t bytes = 0;
    for (int f = 0; f < m->n_files; f++)
        bytes += m->file[f].bytes;
    saved_text(&table->history, m->state.steps, path, saved, sizeof saved);
    world_text(&m->world, world, sizeof world);
    printf("%-13s %8s %8s %10s  %-16s  %s%s\n", slash ? slash + 1 : path,
           loss_text(train_loss(&table->history, m->state.steps)).text, loss_text(val).text,
           figure_bytes((double)bytes).text, saved, world, best ? "  best" : "");
}

void ckpt_table_end(CkptTable *table)
{
    history_free(&table->history);
    free(table->folder);
}

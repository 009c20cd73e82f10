/* disk.c -- compares the size of a run's checkpoints with the free disk space. */
#include "parallel/run/disk.h"

#include "model/core/check.h"
#include "model/core/figures.h"
#include "model/core/log.h"
#include "parallel/run/best.h"

#include <stdio.h>
#include <stdlib.h>

/* Returns the largest number of checkpoints that the run will save in total. `best`: the run also
 * keeps its best checkpoint. */
static int64_t count_saves(const Config *c, bool best)
{
    int64_t interval = c->checkpoint.save_interval;
    return (interval > 0 ? (c->train_steps - 1) / interval + 1 : 1) +
           (best ? best_most_saves(c) : 0);
}

/* Returns the largest number of checkpoints that the run keeps because of checkpoint.keep_every. */
static int64_t count_every(const Config *c)
{
    return c->checkpoint.keep_every > 0 ? c->train_steps / c->checkpoint.keep_every : 0;
}

void disk_print(const Config *config, bool best, int64_t bytes)
{
    Figure size = figure_bytes((double)bytes);
    int64_t keep = config->checkpoint.keep;
    char every[64] = "";
    if (config->checkpoint.keep_every > 0)
        snprintf(every, sizeof every, " and one every %lld steps",
                 (long long)config->checkpoint.keep_every);
    if (keep > 0)
        log_field("disk", "%s a checkpoint, %lld kept%s%s", size.text, (long long)keep,
                  !best    ? ""
                  : *every ? ", the best"
                           : " and the best",
                  every);
    else
        log_field("disk", "%s a checkpoint, all %lld kept", size.text,
                  (long long)count_saves(config, best));
}

void disk_check(const Config *c, bool best, int64_t bytes, const char *path)
{
    char ignored[512];
    int64_t saves = count_saves(c, best), keep = c->checkpoint.keep, *steps;
    /* During a save the checkpoint that it will replace is still there. */
    int64_t most = keep + best + count_every(c) + 1;
    int64_t at_once = keep > 0 && most < saves ? most : saves;
    int there = checkpoint_list(path, &steps, ignored, sizeof ignored);
    free(steps);
    char *folder = text_format("%s/checkpoints", path); /* may be a link to another disk */
    int64_t available = fs_room(&fs_system, folder);
    free(folder);
    if (there > 0) at_once -= there < at_once ? there : at_once;
    double need = (double)bytes * (double)at_once;
    if (available >= 0 && need > (double)available)
        log_warning(
            "checkpoints will need %s of disk and %s are free for %s; lower checkpoint.keep "
            "or choose another disk with --out",
            figure_bytes(need).text, figure_bytes((double)available).text, path);
}

void disk_check_first_save(const Config *c, int64_t bytes, const char *path, const FsOps *fs,
                           const Checkpoint *newest)
{
    int64_t step = newest ? checkpoint_manifest(newest)->state.steps : 0;
    int removable = checkpoint_removable(fs, path, step, c->checkpoint.keep_every);
    /* If checkpoint.keep is 0, a save does not remove checkpoints to make room. */
    if (c->checkpoint.keep == 0) removable = 0;
    char *folder = text_format("%s/checkpoints", path);
    int64_t room = fs_room(fs, folder);
    bool saves = newest == NULL || step < c->train_steps;
    if (saves && room >= 0 && removable == 0 && room < bytes)
        fail(EXIT_INPUT_OUTPUT,
             "a checkpoint takes %s and %s are free for %s, so that nothing of this run could be "
             "saved; make room, or choose another disk with --out",
             figure_bytes((double)bytes).text, figure_bytes((double)room).text, folder);
    free(folder);
}

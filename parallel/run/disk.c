/* disk.c -- compares the size of a run's checkpoints with the free disk space. */
#include "parallel/run/disk.h"

#include "model/core/check.h"
#include "model/core/figures.h"
#include "model/core/log.h"

#include <stdlib.h>

/* Returns how many checkpoints the run will save in total. */
static int64_t count_saves(const Config *c)
{
    int64_t interval = c->checkpoint.save_interval;
    return interval > 0 ? (c->train_steps - 1) / interval + 1 : 1;
}

void disk_print(const Config *config, int64_t bytes)
{
    int64_t keep = config->checkpoint.keep;
    log_field("disk", keep > 0 ? "%s a checkpoint, %lld kept" : "%s a checkpoint, all %lld kept",
              figure_bytes((double)bytes).text, (long long)(keep > 0 ? keep : count_saves(config)));
}

void disk_check(const Config *c, int64_t bytes, const char *path)
{
    char ignored[512];
    int64_t saves = count_saves(c), keep = c->checkpoint.keep, *steps;
    int64_t at_once = keep > 0 && keep < saves ? keep + 1 : saves;
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
    char ignored[512], *folder = text_format("%s/checkpoints", path);
    int64_t room = fs_room(fs, folder), *steps, older = 0;
    int n = checkpoint_list(path, &steps, ignored, sizeof ignored);
    int64_t step = newest ? checkpoint_manifest(newest)->state.steps : 0;
    for (int i = 0; newest && c->checkpoint.keep > 0 && i < n; i++)
        older += steps[i] < step; /* removing these may make room */
    free(steps);
    bool saves = newest == NULL || step < c->train_steps;
    if (saves && room >= 0 && older == 0 && room < bytes)
        fail(EXIT_INPUT_OUTPUT,
             "a checkpoint takes %s and %s are free for %s, so that nothing of this run could be "
             "saved; make room, or choose another disk with --out",
             figure_bytes((double)bytes).text, figure_bytes((double)room).text, folder);
    free(folder);
}

/* run_path.c -- see run_path.h. */
#include "parallel/run/run_path.h"

#include "model/core/check.h"
#include "model/core/files.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

char *run_path_of(const char *path, bool *is_checkpoint)
{
    char *run = path_trimmed(path);
    char *at = strstr(run, "/checkpoints/step_");
    *is_checkpoint = at != NULL;
    if (at) *at = '\0';
    return run;
}

bool run_path_has(const char *path, const char *name)
{
    char *full = text_format("%s/%s", path, name);
    bool absent = access(full, F_OK) != 0 && (errno == ENOENT || errno == ENOTDIR);
    free(full);
    return !absent;
}

bool run_path_is_run(const char *path)
{
    return fs_is_folder(path) && run_path_has(path, "config.json");
}

/* run_path.c -- see run_path.h. */
#include "parallel/run/run_path.h"

#include "model/core/check.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

char *run_path_trimmed(const char *path)
{
    char *trimmed = must_strdup(path);
    for (size_t n = strlen(trimmed); n > 1 && trimmed[n - 1] == '/'; n--)
        trimmed[n - 1] = '\0';
    return trimmed;
}

char *run_path_of(const char *path, bool *is_checkpoint)
{
    char *run = run_path_trimmed(path);
    char *at = strstr(run, "/checkpoints/step_");
    *is_checkpoint = at != NULL;
    if (at) *at = '\0';
    return run;
}

bool run_path_is_folder(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
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
    return run_path_is_folder(path) && run_path_has(path, "config.json");
}

/* run_path.h -- command-line paths that name a run folder or one of its checkpoints. */
#ifndef PARALLEL_RUN_RUN_PATH_H
#define PARALLEL_RUN_RUN_PATH_H

#include <stdbool.h>

/* Returns the run folder of `path`, which is a run folder or one of its checkpoints
 * (RUN/checkpoints/step_N; then sets *is_checkpoint). The caller frees it. */
char *run_path_of(const char *path, bool *is_checkpoint);
/* Returns whether `path` has the file `name`. A file that permissions hide counts as existing, so
 * that reading it reports the reason. */
bool run_path_has(const char *path, const char *name);
/* Returns whether `path` is the folder of a run, which has a config.json, and not a checkpoint. */
bool run_path_is_run(const char *path);

#endif

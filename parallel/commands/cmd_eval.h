/* cmd_eval.h -- what the files of `./train eval` share. */
#ifndef PARALLEL_COMMANDS_CMD_EVAL_H
#define PARALLEL_COMMANDS_CMD_EVAL_H

#include "parallel/run/opened_run.h"
#include "parallel/trainer/feed.h"

typedef struct {
    OpenedArguments opened; /* must come first, for OPENED_CHOICES */
    const char *choices;    /* --multiple-choice; NULL: not given */
    bool json;
} EvalArguments;

/* Prints how often the run's model chooses the right completion of the file's examples. Returns the
 * exit code. */
int eval_choices(const EvalArguments *arguments);
/* The callback of a feed for the progress of an evaluation: prints it on the Progress `progress`
 * and returns true. */
bool eval_print_progress(void *progress, const Work *work);

#endif

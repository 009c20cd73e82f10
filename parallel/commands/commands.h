/* commands.h -- the subcommands of ./train, one file each in this folder: the table of each, for
 * args_run. */
#ifndef PARALLEL_COMMANDS_COMMANDS_H
#define PARALLEL_COMMANDS_COMMANDS_H

#include "model/core/args.h"

extern const ArgCommand cmd_config, cmd_data, cmd_generate, cmd_eval, cmd_ckpt, cmd_bench,
    cmd_verify, cmd_doctor;

#endif

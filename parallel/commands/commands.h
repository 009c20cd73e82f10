/* commands.h -- declares the command table (ArgCommand) of each subcommand of ./train, for
 * args_run. Each subcommand is a file in this folder. */
#ifndef PARALLEL_COMMANDS_COMMANDS_H
#define PARALLEL_COMMANDS_COMMANDS_H

#include "model/core/args.h"

extern const ArgCommand cmd_config, cmd_data, cmd_generate, cmd_eval, cmd_ckpt, cmd_bench,
    cmd_verify, cmd_report, cmd_plan, cmd_slurm, cmd_doctor, cmd_import, cmd_export, cmd_flight;

#endif

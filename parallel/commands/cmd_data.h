/* cmd_data.h -- the commands of `./train data` that have a file of their own. */
#ifndef PARALLEL_COMMANDS_CMD_DATA_H
#define PARALLEL_COMMANDS_CMD_DATA_H

#include "parallel/commands/commands.h"

extern const ArgCommand command_data_corpora;

#endif

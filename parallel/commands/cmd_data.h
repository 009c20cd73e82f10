/* cmd_data.h -- the subcommand ./train data. */
#ifndef PARALLEL_COMMANDS_CMD_DATA_H
#define PARALLEL_COMMANDS_CMD_DATA_H

/* argv[0] is "data". Returns the exit code: 0, 64 command line, 65 damaged, 66 missing, 73 output,
 * 74 writing. */
int cmd_data(int argc, char **argv);

#endif

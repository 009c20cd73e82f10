/* commands.h -- the subcommands of ./train, one file each, in the room it speaks of. argv[0] is the
 * subcommand's name; the result is the exit code. */
#ifndef PARALLEL_COMMANDS_COMMANDS_H
#define PARALLEL_COMMANDS_COMMANDS_H

int cmd_config(int argc, char **argv);   /* parallel/commands/cmd_config.c */
int cmd_data(int argc, char **argv);     /* parallel/commands/cmd_data.c */
int cmd_generate(int argc, char **argv); /* parallel/commands/cmd_generate.c */
int cmd_eval(int argc, char **argv);     /* parallel/commands/cmd_eval.c */
int cmd_ckpt(int argc, char **argv);     /* parallel/commands/cmd_ckpt.c */
int cmd_bench(int argc, char **argv);    /* parallel/commands/cmd_bench.c */
int cmd_doctor(int argc, char **argv);   /* parallel/commands/cmd_doctor.c */

#endif

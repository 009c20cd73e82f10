/* train.c -- main(): runs a training run or one of the subcommands.
 *
 * `./train CONFIG.json` reads its config, opens the data, plans memory and chooses the run's
 * folder. Then it trains, evaluates, samples and saves until the configured number of steps is
 * reached or it is asked to stop. parallel/run and parallel/trainer implement these phases. */
#include "parallel/commands/commands.h"
#include "parallel/grid/launch.h"
#include "parallel/run/flights.h"
#include "parallel/run/run.h"
#include "parallel/run/signals.h"

#include "model/core/check.h"
#include "model/core/dumps.h"
#include "model/core/nearest.h"
#include "model/core/pool.h"
#include "model/core/terminal.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void check_command(const char *word);

/* Plans the memory of one rank, trains on it and returns the exit code. */
static int train_rank(Run *run)
{
    run_plan(run);
    if (run->arguments.dry_run) return run_dry(run);
    run_choose_folder(run);
    if (run->folder.state == RUN_FINISHED) return run_show_result(run);
    run_open_trainer(run);
    run_open_flights(run);
    run_catch_up(run);
    if (run_stop_asked(run)) return run_leave(run);
    while (!run_is_over(run)) {
        trainer_step(&run->trainer);
        run_report(run);
        if (run_goes_back(run)) continue;
        run_save_if_due(run); /* save first: nothing is lost if a later line fails */
        run_evaluate_if_due(run);
        run_sample_if_due(run);
        if (run_stop_asked(run)) return run_leave(run);
    }
    return run_finish(run);
}

/* Implements `./train CONFIG.json` and `./train RUN`. */
static int train(int argc, char **argv)
{
    RunArguments arguments;
    Run run;
    int code;
    if (!run_arguments(&arguments, argc, argv, &code)) return output_checked(code);
    dumps_hold_signal();
    check_command(arguments.config);
    run_configure(&run, &arguments);
    run_open_data(&run);
    return launch_leave(run_on_ranks(&run, train_rank));
}

static const ArgCommand *const commands[] = {
    &cmd_config, &cmd_data, &cmd_generate, &cmd_eval,   &cmd_ckpt,   &cmd_report, &cmd_verify,
    &cmd_bench,  &cmd_plan, &cmd_slurm,    &cmd_doctor, &cmd_import, &cmd_export, &cmd_flight};
enum { N_COMMANDS = ARG_ROWS(commands) };

static void print_help(void)
{
    printf("usage: ./train CONFIG.json [--set key=value]... [--out DIR] [--ranks N] ...\n"
           "       ./train RUN ...          goes on with the run in this folder\n"
           "       ./train COMMAND ...\n\n"
           "Trains a GPT as CONFIG.json says; try: ./train configs/demo.json\n\n");
    for (int i = 0; i < N_COMMANDS; i++)
        printf("  %-10s%s\n", commands[i]->name, commands[i]->summary);
    printf("\n./train --help train shows all options of a run, ./train COMMAND --help those\n"
           "of a command, ./train --help exit-codes what a script may learn from the exit\n"
           "code.\n");
}

static void print_exit_codes(void)
{
#define X(name, number, meaning) terminal_print(stdout, 6, "%4d  %s", number, meaning);
    EXIT_CODE_LIST(X)
#undef X
}

/* Implements `./train --help [TOPIC]`. */
static int help(const char *topic)
{
    if (topic == NULL) {
        print_help();
        return EXIT_OK;
    }
    if (strcmp(topic, "exit-codes") == 0) {
        print_exit_codes();
        return EXIT_OK;
    }
    char *argv[] = {(char *)topic, "--help", NULL};
    if (strcmp(topic, "train") == 0) return train(2, argv);
    const ArgCommand *command = args_find(commands, N_COMMANDS, topic);
    if (command) {
        args_print_help(stdout, command);
        return EXIT_OK;
    }
    char end[256];
    const char *near = args_nearest(commands, N_COMMANDS, topic);
    fail(EXIT_USAGE, "there is no help on \"%s\"%s", topic,
         did_you_mean(end, sizeof end, near,
                      "topics are train, exit-codes and the commands of ./train --help"));
}

/* Ends the program with an error if a word is neither a command nor an existing file or folder and
 * does not look like a config's name, which contains a dot. */
static void check_command(const char *word)
{
    char end[256];
    if (word[0] == '-' || strchr(word, '.') != NULL || access(word, F_OK) == 0) return;
    const char *near = args_nearest(commands, N_COMMANDS, word);
    fail(EXIT_USAGE, "%s is neither a command nor a config file nor a run's folder%s", word,
         did_you_mean(end, sizeof end, near,
                      "./train CONFIG.json trains, ./train --help lists the commands"));
}

/* Returns whether the command has the option --ranks. Ranks that a launcher has started run such a
 * command together. argv[0] is the command's name. */
static bool joins(const ArgCommand *command, int argc, char **argv)
{
    if (command->n_commands > 0) {
        const ArgCommand *part =
            argc > 1 ? args_find(command->commands, command->n_commands, argv[1]) : NULL;
        return part && joins(part, argc - 1, argv + 1);
    }
    for (int i = 0; i < command->n_options; i++)
        if (strcmp(command->options[i].name, "--ranks") == 0) return true;
    return false;
}

/* Opens /dev/null for each standard stream that the caller has closed. Otherwise the next opened
 * file would become that stream, and printed text would be written into the run's lock or metrics
 * file. */
static void fill_standard_streams(void)
{
    for (int fd = 0; fd <= STDERR_FILENO; fd++) {
        if (fcntl(fd, F_GETFD) >= 0) continue;
        int opened = open("/dev/null", fd == STDIN_FILENO ? O_RDONLY : O_WRONLY);
        if (opened != fd)
            fail(EXIT_SYSTEM, "stream %d is closed, and /dev/null cannot stand in for it: %s", fd,
                 strerror(errno));
    }
}

int main(int argc, char **argv)
{
    fill_standard_streams();
    stack_prepare();
    /* A write beyond the limit on file sizes must fail instead of ending the program. */
    signal(SIGXFSZ, SIG_IGN);
    if (argc < 2) {
        print_help();
        return output_checked(EXIT_OK);
    }
    if (args_is_help(argv[1]) || strcmp(argv[1], "help") == 0)
        return output_checked(help(argc > 2 ? argv[2] : NULL));
    const ArgCommand *command = args_find(commands, N_COMMANDS, argv[1]);
    if (command && joins(command, argc - 1, argv + 1)) launch_take_place(argc, argv, true);
    if (command) return launch_leave(output_checked(args_run(command, argc - 1, argv + 1)));
    launch_take_place(argc, argv, false);
    check_command(argv[1]);
    return train(argc, argv);
}

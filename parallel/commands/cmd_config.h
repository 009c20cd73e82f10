/* cmd_config.h -- declares the commands of `./train config`, and what they share: their options,
 * and reading a config. */
#ifndef PARALLEL_COMMANDS_CMD_CONFIG_H
#define PARALLEL_COMMANDS_CMD_CONFIG_H

#include "configs/config.h"
#include "model/core/args.h"
#include "parallel/grid/launch.h"

extern const ArgCommand cmd_config_check, cmd_config_show, cmd_config_diff;

typedef struct {
    const char *config; /* the config that `config show` prints */
    ArgList words;      /* configs or keys; used by the other commands */
    ArgList set;
    int64_t world; /* ranks; 0: not given */
    bool verbose;
    bool schedule, json; /* options of `config show` */
    bool all;            /* option of `config defaults` */
} ConfigArguments;

/* Loads a config file, or the stored config of a run folder, with the --set values in `set`, for
 * the ranks and devices of `context`. World 0 means that the number of ranks is not known; a stored
 * config is then read for the number of ranks of its run. Returns NULL and sets *code if it has
 * errors. The caller frees the report. */
const Config *cmd_config_read(const char *path, ArgList set, const ConfigContext *context,
                              ConfigReport *report, int *code);
/* Prints the errors and notices, and how many errors there are. */
void cmd_config_report(const ConfigReport *report, bool verbose);
/* Reads a config for `world` ranks on the devices of this machine, and prints its errors and
 * notices. Returns NULL and sets *code if it has errors. */
const Config *cmd_config_load(const char *path, ArgList set, int64_t world, bool verbose,
                              int *code);

extern const char cmd_config_notes[];

/* The options that check, show and diff share; `set_help` explains --set. */
#define CONFIG_OPTIONS(set_help)                                                                   \
    {.name = "--set",                                                                              \
     .value = "KEY=VALUE",                                                                         \
     .help = set_help,                                                                             \
     .kind = ARG_SETTINGS,                                                                         \
     .at = offsetof(ConfigArguments, set)},                                                        \
        {.name = "--world",                                                                        \
         .also = "--ranks",                                                                        \
         .value = "N",                                                                             \
         .help = "read the config for so many ranks, up to 65536, as a run\n"                      \
                 "of them does; without it for one, unless it says how many",                      \
         .kind = ARG_INTEGER,                                                                      \
         .at = offsetof(ConfigArguments, world),                                                   \
         .least = 1,                                                                               \
         .most = CONFIG_MAX_RANKS},                                                                \
    {                                                                                              \
        .name = "--verbose", .help = "print routine notices, too", .kind = ARG_FLAG,               \
        .at = offsetof(ConfigArguments, verbose)                                                   \
    }

#endif

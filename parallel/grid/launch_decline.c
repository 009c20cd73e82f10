/* launch_decline.c -- reports an error to the other ranks before this rank has connected to them.
 * See launch_decline.h. */
#include "parallel/grid/launch_decline.h"

#include "model/core/check.h"
#include "parallel/grid/launch_meeting.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static struct {
    StartedBy by;
    int argc;
    char **argv;
    const Config *config;
} own;

/* Collects the --set options of the command line: those that concern the rendezvous or, if `all`,
 * every one. Returns their number. */
static int collect_sets(const char **set, bool all)
{
    static const char *const key[] = {
        "parallel.rendezvous=", "parallel.interface=", "parallel.secret_file="};
    int n = 0;
    for (int i = 1; i < own.argc; i++) {
        const char *text = strncmp(own.argv[i], "--set=", 6) == 0           ? own.argv[i] + 6
                           : i > 1 && strcmp(own.argv[i - 1], "--set") == 0 ? own.argv[i]
                                                                            : NULL;
        bool wanted = text && all;
        for (size_t k = 0; text && k < sizeof key / sizeof *key; k++)
            wanted |= strncmp(text, key[k], strlen(key[k])) == 0;
        if (wanted) set[n++] = text;
    }
    return n;
}

/* Reads the config that the command line names; returns NULL if it names none, or an invalid one.
 */
static const Config *read_config(const char **set, const ConfigContext *context)
{
    const Config *config = NULL;
    for (int i = 1; i < own.argc && config == NULL; i++) {
        ConfigReport report = {0};
        struct stat st;
        if (own.argv[i][0] == '-' || stat(own.argv[i], &st) != 0 || !S_ISREG(st.st_mode)) continue;
        config = config_load(own.argv[i], collect_sets(set, true), set, context, &report);
        config_report_free(&report);
    }
    return config;
}

/* Returns the config that the command line names. If it cannot be read, returns a config that has
 * at least the command line's settings of the rendezvous. The caller frees it unless it is
 * own.config. */
static const Config *some_config(void)
{
    static const char any[] = "{\"model\": {\"vocab_size\": 256}, \"data\": {\"text\": \"none\"}}";
    ConfigContext context = {.world = own.by.size};
    ConfigReport report = {0};
    if (own.config) return own.config;
    const char **set = must_calloc((size_t)own.argc + 1, sizeof *set);
    const Config *config = read_config(set, &context);
    if (config == NULL) {
        config = config_parse(&context, "the defaults", any, strlen(any), collect_sets(set, false),
                              set, &report);
        config_report_free(&report);
    }
    free(set);
    return config;
}

/* Reports the failure to the other ranks. Returns whether rank 0 has replied; *code is then the
 * exit code. */
static bool decline(ExitCode *code, const char *sentence)
{
    char err[2048];
    ExitCode theirs;
    LaunchMeeting at;
    Meeting meeting = {0};
    const Config *config = some_config();
    if (config == NULL) return false;
    if (launch_meeting_open(&at, &own.by, &process_environment, config, NULL, &theirs, err,
                            sizeof err)) {
        at.options.fails = *code;
        at.options.sentence = sentence;
        meeting_hold(&meeting, &at.options, &theirs, err, sizeof err);
        if (!meeting.told && at.options.interface && theirs == EXIT_CONFIG) {
            at.options.interface = NULL; /* its value may be the error */
            meeting_hold(&meeting, &at.options, &theirs, err, sizeof err);
        }
        if (meeting.told) *code = theirs;
    }
    launch_meeting_close(&at);
    if (config != own.config) config_free(config);
    return meeting.told;
}

static void tell(ExitCode code, const char *sentence, bool printed)
{
    if (printed != (own.by.rank == 0)) return;
    launch_decline_end();
    /* Once rank 0 knows the error, it prints it with the number and the machine of this rank, so
     * this rank exits silently. */
    if (decline(&code, sentence) && own.by.rank > 0) exit((int)code);
}

void launch_decline_begin(const StartedBy *by, int argc, char **argv)
{
    own.by = *by;
    own.argc = argc;
    own.argv = argv;
    ends_set_tell(tell);
}

void launch_decline_config(const Config *config)
{
    own.config = config;
}

void launch_decline_end(void)
{
    ends_set_tell(NULL);
}

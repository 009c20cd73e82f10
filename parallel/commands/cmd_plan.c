/* cmd_plan.c -- `./train plan`: predicts memory, traffic and time of a config on some hardware,
 * without running it. */
#include "parallel/plan/plan.h"
#include "parallel/plan/search.h"

#include "model/core/fs.h"
#include "parallel/commands/cmd_config.h"
#include "parallel/commands/commands.h"

#include <string.h>

typedef struct {
    const char *config, *machine;
    ArgList set;
    int64_t world;
    bool json, search, verbose;
} PlanArguments;

/* Returns the name of the preset for this machine's devices; without a GPU it is "cpu". If its GPU
 * has no preset, prints an error and returns NULL. */
static const char *own_machine(void)
{
    Device device;
    char text[256], gpu[64], err[512];
    if (device_survey("cuda").count == 0) return "cpu";
    if (!device_open(&device, "cuda", &(DeviceOptions){0}, err, sizeof err)) {
        error_print(EXIT_UNAVAILABLE, "%s; --machine says for which machine to plan", err);
        return NULL;
    }
    device_describe(&device, text, sizeof text);
    device_close(&device);
    hardware_gpu_name(text, gpu);
    const char *preset = hardware_preset_of(gpu);
    if (preset != NULL) return preset;
    error_print(EXIT_UNAVAILABLE,
                "there is no machine file for this GPU, %s; ./train bench machine > FILE makes "
                "one, for --machine FILE",
                text);
    return NULL;
}

/* Reads the config for this hardware; returns NULL and sets *code if it has errors. */
static const Config *read_config(const PlanArguments *a, const Hardware *hardware, int *code)
{
    char err[1024];
    ConfigReport report;
    ConfigContext context = plan_context(hardware, a->world);
    const Config *config = cmd_config_read(a->config, a->set, &context, &report, code);
    cmd_config_report(&report, a->verbose);
    config_report_free(&report);
    if (config == NULL) return NULL;
    if (fs_is_folder(a->config) && a->world > 0 && config->world != a->world) {
        *code = error_print(EXIT_USAGE,
                            "--world %lld: a run's stored config is planned for its own %lld ranks",
                            (long long)a->world, (long long)config->world);
        config_free(config);
        return NULL;
    }
    ExitCode failure;
    const char *run = fs_is_folder(a->config) ? a->config : NULL;
    const Config *settled = plan_settle_run(config, run, hardware, &failure, err, sizeof err);
    if (settled != NULL) return settled;
    *code = error_print(failure, "%s", err);
    config_free(config);
    return NULL;
}

static int print_plan(const PlanArguments *a, const char *machine, const Config *config,
                      const Hardware *hardware)
{
    char err[512];
    Plan plan;
    if (!plan_make(&plan, config, hardware, err, sizeof err))
        return error_print(EXIT_CONFIG, "%s", err);
    plan_vary(&plan);
    if (a->json)
        plan_print_json(&plan, machine);
    else
        plan_print(&plan, machine);
    int code = plan.fits ? EXIT_OK : EXIT_NO_MEMORY;
    plan_free(&plan);
    return code;
}

/* Checks that --search has a config file, because for a run folder there are no options to paste;
 * returns the exit code. */
static int check_arguments(const PlanArguments *a)
{
    if (!a->search) return EXIT_OK;
    if (fs_is_folder(a->config) || strcmp(a->config, "-") == 0)
        return error_print(EXIT_USAGE, "--search reads a config file again for each layout; name a "
                                       "file");
    return EXIT_OK;
}

/* Prints the best layouts for these ranks. */
static int print_search(const PlanArguments *a, const char *machine, const Hardware *hardware)
{
    char err[1024];
    int code = EXIT_CONFIG;
    PlanSearch found;
    const Config *settled;
    const SearchSource source = {.path = a->config,
                                 .n_sets = a->set.count,
                                 .sets = (const char *const *)a->set.item,
                                 .world = a->world};
    if (!plan_search(&source, hardware, &found, &settled, err, sizeof err)) {
        /* If the search failed because of errors in the config, read_config prints all of them. */
        const Config *config = read_config(a, hardware, &code);
        if (config == NULL) return code;
        config_free(config);
        return error_print(EXIT_CONFIG, "%s", err);
    }
    (a->json ? plan_search_print_json : plan_search_print)(&found, &source, settled, hardware,
                                                           machine);
    config_free(settled);
    plan_search_free(&found);
    return found.found > 0 ? EXIT_OK : EXIT_NO_MEMORY;
}

static int run_plan(const void *values)
{
    const PlanArguments *a = values;
    Hardware hardware;
    ExitCode exit_code;
    char err[8192];
    int code = check_arguments(a);
    if (code != EXIT_OK) return code;
    const char *machine = a->machine ? a->machine : own_machine();
    if (machine == NULL) return EXIT_UNAVAILABLE;
    if (!hardware_load(&hardware, machine, &exit_code, err, sizeof err)) {
        if (exit_code != EXIT_CONFIG) return error_print(exit_code, "%s", err);
        fprintf(stderr, "%s\n", err);
        return EXIT_CONFIG;
    }
    if (a->search) return print_search(a, machine, &hardware);
    const Config *config = read_config(a, &hardware, &code);
    if (config == NULL) return code;
    code = print_plan(a, machine, config, &hardware);
    config_free(config);
    return code;
}

static const ArgOption options[] = {
    {.name = "--world",
     .value = "N",
     .help = "plan for so many ranks, up to 65536; without it for those\nthat the config says",
     .kind = ARG_INTEGER,
     .at = offsetof(PlanArguments, world),
     .least = 1,
     .most = CONFIG_MAX_RANKS},
    {.name = "--machine",
     .value = "FILE",
     .help = "the hardware: a100, h100, h200, b200, rtx4090, cpu, or a\n"
             "machine file; default: that of this machine's GPU, or cpu",
     .kind = ARG_NAME,
     .at = offsetof(PlanArguments, machine)},
    {.name = "--set",
     .value = "KEY=VALUE",
     .help = "override one key of the config; may be repeated",
     .kind = ARG_SETTINGS,
     .at = offsetof(PlanArguments, set)},
    {.name = "--search",
     .help =
         "print the ten best layouts that this search finds, each\nwith the command that plans it",
     .kind = ARG_FLAG,
     .at = offsetof(PlanArguments, search)},
    {.name = "--json",
     .help = "print one JSON object; bytes and counts are integers",
     .kind = ARG_FLAG,
     .at = offsetof(PlanArguments, json)},
    {.name = "--verbose",
     .help = "print routine notices, too",
     .kind = ARG_FLAG,
     .at = offsetof(PlanArguments, verbose)},
};

const ArgCommand cmd_plan = {
    .name = "plan",
    .call = "./train plan",
    .usage = "CONFIG [options]",
    .summary = "predict the memory, traffic and time of a run on any number of GPUs",
    .about = "Predicts what training CONFIG takes on N ranks of some hardware: memory, bytes\n"
             "sent, the time of a step and of the whole run. Any computer can do this for any\n"
             "number of GPUs; nothing is started, and the data need not be there.",
    .notes = "./train plan configs/gpt3_175b.json --world 1024 --machine a100\n"
             "./train bench machine > my.json; ./train plan CONFIG --machine my.json\n\n"
             "Exit codes: 0, 64 (command line), 66 (something is missing), 69 (there is no\n"
             "machine file for this machine's GPU), 78 (config or machine file), 90 (the plan\n"
             "is printed, but it does not fit into memory).",
    .options = options,
    .n_options = ARG_ROWS(options),
    .words = {.least = 1,
              .most = 1,
              .at = offsetof(PlanArguments, config),
              .missing = "which config? ./train plan configs/gpt3_175b.json --world 1024 --machine "
                         "a100",
              .plural = "configs"},
    .size = sizeof(PlanArguments),
    .run = run_plan,
};

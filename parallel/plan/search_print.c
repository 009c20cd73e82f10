/* search_print.c -- prints the layouts that a search has found; see search.h. */
#include "configs/advice.h"
#include "model/core/check.h"
#include "model/core/figures.h"
#include "model/core/json_write.h"
#include "model/core/shell_text.h"
#include "model/core/terminal.h"
#include "optim/step_constants.h"
#include "parallel/plan/plan.h"
#include "parallel/plan/search.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- for people ------------------------------------------------------------------------------ */

enum { INDENT = 12 };

/* Prints the command that plans this layout. */
static void print_command(const SearchSource *source, const char *machine, const StringList *sets)
{
    char world[48] = "";
    if (source->world > 0) snprintf(world, sizeof world, " --world %lld", (long long)source->world);
    char *options = config_options(sets->count, (const char *const *)sets->item, 1),
         *path = shell_quoted(source->path), *file = shell_quoted(machine),
         *command = text_format("./train plan %s%s --machine %s%s", path, world, file, options),
         *lines = text_wrap(command, 4, 6, WRAP_MESSAGE);
    printf("    %s\n", lines);
    free(options);
    free(path);
    free(file);
    free(command);
    free(lines);
}

static void print_space(const PlanSearch *s)
{
    char beaten[64] = "", rest[128] = "";
    if (s->found > 0)
        snprintf(beaten, sizeof beaten, ", %s certainly slower",
                 figure_count((double)(s->space - s->misfits - s->planned - s->left)).text);
    if (s->found > 0 && s->left == 0) snprintf(rest, sizeof rest, "; so these are the best");
    if (s->left > 0)
        snprintf(rest, sizeof rest, "; the others, %s, %s", figure_count((double)s->left).text,
                 s->found > 0 ? "seem slower by an estimate, but that is not proven"
                              : "seem too large by an estimate, but that is not proven");
    char *text = text_format(
        "%s, of which %s planned; %s cannot fit%s%s", figure_of(s->space, "legal layout").text,
        figure_count((double)s->planned).text, figure_count((double)s->misfits).text, beaten, rest);
    terminal_field(stdout, "space", text, INDENT);
    free(text);
}

/* Prints where the optimizer states are, if the search decides that. */
static void print_states(const PlanSearch *s)
{
    if (!s->on_host) return;
    char why[96] = "";
    if (s->misses)
        snprintf(why, sizeof why, "no layout%s fits with all states on the GPUs, so ",
                 s->untried ? " that was planned" : "");
    char *text = text_format("%seach layout has the least part of the optimizer's states on the "
                             "host with which it fits",
                             why);
    terminal_field(stdout, "states", text, INDENT);
    free(text);
}

/* Returns which fraction of the optimizer states a layout has on the host. */
static double host_ratio(const Config *config, const PlanLayout *layout)
{
    const OffloadConfig *given = &config->zero_optimization.offload_optimizer;
    if (layout->host != HOST_GIVEN) return layout->host / 100.0;
    return given->device == OFFLOAD_CPU ? given->ratio : 0;
}

void plan_search_print(const PlanSearch *search, const SearchSource *source, const Config *settled,
                       const Hardware *hardware, const char *machine)
{
    char text[512];
    double tokens = (double)step_tokens(settled);
    snprintf(text, sizeof text, "the best layouts of %.200s for %s of %s; all times are predicted",
             source->path, figure_of(search->ranks, "rank").text, hardware->name);
    terminal_field(stdout, "search", text, INDENT);
    if (search->space > 0) print_space(search);
    if (search->space > 0) print_states(search);
    if (search->found == 0) {
        char *nothing = plan_search_nothing(search, settled);
        terminal_field(stdout, "none", nothing, INDENT);
        free(nothing);
    }
    for (int i = 0; i < search->found; i++) {
        StringList sets = {0};
        plan_search_sets(search, settled, &search->best[i], &sets);
        double host = host_ratio(settled, &search->best[i]);
        char states[64] = "";
        if (host > 0)
            snprintf(states, sizeof states, "; %.0f %% of the states on the host", 100 * host);
        printf("%2d. predicted %s a step, %s tokens/s%s\n", i + 1,
               figure_seconds(search->seconds[i]).text,
               figure_short(tokens / search->seconds[i]).text, states);
        print_command(source, machine, &sets);
        string_list_free(&sets);
    }
}

/* ---- as JSON --------------------------------------------------------------------------------- */

static void print_layout(const Config *settled, const PlanLayout *l, double seconds,
                         const StringList *sets)
{
    double tokens = (double)step_tokens(settled);
    printf(
        "    {\"tp\": %lld, \"pp\": %lld, \"pipeline_chunks\": %lld, \"micro_batch_size\": %lld, "
        "\"zero_stage\": %lld, \"recompute\": \"%s\", \"sequence_parallel\": %s,\n"
        "     \"offload_ratio\": %g, \"predicted\": {\"step_seconds\": ",
        (long long)l->tensor, (long long)l->pipeline, (long long)l->chunks, (long long)l->micro,
        (long long)l->zero, plan_policy_word(settled, l), l->sequence_parallel ? "true" : "false",
        host_ratio(settled, l));
    json_print_number(stdout, seconds);
    printf(", \"tokens_per_second\": ");
    json_print_number(stdout, tokens / seconds);
    printf("},\n     \"set\": [");
    for (int i = 0; i < sets->count; i++) {
        if (i > 0) printf(", ");
        json_print_string(stdout, sets->item[i]);
    }
    printf("]}");
}

void plan_search_print_json(const PlanSearch *search, const SearchSource *source,
                            const Config *settled, const Hardware *hardware, const char *machine)
{
    printf("{\n  \"config\": ");
    json_print_string(stdout, source->path);
    printf(",\n  \"machine\": {\"file\": ");
    json_print_string(stdout, machine);
    printf(", \"name\": ");
    json_print_string(stdout, hardware->name);
    printf("},\n  \"ranks\": %lld,\n  \"space\": {\"legal\": %lld, \"planned\": %lld, "
           "\"cannot_fit\": %lld, \"unproven\": %lld},\n  \"layouts\": [",
           (long long)search->ranks, (long long)search->space, (long long)search->planned,
           (long long)search->misfits, (long long)search->left);
    for (int i = 0; i < search->found; i++) {
        StringList sets = {0};
        plan_search_sets(search, settled, &search->best[i], &sets);
        printf("%s\n", i > 0 ? "," : "");
        print_layout(settled, &search->best[i], search->seconds[i], &sets);
        string_list_free(&sets);
    }
    printf("%s]", search->found > 0 ? "\n  " : "");
    if (search->found == 0) {
        char *nothing = plan_search_nothing(search, settled);
        printf(",\n  \"none\": ");
        json_print_string(stdout, nothing);
        free(nothing);
    }
    printf("\n}\n");
}

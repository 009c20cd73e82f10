/* cmd_data_corpora.c -- `./train data corpora`: lists and removes prepared texts. */
#include "data/text/prepared.h"
#include "model/core/check.h"
#include "model/core/figures.h"
#include "model/core/files.h"
#include "model/core/fs.h"
#include "model/core/terminal.h"
#include "parallel/commands/cmd_data.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

typedef struct {
    const char *cache;
    bool clear;
    ArgList names;
} Arguments;

/* State of a walk over the cache. */
typedef struct {
    const Arguments *arguments;
    int count; /* folders that were listed or removed */
    bool *met; /* for each name: whether a folder with this name was found */
    double bytes;
    bool failed;
} Walk;

/* Returns the size of all files in the folder. */
static double folder_bytes(const char *folder)
{
    struct dirent **entry;
    double bytes = 0;
    int count = scandir(folder, &entry, NULL, alphasort);
    for (int i = 0; i < count; i++) {
        struct stat info;
        char *path = text_format("%s/%s", folder, entry[i]->d_name);
        if (lstat(path, &info) == 0 && S_ISREG(info.st_mode)) bytes += (double)info.st_size;
        free(path);
        free(entry[i]);
    }
    if (count >= 0) free(entry);
    return bytes;
}

/* Returns whether the command is about this folder: it is named, or no name is given. */
static bool is_chosen(Walk *w, const char *folder)
{
    const ArgList *names = &w->arguments->names;
    for (int i = 0; i < names->count; i++)
        if (strcmp(names->item[i], path_name(folder)) == 0) return w->met[i] = true;
    return names->count == 0;
}

/* Prints the folder, its state and its size. `m` describes its content; NULL unless it is complete.
 */
static void print_folder(const char *folder, PreparedState state, const Meta *m, double bytes)
{
    static const char *const not_whole[] = {
        [PREPARED_DAMAGED] = "damaged: its meta.json cannot be read",
        [PREPARED_UNFINISHED] = "unfinished: the run that made it has ended",
        [PREPARED_IN_USE] = "unfinished: a run is making it",
    };
    if (m == NULL) {
        printf("%s\n  %s; %s\n", folder, not_whole[state], figure_bytes(bytes).text);
        return;
    }
    char day[20] = "";
    struct stat info;
    struct tm when;
    if (stat(folder, &info) == 0 && localtime_r(&info.st_mtime, &when) != NULL)
        strftime(day, sizeof day, "%Y-%m-%d", &when);
    printf("%s\n  made %s, %s: %s tokens train, %s val, %s ids\n", folder, day,
           figure_bytes(bytes).text, figure_count((double)m->split[SPLIT_TRAIN].tokens).text,
           figure_count((double)m->split[SPLIT_VAL].tokens).text,
           figure_count((double)m->vocab_size).text);
}

static bool visit(const char *folder, PreparedState state, const Meta *m, void *context)
{
    Walk *w = context;
    char err[1024];
    if (!is_chosen(w, folder)) return true;
    double bytes = folder_bytes(folder);
    if (!w->arguments->clear) {
        print_folder(folder, state, m, bytes);
    } else if (state == PREPARED_IN_USE) {
        print_folder(folder, state, m, bytes);
        return true;
    } else if (!fs_remove_tree(&fs_system, AT_FDCWD, folder, err, sizeof err)) {
        error_print(EXIT_CANNOT_CREATE, "%s", err);
        w->failed = true;
        return true;
    }
    w->count++;
    w->bytes += bytes;
    return true;
}

static int corpora(const void *values)
{
    const Arguments *a = values;
    char err[1024];
    for (int i = 0; i < a->names.count; i++)
        if (strchr(a->names.item[i], '/'))
            return error_print(EXIT_USAGE, "%s is a path: write the name of a folder in %s alone",
                               a->names.item[i], a->cache);
    Walk w = {.arguments = a, .met = must_calloc((size_t)a->names.count + 1, sizeof *w.met)};
    int code = EXIT_OK;
    if (!prepared_visit(a->cache, visit, &w, err, sizeof err))
        code = error_print(EXIT_MISSING, "%s", err);
    for (int i = 0; code == EXIT_OK && i < a->names.count; i++)
        if (!w.met[i])
            code =
                error_print(EXIT_MISSING, "%s has no prepared text %s", a->cache, a->names.item[i]);
    free(w.met);
    if (code == EXIT_OK && w.failed) code = EXIT_CANNOT_CREATE;
    if (code == EXIT_MISSING) return code;
    terminal_print(stdout, 4, "%s in %s, %s%s", figure_of(w.count, "prepared text").text, a->cache,
                   figure_bytes(w.bytes).text,
                   a->clear ? ", removed"
                   : w.count == 0
                       ? ""
                       : "; --clear removes them, and a run that needs one makes it again");
    return code;
}

static const ArgOption options[] = {
    {.name = "--cache",
     .value = "FOLDER",
     .help = "their folder, data.cache of the config (out/corpora)",
     .kind = ARG_NAME,
     .at = offsetof(Arguments, cache)},
    {.name = "--clear",
     .help = "remove them, or only those that are named",
     .kind = ARG_FLAG,
     .at = offsetof(Arguments, clear)},
};

const ArgCommand command_data_corpora = {
    .name = "corpora",
    .call = "./train data corpora",
    .usage = "[--cache FOLDER] [--clear] [NAME]...",
    .summary = "lists the texts that runs and evaluations have tokenized, or removes them",
    .options = options,
    .n_options = ARG_ROWS(options),
    .words = {.most = ARGS_ANY, .at = offsetof(Arguments, names)},
    .size = sizeof(Arguments),
    .defaults = &(const Arguments){.cache = "out/corpora"},
    .run = corpora,
};

/* cmd_ckpt.c -- `./train ckpt list|inspect|verify`: lists a run's checkpoints, prints the content
 * of one, and verifies checksums. */
#include "model/core/check.h"
#include "model/core/figures.h"
#include "model/core/progress.h"
#include "model/core/terminal.h"
#include "model/core/utf8.h"
#include "model/weights/hf_names.h"
#include "parallel/checkpoint/checkpoint.h"
#include "parallel/commands/ckpt_table.h"
#include "parallel/commands/commands.h"
#include "parallel/grid/grid.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

typedef struct {
    const char *path; /* a run folder, or one of its checkpoints */
} Arguments;

static int64_t total_bytes(const Manifest *m)
{
    int64_t bytes = 0;
    for (int f = 0; f < m->n_files; f++)
        bytes += m->file[f].bytes;
    return bytes;
}

/* A command returns this if a run that is still training has removed all checkpoints of the list
 * since it was made. The command is then called again with a new list. */
enum { LIST_IS_OLD = -1 };

/* Combines two exit codes. EXIT_PERMISSION takes precedence: a checkpoint that this user must not
 * read cannot be called damaged. */
static int worse(int code, int next)
{
    return code == EXIT_PERMISSION ? code : next;
}

/* Returns true if PATH/BELOW exists; otherwise sets err. */
static bool is_there(const char *path, const char *below, char *err, size_t n)
{
    char *full = text_format("%s/%s", path, below);
    struct stat st;
    bool there = lstat(full, &st) == 0;
    if (!there) error_set(err, n, "cannot open %s: %s", full, strerror(errno));
    free(full);
    return there;
}

/* Finds the checkpoint folders for `path`: all checkpoints of a run, newest first, or `path` itself
 * if it is a checkpoint. Returns their number; the caller frees *found with free_found. If there
 * are none, prints an error message, sets *code and returns 0. */
static int find(const char *path, char ***found, int *code)
{
    char err[1024];
    int64_t *steps;
    /* First treat the path as a run folder, then as a checkpoint. */
    int n = checkpoint_list(path, &steps, err, sizeof err);
    *found = must_calloc(n > 0 ? (size_t)n : 1, sizeof **found);
    for (int i = 0; i < n; i++)
        (*found)[i] = checkpoint_path(path, steps[i]);
    free(steps);
    if (n > 0) return n;
    if (n == 0 && is_there(path, "manifest.json", err, sizeof err)) {
        (*found)[0] = must_strdup(path);
        return 1;
    }
    /* If a permission is missing, err stays as it is, because it determines the exit code. */
    if (n == 0 && !error_says(err, EACCES)) {
        bool folder = is_there(path, ".", err, sizeof err);
        error_set(err, sizeof err, folder ? "%s holds no checkpoint" : "there is no folder %s",
                  path);
    }
    *code = error_print(EXIT_MISSING, "%s", err);
    return 0;
}

static void free_found(char **found, int n)
{
    for (int i = 0; i < n; i++)
        free(found[i]);
    free(found);
}

static int run_list(const char *path, char **found, int n)
{
    int code = EXIT_OK, shown = 0;
    char why[1024];
    CheckpointBest best;
    CkptTable table;
    if (!checkpoint_best_read(path, &best, why, sizeof why))
        code = error_print(EXIT_DAMAGED, "%s", why);
    ckpt_table_begin(&table, found[0], &best);
    for (int i = 0; i < n; i++) {
        char err[1024];
        Checkpoint *c;
        bool good = checkpoint_open(found[i], &c, err, sizeof err);
        /* A run that is still training has removed this checkpoint since the list was made: not an
         * error. */
        if (!good && checkpoint_gone(found[i])) continue;
        shown++;
        if (good)
            ckpt_table_row(&table, c);
        else
            code = worse(code, error_print(EXIT_DAMAGED, "%s", err));
        checkpoint_close(c);
    }
    ckpt_table_end(&table);
    return shown ? code : LIST_IS_OLD;
}

/* Returns the length of the longest name of a tensor in the file. */
static int longest_name(const Manifest *m, int file)
{
    size_t most = 0;
    for (int i = 0; i < m->n_tensors; i++) {
        size_t n = strlen(m->tensor[i].entry.name);
        if (m->tensor[i].file == file && n > most) most = n;
    }
    return (int)most;
}

/* What determines the names of the weights in Hugging Face's files. */
typedef struct {
    bool there; /* true: their libraries have such a model; false: why_not is set */
    ArchitectureKind kind;
    char why_not[512];
} Names;

/* Finds out the type of the checkpoint's model in Hugging Face's libraries. */
static Names find_names(const Manifest *m, const char *path)
{
    Names names = {0};
    Architecture a;
    ConfigReport report = {0};
    const Config *config = config_parse(&(ConfigContext){.stored = true}, path, m->config,
                                        strlen(m->config), 0, NULL, &report);
    if (config == NULL)
        error_set(names.why_not, sizeof names.why_not, "its config is not understood");
    else
        names.there = architecture_of(config, &a, names.why_not, sizeof names.why_not);
    if (names.there) names.kind = a.kind;
    config_free(config);
    config_report_free(&report);
    return names;
}

/* Prints the tensor's name in Hugging Face's files, after two spaces; nothing if it has none. */
static void print_name(const Names *names, const char *ours)
{
    static const char *const third[] = {", the first third", ", the second third",
                                        ", the last third"};
    HfPlace place;
    if (!names->there || !hf_name_of(names->kind, ours, &place)) return;
    printf("  %s%s%s", place.name, place.part < 0 ? "" : third[place.part],
           place.transposed ? ", transposed" : "");
}

static void print_tensors(const Manifest *m, int file, const Names *hf)
{
    int64_t bytes = 0;
    int n = 0, names = longest_name(m, file);
    for (int i = 0; i < m->n_tensors; i++) {
        const SafetensorsEntry *e = &m->tensor[i].entry;
        char shape[96] = "()";
        /* Skips tensors of other files: if several ranks write a checkpoint, it has several. */
        if (m->tensor[i].file != file) continue;
        for (int d = 0, at = 0; d < e->ndim; d++)
            at += snprintf(shape + at, sizeof shape - (size_t)at, "%s%" PRId64 "%s", d ? ", " : "(",
                           e->dim[d], d + 1 == e->ndim ? ")" : "");
        printf("  %-*s %-5s %-14s %10s", names, e->name, dtype_name(e->dtype), shape,
               figure_bytes((double)e->bytes).text);
        print_name(hf, e->name);
        putchar('\n');
        bytes += e->bytes;
        n++;
    }
    printf("%s: %s, %s\n\n", m->file[file].name, figure_of(n, "tensor").text,
           figure_bytes((double)bytes).text);
}

/* Prints a line with text from the manifest, escaped because it may come from another program. */
static void print_origin(const char *what, const char *text)
{
    char *escaped = utf8_escaped(text);
    terminal_print(stdout, 12, "%-12s%s", what, escaped);
    free(escaped);
}

/* Prints the grid of ranks that wrote the checkpoint. */
static void print_world(const Manifest *m)
{
    const ManifestWorld *w = &m->world;
    GridPlace size = {.pp = (int)w->pp, .dp = (int)w->dp, .cp = (int)w->cp, .tp = (int)w->tp};
    char text[64];
    printf("world       %s", figure_of(w->ranks, "rank").text);
    if (w->ranks > 1)
        printf(" = %s, ZeRO %" PRId64, grid_size_text(size, text, sizeof text), w->zero_stage);
    printf(", %s\n", figure_of(w->writers, "writer").text);
}

static int run_inspect(const char *path, char **found, int n)
{
    (void)path;
    (void)n;
    char err[1024];
    Checkpoint *c;
    if (!checkpoint_open(found[0], &c, err, sizeof err))
        return checkpoint_gone(found[0]) ? LIST_IS_OLD : error_print(EXIT_DAMAGED, "%s", err);
    const Manifest *m = checkpoint_manifest(c);
    const StepState *s = &m->state;
    /* print_origin escapes text from the manifest, because a terminal would execute control
     * sequences. */
    print_origin("checkpoint", found[0]);
    print_origin("save", m->save_id);
    print_origin("program", m->code);
    print_origin("machine", m->machine);
    print_origin("data", m->data);
    print_world(m);
    printf("steps       %" PRId64 "   updates %" PRId64 "   skipped %" PRId64 "\n", s->steps,
           s->updates, s->skipped);
    printf("samples     %" PRId64 "   tokens %" PRId64 "   loss scale %g\n", s->samples, s->tokens,
           s->loss_scale);
    if (s->skipped > 0 || s->spikes > 0 || s->rollbacks > 0)
        printf("health      %" PRId64 " tokens skipped   %" PRId64 " spikes   %" PRId64
               " rollbacks   %" PRId64 " samples left out\n",
               s->skipped_tokens, s->spikes, s->rollbacks, s->data_offset);
    terminal_print(stdout, 12, "config      %zu bytes of JSON, in %s/manifest.json",
                   strlen(m->config), found[0]);
    Names names = find_names(m, found[0]);
    if (names.there)
        printf("names       beside ours those in a %s of Hugging Face's libraries\n",
               architecture_name(names.kind));
    else
        print_origin("names", names.why_not);
    putchar('\n');
    for (int f = 0; f < m->n_files; f++)
        print_tensors(m, f, &names);
    checkpoint_close(c);
    return EXIT_OK;
}

static int run_verify(const char *path, char **found, int n)
{
    (void)path;
    int code = EXIT_OK, shown = 0;
    CheckpointIo io;
    Progress progress = progress_begin();
    checkpoint_io_open(&io, NULL, NULL); /* no device: files are only compared with checksums */
    for (int i = 0; i < n; i++) {
        char err[1024];
        Checkpoint *c = NULL;
        progress_count(&progress, i, n, "verifying checkpoint %d of %d", i + 1, n);
        bool good = checkpoint_open(found[i], &c, err, sizeof err) &&
                    checkpoint_verify(&io, c, err, sizeof err) &&
                    checkpoint_verify_indexes(c, err, sizeof err);
        progress_end(&progress);
        if (good) {
            const Manifest *m = checkpoint_manifest(c);
            printf("%s: whole (%s, %s)\n", found[i], figure_of(m->n_tensors, "tensor").text,
                   figure_bytes((double)total_bytes(m)).text);
            shown++;
        } else if (!checkpoint_gone(found[i])) {
            code = worse(code, error_print(EXIT_DAMAGED, "%s", err));
            shown++;
        }
        checkpoint_close(c);
    }
    checkpoint_io_close(&io);
    return shown ? code : LIST_IS_OLD;
}

/* Calls `command` on the checkpoints that `path` names. Lists them again and repeats the call if a
 * run that is still training has removed them all in between. */
static int on_checkpoints(const char *path, int (*command)(const char *path, char **found, int n))
{
    int code = LIST_IS_OLD;
    for (int i = 0; code == LIST_IS_OLD && i < CHECKPOINT_LIST_ATTEMPTS; i++) {
        char **found;
        int n = find(path, &found, &code);
        if (n > 0) code = command(path, found, n);
        free_found(found, n);
    }
    if (code != LIST_IS_OLD) return code;
    return error_print(EXIT_TEMPORARY, "checkpoints are removed faster than they can be read");
}

static int ckpt_list(const void *values)
{
    return on_checkpoints(((const Arguments *)values)->path, run_list);
}

static int ckpt_inspect(const void *values)
{
    return on_checkpoints(((const Arguments *)values)->path, run_inspect);
}

static int ckpt_verify(const void *values)
{
    return on_checkpoints(((const Arguments *)values)->path, run_verify);
}

/* Describes the one folder argument of a command; `which` is the message if it is missing. */
#define ONE_FOLDER(which)                                                                          \
    {                                                                                              \
        .least = 1, .most = 1, .at = offsetof(Arguments, path), .missing = which,                  \
        .plural = "folders"                                                                        \
    }

static const ArgCommand list = {
    .name = "list",
    .call = "./train ckpt list",
    .usage = "RUN",
    .summary = "the checkpoints of a run folder, newest first",
    .about = "One line for each checkpoint below RUN/checkpoints, newest first: the loss\n"
             "of its step and its validation loss, from RUN/metrics.jsonl, its size, when\n"
             "it was saved and by which ranks; the best, by validation loss, is marked.\n"
             "Headers are read, data is not (verify does that). Exit 66 if there is none,\n"
             "65 if one of them is damaged, 77 if one must not be read.",
    .words = ONE_FOLDER("./train ckpt list: which run or checkpoint? ./train ckpt list out/demo"),
    .size = sizeof(Arguments),
    .run = ckpt_list,
};

static const ArgCommand inspect = {
    .name = "inspect",
    .call = "./train ckpt inspect",
    .usage = "CKPT",
    .summary = "state, origin and tensors of a checkpoint, or a run's newest",
    .about = "Prints the state of the run at that step, which program, machine and ranks it\n"
             "is from, and the name, type, shape and size of every tensor, with its name in\n"
             "Hugging Face's files. The config is printed by `./train config show\n"
             "RUN/config.json`; the manifest holds it, too.",
    .words =
        ONE_FOLDER("./train ckpt inspect: which run or checkpoint? ./train ckpt inspect out/demo"),
    .size = sizeof(Arguments),
    .run = ckpt_inspect,
};

static const ArgCommand verify = {
    .name = "verify",
    .call = "./train ckpt verify",
    .usage = "RUN|CKPT",
    .summary = "read everything and compare every checksum",
    .about = "Reads every byte and compares it with the checksums in the manifest, and an\n"
             "index with what the manifest names. Damage is reported by file and tensor.\n"
             "Exit 0 if all is whole, 65 if not, 66 if nothing is there, 77 if something must\n"
             "not be read.",
    .words =
        ONE_FOLDER("./train ckpt verify: which run or checkpoint? ./train ckpt verify out/demo"),
    .size = sizeof(Arguments),
    .run = ckpt_verify,
};

static const ArgCommand *const commands[] = {&list, &inspect, &verify};

const ArgCommand cmd_ckpt = {
    .name = "ckpt",
    .call = "./train ckpt",
    .summary = "list, inspect and verify checkpoints",
    .notes = "A checkpoint is a folder like out/demo/checkpoints/step_00000500.\n"
             "`./train ckpt COMMAND --help` tells more.",
    .commands = commands,
    .n_commands = ARG_ROWS(commands),
};

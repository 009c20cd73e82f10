/* cmd_ckpt.c -- `./train ckpt list|inspect|verify`: what a run has saved, what is in it, and
 * whether it is whole. */
#include "model/core/args.h"
#include "model/core/check.h"
#include "model/core/figures.h"
#include "model/core/log.h"
#include "model/core/nearest.h"
#include "model/core/utf8.h"
#include "parallel/checkpoint/checkpoint.h"
#include "parallel/commands/commands.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char help_all[] =
    "usage: ./train ckpt COMMAND PATH\n"
    "\n"
    "  list RUN          the checkpoints of a run folder, newest first\n"
    "  inspect CKPT      state, origin and tensors of a checkpoint, or a run's newest\n"
    "  verify RUN|CKPT   read everything and compare every checksum\n"
    "\n"
    "A checkpoint is a folder like out/demo/checkpoints/step_00000500.\n"
    "`./train ckpt COMMAND --help` tells more.\n";
static const char help_list[] =
    "usage: ./train ckpt list RUN\n"
    "\n"
    "One line for each checkpoint below RUN/checkpoints, newest first: step, samples,\n"
    "updates, size. Headers are read, data is not (verify does that). Exit 66 if\n"
    "there is none, 65 if one of them is damaged, 77 if one must not be read.\n";
static const char help_inspect[] =
    "usage: ./train ckpt inspect CKPT\n"
    "\n"
    "Prints the state of the run at that step, the program and machine that wrote it,\n"
    "and the name, type, shape and size of every tensor. The config is printed by\n"
    "`./train config show RUN/config.json`; the manifest holds it, too.\n";
static const char help_verify[] =
    "usage: ./train ckpt verify RUN|CKPT\n"
    "\n"
    "Reads every byte and compares it with the checksums in the manifest. Damage is\n"
    "reported by file and tensor. Exit 0 if all is whole, 65 if not, 66 if nothing is\n"
    "there, 77 if something must not be read.\n";

static int64_t total_bytes(const Manifest *m)
{
    int64_t bytes = 0;
    for (int f = 0; f < CHECKPOINT_FILES; f++)
        bytes += m->file[f].bytes;
    return bytes;
}

/* What a command returns to be called once more: all that it was to look at has been pruned since
 * it was listed. */
enum { LIST_IS_OLD = -1 };

/* Prints the sentence, and returns the exit code that it stands for. */
static int complain(ExitCode code, const char *what)
{
    code = error_exit_code(what, code);
    fflush(stdout);
    fprintf(stderr, "error[%d] ", (int)code);
    utf8_print_escaped(stderr, what);
    fputc('\n', stderr);
    return (int)code;
}

/* Of two exit codes the one to end with: who may not read a checkpoint does not know that it is
 * damaged. */
static int worse(int code, int next)
{
    return code == EXIT_PERMISSION ? code : next;
}

/* Whether PATH/BELOW is there. False with a sentence. */
static bool is_there(const char *path, const char *below, char *err, size_t n)
{
    char *full = text_format("%s/%s", path, below);
    struct stat st;
    bool there = lstat(full, &st) == 0;
    if (!there) error_set(err, n, "cannot open %s: %s", full, strerror(errno));
    free(full);
    return there;
}

/* The checkpoint folders that `path` means: its own, or those of the run, newest first. Returns how
 * many; the caller frees them and the list. 0 after a complaint, with its code. */
static int find(const char *path, char ***found, int *code)
{
    char err[1024];
    int64_t *steps;
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
    if (n == 0 && !error_says(err, EACCES)) {
        bool folder = is_there(path, ".", err, sizeof err);
        error_set(err, sizeof err, folder ? "%s holds no checkpoint" : "there is no folder %s",
                  path);
    }
    *code = complain(EXIT_MISSING, err);
    return 0;
}

static void free_found(char **found, int n)
{
    for (int i = 0; i < n; i++)
        free(found[i]);
    free(found);
}

static int run_list(char **found, int n)
{
    int code = EXIT_OK, shown = 0;
    for (int i = 0; i < n; i++) {
        char err[1024];
        Checkpoint *c;
        bool good = checkpoint_open(found[i], &c, err, sizeof err);
        if (!good && checkpoint_gone(found[i])) continue;
        if (shown++ == 0)
            printf("%8s %9s %8s %10s  %s\n", "step", "samples", "updates", "size", "folder");
        if (!good) {
            code = worse(code, complain(EXIT_DAMAGED, err));
            continue;
        }
        const Manifest *m = checkpoint_manifest(c);
        printf("%8" PRId64 " %9" PRId64 " %8" PRId64 " %10s  %s\n", m->state.steps,
               m->state.samples, m->state.updates, figure_bytes((double)total_bytes(m)).text,
               found[i]);
        checkpoint_close(c);
    }
    return shown ? code : LIST_IS_OLD;
}

static void print_tensors(const Manifest *m, CheckpointFile part)
{
    int64_t bytes = 0;
    int n = 0;
    for (int i = 0; i < m->n_tensors; i++) {
        const SafetensorsEntry *e = &m->tensor[i].entry;
        char shape[96] = "()";
        if (m->tensor[i].file != part) continue;
        for (int d = 0, at = 0; d < e->ndim; d++)
            at += snprintf(shape + at, sizeof shape - (size_t)at, "%s%" PRId64 "%s", d ? ", " : "(",
                           e->dim[d], d + 1 == e->ndim ? ")" : "");
        printf("  %-48s %-5s %-18s %12s\n", e->name, dtype_name(e->dtype), shape,
               figure_bytes((double)e->bytes).text);
        bytes += e->bytes;
        n++;
    }
    printf("%s: %s, %s\n\n", checkpoint_file_name[part], figure_of(n, "tensor").text,
           figure_bytes((double)bytes).text);
}

/* A line of what the manifest says: another program's, perhaps, and not to be believed. */
static void print_origin(const char *what, const char *text)
{
    printf("%-12s", what);
    utf8_print_escaped(stdout, text);
    putchar('\n');
}

static int run_inspect(char **found, int n)
{
    (void)n;
    char err[1024];
    Checkpoint *c;
    if (!checkpoint_open(found[0], &c, err, sizeof err))
        return checkpoint_gone(found[0]) ? LIST_IS_OLD : complain(EXIT_DAMAGED, err);
    const Manifest *m = checkpoint_manifest(c);
    const StepState *s = &m->state;
    print_origin("checkpoint", found[0]);
    print_origin("save", m->save_id);
    print_origin("program", m->code);
    print_origin("machine", m->machine);
    print_origin("data", m->data);
    printf("steps       %" PRId64 "   updates %" PRId64 "   skipped %" PRId64 "\n", s->steps,
           s->updates, s->skipped);
    printf("samples     %" PRId64 "   tokens %" PRId64 "   loss scale %g\n", s->samples, s->tokens,
           s->loss_scale);
    printf("config      %zu bytes of JSON, in %s/manifest.json\n\n", strlen(m->config), found[0]);
    for (int f = 0; f < CHECKPOINT_FILES; f++)
        print_tensors(m, (CheckpointFile)f);
    checkpoint_close(c);
    return EXIT_OK;
}

static int run_verify(char **found, int n)
{
    int code = EXIT_OK, shown = 0;
    CheckpointIo io;
    checkpoint_io_open(&io, NULL);
    for (int i = 0; i < n; i++) {
        char err[1024];
        Checkpoint *c = NULL;
        bool good = checkpoint_open(found[i], &c, err, sizeof err) &&
                    checkpoint_verify(&io, c, err, sizeof err);
        if (good) {
            const Manifest *m = checkpoint_manifest(c);
            printf("%s: whole (%s, %s)\n", found[i], figure_of(m->n_tensors, "tensor").text,
                   figure_bytes((double)total_bytes(m)).text);
            shown++;
        } else if (!checkpoint_gone(found[i])) {
            code = worse(code, complain(EXIT_DAMAGED, err));
            shown++;
        }
        checkpoint_close(c);
    }
    checkpoint_io_close(&io);
    return shown ? code : LIST_IS_OLD;
}

static const struct {
    const char *name, *help;
    int (*run)(char **found, int n);
} commands[] = {
    {"list", help_list, run_list},
    {"inspect", help_inspect, run_inspect},
    {"verify", help_verify, run_verify},
};

enum { N_COMMANDS = sizeof commands / sizeof *commands };

/* Prints the usage error; returns NULL for the caller to return. */
static const char *misuse(const char *fmt, const char *a, const char *b)
    __attribute__((format(printf, 1, 0)));
static const char *misuse(const char *fmt, const char *a, const char *b)
{
    char *text = text_format(fmt, a, b);
    complain(EXIT_USAGE, text);
    free(text);
    return NULL;
}

/* The run or checkpoint folder of the command line. NULL with *code after help or a sentence. */
static const char *parse(const char *command, const char *help, int argc, char **argv, int *code)
{
    const char *path = NULL;
    Args args = {.command = command, .argc = argc, .argv = argv};
    *code = EXIT_USAGE;
    for (;;) {
        switch (args_next(&args)) {
        case ARGS_WORD:
            if (path != NULL)
                return misuse("%s: a second folder, %s: give one", command, args.value);
            path = args.value;
            break;
        case ARGS_HELP:
            fputs(help, stdout);
            *code = EXIT_OK;
            return NULL;
        case ARGS_OPTION: /* there is none */
        case ARGS_WRONG: return misuse("%s%s", args.error, "");
        case ARGS_END:
            return path ? path
                        : misuse("%s: which run or checkpoint? %s out/demo", command, command);
        }
    }
}

int cmd_ckpt(int argc, char **argv)
{
    char command[64], end[256];
    int code = EXIT_USAGE;
    if (argc < 2)
        return complain(EXIT_USAGE, "./train ckpt needs a command: list, inspect or verify");
    if (args_is_help(argv[1])) return fputs(help_all, stdout), EXIT_OK;
    size_t k = 0;
    while (k < N_COMMANDS && strcmp(commands[k].name, argv[1]) != 0)
        k++;
    if (k == N_COMMANDS) {
        did_you_mean(end, sizeof end, nearest_name(argv[1], commands, N_COMMANDS, sizeof *commands),
                     "it has list, inspect and verify");
        misuse("./train ckpt has no command \"%s\"%s", argv[1], end);
        return EXIT_USAGE;
    }
    snprintf(command, sizeof command, "./train ckpt %s", commands[k].name);
    const char *path = parse(command, commands[k].help, argc - 1, argv + 1, &code);
    if (path == NULL) return code;
    code = LIST_IS_OLD;
    for (int i = 0; code == LIST_IS_OLD && i < CHECKPOINT_LIST_ATTEMPTS; i++) {
        char **found;
        int n = find(path, &found, &code);
        if (n > 0) code = commands[k].run(found, n);
        free_found(found, n);
    }
    if (code == LIST_IS_OLD)
        code = complain(EXIT_TEMPORARY, "checkpoints are removed faster than they can be read");
    return code;
}

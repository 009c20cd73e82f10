/* args.h -- command lines: one table per command, from which the parsing, the help and the
 * sentences on errors follow.
 *
 *     typedef struct { const char *run; ArgList set; int64_t tokens; } Arguments;
 *     static const ArgOption options[] = {
 *         {.name = "--tokens", .value = "N", .help = "how many tokens to write; default 200",
 *          .kind = ARG_INTEGER, .at = offsetof(Arguments, tokens), .least = 1, .most = 1e9}, ...};
 *     const ArgCommand cmd_generate = {.name = "generate", .call = "./train generate",
 *          .options = options, ..., .run = generate};
 *     return args_run(&cmd_generate, argc, argv);
 *
 * The grammar is the same everywhere. "--name value" and "--name=value" mean the same; options may
 * come before, between and after words; "--" ends them, so that what follows are words whatever
 * they begin with; a lone "-" is a word; --help and -h show the help. The value of an option may
 * not begin with "--", which would be the next option after one whose value was forgotten;
 * "--name=--value" says that it is meant. */
#ifndef MODEL_CORE_ARGS_H
#define MODEL_CORE_ARGS_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

typedef struct ArgCommand ArgCommand;

/* Texts of argv, in its order. */
typedef struct {
    const char **item;
    int count;
} ArgList;

/* What an option takes, and the type of its field. */
typedef enum {
    ARG_FLAG,     /* no value: a bool, which becomes true */
    ARG_TEXT,     /* any text: const char * */
    ARG_NAME,     /* text that is not empty: const char * */
    ARG_INTEGER,  /* a whole number: int64_t */
    ARG_REAL,     /* a number: double */
    ARG_SETTINGS, /* key=value, as often as one likes: ArgList */
    ARG_OWN,      /* what `parse` makes of it */
    ARG_SHOW,     /* no value: `show` prints something in the command's place */
    ARG_ALSO,     /* no option: one more value of the option in the row above, for the help */
} ArgKind;

typedef struct {
    const char *name;       /* with its hyphens: "--out" */
    const char *short_name; /* "-h", or NULL */
    const char *elsewhere;  /* what other commands call the like, to be suggested; or NULL */
    const char *value;      /* its value's name in the help: "DIR"; NULL where it takes none */
    const char *help;       /* what it does; may have several lines */
    ArgKind kind;
    bool required;
    size_t at;          /* offset of its field in the command's struct */
    double least, most; /* of a number; both 0: any */
    bool (*parse)(const char *text, void *field, char *err, size_t n); /* false with a sentence */
    void (*show)(const ArgCommand *command);
} ArgOption;

/* The words of a command's line, all that is no option. */
typedef struct {
    int least, most;
    size_t at;           /* of their field: const char * where `most` is 1, else ArgList */
    const char *missing; /* the sentence where there are fewer */
    const char *plural;  /* where one is too many: "two PLURAL, a and b: give one" */
    const char *advice;  /* the end of that sentence, or NULL */
} ArgWords;

struct ArgCommand {
    const char *name;    /* "tokenize" */
    const char *call;    /* "./train data tokenize" */
    const char *see;     /* the call that shows its help; NULL: `call` with --help */
    const char *usage;   /* what follows the call; NULL: nothing */
    const char *summary; /* its line in the help of its group; begins with a small letter */
    const char *about;   /* of its own help, above the options; NULL: the summary as a sentence */
    const char *notes;   /* below the options, or NULL */
    /* A group has these commands, and nothing below. */
    const ArgCommand *const *commands;
    int n_commands;
    /* Any other command has what its line may hold, and a function that gets the values: a struct
     * of `size` bytes, which starts as `defaults` (NULL: zeros). */
    const ArgOption *options;
    int n_options;
    ArgWords words;
    size_t size;
    const void *defaults;
    int (*run)(const void *values); /* returns the exit code */
};

/* As many words as one likes: ArgWords.most. */
enum { ARGS_ANY = INT_MAX };

/* How many rows an array has. */
#define ARG_ROWS(array) ((int)(sizeof(array) / sizeof *(array)))

/* Runs a command, or the one of a group that argv[1] names, with its line; argv[0] is its name.
 * Returns the exit code: EXIT_OK after help, EXIT_USAGE after a sentence on stderr. */
int args_run(const ArgCommand *command, int argc, char **argv);

/* Reads the line without running the command: into values[0 .. command->size), for which args_free
 * is due. False when there is nothing to run (help was printed, or the line is wrong): then *code
 * is the exit code, and there is nothing to free. */
bool args_read(const ArgCommand *command, int argc, char **argv, void *values, int *code);
void args_free(const ArgCommand *command, void *values);

/* --help or -h. */
bool args_is_help(const char *argument);
void args_print_help(FILE *to, const ArgCommand *command);

/* The command of this name, or NULL. */
const ArgCommand *args_find(const ArgCommand *const *commands, int n, const char *name);
/* The name that may have been meant by `word`, or NULL. */
const char *args_nearest(const ArgCommand *const *commands, int n, const char *word);

#endif

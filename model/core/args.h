/* args.h -- command lines: each command has one table, which drives parsing, help and error
 * messages.
 *
 *     typedef struct { const char *run; ArgList set; int64_t tokens; } Arguments;
 *     static const ArgOption options[] = {
 *         {.name = "--tokens", .value = "N", .help = "how many tokens to write; default 200",
 *          .kind = ARG_INTEGER, .at = offsetof(Arguments, tokens), .least = 1, .most = 1e9}, ...};
 *     const ArgCommand cmd_generate = {.name = "generate", .call = "./train generate",
 *          .options = options, ..., .run = generate};
 *     return args_run(&cmd_generate, argc, argv);
 *
 * All commands share one grammar. "Word" means an argument that is not an option. "--name value"
 * and "--name=value" mean the same. Options may come before, between and after words. After "--",
 * all arguments are words, even if they begin with a hyphen. A lone "-" is a word. --help and -h
 * print the help. A value that begins with "--" must be written as "--name=--value", because
 * otherwise it is taken for the next option and the value is reported as missing. */
#ifndef MODEL_CORE_ARGS_H
#define MODEL_CORE_ARGS_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

typedef struct ArgCommand ArgCommand;

/* Pointers to arguments, in the order of argv. */
typedef struct {
    const char **item;
    int count;
} ArgList;

/* The kind of value that an option takes, and the C type of its field. */
typedef enum {
    ARG_FLAG,     /* no value: a bool, which becomes true */
    ARG_TEXT,     /* any text: const char * */
    ARG_NAME,     /* text that is not empty: const char * */
    ARG_INTEGER,  /* a whole number: int64_t */
    ARG_REAL,     /* a number: double */
    ARG_SETTINGS, /* key=value, may be repeated: ArgList */
    ARG_NAMES,    /* text that is not empty, may be repeated: ArgList */
    ARG_OWN,      /* any type, set by the option's `parse` function */
    ARG_SHOW,     /* no value: calls `show` instead of running the command */
    ARG_ALSO,     /* not an option: a help row for one more value of the option above */
} ArgKind;

typedef struct {
    const char *name;       /* with its hyphens: "--out" */
    const char *short_name; /* "-h", or NULL */
    const char *also;       /* another accepted name, which the help leaves out, or NULL */
    const char *value;      /* the value's name in the help: "DIR"; NULL if there is none */
    const char *help;       /* description for the help; may have several lines */
    ArgKind kind;
    bool required;
    size_t at;          /* offset of the field in the command's struct */
    double least, most; /* bounds of a number; both 0: no bounds */
    const char *beyond; /* end of the error message if a number is above `most`; or NULL */
    /* Parses a value of kind ARG_OWN. Returns false and writes an error message to err. */
    bool (*parse)(const char *text, void *field, char *err, size_t n);
    void (*show)(const ArgCommand *command);
} ArgOption;

/* The words of a command: the arguments that are not options. */
typedef struct {
    int least, most;
    size_t at;           /* offset of the field: const char * if `most` is 1, else ArgList */
    const char *missing; /* error message if there are fewer than `least` */
    const char *plural;  /* for the error "two PLURAL, a and b: give one", if there are too many */
    const char *advice;  /* the end of that error message, or NULL */
} ArgWords;

struct ArgCommand {
    const char *name;    /* for example "tokenize" */
    const char *call;    /* for example "./train data tokenize" */
    const char *see;     /* command that prints the help; NULL: `call` followed by --help */
    const char *usage;   /* arguments in the usage line, after `call`; NULL: none */
    const char *summary; /* one line for the help of its group; begins with a small letter */
    const char *about;   /* text above the options in its own help; NULL: the summary */
    const char *notes;   /* text below the options, or NULL */
    /* For a group: its commands. All fields below are then unused. */
    const ArgCommand *const *commands;
    int n_commands;
    /* For a single command: its options, its words, and the function that receives the values. The
     * values are a struct of `size` bytes, initialised from `defaults` (NULL: zeros). */
    const ArgOption *options;
    int n_options;
    ArgWords words;
    size_t size;
    const void *defaults;
    int (*run)(const void *values); /* returns the exit code */
};

/* Value of ArgWords.most if the number of words is not limited. */
enum { ARGS_ANY = INT_MAX };

/* Number of elements of an array. */
#define ARG_ROWS(array) ((int)(sizeof(array) / sizeof *(array)))

/* Parses argv and runs the command; for a group, runs the command named by argv[1]. argv[0] is the
 * command's own name. Returns the exit code: EXIT_OK after printing help, EXIT_USAGE after printing
 * an error message to stderr. */
int args_run(const ArgCommand *command, int argc, char **argv);

/* Parses the command line into values[0 .. command->size) without running the command. If it
 * returns true, the caller must call args_free. Returns false if there is nothing to run, because
 * help was printed or the line is wrong; *code is then the exit code, and there is nothing to
 * free. */
bool args_read(const ArgCommand *command, int argc, char **argv, void *values, int *code);
void args_free(const ArgCommand *command, void *values);

/* Returns whether the argument is --help or -h. */
bool args_is_help(const char *argument);
void args_print_help(FILE *to, const ArgCommand *command);

/* Returns the command with this name, or NULL. */
const ArgCommand *args_find(const ArgCommand *const *commands, int n, const char *name);
/* Returns the command name that is most similar to `word`, a probable typing error, or NULL. */
const char *args_nearest(const ArgCommand *const *commands, int n, const char *word);

#endif

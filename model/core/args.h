/* args.h -- what all command lines of the program have in common: options by name, their values,
 * and a sentence on what is wrong with one.
 *
 *     Args args = {.command = "./train eval", .options = options, .count = N, argc, argv};
 *     for (;;)
 *         switch (args_next(&args)) { ... }
 */
#ifndef MODEL_CORE_ARGS_H
#define MODEL_CORE_ARGS_H

#include <stdbool.h>

/* "--name value" and "--name=value" are the same. */
typedef enum {
    ARG_FLAG,    /* no value */
    ARG_VALUE,   /* a value that is not empty */
    ARG_TEXT,    /* any text */
    ARG_SETTING, /* "key=value" */
} ArgKind;

typedef struct {
    const char *name; /* with its hyphens */
    ArgKind kind;
} ArgOption;

typedef struct {
    const char *command; /* how it is called: "./train eval" */
    const char *help;    /* what shows its help; NULL: the command with --help */
    const ArgOption *options;
    int count;
    int argc; /* of the whole line; argv[0] is skipped */
    char **argv;
    int at;
    int option;        /* of the last ARGS_OPTION: its place in options */
    const char *value; /* its value (NULL for a flag); of the last ARGS_WORD: the word */
    char error[512];   /* of ARGS_WRONG: the sentence */
} Args;

typedef enum { ARGS_END, ARGS_WORD, ARGS_OPTION, ARGS_HELP, ARGS_WRONG } ArgsNext;

/* Takes the next argument. A lone "-" is a word. The value of an option may not begin with "--",
 * which would be the next option after one whose value was forgotten; "--name=--value" says that it
 * is meant. -h is --help. */
ArgsNext args_next(Args *args);

/* --help or -h. */
bool args_is_help(const char *argument);

#endif

/* check.h -- the three ways to fail; the codes that the program then ends with are exit_codes.h's.
 *
 * Programming errors: CHECK(cond, fmt, ...) prints both operands and aborts with EXIT_BUG; always
 * compiled in. Environment errors and user errors found late: fail(code, fmt, ...) prints one
 * sentence and exits with that code. User errors in a config are collected instead
 * (configs/config.h); parsers return error text and never exit. */
#ifndef MODEL_CORE_CHECK_H
#define MODEL_CORE_CHECK_H

#include "model/core/exit_codes.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* Prints "error[CODE] ...: fmt" on stderr with the rank prefix and exits; never returns. Where the
 * sentence passes on that the system refused permission, the code is EXIT_PERMISSION, whatever
 * `code` stands for other reasons. */
void fail(ExitCode code, const char *fmt, ...) __attribute__((noreturn, format(printf, 2, 3)));

/* fail for a command, which returns its exit code: prints the same sentence, and returns the code.
 */
int error_print(ExitCode code, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* With several ranks in the process, between ends_share(true) and ends_share(false), what ends one
 * of them ends all, at once: fail and CHECK print the first cause with its rank's place, call the
 * hook and leave by _exit with its code. A thread that fails after it prints nothing and returns
 * from nothing any more. */
void ends_share(bool shared);
/* For a rank that knows that another one ends all: never returns. */
void ends_wait(void) __attribute__((noreturn));
/* What such an end brings to disk yet: called once, in the thread that failed, while the others go
 * on; it must not wait for them. `flush` NULL: nothing. When this returns, the hook of before is
 * not under way. */
void ends_set_flush(void (*flush)(void *context), void *context);

/* Prints file, line, the condition and the operands, then exits with EXIT_BUG. */
void check_failed(const char *file, int line, const char *condition, const char *fmt, ...)
    __attribute__((noreturn, format(printf, 4, 5)));

#define CHECK(cond, ...)                                                                           \
    do {                                                                                           \
        if (!(cond)) check_failed(__FILE__, __LINE__, #cond, __VA_ARGS__);                         \
    } while (0)

/* Contracts say "false with a sentence": the function writes what is wrong, as a sentence for the
 * user, to its last arguments err[0..n) and returns false. They say "X_free is due" where the
 * caller must call it.
 *
 * Writes formatted text to err[0..n) and returns false: `return error_set(err, n, "...")`. What
 * does not fit loses its middle (utf8_format): strerror's words at the end stay.
 */
bool error_set(char *err, size_t n, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* Whether the sentence `err` passes on the system's reason `error` (an errno value). Sentences
 * about a refused call end in strerror's words, and whoever passes one on keeps them: so the reason
 * comes through any number of layers. */
bool error_says(const char *err, int error);
/* The exit code of what `err` tells: EXIT_PERMISSION where the system refused permission, otherwise
 * `code`. fail does this by itself. */
ExitCode error_exit_code(const char *err, ExitCode code);

/* malloc, calloc, realloc that end the run with EXIT_NO_MEMORY and the size asked for. Never called
 * inside a step. */
void *must_alloc(size_t bytes);
void *must_calloc(size_t count, size_t size);
void *must_realloc(void *old, size_t bytes);
char *must_strdup(const char *text);
/* asprintf that cannot fail; the caller frees. */
char *text_format(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* A stream into memory that cannot fail to open. What is printed to it is in *text, a string of
 * *bytes bytes, once it is flushed or closed; the caller frees. */
FILE *text_stream(char **text, size_t *bytes);

#endif

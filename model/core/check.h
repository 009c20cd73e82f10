/* check.h -- the three ways to fail. The exit codes are listed in exit_codes.h.
 *
 * For programming errors, CHECK(cond, fmt, ...) prints the condition and its operands and ends the
 * program with EXIT_BUG; it is compiled into release builds, too. For errors of the environment,
 * and for errors of the user that are found late, fail(code, fmt, ...) prints one error message and
 * exits with that code. Errors in a config are collected instead (configs/config.h). Parsers return
 * an error message and never exit. */
#ifndef MODEL_CORE_CHECK_H
#define MODEL_CORE_CHECK_H

#include "model/core/exit_codes.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* Prints "error[CODE] ...: fmt" with the rank prefix to stderr and exits; never returns. If the
 * message contains the system's "permission denied", the exit code is EXIT_PERMISSION instead of
 * `code`. The process ends within five seconds, even if its message cannot be printed because the
 * console is not read. */
void fail(ExitCode code, const char *fmt, ...) __attribute__((noreturn, format(printf, 2, 3)));

/* Prints the same error message as fail, but returns the exit code. For commands, which return
 * their exit code to the caller. */
int error_print(ExitCode code, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Between ends_share(true) and ends_share(false), several ranks run as threads of this process, or
 * this process is one of several ranks, and a failure of one rank ends all of them. fail and CHECK
 * then print the first error with its rank's place in the grid, call the flush hook, and end the
 * process with _exit. A thread that fails later prints nothing and never returns from fail or
 * CHECK. */
void ends_share(bool shared);
/* Waits forever. Called by a rank when another rank is already ending the process. */
void ends_wait(void) __attribute__((noreturn));
/* Sets the hook that saves data to disk before the process ends in this way; NULL removes it. The
 * hook runs once, in the thread that failed, while the other threads keep running, so it must not
 * wait for them. When this function returns, the previous hook is not running. */
void ends_set_flush(void (*flush)(void *context), void *context);

/* Sets the hook for ranks that are processes; NULL removes it. fail and CHECK call it before they
 * print anything, with the exit code of the end. It returns whether this is the first failure of
 * all ranks; if not, the process only waits for ends_now. */
void ends_set_claim(bool (*claim)(void *context, ExitCode code), void *context);
/* Sets the hook that is called whenever this process has printed an error message; NULL removes it.
 */
void ends_set_spoken(void (*spoken)(void *context), void *context);
/* Sets the hook by which a rank tells the others of an error that it finds before it is connected
 * to them; NULL removes it. It is called before and after the message is printed, and may end the
 * process instead. */
void ends_set_tell(void (*tell)(ExitCode code, const char *sentence, bool printed));
/* Calls that hook, if it is set, for an error that is not printed by fail or error_print. */
void ends_tell(ExitCode code, const char *sentence, bool printed);
/* Ends the process without a message: runs the flush hook and calls _exit. For the thread that is
 * told that another rank has failed. */
void ends_now(ExitCode code) __attribute__((noreturn));

/* Prints file, line, the condition and the operands, then exits with EXIT_BUG. */
void check_failed(const char *file, int line, const char *condition, const char *fmt, ...)
    __attribute__((noreturn, format(printf, 4, 5)));

#define CHECK(cond, ...)                                                                           \
    do {                                                                                           \
        if (!(cond)) check_failed(__FILE__, __LINE__, #cond, __VA_ARGS__);                         \
    } while (0)

/* Writes the formatted error message to err[0..n) and always returns false, so a function can end
 * with `return error_set(err, n, "...")`. If the message is too long, its middle is cut out
 * (utf8_format), which keeps the system's reason at the end.
 *
 * Many functions take `char *err, size_t n` as their last parameters: on failure they write an
 * error message for the user to err[0..n) and return false. */
bool error_set(char *err, size_t n, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* Returns whether the message `err` contains strerror(error), where `error` is an errno value.
 * Messages about failed system calls end with that text, and every layer keeps it when it passes
 * the message on. */
bool error_says(const char *err, int error);
/* Returns the exit code for the error message: according to the message, EXIT_PERMISSION if the
 * system refused permission, EXIT_SYSTEM if no file can be opened because too many are open;
 * otherwise `code`. fail does this by itself. */
ExitCode error_exit_code(const char *err, ExitCode code);

/* Flushes stdout and returns `code`, for a command that is run for its output. If the output cannot
 * be written, the program ends with an error. */
int output_checked(int code);

/* Like malloc, calloc, realloc and strdup, but if memory is exhausted they end the program with
 * EXIT_NO_MEMORY and print the requested size. Never called inside a training step. */
void *must_alloc(size_t bytes);
void *must_calloc(size_t count, size_t size);
void *must_realloc(void *old, size_t bytes);
char *must_strdup(const char *text);
/* Like asprintf, but never fails; the caller frees the result. */
char *text_format(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Opens a stream that writes to memory; it never fails to open. After a flush or close, *text is a
 * string with everything printed so far and *bytes is its length. The caller frees *text. */
FILE *text_stream(char **text, size_t *bytes);

#endif

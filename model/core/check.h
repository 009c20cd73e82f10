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

/* Sets whether several ranks run, as threads of this process or as several processes, so that a
 * failure of one rank must end all of them. If `shared` is true, fail and CHECK print only the
 * first error, with its rank's place in the grid. Then they call the flush hook (ends_set_flush)
 * and end the process with _exit. A thread that fails later prints nothing and never returns from
 * fail or CHECK. */
void ends_share(bool shared);
/* Waits forever. Called by a rank when another rank is already ending the process. */
void ends_wait(void) __attribute__((noreturn));
/* Sets the flush hook, which saves data to disk before a failure ends a process while
 * ends_share(true) is in force; NULL removes it. The hook runs once, in the thread that failed,
 * while the other threads keep running, so it must not wait for them. When this function returns,
 * the previous hook is not running. */
void ends_set_flush(void (*flush)(void *context), void *context);

/* Sets the hook that finds out, if ranks are processes, whether this failure is the first of all
 * ranks; NULL removes it. fail and CHECK call it with the exit code before they print anything. If
 * it returns false, another rank has failed first: the thread prints nothing and waits until
 * ends_now, called by another thread, ends the process. */
void ends_set_claim(bool (*claim)(void *context, ExitCode code), void *context);
/* Sets the hook that is called whenever this process has printed an error message; NULL removes it.
 */
void ends_set_spoken(void (*spoken)(void *context), void *context);
/* Sets the hook by which a rank tells the others of an error that it finds before it is connected
 * to them; NULL removes it. It is called before the message is printed, and again afterwards with
 * `printed` true. It may end the process itself. */
void ends_set_tell(void (*tell)(ExitCode code, const char *sentence, bool printed));
/* Calls the hook of ends_set_tell, if it is set, for an error that is not printed by fail or
 * error_print. */
void ends_tell(ExitCode code, const char *sentence, bool printed);
/* Ends the process without a message: runs the flush hook and calls _exit. Called by the thread
 * that receives the news that another rank has failed. */
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
/* Returns the exit code for an error message: EXIT_PERMISSION if it says that the system refused
 * permission, EXIT_SYSTEM if it says that too many files are open, otherwise `code`. fail and
 * error_print call this themselves. */
ExitCode error_exit_code(const char *err, ExitCode code);

/* Flushes stdout and returns `code`. If `code` is EXIT_OK but part of the output could not be
 * written, ends the program with an error instead. */
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

/* log.h -- log messages with the rank that prints them. Rank 0 prints everything; the other ranks
 * print only errors, with their place in the grid, so that the same message is not printed by every
 * rank. A process can be told not to print errors that all processes of its machine find and one of
 * them prints (log_set_silent).
 *
 * The log level, the hook that clears the live line and the process's log file are global. The
 * rank, its place in the grid and its own log file are thread-local, because ranks may be
 * threads. */
#ifndef MODEL_CORE_LOG_H
#define MODEL_CORE_LOG_H

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>

typedef enum { LOG_INFO, LOG_NOTICE, LOG_WARNING, LOG_ERROR } LogLevel;

void log_set_level(LogLevel level);
LogLevel log_level(void);
/* Sets this thread's rank and its place in the grid. The prefix of its errors shows both, for
 * example "[rank 2 dp 2] ". Rank 0 has no prefix if `place` is NULL or "". */
void log_set_rank(int rank, const char *place);
int log_rank(void);
/* Makes this process silent: it does not print errors that every process of its machine finds,
 * because another process prints them. These are errors in the command line, the config, the files
 * and the network. It prints other errors, such as a lack of memory. */
void log_set_silent(bool silent);
const char *log_place(void);
/* Sets a file to which this thread also writes its messages of every level; NULL: none. */
void log_set_file(FILE *to);
/* Sets a file to which all threads of this process write that have not set their own file
 * (log_set_file); NULL: none. For a process with one rank. */
void log_set_process_file(FILE *to);
/* Returns the file to which this thread writes, or NULL. */
FILE *log_file(void);

/* Prints one line, on stderr for warnings and errors, otherwise on stdout; a terminal folds it
 * (terminal_message). Prints nothing if the level is too low, and on ranks > 0 prints only errors.
 * Control characters are escaped. */
void log_message(LogLevel level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Prints "label text" at LOG_INFO. The text begins at column 8 and is folded everywhere
 * (terminal_field). */
void log_field(const char *label, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
#define log_info(...)    log_message(LOG_INFO, __VA_ARGS__)
#define log_notice(...)  log_message(LOG_NOTICE, __VA_ARGS__)
#define log_warning(...) log_message(LOG_WARNING, __VA_ARGS__)

/* Prints one line that explains an error message, or that was requested, on stderr at every level
 * and on every rank, and to the thread's log file. Prints nothing to a stream that is not read, or
 * whose lock another thread holds for long. `ending`: it may be the last line of the program. */
void log_explain(bool ending, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Takes the stream's lock. Gives up after about half a second and returns false: another thread may
 * hold it, blocked forever because the output is not read. */
bool log_lock_soon(FILE *to);
/* Waits for at most `milliseconds` until a write of a few KiB to this file descriptor will not
 * block. Returns false if it would: a pipe is full, or a terminal is stopped (Ctrl-S). May be
 * called by a signal handler. */
bool log_can_write(int fd, int milliseconds);
/* Returns whether a thread is blocked in a write to stdout or stderr at this moment, because the
 * output is not read. Mostly that is a thread of rank 0, because during a run the other ranks print
 * only errors. Does not wait itself. */
bool log_blocked(void);
/* Prints "kind[code] rank R place: text\n", also to the thread's log file. Does not wait long for
 * another thread that holds a stream's lock, but waits until `to` is read. Used by check.c. */
void log_prefixed(FILE *to, const char *kind, int code, const char *fmt, va_list args);

/* Registers the function that is called before a message is printed on `to`, with that stream
 * locked. It makes the message begin on a new line, although a live line (progress.h) may be on the
 * terminal. `ending`: the message is an error, which may be the last line of the program. */
typedef void (*LogMakeRoom)(FILE *to, bool ending);
void log_set_live_line(LogMakeRoom new_make_room);

#endif

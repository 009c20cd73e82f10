/* log.h -- messages, with the rank that prints them. Rank 0 prints all; other ranks print errors
 * only, with their place: what all ranks would print is printed once.
 *
 * The log level, the hook that clears the live line and the thread's rank are globals; the rank and
 * its log file are thread-local, because ranks may be threads. */
#ifndef MODEL_CORE_LOG_H
#define MODEL_CORE_LOG_H

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>

typedef enum { LOG_INFO, LOG_NOTICE, LOG_WARNING, LOG_ERROR } LogLevel;

void log_set_level(LogLevel level);
LogLevel log_level(void);
/* Sets this thread's rank and the place in the prefix of its errors, "[rank 2 dp 2] "; without a
 * place (NULL, "") rank 0 has no prefix. */
void log_set_rank(int rank, const char *place);
int log_rank(void);
const char *log_place(void);
/* Where this thread's messages of every level go besides; NULL: nowhere else. */
void log_set_file(FILE *to);
/* That file. */
FILE *log_file(void);

/* One line on stderr for warnings and errors, on stdout otherwise; silent below the level or on
 * ranks > 0 (errors are always printed). Control characters in the text are printed escaped. */
void log_message(LogLevel level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* At LOG_INFO: "label   text", the text from column 8 on in lines that fit 80 columns (text_wrap).
 */
void log_field(const char *label, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
#define log_info(...)    log_message(LOG_INFO, __VA_ARGS__)
#define log_notice(...)  log_message(LOG_NOTICE, __VA_ARGS__)
#define log_warning(...) log_message(LOG_WARNING, __VA_ARGS__)

/* "kind[code] rank R place: text\n", to the thread's log file, too; used by check.c. */
void log_prefixed(FILE *to, const char *kind, int code, const char *fmt, va_list args);

/* While a live line is on the terminal, messages must start below it: the console, which is
 * rank 0's, registers what clears it. Another rank leaves the line where it is, and writes below.
 */
void log_set_clear_line(void (*clear)(void));

#endif

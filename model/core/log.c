/* log.c -- implements log.h: prints messages with their rank, also while a live line is shown. */
#include "model/core/log.h"

#include "model/core/figures.h"
#include "model/core/utf8.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static LogLevel current_level = LOG_INFO;
static void (*_Atomic clear_line)(void);
static _Thread_local int thread_rank;
static _Thread_local char thread_place[64];
static _Thread_local FILE *thread_file;

void log_set_level(LogLevel level)
{
    current_level = level;
}

LogLevel log_level(void)
{
    return current_level;
}

void log_set_rank(int rank, const char *place)
{
    thread_rank = rank;
    snprintf(thread_place, sizeof thread_place, "%s", place ? place : "");
}

int log_rank(void)
{
    return thread_rank;
}

const char *log_place(void)
{
    return thread_place;
}

void log_set_file(FILE *to)
{
    thread_file = to;
}

FILE *log_file(void)
{
    return thread_file;
}

void log_set_clear_line(void (*clear)(void))
{
    atomic_store(&clear_line, clear);
}

/* Makes the next message on `to` begin on its own line. Only rank 0 draws the live line, so only
 * rank 0 clears it. */
static void leave_live_line(FILE *to)
{
    void (*clear)(void) = atomic_load(&clear_line);
    if (clear == NULL) return;
    if (thread_rank == 0)
        clear();
    else if (isatty(fileno(to)))
        fputc('\n', to);
}

static void print_formatted(FILE *to, const char *fmt, va_list args)
{
    char text[4096];
    utf8_format(text, sizeof text, fmt, args);
    utf8_print_escaped(to, text);
    fputc('\n', to);
    fflush(to);
}

/* Prints the rank and its place in the grid: "[rank 2 dp 2] " with brackets, or "rank 2 dp 2: "
 * after the code of an error message. */
static void print_place(FILE *to, const char *begin, const char *end)
{
    if (thread_rank != 0 || thread_place[0])
        fprintf(to, "%srank %d%s%s%s", begin, thread_rank, thread_place[0] ? " " : "", thread_place,
                end);
}

/* Hold the stream's lock for the whole line, so that prefix and text of different threads do not
 * mix. */
static void print_message(FILE *to, LogLevel level, bool place, const char *fmt, va_list args)
{
    flockfile(to);
    if (level == LOG_WARNING) fputs("warning: ", to);
    if (level == LOG_NOTICE) fputs("notice: ", to);
    if (place) print_place(to, "[", "] ");
    print_formatted(to, fmt, args);
    funlockfile(to);
}

void log_message(LogLevel level, const char *fmt, ...)
{
    va_list args;
    if (thread_file) {
        va_start(args, fmt);
        print_message(thread_file, level, false, fmt, args);
        va_end(args);
    }
    if (level < current_level || (thread_rank != 0 && level < LOG_ERROR)) return;
    FILE *to = level >= LOG_WARNING ? stderr : stdout;
    leave_live_line(to);
    va_start(args, fmt);
    print_message(to, level, thread_rank != 0, fmt, args);
    va_end(args);
}

void log_field(const char *label, const char *fmt, ...)
{
    enum { COLUMN = 8 };
    char text[4096];
    va_list args;
    va_start(args, fmt);
    utf8_format(text, sizeof text, fmt, args);
    va_end(args);
    int used = strlen(label) > COLUMN ? (int)strlen(label) : COLUMN;
    char *lines = text_wrap(text, used, COLUMN, WRAP_FIGURES);
    log_info("%-*s%s", COLUMN, label, lines);
    free(lines);
}

static void print_prefixed(FILE *to, const char *kind, int code, const char *fmt, va_list args)
{
    flockfile(to);
    fprintf(to, "%s[%d] ", kind, code);
    print_place(to, "", ": ");
    print_formatted(to, fmt, args);
    funlockfile(to);
}

void log_prefixed(FILE *to, const char *kind, int code, const char *fmt, va_list args)
{
    va_list again;
    if (thread_file) {
        va_copy(again, args);
        print_prefixed(thread_file, kind, code, fmt, again);
        va_end(again);
    }
    leave_live_line(to);
    print_prefixed(to, kind, code, fmt, args);
}

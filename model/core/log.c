/* log.c -- see log.h. */
#include "model/core/log.h"

#include "model/core/figures.h"
#include "model/core/utf8.h"

#include <stdlib.h>
#include <string.h>

static LogLevel current_level = LOG_INFO;
static void (*clear_line)(void);
static _Thread_local int thread_rank;
static _Thread_local char thread_place[64];

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

void log_set_clear_line(void (*clear)(void))
{
    clear_line = clear;
}

static void print_formatted(FILE *to, const char *fmt, va_list args)
{
    char text[4096];
    utf8_format(text, sizeof text, fmt, args);
    utf8_print_escaped(to, text);
    fputc('\n', to);
    fflush(to);
}

void log_message(LogLevel level, const char *fmt, ...)
{
    if (level < current_level || (thread_rank != 0 && level < LOG_ERROR)) return;
    if (clear_line) clear_line();
    /* Held for the whole line: threads print prefix and text as one. */
    FILE *to = level >= LOG_WARNING ? stderr : stdout;
    flockfile(to);
    if (level == LOG_WARNING) fputs("warning: ", to);
    if (level == LOG_NOTICE) fputs("notice: ", to);
    if (thread_rank != 0 || thread_place[0])
        fprintf(to, "[rank %d %s] ", thread_rank, thread_place);
    va_list args;
    va_start(args, fmt);
    print_formatted(to, fmt, args);
    va_end(args);
    funlockfile(to);
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

void log_prefixed(FILE *to, const char *kind, int code, const char *fmt, va_list args)
{
    if (clear_line) clear_line();
    flockfile(to);
    fprintf(to, "%s[%d] ", kind, code);
    if (thread_rank != 0 || thread_place[0]) fprintf(to, "rank %d %s: ", thread_rank, thread_place);
    print_formatted(to, fmt, args);
    funlockfile(to);
}

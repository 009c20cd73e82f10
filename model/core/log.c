/* log.c -- implements log.h: prints messages with their rank, also while a live line is shown. */
#include "model/core/log.h"

#include "model/core/exit_codes.h"
#include "model/core/terminal.h"
#include "model/core/utf8.h"

#include <poll.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

static LogLevel current_level = LOG_INFO;
static _Atomic LogMakeRoom make_room;
static _Thread_local int thread_rank;
static _Thread_local char thread_place[64];
static _Thread_local FILE *thread_file;
static _Atomic(FILE *) process_file;
static atomic_bool silent;

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

void log_set_silent(bool is_silent)
{
    atomic_store(&silent, is_silent);
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

void log_set_process_file(FILE *to)
{
    atomic_store(&process_file, to);
}

FILE *log_file(void)
{
    return thread_file ? thread_file : atomic_load(&process_file);
}

void log_set_live_line(LogMakeRoom new_make_room)
{
    atomic_store(&make_room, new_make_room);
}

static void leave_live_line(FILE *to, bool ending)
{
    LogMakeRoom function = atomic_load(&make_room);
    if (function) function(to, ending);
}

/* Largest sizes in bytes: of a message, and of what is printed before it, such as
 * "error[70] rank 2 dp 2: ". */
enum { TEXT = 4096, BEFORE = 128 };

/* Appends the rank and its place in the grid to `text`, between `begin` and `end`. Errors with a
 * code have "rank 2 dp 2: ", other messages "[rank 2 dp 2] ". Returns the new length. */
static size_t add_place(char *text, size_t used, const char *begin, const char *end)
{
    if (thread_rank == 0 && thread_place[0] == '\0') return used;
    return used + (size_t)snprintf(text + used, BEFORE - used, "%srank %d%s%s%s", begin,
                                   thread_rank, thread_place[0] ? " " : "", thread_place, end);
}

static void print_message(FILE *to, LogLevel level, bool place, const char *fmt, va_list args)
{
    static const char *const before[] = {
        [LOG_INFO] = "", [LOG_NOTICE] = "notice: ", [LOG_WARNING] = "warning: ", [LOG_ERROR] = ""};
    char text[BEFORE + TEXT];
    size_t used = (size_t)snprintf(text, sizeof text, "%s", before[level]);
    size_t marked = level == LOG_WARNING ? used : 0;
    if (place) used = add_place(text, used, "[", "] ");
    utf8_format(text + used, TEXT, fmt, args);
    terminal_message(to, text, level == LOG_WARNING ? MARK_WARNING : MARK_NONE, marked);
}

/* Returns whether this thread prints messages of this level on the console. If so, sets *to to
 * stdout or stderr. */
static bool is_printed(LogLevel level, FILE **to)
{
    if (level < current_level || (thread_rank != 0 && level < LOG_ERROR)) return false;
    *to = level >= LOG_WARNING ? stderr : stdout;
    return true;
}

void log_message(LogLevel level, const char *fmt, ...)
{
    va_list args;
    FILE *to;
    FILE *file = log_file();
    if (file) {
        va_start(args, fmt);
        print_message(file, level, false, fmt, args);
        va_end(args);
    }
    if (!is_printed(level, &to)) return;
    /* While this lock is held, no thread can draw a live line between the clearing of the old one
     * and the message. */
    flockfile(to);
    leave_live_line(to, false);
    va_start(args, fmt);
    print_message(to, level, thread_rank != 0, fmt, args);
    va_end(args);
    funlockfile(to);
}

static void explain_on(FILE *to, const char *text, bool console, bool ending)
{
    enum { MILLISECONDS = 200 };
    if (!log_can_write(fileno(to), MILLISECONDS) || !log_lock_soon(to)) return;
    if (console) leave_live_line(to, ending);
    terminal_message(to, text, MARK_NONE, 0);
    funlockfile(to);
}

void log_explain(bool ending, const char *fmt, ...)
{
    va_list args;
    char text[TEXT];
    FILE *file = log_file();
    va_start(args, fmt);
    utf8_format(text, sizeof text, fmt, args);
    va_end(args);
    explain_on(stderr, text, true, ending);
    if (file) explain_on(file, text, false, ending);
}

void log_field(const char *label, const char *fmt, ...)
{
    enum { COLUMN = 8 };
    char text[TEXT];
    FILE *to;
    va_list args;
    va_start(args, fmt);
    utf8_format(text, sizeof text, fmt, args);
    va_end(args);
    FILE *file = log_file();
    if (file) terminal_field(file, label, text, COLUMN);
    if (!is_printed(LOG_INFO, &to)) return;
    flockfile(to);
    leave_live_line(to, false);
    terminal_field(to, label, text, COLUMN);
    funlockfile(to);
}

bool log_lock_soon(FILE *to)
{
    enum { TRIES = 500, MICROSECONDS = 1000 };
    for (int i = 0; i < TRIES; i++) {
        if (ftrylockfile(to) == 0) return true;
        usleep(MICROSECONDS);
    }
    return false;
}

bool log_can_write(int fd, int milliseconds)
{
    struct pollfd asked = {.fd = fd, .events = POLLOUT};
    if (fd < 0) return true; /* a stream into memory */
    /* Any event will do: if the file has an error, the write returns at once, too. */
    return poll(&asked, 1, milliseconds) != 0;
}

/* Returns whether a thread is blocked in a write to the stream. It holds the stream's lock during
 * the write. */
static bool is_blocked(FILE *to)
{
    if (log_can_write(fileno(to), 0)) return false;
    if (ftrylockfile(to) != 0) return true;
    funlockfile(to);
    return false;
}

bool log_blocked(void)
{
    return is_blocked(stdout) || is_blocked(stderr);
}

/* Prints the text and a line feed with one write, bypassing the stream and its lock. */
static void print_past(FILE *to, const char *text)
{
    char out[4 * (BEFORE + TEXT) + 2];
    utf8_escape(out, text, false);
    size_t n = strlen(out);
    out[n++] = '\n';
    ssize_t written = write(fileno(to), out, n);
    (void)written; /* the error cannot be reported anywhere else */
}

/* Returns whether every rank of a machine is likely to find this error, because it follows from
 * what they share: the command line, the config, the files, the network. */
static bool is_common(int code)
{
    static const int common[] = {EXIT_USAGE,       EXIT_DAMAGED,       EXIT_MISSING,
                                 EXIT_UNAVAILABLE, EXIT_CANNOT_CREATE, EXIT_PERMISSION,
                                 EXIT_CONFIG};
    for (size_t i = 0; i < sizeof common / sizeof *common; i++)
        if (common[i] == code) return true;
    return false;
}

static void print_error(FILE *to, const char *text, size_t marked, bool console)
{
    if (!log_lock_soon(to)) {
        print_past(to, text);
        return;
    }
    if (console) leave_live_line(to, true);
    terminal_message(to, text, MARK_ERROR, marked);
    funlockfile(to);
}

void log_prefixed(FILE *to, const char *kind, int code, const char *fmt, va_list args)
{
    char text[BEFORE + TEXT];
    size_t marked = (size_t)snprintf(text, sizeof text, "%s[%d] ", kind, code);
    utf8_format(text + add_place(text, marked, "", ": "), TEXT, fmt, args);
    /* A console that is not read must not keep the message from the file, and a blocked disk must
     * not keep it from the console. */
    bool quiet = atomic_load(&silent) && is_common(code);
    bool console_first = log_can_write(fileno(to), 0);
    if (console_first && !quiet) print_error(to, text, marked, true);
    FILE *file = log_file();
    if (file) print_error(file, text, marked, false);
    if (!console_first && !quiet) print_error(to, text, marked, true);
}

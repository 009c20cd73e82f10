/* check.c -- prints errors and ends the program, also when several ranks run as threads; see
 * check.h. */
#include "model/core/check.h"

#include "model/core/dumps.h"
#include "model/core/guard.h"
#include "model/core/log.h"
#include "model/core/pool.h"
#include "model/core/utf8.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- ending a process with several ranks ----------------------------------------------------- */

/* Shared by all threads, so that the process ends only once, whichever threads fail. */
static struct {
    atomic_bool shared, begun;
    pthread_mutex_t mutex; /* guards the flush hook, and is held while it runs */
    void (*flush)(void *context);
    void *context;
    _Atomic(bool (*)(void *context, ExitCode code)) claim;
    _Atomic(void *) claim_context;
    _Atomic(void (*)(void *context)) spoken;
    _Atomic(void *) spoken_context;
    atomic_bool has_spoken; /* this process has printed an error message */
    _Atomic(void (*)(ExitCode code, const char *sentence, bool printed)) tell;
} ends = {.mutex = PTHREAD_MUTEX_INITIALIZER};
/* In the thread whose failure ends the process: the exit code. -1 in all other threads. */
static _Thread_local int ending_with = -1;

void ends_share(bool shared)
{
    atomic_store(&ends.shared, shared);
}

void ends_set_flush(void (*flush)(void *context), void *context)
{
    pthread_mutex_lock(&ends.mutex);
    ends.flush = flush;
    ends.context = context;
    pthread_mutex_unlock(&ends.mutex);
}

void ends_set_claim(bool (*claim)(void *context, ExitCode code), void *context)
{
    atomic_store(&ends.claim, NULL);
    atomic_store(&ends.claim_context, context);
    atomic_store(&ends.claim, claim);
}

void ends_set_spoken(void (*spoken)(void *context), void *context)
{
    atomic_store(&ends.spoken, NULL);
    atomic_store(&ends.spoken_context, context);
    atomic_store(&ends.spoken, spoken);
}

void ends_set_tell(void (*tell)(ExitCode code, const char *sentence, bool printed))
{
    atomic_store(&ends.tell, tell);
}

void ends_tell(ExitCode code, const char *sentence, bool printed)
{
    void (*tell)(ExitCode code, const char *sentence, bool printed) = atomic_load(&ends.tell);
    if (tell) tell(code, sentence, printed);
}

/* Records that an error message has been printed, and calls the hook of ends_set_spoken. */
static void note_spoken(void)
{
    void (*spoken)(void *context) = atomic_load(&ends.spoken);
    atomic_store(&ends.has_spoken, true);
    if (spoken) spoken(atomic_load(&ends.spoken_context));
}

void ends_wait(void)
{
    for (;;)
        pause();
}

/* How many seconds the end of the process may take: asking rank 0 for permission, printing the
 * message, the flush hook and exit(). Each of them could wait forever for a console that is not
 * read, for a disk, or for a lock whose owner waits for one of the two. */
static const double END_SECONDS = 4;

/* Marks the start of the process's end. With several ranks it returns only in the first thread that
 * calls it; later callers wait forever. With a single rank it always returns. */
static void end_begin(ExitCode code)
{
    bool shared = atomic_load(&ends.shared);
    /* This thread has failed again while it ends the process: its first error has been printed. */
    if (shared && ending_with >= 0) _exit(ending_with);
    if (shared && atomic_exchange(&ends.begun, true)) ends_wait();
    guard_end_within(END_SECONDS, (int)code);
    dumps_begin_last((int)code);
    if (!shared) return;
    ending_with = (int)code;
    bool (*claim)(void *context, ExitCode code) = atomic_load(&ends.claim);
    if (claim && !claim(atomic_load(&ends.claim_context), code)) ends_wait();
}

/* Flushes stdout before an error message is printed, unless nobody reads the output or another
 * thread holds the lock of stdout for long. */
static void flush_output(void)
{
    if (!log_can_write(STDOUT_FILENO, 0) || !log_lock_soon(stdout)) return;
    fflush(stdout);
    funlockfile(stdout);
}

/* Waits for the last dump of the flight recorders. If there are several ranks, then runs the flush
 * hook and ends the process with _exit, because exit() would run destructors for data that the
 * threads of other ranks are still using. */
static void end_shared(ExitCode code)
{
    dumps_end_last(atomic_load(&ends.has_spoken));
    if (!atomic_load(&ends.shared)) return;
    ending_with = (int)code; /* the flush hook may fail, too, and must not change the exit code */
    if (mutex_lock_within(&ends.mutex, 1) && ends.flush) ends.flush(ends.context);
    _exit((int)code);
}

void ends_now(ExitCode code)
{
    guard_end_within(END_SECONDS, (int)code); /* the flush hook may wait for a disk */
    dumps_begin_last((int)code);
    end_shared(code);
    _exit((int)code);
}

/* ---- error messages -------------------------------------------------------------------------- */

static void print_error(ExitCode code, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    log_prefixed(stderr, "error", (int)code, fmt, args);
    va_end(args);
}

/* The text of an error message. If the message is longer, its middle is cut out. */
typedef struct {
    char text[4096];
} Sentence;

static Sentence sentence_of(const char *fmt, va_list args)
{
    Sentence s;
    va_list again;
    va_copy(again, args);
    utf8_format(s.text, sizeof s.text, fmt, again);
    va_end(again);
    return s;
}

/* Prints the error message with its exit code. `s` is the text that fmt and args give. */
static void print_sentence(ExitCode code, const Sentence *s, const char *fmt, va_list args)
{
    flush_output();
    if (error_says(s->text, EMFILE))
        print_error(code, "%s; raise ulimit -n", s->text);
    else
        log_prefixed(stderr, "error", (int)code, fmt, args);
    note_spoken();
}

void fail(ExitCode code, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    Sentence s = sentence_of(fmt, args);
    /* Must come before end_begin, which sends the code to the other ranks. */
    code = error_exit_code(s.text, code);
    ends_tell(code, s.text, false);
    end_begin(code);
    print_sentence(code, &s, fmt, args);
    va_end(args);
    ends_tell(code, s.text, true);
    end_shared(code);
    exit((int)code);
}

int error_print(ExitCode code, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    Sentence s = sentence_of(fmt, args);
    code = error_exit_code(s.text, code);
    ends_tell(code, s.text, false);
    print_sentence(code, &s, fmt, args);
    va_end(args);
    ends_tell(code, s.text, true);
    return (int)code;
}

void check_failed(const char *file, int line, const char *condition, const char *fmt, ...)
{
    end_begin(EXIT_BUG);
    flush_output();
    /* Does not take the lock of stderr, which another thread may hold forever. */
    dprintf(STDERR_FILENO, "%s:%d: CHECK(%s) failed\n", file, line, condition);
    va_list args;
    va_start(args, fmt);
    log_prefixed(stderr, "bug", (int)EXIT_BUG, fmt, args);
    va_end(args);
    note_spoken();
    end_shared(EXIT_BUG);
    fflush(stderr);
    _Exit((int)EXIT_BUG);
}

bool error_set(char *err, size_t n, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    utf8_format(err, n, fmt, args);
    va_end(args);
    return 0;
}

bool error_says(const char *err, int error)
{
    const char *reason = strerror(error);
    for (const char *at = strstr(err, reason); at != NULL; at = strstr(at + 1, reason))
        if (at - err >= 2 && at[-2] == ':' && at[-1] == ' ') return true;
    return false;
}

ExitCode error_exit_code(const char *err, ExitCode code)
{
    if (error_says(err, EACCES) || error_says(err, EPERM)) return EXIT_PERMISSION;
    return error_says(err, EMFILE) || error_says(err, ENFILE) ? EXIT_SYSTEM : code;
}

int output_checked(int code)
{
    bool lost = fflush(stdout) != 0;
    if (code == EXIT_OK && lost)
        fail(EXIT_INPUT_OUTPUT, "the output cannot be written: %s", strerror(errno));
    if (code == EXIT_OK && ferror(stdout))
        fail(EXIT_INPUT_OUTPUT, "part of the output could not be written");
    return code;
}

static void *require(void *p, size_t bytes)
{
    if (p == NULL && bytes > 0)
        fail(EXIT_NO_MEMORY, "the system refused %zu bytes of memory", bytes);
    return p;
}

void *must_alloc(size_t bytes)
{
    return require(malloc(bytes), bytes);
}

void *must_calloc(size_t count, size_t size)
{
    void *p = calloc(count, size);
    if (p == NULL && count > 0 && size > 0)
        fail(EXIT_NO_MEMORY, "the system refused %zu items of %zu bytes", count, size);
    return p;
}

void *must_realloc(void *old, size_t bytes)
{
    return require(realloc(old, bytes), bytes);
}

char *must_strdup(const char *text)
{
    size_t n = strlen(text) + 1;
    return memcpy(must_alloc(n), text, n);
}

char *text_format(const char *fmt, ...)
{
    va_list args, again;
    va_start(args, fmt);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    CHECK(n >= 0, "a format that cannot be printed: %s", fmt);
    char *text = must_alloc((size_t)n + 1);
    vsnprintf(text, (size_t)n + 1, fmt, again);
    va_end(again);
    return text;
}

FILE *text_stream(char **text, size_t *bytes)
{
    *text = NULL;
    *bytes = 0;
    FILE *to = open_memstream(text, bytes);
    CHECK(to != NULL, "no stream into memory: %s", strerror(errno));
    return to;
}

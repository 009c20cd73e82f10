/* progress.c -- implements progress.h: the live line on a terminal, the messages about progress,
 * and the thread (the ticker) that prints both while the work continues. */
#include "model/core/progress.h"

#include "model/core/clock.h"
#include "model/core/figures.h"
#include "model/core/log.h"
#include "model/core/pool.h"
#include "model/core/terminal.h"
#include "model/core/utf8.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

static const double first_after = 1, terminal_every = 0.5, message_every = 30, never = 1e300;

/* What the ticker prints, and what is on the screen. A thread that holds the lock must not wait for
 * a stream: log.c waits for the lock while it holds a stream, so both could wait forever. Therefore
 * it takes a stream only if that is free (take_stdout). */
static struct {
    pthread_mutex_t lock;
    char text[256];         /* text of the work in progress; "": there is no work */
    double began, left, at; /* `left` seconds of work were left at the time `at`; < 0: unknown */
    double next, every;     /* when the next line is due, and the time between two lines */
    double last;            /* when something was last printed; 0: not known yet */
    bool terminal;
    FILE *shown;      /* the stream whose last line is the live line; NULL: there is none */
    bool of_work;     /* the live line shows the work in progress */
    atomic_bool over; /* an error has been printed, which may be the program's last line */
} line = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- printing, with the lock ----------------------------------------------------------------- */

static void show(FILE *to, const char *text, bool of_work)
{
    /* Use one column less than the terminal has: a text of the full width would start a new line.
     * The rest of the old line is cleared after the new text is printed, not before, to avoid
     * flicker. */
    fprintf(to, "\r%.*s\033[K", (int)text_cut(text, terminal_columns(to) - 1), text);
    fflush(to);
    line.shown = to;
    line.of_work = of_work;
}

static void clear(void)
{
    if (line.shown) {
        fputs("\r\033[K", line.shown);
        fflush(line.shown);
    }
    line.shown = NULL;
}

/* Takes stdout. Returns false if another thread is printing on stdout or stderr. Does not keep
 * stderr: an error must be printed even while this thread's write to stdout blocks. A thread that
 * takes stderr from now on to print a message first waits for line.lock. */
static bool take_stdout(void)
{
    if (ftrylockfile(stdout) != 0) return false;
    if (ftrylockfile(stderr) == 0) {
        funlockfile(stderr);
        return true;
    }
    funlockfile(stdout);
    return false;
}

/* Prints the line of the work in progress if it is due, with the time that is left or, if that is
 * unknown, the time so far. */
static void print_if_due(double now)
{
    char text[320];
    if (line.text[0] == '\0' || now < line.next || line.over || !take_stdout()) return;
    double left = line.left < 0 ? -1 : line.left - (now - line.at);
    const char *what = line.left < 0 ? "so far" : "left";
    Figure time = figure_duration(line.left < 0 ? now - line.began : left > 0 ? left : 0);
    bool timed = line.left >= 0 || now - line.began >= first_after;
    snprintf(text, sizeof text, timed ? "  %s, %s %s" : "  %s", line.text, time.text, what);
    if (line.terminal) {
        show(stdout, text, true);
    } else {
        utf8_print_escaped(stdout, text);
        fputc('\n', stdout);
        fflush(stdout);
    }
    line.last = now;
    line.next = now + line.every;
    funlockfile(stdout);
}

/* ---- the ticker ------------------------------------------------------------------------------ */

static struct {
    pthread_mutex_t life; /* held while the thread is started or ended, and by progress_fork */
    bool begun;           /* the ticker has been started, in this process or in its parent */
    bool runs;
    int wake;           /* an eventfd; written to end the thread */
    atomic_int leaving; /* id of the thread, once it has seen that it must end; before that 0 */
} ticker = {.life = PTHREAD_MUTEX_INITIALIZER};

static void *tick(void *unused)
{
    enum { MILLISECONDS = 250 };
    struct pollfd wake = {.fd = ticker.wake, .events = POLLIN};
    while (poll(&wake, 1, MILLISECONDS) <= 0) {
        pthread_mutex_lock(&line.lock);
        /* If `every` is 0, each text has been printed when it was set. */
        if (line.every > 0) print_if_due(seconds_now());
        pthread_mutex_unlock(&line.lock);
    }
    atomic_store(&ticker.leaving, (int)gettid());
    return unused;
}

/* Called by log.c before a message is printed on `to`. If the program may be about to end, does not
 * wait forever for the lock: its holder may be blocked because the console is not read. */
static void make_room(FILE *to, bool ending)
{
    enum { TRIES = 20, MICROSECONDS = 1000 };
    bool locked = false;
    if (ending) line.over = true;
    if (!ending && log_rank() == 0) locked = pthread_mutex_lock(&line.lock) == 0;
    for (int i = 0; i < TRIES && !locked; i++)
        if (!(locked = pthread_mutex_trylock(&line.lock) == 0)) usleep(MICROSECONDS);
    if (!locked) return;
    /* An error must reach `to` even if the live line is on a terminal that is stopped. */
    if (ending && line.shown && !log_can_write(fileno(line.shown), 0)) line.shown = NULL;
    /* Only rank 0 draws the live line, so only rank 0 clears it. */
    if (log_rank() == 0)
        clear();
    else if (line.shown && terminal_is(to))
        fputc('\n', to);
    line.last = seconds_now();
    pthread_mutex_unlock(&line.lock);
}

/* Starts the ticker unless it runs already. If the system refuses another thread, lines are printed
 * only when the work sets its text. */
static void start(void)
{
    if (ticker.runs) return;
    ticker.wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    atomic_store(&ticker.leaving, 0);
    ticker.runs = ticker.wake >= 0 && thread_start_detached(tick, NULL);
    if (!ticker.runs && ticker.wake >= 0) close(ticker.wake);
}

/* How many seconds a fork waits for the ticker to end, and again for the lock. */
static const double fork_waits = 0.1;

/* Ends the ticker and waits for a short time until the kernel has removed it. It may be blocked
 * because the console is not read; then it ends later. It is detached, because nobody would join it
 * at the program's end. */
static void end(void)
{
    enum { MICROSECONDS = 100 };
    uint64_t once = 1;
    if (!ticker.runs || write(ticker.wake, &once, sizeof once) < 0) return;
    ticker.runs = false;
    for (double waited = 0; waited < fork_waits; waited += 1e-6 * MICROSECONDS) {
        int thread = atomic_load(&ticker.leaving);
        if (thread != 0 && syscall(SYS_tgkill, getpid(), thread, 0) != 0) {
            close(ticker.wake);
            return;
        }
        usleep(MICROSECONDS);
    }
}

pid_t progress_fork(void)
{
    pthread_mutex_lock(&ticker.life);
    end();
    /* The owner of the lock may be blocked because the console is not read. */
    bool taken = mutex_lock_within(&line.lock, fork_waits);
    pid_t child = fork();
    int error = errno;
    if (taken)
        pthread_mutex_unlock(&line.lock);
    else if (child == 0)
        pthread_mutex_init(&line.lock, NULL); /* the owner does not exist in the child */
    if (child != 0 && ticker.begun) start();
    pthread_mutex_unlock(&ticker.life);
    errno = error;
    return child;
}

static void start_ticker(void)
{
    pthread_mutex_lock(&ticker.life);
    ticker.begun = true;
    start();
    pthread_mutex_unlock(&ticker.life);
}

/* ---- progress -------------------------------------------------------------------------------- */

static bool is_silent(void)
{
    return log_rank() != 0 || log_level() > LOG_INFO;
}

Progress progress_begin(void)
{
    Progress p = {.terminal = terminal_is(stdout)};
    p.every = p.terminal ? terminal_every : message_every;
    progress_again(&p);
    if (!is_silent()) start_ticker();
    log_set_live_line(make_room);
    return p;
}

Progress progress_begin_quiet(void)
{
    Progress p = progress_begin();
    if (!p.terminal) p.every = never;
    return p;
}

void progress_again(Progress *p)
{
    p->began = seconds_now();
    p->at_once = false;
}

void progress_hurry(Progress *p)
{
    p->at_once = p->terminal;
}

/* Sets the text. `left` is the number of seconds that the work will still take; negative if
 * unknown. */
static void set_text(Progress *p, double now, double left, const char *fmt, va_list args)
{
    /* This process may be a forked child, which has no ticker yet. */
    if (ticker.begun) start_ticker();
    pthread_mutex_lock(&line.lock);
    bool begins = line.text[0] == '\0' || line.began != p->began;
    if (line.last == 0) line.last = p->began;
    /* A terminal shows each piece of work that takes long. Elsewhere a line is due only after a
     * long time without any output, even if the work has changed in that time. */
    if (begins) line.next = p->terminal ? p->began + first_after : line.last + p->every;
    vsnprintf(line.text, sizeof line.text, fmt, args);
    line.began = p->began;
    line.left = left;
    line.at = now;
    line.every = p->every;
    line.terminal = p->terminal;
    line.over = false;
    if (p->at_once || p->every == 0) line.next = 0;
    p->at_once = false;
    print_if_due(now);
    pthread_mutex_unlock(&line.lock);
}

void progress_print(Progress *p, const char *fmt, ...)
{
    va_list args;
    if (p == NULL || is_silent()) return;
    va_start(args, fmt);
    set_text(p, seconds_now(), -1, fmt, args);
    va_end(args);
}

void progress_count(Progress *p, int64_t done, int64_t all, const char *fmt, ...)
{
    va_list args;
    if (p == NULL || is_silent()) return;
    double now = seconds_now(), each = (now - p->began) / (double)(done > 0 ? done : 1);
    va_start(args, fmt);
    set_text(p, now, done > 0 ? each * (double)(all - done) : -1, fmt, args);
    va_end(args);
}

void progress_end(Progress *p)
{
    if (p == NULL || is_silent()) return;
    pthread_mutex_lock(&line.lock);
    line.text[0] = '\0';
    if (line.of_work) clear();
    pthread_mutex_unlock(&line.lock);
}

/* ---- live lines that other files show -------------------------------------------------------- */

void live_line_show(FILE *to, const char *text)
{
    pthread_mutex_lock(&line.lock);
    line.text[0] = '\0';
    show(to, text, false);
    pthread_mutex_unlock(&line.lock);
    log_set_live_line(make_room);
}

void live_line_clear(FILE *to)
{
    pthread_mutex_lock(&line.lock);
    line.text[0] = '\0';
    line.last = seconds_now();
    if (line.shown == to) clear();
    pthread_mutex_unlock(&line.lock);
}

/* corpus.c -- runs a package's program that prints the text, and checks its output; see corpus.h.
 *
 * The program is not trusted: it gets no terminal, its output and run time are limited, and its
 * output must look like the whole text before it is used. */
#include "data/text/corpus.h"

#include "model/core/check.h"
#include "model/core/child.h"
#include "model/core/clock.h"
#include "model/core/figures.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef struct {
    const char *name, *title, *package;
    const char *command[4]; /* ends with NULL; run without a shell */
    int64_t least;          /* minimum size of the whole text */
} Corpus;

static const Corpus corpora[] = {
    {.name = "bible-kjv",
     .title = "King James Bible (bible-kjv)",
     .package = "bible-kjv",
     .command = {"bible", "-f", "gen1:1-rev22:21", NULL},
     .least = 4000000},
};

const CorpusLimits corpus_limits = {.bytes = 64 << 20, .seconds = 120, .ending = 120};

static const Corpus *find_corpus(const char *name)
{
    for (size_t i = 0; i < sizeof corpora / sizeof *corpora; i++)
        if (strcmp(corpora[i].name, name) == 0) return &corpora[i];
    return NULL;
}

const char *corpus_title(const char *name)
{
    const Corpus *c = find_corpus(name);
    return c ? c->title : NULL;
}

/* Runs in the child process: connects stdin to /dev/null and stdout to the pipe, and executes the
 * program. A successful exec closes both ends of the pipe `report`; if exec fails, its errno is
 * sent to the parent through that pipe. */
static _Noreturn void run_child(const Corpus *c, int out, int report)
{
    int none = open("/dev/null", O_RDONLY);
    if (none >= 0) dup2(none, STDIN_FILENO);
    dup2(out, STDOUT_FILENO);
    execvp(c->command[0], (char *const *)(uintptr_t)c->command);
    int error = errno;
    if (write(report, &error, sizeof error) < 0) _exit(126);
    _exit(127);
}

/* Reads from a pipe until its end, until the deadline, or until more than `most` bytes have
 * arrived. *ended is set to whether the end of the pipe was reached. */
static char *read_pipe(int fd, int64_t most, double deadline, int64_t *size, bool *ended)
{
    int64_t capacity = 1 << 16;
    double left;
    char *text = must_alloc((size_t)capacity);
    *size = 0;
    *ended = false;
    while (*size <= most && (left = deadline - seconds_now()) > 0) {
        struct pollfd waiting = {.fd = fd, .events = POLLIN};
        if (poll(&waiting, 1, (int)ceil(1000 * left)) <= 0) continue;
        if (*size == capacity) text = must_realloc(text, (size_t)(capacity *= 2));
        ssize_t got = read(fd, text + *size, (size_t)(capacity - *size));
        if (got < 0 && errno == EINTR) continue;
        *ended = got <= 0;
        if (*ended) break;
        *size += got;
    }
    return text;
}

/* Waits for the child to end and returns its status, or -1 if that is not known. If `orderly`, its
 * output has ended, so it should exit soon; it is killed at the deadline. If not, it is killed at
 * once. POSIX has no wait with a timeout, so this polls every millisecond. */
static int end_child(Child *child, bool orderly, double deadline)
{
    int status = 0;
    pid_t done = 0;
    while (orderly && done == 0 && seconds_now() < deadline) {
        done = child_wait(child, &status, WNOHANG);
        if (done == 0) nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    if (done == 0) {
        kill(child->pid, SIGKILL);
        done = child_wait(child, &status, 0);
    }
    return done > 0 ? status : -1;
}

/* The result of running a corpus's program. */
typedef struct {
    char *text; /* its output; NULL if it could not be run */
    int64_t size;
    int error;  /* errno if it could not be run */
    int status; /* the status from waitpid */
    bool ended; /* its output ended within the limits */
} ProgramRun;

/* Runs the program until it ends or exceeds a limit. */
static ProgramRun run_program(const Corpus *c, const CorpusLimits *limits)
{
    int out[2], report[2];
    ProgramRun r = {0};
    double deadline = seconds_now() + (double)limits->seconds;
    if (pipe2(out, O_CLOEXEC) != 0) return (ProgramRun){.error = errno};
    if (pipe2(report, O_CLOEXEC) != 0) {
        r.error = errno;
        close(out[0]);
        close(out[1]);
        return r;
    }
    Child process;
    pid_t child = child_fork(&process);
    if (child == 0) run_child(c, out[1], report[1]);
    if (child < 0) r.error = errno;
    close(out[1]);
    close(report[1]);
    if (child > 0) r.text = read_pipe(out[0], limits->bytes, deadline, &r.size, &r.ended);
    close(out[0]);
    if (child > 0) r.status = end_child(&process, r.ended, seconds_now() + (double)limits->ending);
    if (child > 0 && read(report[0], &r.error, sizeof r.error) < 0) r.error = EIO;
    close(report[0]);
    return r;
}

/* Removes a label such as "Ge1:1 " from the start of every line, in place. Returns the new size, or
 * -1 if a line has no label. */
static int64_t strip_labels(char *text, int64_t size)
{
    int64_t kept = 0;
    for (int64_t at = 0; at < size;) {
        const char *end = memchr(text + at, '\n', (size_t)(size - at));
        int64_t next = end ? end - text + 1 : size;
        const char *space = memchr(text + at, ' ', (size_t)(next - at));
        if (space == NULL || memchr(text + at, ':', (size_t)(space - text - at)) == NULL) return -1;
        int64_t from = space + 1 - text;
        memmove(text + kept, text + from, (size_t)(next - from));
        kept += next - from;
        at = next;
    }
    return kept;
}

static bool refuse_name(const char *name, char *err, size_t n)
{
    return error_set(err, n, "data.corpus: there is no corpus \"%s\"; known is \"bible-kjv\"",
                     name);
}

static bool refuse_program(const Corpus *c, int error, char *err, size_t n)
{
    if (error == EMFILE || error == ENFILE)
        return error_set(err, n, "the program \"%s\" cannot be run: %s", c->command[0],
                         strerror(error));
    return error_set(
        err, n,
        "the program \"%s\" cannot be run (%s): install it with apt-get install %s, or train "
        "on a text of your own with --set data.text=FILE",
        c->command[0], strerror(error), c->package);
}

bool corpus_check(const char *name, char *err, size_t n, ExitCode *code)
{
    const Corpus *c = find_corpus(name);
    *code = EXIT_MISSING;
    if (c == NULL) return refuse_name(name, err, n);
    int error = program_find(c->command[0]);
    return error == 0 || refuse_program(c, error, err, n);
}

/* Returns whether the program ended by itself with exit status 0. If not, sets `err`. */
static bool check_end(const Corpus *c, const CorpusLimits *limits, const ProgramRun *r, char *err,
                      size_t n)
{
    if (!r->ended)
        return error_set(err, n,
                         "the program \"%s\" was ended after %lld bytes: a text of at most %lld "
                         "bytes within %lld seconds was expected of it",
                         c->command[0], (long long)r->size, (long long)limits->bytes,
                         (long long)limits->seconds);
    if (!WIFEXITED(r->status) || WEXITSTATUS(r->status) != 0)
        return error_set(err, n, "the program \"%s\" %s", c->command[0],
                         figure_ending(r->status).text);
    return true;
}

bool corpus_read(Text *text, const char *name, const CorpusLimits *limits, char *err, size_t n,
                 ExitCode *code)
{
    const Corpus *c = find_corpus(name);
    *code = EXIT_MISSING;
    if (c == NULL) return refuse_name(name, err, n);
    ProgramRun r = run_program(c, limits);
    bool good = r.error == 0;
    if (!good) {
        refuse_program(c, r.error, err, n);
    } else {
        *code = EXIT_DAMAGED;
        good = check_end(c, limits, &r, err, n);
    }
    if (good && (r.size < c->least || (r.size = strip_labels(r.text, r.size)) < 0))
        good = error_set(err, n, "the program \"%s\" printed something else than the whole text",
                         c->command[0]);
    if (good) good = text_add_document(text, c->title, 0, (uint8_t *)r.text, r.size, err, n);
    free(r.text);
    return good;
}

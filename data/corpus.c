/* corpus.c -- running the program of a package that has the text; see corpus.h. */
#include "data/corpus.h"

#include "model/core/check.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct {
    const char *name, *title, *package;
    const char *command[4]; /* ends with NULL; never a shell */
    int64_t least;          /* bytes that a whole text has at least */
} Corpus;

static const Corpus corpora[] = {
    {.name = "bible-kjv",
     .title = "King James Bible (bible-kjv)",
     .package = "bible-kjv",
     .command = {"bible", "-f", "gen1:1-rev22:21", NULL},
     .least = 4000000},
};

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

/* In the child: stdin from /dev/null, stdout to the pipe; a failed exec is told to the parent as
 * errno over `report`. */
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

/* Everything that comes out of a pipe, until its end. */
static char *read_pipe(int fd, int64_t *size)
{
    int64_t capacity = 1 << 16;
    char *text = must_alloc((size_t)capacity);
    *size = 0;
    for (;;) {
        if (*size == capacity) text = must_realloc(text, (size_t)(capacity *= 2));
        ssize_t got = read(fd, text + *size, (size_t)(capacity - *size));
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return text;
        *size += got;
    }
}

/* Output of the corpus's program; *error is errno if it could not be run, *status its exit status.
 */
static char *run(const Corpus *c, int64_t *size, int *error, int *status)
{
    int out[2], report[2];
    *error = *status = 0;
    *size = 0;
    if (pipe2(out, O_CLOEXEC) != 0) {
        *error = errno;
        return NULL;
    }
    if (pipe2(report, O_CLOEXEC) != 0) {
        *error = errno;
        close(out[0]);
        close(out[1]);
        return NULL;
    }
    pid_t child = fork();
    if (child == 0) run_child(c, out[1], report[1]);
    if (child < 0) *error = errno;
    close(out[1]);
    close(report[1]);
    char *text = child > 0 ? read_pipe(out[0], size) : NULL;
    if (child > 0 && read(report[0], error, sizeof *error) < 0) *error = EIO;
    close(out[0]);
    close(report[0]);
    while (child > 0 && waitpid(child, status, 0) < 0 && errno == EINTR)
        ;
    return text;
}

/* Takes "Ge1:1 " off the front of every line, in place; returns the new size. A line without a
 * label ends the text and gives -1. */
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

bool corpus_read(Text *text, const char *name, char *err, size_t n, ExitCode *code)
{
    const Corpus *c = find_corpus(name);
    *code = EXIT_MISSING;
    if (c == NULL)
        return error_set(err, n, "data.corpus: there is no corpus \"%s\"; known is \"bible-kjv\"",
                         name);
    int error, status;
    int64_t size;
    char *output = run(c, &size, &error, &status);
    bool good = error == 0;
    if (!good) {
        error_set(
            err, n,
            "the program \"%s\" cannot be run (%s): install it with apt-get install %s, or train "
            "on a text of your own with --set data.text=FILE",
            c->command[0], strerror(error), c->package);
    } else {
        *code = EXIT_DAMAGED;
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
            good = error_set(err, n, "the program \"%s\" failed with status %d", c->command[0],
                             status);
    }
    if (good && (size < c->least || (size = strip_labels(output, size)) < 0))
        good = error_set(err, n, "the program \"%s\" printed something else than the whole text",
                         c->command[0]);
    if (good) good = text_add_document(text, c->title, 0, (uint8_t *)output, size, err, n);
    free(output);
    return good;
}

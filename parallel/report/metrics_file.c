/* metrics_file.c -- appends lines to a file, retries failed writes, and cuts the file back when a
 * run resumes. See metrics_file.h. */
#include "parallel/report/metrics_file.h"

#include "model/core/check.h"
#include "model/core/files.h"
#include "model/core/log.h"
#include "model/core/pool.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PENDING_BYTES = 1 << 16 };

/* ---- cutting back ---------------------------------------------------------------------------- */

/* Finds the integer after `"key": ` in a line of this file; returns false if there is none. A
 * search for the text is enough, because in lines of this program no text member comes before the
 * keys that are searched. */
static bool read_integer(const char *line, size_t bytes, const char *key, int64_t *out)
{
    char pattern[40];
    int length = snprintf(pattern, sizeof pattern, "\"%s\": ", key);
    const char *at = memmem(line, bytes, pattern, (size_t)length);
    if (at == NULL) return false;
    char *end;
    errno = 0;
    *out = strtoll(at + length, &end, 10);
    return errno == 0 && end != at + length;
}

static bool is_event(const char *line, size_t bytes, const char *event)
{
    char pattern[40];
    int length = snprintf(pattern, sizeof pattern, "{\"event\": \"%s\",", event);
    return bytes > (size_t)length && memcmp(line, pattern, (size_t)length) == 0;
}

/* Returns the number after `"key": ` in a line; NaN if there is none, or if it was not finite. */
static double read_number(const char *line, size_t bytes, const char *key)
{
    char pattern[40];
    int length = snprintf(pattern, sizeof pattern, "\"%s\": ", key);
    const char *at = memmem(line, bytes, pattern, (size_t)length);
    return at == NULL || at[length] == 'n' ? NAN : strtod(at + length, NULL);
}

/* Updates `tail` for the line of an evaluation. */
static void note_evaluation(const char *line, size_t bytes, int64_t step, MetricsTail *tail)
{
    double loss = read_number(line, bytes, "loss"),
           bits = read_number(line, bytes, "bits_per_byte");
    tail->evaluated = true;
    tail->eval = (EvalRecord){.step = step, .loss = loss, .bits_per_byte = isnan(bits) ? -1 : bits};
    tail->since_lowest++;
    bool first = tail->lowest.step == 0 && isfinite(loss);
    if (!first && !(loss < tail->lowest.loss)) return;
    tail->lowest = tail->eval;
    tail->since_lowest = 0;
}

/* Updates `tail` for a line that is kept. `r`: the line's step and totals. */
static void note_line(const char *line, size_t bytes, StepRecord r, MetricsTail *tail)
{
    /* The line of an asynchronous save may come after lines of later steps. It does not change
     * `tail`. */
    if (r.step < tail->last.step) return;
    if (r.step != tail->last.step)
        *tail = (MetricsTail){.lowest = tail->lowest, .since_lowest = tail->since_lowest};
    r.loss = tail->last.loss;
    if (is_event(line, bytes, "train")) {
        r.loss = read_number(line, bytes, "loss");
        tail->trained = memmem(line, bytes, "\"loss\": ", 8) != NULL;
    }
    if (is_event(line, bytes, "val")) note_evaluation(line, bytes, r.step, tail);
    if (is_event(line, bytes, "data")) {
        tail->lowest = (EvalRecord){0};
        tail->since_lowest = 0;
    }
    tail->sampled |= is_event(line, bytes, "sample");
    tail->last = r;
}

/* Returns whether a line (without its line feed) is kept: it must be complete and not after step
 * `upto`. */
static bool keep_line(const char *line, size_t bytes, int64_t upto, MetricsTail *tail)
{
    StepRecord r = {0};
    bool whole =
        bytes > 1 && line[0] == '{' && line[bytes - 1] == '}' && memchr(line, '\0', bytes) == NULL;
    whole = whole && read_integer(line, bytes, "step", &r.step) &&
            read_integer(line, bytes, "updates", &r.updates) &&
            read_integer(line, bytes, "samples", &r.samples) &&
            read_integer(line, bytes, "tokens", &r.tokens) &&
            read_integer(line, bytes, "skipped", &r.skipped);
    if (!whole || r.step > upto) return false;
    note_line(line, bytes, r, tail);
    return true;
}

/* Moves the lines that are kept to the front; returns their size in bytes. Unless `later` is NULL,
 * appends the other lines to it: it has room for all lines, and *n_later is its size in bytes. */
static size_t keep_lines(char *text, size_t bytes, int64_t upto, MetricsTail *tail, char *later,
                         size_t *n_later)
{
    size_t kept = 0;
    for (size_t at = 0; at < bytes;) {
        char *end = memchr(text + at, '\n', bytes - at);
        if (end == NULL) break; /* incomplete last line: a crash interrupted its write */
        size_t length = (size_t)(end - text) - at;
        if (keep_line(text + at, length, upto, tail)) {
            memmove(text + kept, text + at, length + 1);
            kept += length + 1;
        } else if (later) {
            memcpy(later + *n_later, text + at, length + 1);
            *n_later += length + 1;
        }
        at += length + 1;
    }
    return kept;
}

/* Renames the file to FOLDER/metrics.before-attempt-N.jsonl; N is `attempt`, or the next number
 * whose name is free. */
static bool rename_aside(const MetricsFile *f, const char *folder, int attempt, char *err, size_t n)
{
    const char *path = f->path;
    const char *ending = strrchr(path, '.');
    char *aside = NULL;
    do {
        free(aside);
        aside =
            text_format("%.*s.before-attempt-%d%s", (int)(ending - path), path, attempt++, ending);
    } while (access(aside, F_OK) == 0);
    bool good = f->fs->rename(f->fs->self, AT_FDCWD, path, AT_FDCWD, aside) == 0 ||
                error_set(err, n, "cannot rename %s to %s: %s", path, aside, strerror(errno));
    /* Synced before a new file with the old name is created; otherwise a crash could leave only the
     * new file. */
    good = good && fs_sync_folder(f->fs, folder, err, n);
    if (good)
        log_warning(
            "the run has no checkpoint and starts at step 0; the lines of the steps that it "
            "once made are kept in %s",
            aside);
    free(aside);
    return good;
}

/* Cuts the file back to step `upto`. A resumed run repeats the steps after its checkpoint, and the
 * file must contain each step only once. */
static bool cut_back(const MetricsFile *f, const char *folder, int64_t upto, int attempt,
                     MetricsTail *tail, char *err, size_t n)
{
    const char *path = f->path;
    struct stat st;
    /* lstat, so a dangling symbolic link counts as existing; file_read_own refuses it below. */
    if (lstat(path, &st) != 0 && errno == ENOENT) return true;
    size_t bytes;
    char *text;
    if (!file_read_own(path, &text, &bytes, err, n)) return false;
    size_t kept = keep_lines(text, bytes, upto, tail, NULL, NULL);
    bool good = true;
    if (kept != bytes && upto == 0) {
        /* All lines of an earlier attempt would be lost, and no checkpoint replaces them, so the
         * file is kept under another name. */
        *tail = (MetricsTail){0};
        good = rename_aside(f, folder, attempt, err, n);
    } else if (kept != bytes) {
        /* A new file is renamed over the old one: after a crash there is one or the other, never a
         * half-written file. */
        good = file_write(f->fs, path, text, kept, err, n);
    }
    free(text);
    return good;
}

/* ---- appending ------------------------------------------------------------------------------- */

bool metrics_file_open(MetricsFile *f, const FsOps *fs, const char *folder, const char *name,
                       int64_t upto, int attempt, MetricsTail *tail, char *err, size_t n)
{
    *f = (MetricsFile){.fs = fs,
                       .fd = -1,
                       .path = text_format("%s/%s", folder, name),
                       .busy = PTHREAD_ERRORCHECK_MUTEX_INITIALIZER_NP};
    if (upto >= 0 && !cut_back(f, folder, upto, attempt, tail, err, n)) return false;
    f->fd = fs_open_output(f->path, O_WRONLY | O_APPEND, err, n);
    if (f->fd < 0) return false;
    f->pending = must_alloc(PENDING_BYTES);
    f->capacity = PENDING_BYTES;
    return true;
}

/* Writes the pending lines. If that fails, the file is truncated to its previous size. */
static void write_pending(MetricsFile *f)
{
    struct stat before;
    /* A full disk may accept part of a line. That part is removed again, so the whole line can be
     * written later. */
    bool known = fstat(f->fd, &before) == 0;
    if (fs_write_all(f->fs, f->fd, f->pending, f->n, f->path, f->error, sizeof f->error)) {
        f->n = 0;
        return;
    }
    if (known && ftruncate(f->fd, before.st_size) != 0)
        error_set(f->error, sizeof f->error, "cannot write %s, nor take half a line back: %s",
                  f->path, strerror(errno));
}

void metrics_file_put(MetricsFile *f, const char *text, size_t bytes)
{
    if (f->fd < 0) return;
    int64_t noted = flight_work_begin(f->flight, FLIGHT_DISK);
    pthread_mutex_lock(&f->busy);
    if (bytes > f->capacity - f->n) {
        f->capacity = 2 * (f->n + bytes);
        f->pending = must_realloc(f->pending, f->capacity);
    }
    memcpy(f->pending + f->n, text, bytes);
    f->n += bytes;
    write_pending(f);
    pthread_mutex_unlock(&f->busy);
    flight_work_end(f->flight, noted);
}

/* Writes all pending lines; returns false and sets `err` on failure. */
static bool write_lines(MetricsFile *f, char *err, size_t n)
{
    if (f->n > 0) write_pending(f);
    return f->n == 0 || error_set(err, n, "%s", f->error);
}

bool metrics_file_sync(MetricsFile *f, char *err, size_t n)
{
    if (f->fd < 0) return true;
    pthread_mutex_lock(&f->busy);
    bool good = write_lines(f, err, n);
    pthread_mutex_unlock(&f->busy);
    /* The sync does not hold the lock, so that the next line does not wait for the disk while a
     * thread saves. */
    return good && fs_sync(f->fs, f->fd, f->path, err, n);
}

static int64_t count_lines(const char *text, size_t bytes)
{
    int64_t lines = 0;
    for (size_t i = 0; i < bytes; i++)
        lines += text[i] == '\n';
    return lines;
}

/* Sets *more to whether the file at `path` has more than `lines` lines; a missing file has none. */
static bool has_more_lines(const char *path, int64_t lines, bool *more, char *err, size_t n)
{
    struct stat st;
    char *text;
    size_t bytes;
    *more = false;
    if (lstat(path, &st) != 0 && errno == ENOENT) return true;
    if (!file_read_own(path, &text, &bytes, err, n)) return false;
    *more = count_lines(text, bytes) > lines;
    free(text);
    return true;
}

/* Does the work of metrics_file_go_back. The caller holds the lock. */
static bool go_back(MetricsFile *f, int64_t upto, const char *aside, const char *other,
                    MetricsTail *tail, char *err, size_t n)
{
    char *text;
    size_t bytes, n_later = 0;
    bool more;
    if (!write_lines(f, err, n) || !file_read_own(f->path, &text, &bytes, err, n)) return false;
    char *later = must_alloc(bytes + 1);
    size_t kept = keep_lines(text, bytes, upto, tail, later, &n_later);
    bool good = has_more_lines(aside, count_lines(later, n_later), &more, err, n) &&
                file_write(f->fs, more ? other : aside, later, n_later, err, n) &&
                file_write(f->fs, f->path, text, kept, err, n);
    free(later);
    free(text);
    if (!good) return false;
    /* The path now names a new file, so that one is opened. */
    int fd = fs_open_output(f->path, O_WRONLY | O_APPEND, err, n);
    if (fd < 0) return false;
    close(f->fd);
    f->fd = fd;
    return true;
}

bool metrics_file_go_back(MetricsFile *f, int64_t upto, const char *aside, const char *other,
                          MetricsTail *tail, char *err, size_t n)
{
    *tail = (MetricsTail){0};
    if (f->fd < 0) return true;
    pthread_mutex_lock(&f->busy);
    bool good = go_back(f, upto, aside, other, tail, err, n);
    pthread_mutex_unlock(&f->busy);
    return good;
}

void metrics_file_end(MetricsFile *f)
{
    enum { SECONDS = 2 };
    char ignored[512];
    if (f->fd < 0) return;
    /* The lock is not acquired if rank 0 itself has failed in the middle of a line: it still holds
     * the mutex. Then nothing is synced. */
    if (mutex_lock_within(&f->busy, SECONDS) && write_lines(f, ignored, sizeof ignored))
        fs_sync(f->fs, f->fd, f->path, ignored, sizeof ignored);
}

void metrics_file_close(MetricsFile *f)
{
    if (f->fd >= 0) close(f->fd);
    pthread_mutex_destroy(&f->busy);
    free(f->path);
    free(f->pending);
    *f = (MetricsFile){.fd = -1};
}

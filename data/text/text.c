/* text.c -- stores the documents of a text, in memory or in a file, and finds where validation
 * begins; see text.h. */
#include "data/text/text.h"

#include "model/core/check.h"
#include "model/core/figures.h"
#include "model/core/fs.h"
#include "model/core/utf8.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---- storage --------------------------------------------------------------------------------- */

static bool refuse_file(Text *text, int error, char *err, size_t n)
{
    text->unstored = true;
    return error_set(err, n, "the text cannot be stored in %s while it is prepared: %s",
                     text->folder, strerror(error));
}

/* Creates the text's file and removes its name, so that the file is gone whenever and however the
 * program ends. */
static bool create_file(Text *text, char *err, size_t n)
{
    text->unstored = !fs_make_folders(&fs_system, text->folder, err, n);
    if (text->unstored) return false;
    char *name = text_format("%s/text-XXXXXX", text->folder);
    text->fd = mkostemp(name, O_CLOEXEC);
    int error = errno;
    if (text->fd >= 0) unlink(name);
    free(name);
    return text->fd >= 0 || refuse_file(text, error, err, n);
}

/* Extends the text's file to `capacity` bytes and maps it. Disk space is reserved first: writing to
 * a mapped page for which there is no space would end the program with a signal. */
static bool map_file(Text *text, int64_t capacity, char *err, size_t n)
{
    int error = posix_fallocate(text->fd, 0, capacity);
    if (error != 0) return refuse_file(text, error, err, n);
    uint8_t *bytes =
        text->mapped
            ? mremap(text->bytes, (size_t)text->capacity, (size_t)capacity, MREMAP_MAYMOVE)
            : mmap(NULL, (size_t)capacity, PROT_READ | PROT_WRITE, MAP_SHARED, text->fd, 0);
    if (bytes == MAP_FAILED) return refuse_file(text, errno, err, n);
    if (!text->mapped) {
        if (text->size > 0) memcpy(bytes, text->bytes, (size_t)text->size);
        free(text->bytes);
    }
    text->bytes = bytes;
    text->capacity = capacity;
    text->mapped = true;
    return true;
}

/* Makes room for `more` bytes. */
static bool reserve(Text *text, int64_t more, char *err, size_t n)
{
    if (more <= text->capacity - text->size && text->bytes != NULL) return true;
    int64_t need = text->size + more, limit = text->in_memory ? text->in_memory : TEXT_IN_MEMORY;
    if (!text->mapped && (text->folder == NULL || need <= limit)) {
        text->capacity = need + text->size + 1; /* at least 1, so that bytes is never NULL */
        text->bytes = must_realloc(text->bytes, (size_t)text->capacity);
        return true;
    }
    if (text->mapped || create_file(text, err, n)) {
        bool was = text->mapped;
        if (map_file(text, need + need / 4, err, n)) return true;
        if (!was) close(text->fd);
    }
    return false;
}

void text_free(Text *text)
{
    if (text->mapped) {
        munmap(text->bytes, (size_t)text->capacity);
        close(text->fd);
    } else {
        free(text->bytes);
    }
    free(text->document_end);
    free(text->notes.first_bad);
    *text = (Text){0};
}

/* ---- notes ----------------------------------------------------------------------------------- */

void text_notes_take(TextNotes *to, Text *text)
{
    TextNotes *from = &text->notes;
    to->crlf += from->crlf;
    to->marks += from->marks;
    to->lines += from->lines;
    to->bad_lines += from->bad_lines;
    if (to->first_bad == NULL)
        to->first_bad = from->first_bad;
    else
        free(from->first_bad);
    *from = (TextNotes){0};
}

char *text_notes_line(const TextNotes *notes)
{
    char crlf[80] = "", marks[80] = "", *line = NULL;
    if (notes->crlf > 0)
        snprintf(crlf, sizeof crlf, "CR LF became LF at %s",
                 figure_of(notes->crlf, "line end").text);
    if (notes->marks > 0)
        snprintf(marks, sizeof marks, "%s%s dropped", *crlf ? "; " : "",
                 figure_of(notes->marks, "byte-order mark").text);
    if (notes->bad_lines > 0)
        line = text_format("%s%s%s%s of %s skipped; the first: %s", crlf, marks,
                           *crlf || *marks ? "; " : "", figure_count((double)notes->bad_lines).text,
                           figure_of(notes->lines, "line").text, notes->first_bad);
    else if (*crlf || *marks)
        line = text_format("%s%s", crlf, marks);
    return line;
}

/* ---- documents ------------------------------------------------------------------------------- */

int64_t text_valid_bytes(const uint8_t *bytes, int64_t size)
{
    int64_t at = 0;
    while (at < size) {
        uint32_t code;
        int length = utf8_decode(bytes + at, size - at, &code);
        if (length == 0 || code == 0) break;
        at += length;
    }
    return at;
}

bool text_refuse_byte(const char *place, int64_t base, const uint8_t *bytes, int64_t at, char *err,
                      size_t n)
{
    if (bytes[at] == 0)
        return error_set(err, n, "%s: byte %lld is NUL, so this is not text", place,
                         (long long)base + at);
    return error_set(err, n,
                     "%s: byte %lld (0x%02x) is not valid UTF-8; convert the file, for "
                     "example with iconv -f latin1 -t utf-8",
                     place, (long long)base + at, bytes[at]);
}

int64_t text_mark_length(const uint8_t *bytes, int64_t size)
{
    return size >= 3 && bytes[0] == 0xEF && bytes[1] == 0xBB && bytes[2] == 0xBF ? 3 : 0;
}

bool text_append(Text *text, const uint8_t *bytes, int64_t size, char *err, size_t n)
{
    /* Dropping bytes only shortens the document, so `size` bytes are enough. */
    if (!reserve(text, size, err, n)) return false;
    int64_t before = text->n_documents > 0 ? text->document_end[text->n_documents - 1] : 0;
    const uint8_t *start = text->bytes + before;
    uint8_t *to = text->bytes + text->size;
    for (int64_t i = 0; i < size; i++) {
        /* Some tools convert LF to CRLF twice, so drop every CR before an LF. */
        if (bytes[i] == '\n' && to > start && to[-1] == '\r') {
            text->notes.crlf++;
            while (to > start && to[-1] == '\r')
                to--;
        }
        *to++ = bytes[i];
    }
    text->size = to - text->bytes;
    return true;
}

void text_end_document(Text *text)
{
    if (text->n_documents == text->documents_capacity) {
        text->documents_capacity = 2 * text->documents_capacity + 16;
        text->document_end = must_realloc(text->document_end, (size_t)text->documents_capacity *
                                                                  sizeof *text->document_end);
    }
    text->document_end[text->n_documents++] = text->size;
}

bool text_add_document(Text *text, const char *place, int64_t base, const uint8_t *bytes,
                       int64_t size, char *err, size_t n)
{
    int64_t valid = text_valid_bytes(bytes, size), mark = text_mark_length(bytes, size);
    if (valid < size) return text_refuse_byte(place, base, bytes, valid, err, n);
    if (!text_append(text, bytes + mark, size - mark, err, n)) return false;
    text->notes.marks += mark > 0;
    text_end_document(text);
    return true;
}

int64_t text_split(const Text *text, double fraction)
{
    int64_t at = (int64_t)floor((1.0 - fraction) * (double)text->size);
    if (at <= 0) return 0;
    if (at >= text->size) return text->size;
    /* The end of a document counts as the end of a line, even without an LF. */
    int64_t document = 0, line = at;
    while (text->document_end[document] < at)
        document++;
    int64_t end = text->document_end[document];
    while (line < end && text->bytes[line - 1] != '\n')
        line++;
    if (line < text->size) return line;
    /* The rest is one line, so cut between two characters. */
    while (at < text->size && (text->bytes[at] & 0xC0) == 0x80)
        at++;
    return at;
}

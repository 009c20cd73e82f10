/* token_writer.c -- writing a shard: header, tokens, then a commit that makes it appear; see
 * token_writer.h. */
#include "data/tokens/token_writer.h"

#include "data/tokens/token_file.h"
#include "model/core/check.h"
#include "model/core/files.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct TokenWriter {
    AtomicFile file;
    int64_t vocab_size, n_tokens;
    int width;
};

/* The header, now that the count is known. */
static bool write_header(TokenWriter *w)
{
    int32_t header[TOKEN_FILE_HEADER / 4] = {0};
    header[0] = w->width == 2 ? TOKEN_FILE_MAGIC_16 : TOKEN_FILE_MAGIC_32;
    header[1] = w->width == 2 ? 1 : 7;
    header[2] = (int32_t)w->n_tokens;
    return fwrite(header, 1, sizeof header, w->file.to) == sizeof header;
}

bool token_writer_open(TokenWriter **out, const char *path, int64_t vocab_size, char *err, size_t n)
{
    TokenWriter *w = must_calloc(1, sizeof *w);
    w->vocab_size = vocab_size;
    w->width = vocab_size <= 1 << 16 ? 2 : 4;
    *out = NULL;
    if (!atomic_file_open(&w->file, path, err, n)) {
        free(w);
        return false;
    }
    if (!write_header(w)) {
        error_set(err, n, "%s cannot be written: %s", path, strerror(errno));
        token_writer_abort(w);
        return false;
    }
    *out = w;
    return true;
}

bool token_writer_add(TokenWriter *w, const int32_t *ids, int64_t count, char *err, size_t n)
{
    enum { CHUNK = 4096 };
    uint8_t buffer[4 * CHUNK];
    if (count > INT32_MAX - w->n_tokens)
        return error_set(err, n, "%s: a token shard holds at most %d tokens", w->file.path,
                         INT32_MAX);
    for (int64_t at = 0; at < count; at += CHUNK) {
        int64_t some = count - at < CHUNK ? count - at : CHUNK;
        for (int64_t i = 0; i < some; i++) {
            int32_t id = ids[at + i];
            uint16_t narrow = (uint16_t)id;
            CHECK(id >= 0 && id < w->vocab_size, "id %d of %lld", id, (long long)w->vocab_size);
            if (w->width == 2)
                memcpy(buffer + 2 * i, &narrow, sizeof narrow);
            else
                memcpy(buffer + 4 * i, &id, sizeof id);
        }
        size_t bytes = (size_t)some * (size_t)w->width;
        if (fwrite(buffer, 1, bytes, w->file.to) != bytes)
            return error_set(err, n, "%s cannot be written: %s", w->file.path, strerror(errno));
    }
    w->n_tokens += count;
    return true;
}

bool token_writer_commit(TokenWriter *w, char *err, size_t n)
{
    bool good = fseeko(w->file.to, 0, SEEK_SET) == 0 && write_header(w);
    if (good) {
        good = atomic_file_commit(&w->file, err, n);
    } else {
        error_set(err, n, "%s cannot be written: %s", w->file.path, strerror(errno));
        atomic_file_abort(&w->file);
    }
    free(w);
    return good;
}

void token_writer_abort(TokenWriter *w)
{
    if (w == NULL) return;
    atomic_file_abort(&w->file);
    free(w);
}

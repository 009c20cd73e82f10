/* token_writer.c -- writes a token shard to a temporary file that becomes visible when it is
 * committed; see token_writer.h. */
#include "data/tokens/token_writer.h"

#include "data/tokens/token_file.h"
#include "model/core/check.h"
#include "model/core/files.h"

#include <stdlib.h>
#include <string.h>

struct TokenWriter {
    AtomicFile file;
    int64_t vocab_size, n_tokens;
    int width;
    uint8_t pending[1 << 16]; /* encoded ids that are not written yet */
    size_t bytes;
};

/* Writes the header with the current number of tokens. */
static bool write_header(TokenWriter *w, char *err, size_t n)
{
    int32_t header[TOKEN_FILE_HEADER / 4] = {0};
    header[0] = w->width == 2 ? TOKEN_FILE_MAGIC_16 : TOKEN_FILE_MAGIC_32;
    header[1] = w->width == 2 ? 1 : 7;
    header[2] = (int32_t)w->n_tokens;
    return atomic_file_write(&w->file, header, sizeof header, err, n);
}

bool token_writer_open(TokenWriter **out, const FsOps *fs, const char *path, int64_t vocab_size,
                       char *err, size_t n)
{
    TokenWriter *w = must_calloc(1, sizeof *w);
    w->vocab_size = vocab_size;
    w->width = vocab_size <= 1 << 16 ? 2 : 4;
    *out = NULL;
    if (!atomic_file_open(&w->file, fs, path, err, n)) {
        free(w);
        return false;
    }
    /* Reserve the header's space; the token count is written later. */
    if (!write_header(w, err, n)) {
        token_writer_abort(w);
        return false;
    }
    *out = w;
    return true;
}

static bool write_pending(TokenWriter *w, char *err, size_t n)
{
    size_t bytes = w->bytes;
    w->bytes = 0;
    return atomic_file_write(&w->file, w->pending, bytes, err, n);
}

bool token_writer_add(TokenWriter *w, const int32_t *ids, int64_t count, char *err, size_t n)
{
    if (count > INT32_MAX - w->n_tokens)
        return error_set(err, n, "%s: a token shard holds at most %d tokens", w->file.path,
                         INT32_MAX);
    for (int64_t i = 0; i < count; i++) {
        int32_t id = ids[i];
        uint16_t narrow = (uint16_t)id;
        CHECK(id >= 0 && id < w->vocab_size, "id %d of %lld", id, (long long)w->vocab_size);
        if (w->width == 2)
            memcpy(w->pending + w->bytes, &narrow, sizeof narrow);
        else
            memcpy(w->pending + w->bytes, &id, sizeof id);
        w->bytes += (size_t)w->width;
        if (w->bytes == sizeof w->pending && !write_pending(w, err, n)) return false;
    }
    w->n_tokens += count;
    return true;
}

bool token_writer_commit(TokenWriter *w, char *err, size_t n)
{
    bool good =
        write_pending(w, err, n) && atomic_file_rewind(&w->file, err, n) && write_header(w, err, n);
    if (good)
        good = atomic_file_commit(&w->file, err, n);
    else
        atomic_file_abort(&w->file);
    free(w);
    return good;
}

void token_writer_abort(TokenWriter *w)
{
    if (w == NULL) return;
    atomic_file_abort(&w->file);
    free(w);
}

/* shards.c -- encodes text and writes its token shards; see shards.h. */
#include "data/text/shards.h"

#include "data/tokens/token_writer.h"
#include "model/core/check.h"

#include <stdlib.h>

enum {
    SHARD_TOKENS = 100000000, /* maximum number of tokens per shard */
    PIECE = 1 << 18,          /* bytes of text that are encoded at a time */
};

/* State of writing one split. */
typedef struct {
    const FsOps *fs;
    const char *folder;
    Split split;
    int64_t vocab_size;
    TokenWriter *writer; /* writes the current shard; NULL between two shards */
    int64_t in_shard;    /* tokens written to the current shard so far */
    SplitSize size;      /* what has been written of the split so far */
} SplitWriter;

static bool close_shard(SplitWriter *w, char *err, size_t n)
{
    TokenWriter *open = w->writer;
    w->writer = NULL;
    w->in_shard = 0;
    return open == NULL || token_writer_commit(open, err, n);
}

static bool write_tokens(SplitWriter *w, const int32_t *ids, int64_t count, char *err, size_t n)
{
    while (count > 0) {
        if (w->writer == NULL) {
            char *path = split_shard_path(w->folder, w->split, w->size.shards);
            bool good = token_writer_open(&w->writer, w->fs, path, w->vocab_size, err, n);
            free(path);
            if (!good) return false;
            w->size.shards++;
        }
        int64_t some = SHARD_TOKENS - w->in_shard;
        if (some > count) some = count;
        if (!token_writer_add(w->writer, ids, some, err, n)) return false;
        w->in_shard += some;
        w->size.tokens += some;
        ids += some;
        count -= some;
        if (w->in_shard == SHARD_TOKENS && !close_shard(w, err, n)) return false;
    }
    return true;
}

/* Encodes a range of text and writes its shards. The borders of pieces do not affect how text is
 * split into words, so the ids do not depend on PIECE. A document that continues after the range
 * gets no end-of-text token, because it does not end there. */
static bool write_split(const Tokenizer *t, const TextRange *range, Split split, const FsOps *fs,
                        const char *folder, SplitSize *size, Progress *progress, char *err,
                        size_t n)
{
    const Text *text = range->text;
    int64_t from = range->from, to = range->to;
    SplitWriter w = {
        .fs = fs, .folder = folder, .split = split, .vocab_size = tokenizer_vocab_size(t)};
    Encoder *encoder = encoder_create(t);
    TokenBuffer ids = {0};
    int64_t at = from, end_of_text = tokenizer_end_of_text(t);
    bool good = true;
    w.size.bytes = to - from;
    for (int64_t d = 0; good && d < text->n_documents && at < to; d++) {
        int64_t end = text->document_end[d];
        if (end <= from) continue; /* belongs to the other split */
        bool whole = end <= to;
        if (!whole) end = to;
        while (good && at < end) {
            progress_print(progress, "tokenizing: %d %% of %.1f MB of text",
                           (int)(100.0 * (double)(at - from) / (double)(to - from)),
                           1e-6 * (double)(to - from));
            ids.count = 0;
            /* Pass the text up to the end of the document or range, not just the piece, because the
             * following text determines where a word ends. */
            at += encoder_encode_some(encoder, text->bytes + at, end - at, PIECE, &ids);
            good = write_tokens(&w, ids.id, ids.count, err, n);
        }
        int32_t end_id = (int32_t)end_of_text;
        if (good && whole && end_of_text >= 0) good = write_tokens(&w, &end_id, 1, err, n);
    }
    good = good && close_shard(&w, err, n);
    token_writer_abort(w.writer);
    token_buffer_free(&ids);
    encoder_free(encoder);
    *size = w.size;
    return good;
}

bool shards_write(const Tokenizer *t, const TextRange range[SPLITS], const FsOps *fs,
                  const char *folder, Meta *meta, Progress *progress, char *err, size_t n)
{
    char *tokenizer_path = text_format("%s/tokenizer.json", folder);
    char *meta_path = text_format("%s/meta.json", folder);
    meta->tokenizer_hash = tokenizer_hash(t);
    meta->vocab_size = tokenizer_vocab_size(t);
    bool good = tokenizer_save(t, fs, tokenizer_path, err, n);
    for (Split k = 0; good && k < SPLITS; k++)
        good = write_split(t, &range[k], k, fs, folder, &meta->split[k], progress, err, n);
    /* Checksums are computed from the written files, so that they describe what is on the disk. */
    good = good && meta_checksum(meta, folder, err, n) && meta_write(meta, fs, meta_path, err, n);
    free(tokenizer_path);
    free(meta_path);
    return good;
}

/* shards.c -- encodes text on all threads and writes its token shards; see shards.h. */
#include "data/text/shards.h"

#include "data/tokens/token_writer.h"
#include "model/core/check.h"
#include "model/core/pool.h"

#include <stdlib.h>

enum {
    SHARD_TOKENS = 100000000, /* maximum number of tokens per shard */
    PIECE = 1 << 18,          /* bytes of text that a thread encodes at a time */
    /* with several threads: pieces per thread that are encoded before any of them is written */
    PIECES_PER_THREAD = 4,
};

/* The state of writing one split. */
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

/* A piece of the range of text that becomes a split: bytes [from, to) of the text, and its ids. */
typedef struct {
    int64_t from, to;
    TokenBuffer ids;
} Piece;

/* What the threads need to encode pieces. */
typedef struct {
    const TextRange *range;
    int32_t begin_of_text, end_of_text; /* -1: none */
    Encoder **encoder;                  /* (threads) one for each thread */
    Piece *piece;                       /* (pieces) encoded before their tokens are written */
    Pool *pool;                         /* NULL: one thread */
    int threads;
    int64_t pieces;
} Encoding;

/* Returns the first document that ends after byte `at`. */
static int64_t document_after(const Text *text, int64_t at)
{
    int64_t low = 0, high = text->n_documents;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (text->document_end[middle] > at)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* Returns the start of document d within the range. */
static int64_t document_begin(const TextRange *range, int64_t d)
{
    int64_t begin = d > 0 ? range->text->document_end[d - 1] : 0;
    return begin > range->from ? begin : range->from;
}

/* Encodes one piece. The begin-of-text token, if there is one, precedes each document whose first
 * byte is in the piece, and each empty document. An end-of-text token follows each document that
 * ends in the piece. A document that continues after the range gets none, because it does not end
 * there. */
static void encode_piece(void *context, int64_t number, int thread)
{
    const Encoding *c = context;
    const TextRange *range = c->range;
    const Text *text = range->text;
    Piece *p = &c->piece[number];
    p->ids.count = 0;
    for (int64_t d = document_after(text, p->from), at = p->from; d < text->n_documents; d++) {
        int64_t begin = document_begin(range, d), end = text->document_end[d];
        int64_t to = end < p->to ? end : p->to;
        if (at == range->to || begin > p->to) break;
        bool begins = at == (d > 0 ? text->document_end[d - 1] : 0) && (to > at || end == at);
        if (begins && c->begin_of_text >= 0) token_buffer_add(&p->ids, c->begin_of_text);
        if (to > at)
            encoder_encode_part(c->encoder[thread], text->bytes + begin, at - begin, to - begin,
                                &p->ids);
        at = to;
        if (end > p->to) break;
        if (c->end_of_text >= 0) token_buffer_add(&p->ids, c->end_of_text);
    }
}

/* Returns the end of the piece that begins at `from`: a position that encoder_cut returns, or the
 * end of a document or of the range. */
static int64_t piece_end(const Encoding *c, int64_t from)
{
    const TextRange *range = c->range;
    int64_t at = from + PIECE;
    if (at >= range->to) return range->to;
    int64_t d = document_after(range->text, at - 1), begin = document_begin(range, d);
    int64_t end =
        range->text->document_end[d] < range->to ? range->text->document_end[d] : range->to;
    return begin + encoder_cut(c->encoder[0], range->text->bytes + begin, end - begin, at - begin);
}

/* Encodes the range and writes its shards. The ids depend neither on where pieces begin nor on the
 * number of threads. */
static bool write_pieces(Encoding *c, SplitWriter *w, Progress *progress, char *err, size_t n)
{
    const TextRange *range = c->range;
    bool good = true;
    for (int64_t at = range->from; good && at < range->to;) {
        int64_t count = 0;
        progress_print(
            progress, "tokenizing: %d %% of %.1f MB of text",
            (int)(100.0 * (double)(at - range->from) / (double)(range->to - range->from)),
            1e-6 * (double)(range->to - range->from));
        for (; count < c->pieces && at < range->to; count++) {
            c->piece[count].from = at;
            c->piece[count].to = at = piece_end(c, at);
        }
        if (c->pool)
            pool_run(c->pool, count, encode_piece, c);
        else
            for (int64_t i = 0; i < count; i++)
                encode_piece(c, i, 0);
        for (int64_t i = 0; good && i < count; i++)
            good = write_tokens(w, c->piece[i].ids.id, c->piece[i].ids.count, err, n);
    }
    return good && close_shard(w, err, n);
}

/* Encodes a range of text and writes its shards. */
static bool write_split(const Tokenizer *t, const TextRange *range, const ShardOptions *options,
                        Pool *pool, SplitWriter *w, char *err, size_t n)
{
    Encoding c = {.range = range,
                  .begin_of_text = tokenizer_begin_of_text(t),
                  .end_of_text = tokenizer_end_of_text(t),
                  .pool = pool};
    c.threads = pool ? pool_threads(pool) : 1;
    c.pieces = pool ? (int64_t)PIECES_PER_THREAD * c.threads : 1;
    c.encoder = must_calloc((size_t)c.threads, sizeof *c.encoder);
    c.piece = must_calloc((size_t)c.pieces, sizeof *c.piece);
    for (int i = 0; i < c.threads; i++) {
        c.encoder[i] = encoder_create(t);
        if (options->special_tokens) encoder_allow_specials(c.encoder[i]);
    }
    w->size.bytes = range->to - range->from;
    bool good = write_pieces(&c, w, options->progress, err, n);
    token_writer_abort(w->writer);
    for (int i = 0; i < c.threads; i++)
        encoder_free(c.encoder[i]);
    for (int64_t i = 0; i < c.pieces; i++)
        token_buffer_free(&c.piece[i].ids);
    free(c.encoder);
    free(c.piece);
    return good;
}

/* Returns whether the tokenizer has tokens for all bytes of the range. If not, sets `err`. */
static bool check_bytes(const Tokenizer *t, const TextRange *range, char *err, size_t n)
{
    int64_t size = range->to - range->from;
    if (size == 0) return true;
    const uint8_t *bytes = range->text->bytes + range->from;
    int64_t at = tokenizer_unknown_byte(t, bytes, size);
    return at == size ||
           error_set(err, n,
                     "byte %lld of the text is 0x%02x, for which the tokenizer has no token: leave "
                     "it out of the text, or choose another tokenizer",
                     (long long)(range->from + at), bytes[at]);
}

bool shards_write(const Tokenizer *t, const TextRange range[SPLITS], const FsOps *fs,
                  const char *folder, Meta *meta, const ShardOptions *options, char *err, size_t n)
{
    char *tokenizer_path = text_format("%s/tokenizer.json", folder);
    char *meta_path = text_format("%s/meta.json", folder);
    Pool *pool = text_pool(options->threads, range[SPLIT_TRAIN].to - range[SPLIT_TRAIN].from);
    meta->tokenizer_hash = tokenizer_hash(t);
    meta->vocab_size = tokenizer_vocab_size(t);
    bool good = tokenizer_save(t, fs, tokenizer_path, err, n);
    for (Split k = 0; good && k < SPLITS; k++) {
        SplitWriter w = {
            .fs = fs, .folder = folder, .split = k, .vocab_size = tokenizer_vocab_size(t)};
        good = check_bytes(t, &range[k], err, n) &&
               write_split(t, &range[k], options, pool, &w, err, n);
        meta->split[k] = w.size;
    }
    pool_destroy(pool);
    /* Checksums are computed from the written files, so that they describe what is on the disk. */
    good = good && meta_checksum(meta, folder, err, n) && meta_write(meta, fs, meta_path, err, n);
    free(tokenizer_path);
    free(meta_path);
    return good;
}

Pool *text_pool(int threads, int64_t size)
{
    enum { LEAST = 1 << 20 }; /* bytes; encoding less takes no longer than starting a thread */
    if (threads == 0) threads = pool_allowed_cores();
    return threads > 1 && size >= LEAST ? pool_create(threads) : NULL;
}

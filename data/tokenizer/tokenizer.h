/* tokenizer.h -- byte-level byte-pair encoding: bytes to token ids and back, exactly, for every
 * input.
 *
 * A vocabulary is 256 bytes, then one token per merge, then special tokens; "<|endoftext|>" is the
 * last id of every vocabulary trained here. A Tokenizer is constant once made: any number of
 * threads may decode and ask it for sizes; each thread that encodes has its own Encoder, which
 * remembers the words it has met. */
#ifndef DATA_TOKENIZER_TOKENIZER_H
#define DATA_TOKENIZER_TOKENIZER_H

#include "model/core/fs.h"
#include "model/core/progress.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define END_OF_TEXT "<|endoftext|>"

typedef struct Tokenizer Tokenizer;
typedef struct Encoder Encoder;

typedef struct {
    int32_t left, right; /* ids whose bytes are joined */
} Merge;

/* A list of ids that grows as needed. Start from {0}. */
typedef struct {
    int32_t *id;
    int64_t count, capacity;
} TokenBuffer;

/* Trains on `size` bytes: words come from the GPT-2 split, the most frequent adjacent pair is
 * merged until `vocab_size` ids exist (256 bytes + merges + end-of-text). Of equally frequent pairs
 * the one with the smaller (left, right) ids wins, so the result depends on nothing but the text.
 * False if vocab_size < 258 or the text has too few pairs; the sentence says how many ids it can
 * give, and *most (may be NULL) is the largest vocab_size that works, 0 if none does. `progress`
 * (may be NULL) shows how far it is. */
bool tokenizer_train(const uint8_t *text, int64_t size, int64_t vocab_size, Tokenizer **out,
                     Progress *progress, int64_t *most, char *err, size_t n);

/* A tokenizer from its merges in order of rank, bytes in GPT-2's order; end-of-text is the last id.
 * False if a merge names an id that does not exist yet or makes a token twice. */
bool tokenizer_from_merges(const Merge *merge, int64_t n_merges, Tokenizer **out, char *err,
                           size_t n);

/* Reads a Hugging Face tokenizer.json (byte-level BPE with the GPT-2 split; merges as "a b" or
 * ["a", "b"]) or a vocab.bpe (told apart by content). An encoder.json beside a vocab.bpe must agree
 * with it. False with a sentence that names the file: damaged, no merges, a vocabulary of another
 * size than 256 + merges + specials, or a kind of tokenizer that would encode differently. *missing
 * (may be NULL) says whether the file could not be opened at all. */
bool tokenizer_load(const char *path, Tokenizer **out, bool *missing, char *err, size_t n);
/* The same from memory; `name` is what messages call it. */
bool tokenizer_parse(const char *name, const char *text, size_t length, Tokenizer **out, char *err,
                     size_t n);
/* Compares with the contents of an encoder.json ({"token": id, ...}). */
bool tokenizer_check_vocab(const Tokenizer *t, const char *name, const char *text, size_t length,
                           char *err, size_t n);
/* Writes tokenizer.json, atomically (temporary file, fsync, rename). */
bool tokenizer_save(const Tokenizer *t, const FsOps *fs, const char *path, char *err, size_t n);
/* The same as a string that the caller frees. */
char *tokenizer_to_json(const Tokenizer *t);
void tokenizer_free(Tokenizer *t);

int32_t tokenizer_vocab_size(const Tokenizer *t);
int64_t tokenizer_merge_count(const Tokenizer *t);
/* Id of "<|endoftext|>"; -1 if the vocabulary has none. */
int32_t tokenizer_end_of_text(const Tokenizer *t);
/* Bytes of a token, for streaming output; special tokens have none (NULL, 0), ids outside the
 * vocabulary neither. */
const uint8_t *tokenizer_token(const Tokenizer *t, int32_t id, int64_t *size);
/* Name of a special token; NULL for an ordinary one. */
const char *tokenizer_special(const Tokenizer *t, int32_t id);
/* Bytes of text that each id stands for, (vocab) i32; specials have 0. Borrowed: lives as long as
 * the tokenizer. */
const int32_t *tokenizer_token_bytes(const Tokenizer *t);
/* Hash of everything that decides how text becomes ids. */
uint64_t tokenizer_hash(const Tokenizer *t);

/* An encoder borrows its tokenizer. */
Encoder *encoder_create(const Tokenizer *t);
void encoder_free(Encoder *e);
/* Appends the ids of `size` bytes to `out`. Any bytes are allowed; special tokens are never made
 * from text. */
void encoder_encode(Encoder *e, const uint8_t *text, int64_t size, TokenBuffer *out);
/* The same for the first words only: it stops at the first word that ends at or after byte `most`,
 * and returns how many bytes are done. `text` must go on to its real end, because what follows
 * decides where a word ends; then encoding piece by piece gives the ids of the whole. */
int64_t encoder_encode_some(Encoder *e, const uint8_t *text, int64_t size, int64_t most,
                            TokenBuffer *out);
/* Appends the ids of a prompt. A model needs a token to begin from: an empty prompt is the
 * end-of-text token, after which a document begins, or id 0 in a vocabulary without one. */
void tokenizer_encode_prompt(const Tokenizer *t, const char *prompt, TokenBuffer *out);
/* Appends one id. */
void token_buffer_add(TokenBuffer *b, int32_t id);
void token_buffer_free(TokenBuffer *b);

/* Bytes of `count` ids, concatenated and zero-terminated; specials appear by name when
 * `with_specials`. *size (may be NULL) is the length without the zero. The caller frees. Ids
 * outside the vocabulary are skipped. */
char *tokenizer_decode(const Tokenizer *t, const int32_t *ids, int64_t count, bool with_specials,
                       int64_t *size);

#endif

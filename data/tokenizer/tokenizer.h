/* tokenizer.h -- byte-level byte-pair encoding (BPE): converts any bytes to token ids and back
 * without loss.
 *
 * A vocabulary consists of 256 single bytes, then one token per merge, then special tokens. In
 * every vocabulary trained here, "<|endoftext|>" is the last id. A Tokenizer does not change once
 * it is made, so any number of threads may decode with it or query it. Each thread that encodes
 * needs its own Encoder, which caches the words it has encoded. */
#ifndef DATA_TOKENIZER_TOKENIZER_H
#define DATA_TOKENIZER_TOKENIZER_H

#include "data/tokenizer/words.h"
#include "model/core/fs.h"
#include "model/core/pool.h"
#include "model/core/progress.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define END_OF_TEXT "<|endoftext|>"

typedef struct Tokenizer Tokenizer;
typedef struct Encoder Encoder;

typedef struct {
    int32_t left, right; /* ids of the two tokens that are joined */
} Merge;

/* A list of ids that grows as needed. Initialise it with {0}. */
typedef struct {
    int32_t *id;
    int64_t count, capacity;
} TokenBuffer;

/* What tokenizer_learn is to do. */
typedef struct {
    const uint8_t *text;
    int64_t size;
    int64_t vocab_size;
    bool at_most; /* vocab_size is an upper limit: training stops when no pair of the text occurs
                     twice, because a token that occurs once teaches a model nothing */
    SplitPattern split; /* a pattern that splits text; {0} is GPT-2's */
    Pool *pool;         /* NULL: one thread. The result is the same. */
    Progress *progress; /* may be NULL */
} BpeRequest;

/* Trains a tokenizer: splits the text into words by the pattern, then merges the most frequent
 * adjacent pair until there are vocab_size ids (256 bytes + merges + end-of-text). Among equally
 * frequent pairs, the one with the smaller (left, right) ids is merged first, so the result depends
 * only on the text. Returns false if vocab_size < 258 or the text has too few pairs. The error
 * message then gives the possible number of ids, and *most (may be NULL) is the largest vocab_size
 * that works, or 0 if none does. With at_most it returns false only if vocab_size < 258 or no pair
 * occurs twice. */
bool tokenizer_learn(const BpeRequest *request, Tokenizer **out, int64_t *most, char *err,
                     size_t n);
/* tokenizer_train and tokenizer_train_up_to do the same with GPT-2's pattern on one thread, the
 * second one with at_most. */
bool tokenizer_train(const uint8_t *text, int64_t size, int64_t vocab_size, Tokenizer **out,
                     Progress *progress, int64_t *most, char *err, size_t n);
bool tokenizer_train_up_to(const uint8_t *text, int64_t size, int64_t vocab_size, Tokenizer **out,
                           Progress *progress, char *err, size_t n);

/* Makes a tokenizer from its merges, in order of rank. Single bytes are numbered as in GPT-2;
 * end-of-text is the last id. Returns false if a merge names an id that does not exist yet or makes
 * a token that already exists. */
bool tokenizer_from_merges(const Merge *merge, int64_t n_merges, Tokenizer **out, char *err,
                           size_t n);

/* Reads a Hugging Face tokenizer.json, a .tiktoken file or a vocab.bpe; the contents determine
 * which it is. A tokenizer.json must be BPE, either byte-level with a pattern of words.h or by
 * characters as Llama 2's, with merges as "a b" or ["a", "b"]. An encoder.json next to a vocab.bpe
 * must agree with it. `path` may also be a folder: its tokenizer.json is read, or else its
 * vocab.bpe, or else its merges.txt. Returns false, with an error message that names the file, if
 * the file is damaged, has no merges, or is a kind of tokenizer that would encode differently here.
 * *missing (may be NULL) is set to whether the file could not be opened. */
bool tokenizer_load(const char *path, Tokenizer **out, bool *missing, char *err, size_t n);
/* Does the same as tokenizer_load with text that is already in memory. Error messages use `name` as
 * the file's name. */
bool tokenizer_parse(const char *name, const char *text, size_t length, Tokenizer **out, char *err,
                     size_t n);
/* Checks that the contents of an encoder.json ({"token": id, ...}) agree with the tokenizer.
 * Returns false and sets `err` if not. */
bool tokenizer_check_vocab(const Tokenizer *t, const char *name, const char *text, size_t length,
                           char *err, size_t n);
/* Writes tokenizer.json atomically (temporary file, fsync, rename). */
bool tokenizer_save(const Tokenizer *t, const FsOps *fs, const char *path, char *err, size_t n);
/* Returns the contents of tokenizer.json as a string that the caller frees. */
char *tokenizer_to_json(const Tokenizer *t);
void tokenizer_free(Tokenizer *t);

int32_t tokenizer_vocab_size(const Tokenizer *t);
int64_t tokenizer_merge_count(const Tokenizer *t);
/* Returns merge k, counted from 0 in order of rank. */
Merge tokenizer_merge(const Tokenizer *t, int64_t k);
/* Returns the id of the token that merge k makes. */
int32_t tokenizer_merged(const Tokenizer *t, int64_t k);
/* Returns GGUF's name (tokenizer.ggml.pre) of the pattern that splits text into words: "gpt-2",
 * "llama-bpe" (also cl100k's), "qwen2" or "smollm". Returns NULL if text is split only at spaces
 * (Llama 2), or not at all. */
const char *tokenizer_pattern_name(const Tokenizer *t);
/* Returns whether merges join characters rather than bytes (Llama 2). Sets *space to whether the
 * tokenizer inserts a space before a text. */
bool tokenizer_joins_characters(const Tokenizer *t, bool *space);
/* What a token is. */
typedef enum {
    TOKEN_UNUSED,  /* the id has no token */
    TOKEN_TEXT,    /* stands for bytes; made by merges */
    TOKEN_BYTE,    /* stands for one byte of a character that has no token ("<0x0A>") */
    TOKEN_ADDED,   /* stands for text; found before merges are applied */
    TOKEN_SPECIAL, /* a control token: it has a name and stands for no text */
} TokenKind;
TokenKind tokenizer_kind(const Tokenizer *t, int32_t id);
/* Returns the token as tokenizer files spell it: each byte as a character (a space as U+0120), a
 * special token as its name; "" for an id without a token. The caller frees the string. */
char *tokenizer_spelling(const Tokenizer *t, int32_t id);
/* Returns the id of the token that ends a document: "<|endoftext|>" or, if the vocabulary lacks it,
 * "<|end_of_text|>" or "</s>"; -1 if it has none of them. */
int32_t tokenizer_end_of_text(const Tokenizer *t);
/* Returns the id of the token that the tokenizer puts before each document and prompt, as Llama's
 * does; -1: none. encoder_encode does not add it. */
int32_t tokenizer_begin_of_text(const Tokenizer *t);
/* Returns the bytes of a token, for streaming output. Returns NULL and size 0 for special tokens
 * and for ids outside the vocabulary. */
const uint8_t *tokenizer_token(const Tokenizer *t, int32_t id, int64_t *size);
/* Returns the name of a special token; NULL for an ordinary one. */
const char *tokenizer_special(const Tokenizer *t, int32_t id);
/* Returns how many bytes of text each id encodes, (vocab) i32; 0 for special tokens. The array
 * belongs to the tokenizer. */
const int32_t *tokenizer_token_bytes(const Tokenizer *t);
/* Returns a hash of everything that determines how text becomes ids. */
uint64_t tokenizer_hash(const Tokenizer *t);
/* Returns the offset of the first byte that has no token, `size` if there is none. A few
 * vocabularies lack tokens for bytes that occur rarely or never in UTF-8; encoding leaves these
 * bytes out. */
int64_t tokenizer_unknown_byte(const Tokenizer *t, const uint8_t *text, int64_t size);

/* Creates an encoder. It borrows the tokenizer, which must outlive it. */
Encoder *encoder_create(const Tokenizer *t);
void encoder_free(Encoder *e);
/* Makes names of special tokens in text become these tokens from now on. Without this, text never
 * produces special tokens, even if it contains their names. */
void encoder_allow_specials(Encoder *e);
/* Appends the ids of a whole document of `size` bytes. Any bytes are allowed; a byte that has no
 * token is left out (see tokenizer_unknown_byte). */
void encoder_encode(Encoder *e, const uint8_t *text, int64_t size, TokenBuffer *out);
/* A document can be encoded in parts, on any number of threads, with the same ids as encoding it at
 * once. encoder_cut returns the first byte from `at` on at which a part of a document of `size`
 * bytes may begin or end; `size` if there is none. */
int64_t encoder_cut(const Encoder *e, const uint8_t *text, int64_t size, int64_t at);
/* Appends the ids of bytes [from, to) of the document that starts at `text`. Both must be ends of
 * the document, or positions that encoder_cut returned. */
void encoder_encode_part(Encoder *e, const uint8_t *text, int64_t from, int64_t to,
                         TokenBuffer *out);
/* Appends the begin-of-text token, if the tokenizer has one, and the ids of a prompt. A model needs
 * at least one token to start from, so an empty prompt gives the end-of-text token, which precedes
 * a new document, or id 0 if the vocabulary has none. */
void tokenizer_encode_prompt(const Tokenizer *t, const char *prompt, TokenBuffer *out);
/* Makes room for `more` more ids. */
void token_buffer_reserve(TokenBuffer *b, int64_t more);
/* Appends one id. */
void token_buffer_add(TokenBuffer *b, int32_t id);
/* Appends `count` ids. */
void token_buffer_append(TokenBuffer *b, const int32_t *id, int64_t count);
void token_buffer_free(TokenBuffer *b);

/* Returns the bytes of `count` ids, concatenated and zero-terminated. Special tokens appear by name
 * if `with_specials`, otherwise not at all. *size (may be NULL) is the length without the zero. The
 * caller frees the result. Ids outside the vocabulary are skipped. */
char *tokenizer_decode(const Tokenizer *t, const int32_t *ids, int64_t count, bool with_specials,
                       int64_t *size);

#endif

/* vocabulary.h -- the inside of a Tokenizer, shared by the files that make, read and use one.
 * Private to data/tokenizer.
 *
 * Files spell bytes in characters, because not every byte is text: "printable" bytes stand for
 * themselves, the other 68 are U+0100 and up (a space is U+0120). GPT-2's numbering of the single
 * bytes follows from that: printable ones first. */
#ifndef DATA_TOKENIZER_VOCABULARY_H
#define DATA_TOKENIZER_VOCABULARY_H

#include "data/tokenizer/pair_table.h"
#include "data/tokenizer/tokenizer.h"

enum {
    N_BYTES = 256,
    MAX_VOCAB = 1 << 24,
    MAX_TOKEN_BYTES = 1 << 16,
};

struct Tokenizer {
    int32_t vocab_size;
    int32_t n_merges;
    int32_t end_of_text;      /* -1: none */
    int32_t byte_id[N_BYTES]; /* id of each single byte */
    Merge *merge;             /* (n_merges) in order of rank */
    int32_t *merged;          /* (n_merges) id that a merge makes */
    PairTable rank;           /* pair of ids -> rank */
    uint8_t *bytes;           /* of all ordinary tokens */
    int64_t n_bytes, bytes_capacity;
    int64_t *start;  /* (vocab_size) into bytes */
    int32_t *length; /* (vocab_size) 0 for specials */
    char **special;  /* (vocab_size) name, NULL for ordinary tokens */
};

/* The byte that id `k` of GPT-2's own numbering stands for: the printable ones first, then the
 * other 68. */
int byte_of_order(int k);
/* The character that stands for a byte in files. */
uint32_t char_of_byte(int byte);

/* An empty vocabulary: no token has bytes or a name, byte_id is -1, `merge` and `merged` have room
 * for n_merges. */
Tokenizer *vocabulary_create(int64_t vocab_size, int64_t n_merges);
/* Sets the bytes of a token; they are copied. */
void vocabulary_set_token(Tokenizer *t, int32_t id, const uint8_t *bytes, int64_t size);
/* Adds the next merge, which makes the token `merged`; its bytes must already be set. False if the
 * pair is there twice. */
bool vocabulary_add_merge(Tokenizer *t, int32_t left, int32_t right, int32_t merged);

/* Turns a token of `size` characters-for-bytes into bytes in place; returns their number, -1 if a
 * character stands for no byte. */
int64_t bytes_of_chars(char *text, int64_t size);
/* The characters for an ordinary token's bytes; the caller frees. */
char *chars_of_token(const Tokenizer *t, int32_t id);
/* Reads the text of a vocab.bpe. */
bool vocabulary_parse_merges(const char *name, const char *text, size_t length, Tokenizer **out,
                             char *err, size_t n);

#endif

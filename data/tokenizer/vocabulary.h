/* vocabulary.h -- struct Tokenizer and functions that build it, shared by the files in
 * data/tokenizer and private to them.
 *
 * Tokenizer files represent each byte by a character, because not every byte is valid text.
 * "Printable" bytes stand for themselves, and the other 68 are represented by U+0100 and up (a
 * space is U+0120). GPT-2 numbers the single bytes accordingly: printable ones first. */
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
    int32_t end_of_text;      /* id of the end-of-text token; -1: none */
    int32_t byte_id[N_BYTES]; /* id of the token for each single byte */
    Merge *merge;             /* (n_merges) in order of rank, the first to be applied first */
    int32_t *merged;          /* (n_merges) id of the token that a merge makes */
    PairTable rank;           /* maps a pair of ids to the rank of its merge */
    uint8_t *bytes;           /* the bytes of all ordinary tokens, concatenated */
    int64_t n_bytes, bytes_capacity;
    int64_t *start;  /* (vocab_size) where a token's bytes start in `bytes` */
    int32_t *length; /* (vocab_size) number of bytes; 0 for special tokens */
    char **special;  /* (vocab_size) name of a special token; NULL for ordinary ones */
};

/* Returns the byte that has id `k` in GPT-2's numbering: printable bytes first, then the other
 * 68. */
int byte_of_order(int k);
/* Returns the character that represents a byte in tokenizer files. */
uint32_t char_of_byte(int byte);

/* Creates an empty vocabulary: no token has bytes or a name, every byte_id is -1, and there is room
 * for n_merges merges. */
Tokenizer *vocabulary_create(int64_t vocab_size, int64_t n_merges);
/* Sets the bytes of a token; they are copied. */
void vocabulary_set_token(Tokenizer *t, int32_t id, const uint8_t *bytes, int64_t size);
/* Adds the next merge, which makes the token `merged`; that token's bytes must already be set.
 * Returns false if the same pair was added before. */
bool vocabulary_add_merge(Tokenizer *t, int32_t left, int32_t right, int32_t merged);

/* Converts a token from the characters used in files to its bytes, in place. Returns the number of
 * bytes, or -1 if a character represents no byte. */
int64_t bytes_of_chars(char *text, int64_t size);
/* Returns an ordinary token's bytes as characters for a file; the caller frees the string. */
char *chars_of_token(const Tokenizer *t, int32_t id);
/* Makes a tokenizer from the text of a vocab.bpe. Returns false and sets `err` if the text is
 * damaged. */
bool vocabulary_parse_merges(const char *name, const char *text, size_t length, Tokenizer **out,
                             char *err, size_t n);

#endif

/* vocabulary.h -- struct Tokenizer and functions that build it, shared by the files in
 * data/tokenizer and private to them.
 *
 * Tokenizer files represent each byte by a character, because not every byte is valid text.
 * "Printable" bytes stand for themselves, and the other 68 are represented by U+0100 and up (a
 * space is U+0120). GPT-2 numbers the single bytes in that order: printable ones first. */
#ifndef DATA_TOKENIZER_VOCABULARY_H
#define DATA_TOKENIZER_VOCABULARY_H

#include "data/tokenizer/added.h"
#include "data/tokenizer/nfc.h"
#include "data/tokenizer/pair_table.h"
#include "data/tokenizer/tokenizer.h"
#include "data/tokenizer/word_table.h"
#include "data/tokenizer/words.h"

enum {
    N_BYTES = 256,
    MAX_VOCAB = 1 << 24,
    MAX_MERGES = 1 << 25, /* several merges may make the same token */
    MAX_TOKEN_BYTES = 1 << 16,
};

/* Where a space that the text does not have is inserted, so that a word at the beginning is encoded
 * like any other word. */
typedef enum {
    PREFIX_NONE,
    PREFIX_ALWAYS, /* before a document and after each added token */
    PREFIX_EACH,   /* before a document and after each added token, unless a space follows */
    PREFIX_FIRST,  /* before a document that does not begin with a space */
} SpacePrefix;

/* How text becomes the symbols that merges join. {0} is as in GPT-2. */
typedef struct {
    SplitPattern split;
    bool compose;       /* text is first normalized to NFC */
    bool ignore_merges; /* a word that is a token becomes that token, without applying merges */
    /* Symbols are characters rather than bytes (Llama 2). A space is spelled U+2581 in files, and a
     * character without a token is encoded by its bytes, the tokens "<0x00>" to "<0xFF>". */
    bool characters;
    SpacePrefix prefix; /* only with `characters` */
} TokenizerRules;

/* The merge of the tokens of two bytes. */
typedef struct {
    int32_t rank, made; /* its rank, -1 if there is none; the id of the token that it makes */
} BytePair;

struct Tokenizer {
    int32_t vocab_size;
    int32_t n_merges;
    int32_t end_of_text;      /* id of the end-of-text token; -1: none */
    int32_t begin;            /* id of the token that is put before each text; -1: none */
    int32_t byte_id[N_BYTES]; /* id of the token for each single byte; -1: none */
    Merge *merge;             /* (n_merges) in order of rank, the first to be applied first */
    int32_t *merged;          /* (n_merges) id of the token that a merge makes */
    PairTable rank; /* maps a pair of ids to the rank of its merge and the id that it makes */
    uint8_t *bytes; /* the bytes of all tokens that stand for text, concatenated */
    int64_t n_bytes, bytes_capacity;
    int64_t *start;  /* (vocab_size) where a token's bytes start in `bytes` */
    int32_t *length; /* (vocab_size) number of bytes; 0 for special tokens */
    uint8_t *kind;   /* (vocab_size) TokenKind */
    char **special;  /* (vocab_size) name of a special token; NULL for others */
    AddedTokens added;
    TokenizerRules rules;
    char *post_processor; /* "post_processor" of the tokenizer.json, which gives `begin`; may be
                             NULL */
    /* The following fields are set by vocabulary_finish. */
    Splitter splitter;
    BytePair *byte_pair; /* (N_BYTES * N_BYTES) the merge of bytes a and b is at N_BYTES * a + b */
    /* Bit 256 * a + b: byte b follows byte a inside some token. Words may be cut between other
     * bytes. */
    uint64_t inside[N_BYTES * N_BYTES / 64];
    Nfc *nfc; /* tables of NFC; NULL without rules.compose */
    /* Tokens of kind TOKEN_TEXT. With rules.characters: all of them. With rules.ignore_merges:
     * those that merges do not make. */
    WordTable texts;
    int32_t *text_id; /* (texts) the ids of these tokens */
};

/* Returns whether byte b follows byte a inside of any token. */
static inline bool vocabulary_joins(const Tokenizer *t, uint8_t a, uint8_t b)
{
    unsigned bit = 256u * a + b;
    return t->inside[bit / 64] >> bit % 64 & 1;
}

/* Returns the byte with id `k` in GPT-2's numbering: printable bytes first, then the other 68. */
int byte_of_order(int k);
/* Returns the character that represents a byte in tokenizer files. */
uint32_t char_of_byte(int byte);

/* Creates an empty vocabulary: every id is unused, every byte_id is -1, and there is room for
 * n_merges merges. */
Tokenizer *vocabulary_create(int64_t vocab_size, int64_t n_merges);
/* Sets a token's bytes, which are copied. A byte-level token of one byte, or a token of kind
 * TOKEN_BYTE, becomes the token of this byte. */
void vocabulary_set_token(Tokenizer *t, int32_t id, TokenKind kind, const uint8_t *bytes,
                          int64_t size);
/* Makes an id a special token with a name. vocabulary_add_special also adds it to the added
 * tokens. */
void vocabulary_set_special(Tokenizer *t, int32_t id, const char *name);
void vocabulary_add_special(Tokenizer *t, int32_t id, const char *name);
/* Adds the next merge, which makes the token `merged`; that token's bytes must already be set.
 * Returns false if the same pair was added before. */
bool vocabulary_add_merge(Tokenizer *t, int32_t left, int32_t right, int32_t merged);
/* Completes the tokenizer after its tokens, merges, added tokens and rules have been set. */
void vocabulary_finish(Tokenizer *t);

/* Creates an encoder for short text, such as a prompt. It gives the same ids with smaller tables,
 * so it is created faster, but is slower on a long text. */
Encoder *encoder_create_small(const Tokenizer *t);
/* Returns whether the merges turn the bytes of a word into the single token `id`. */
bool encoder_merges_to(Encoder *e, const uint8_t *word, int64_t size, int32_t id);

/* Converts a token from the characters used in files to its bytes, in place. Returns the number of
 * bytes, or -1 if a character represents no byte. */
int64_t bytes_of_chars(char *text, int64_t size);
/* Returns a token's bytes as characters for a file; the caller frees the string. */
char *chars_of_token(const Tokenizer *t, int32_t id);
/* Does what tokenizer_from_merges does, for text that is split by the pattern `split`. */
bool vocabulary_from_merges(const Merge *merge, int64_t n_merges, SplitPattern split,
                            Tokenizer **out, char *err, size_t n);
/* Makes a tokenizer from the text of a vocab.bpe. Returns false and sets `err` if the text is
 * damaged. */
bool vocabulary_parse_merges(const char *name, const char *text, size_t length, Tokenizer **out,
                             char *err, size_t n);

#endif

/* added.h -- added tokens: strings that become one token wherever they occur in a text, before it
 * is split into words. Most are special ("<|endoftext|>"), and are only found in a text if the
 * caller asks for this; some stand for ordinary text, such as runs of spaces. */
#ifndef DATA_TOKENIZER_ADDED_H
#define DATA_TOKENIZER_ADDED_H

#include "data/tokenizer/nfc.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    char *content; /* the string in the text */
    char *normal;  /* `content` in NFC; NULL: the same as `content` */
    int32_t id;
    bool special;
    bool normalized;     /* true: searched for after the text is normalized to NFC; false: before */
    bool lstrip, rstrip; /* white space before or after it in the text becomes part of it */
} AddedToken;

/* Initialise it with {0}. */
typedef struct {
    AddedToken *token; /* added_finish sorts them by first byte, the longest first */
    int count, capacity;
    /* true: some token that is not special is searched for after NFC (plain[1]), or before NFC
     * (plain[0]). */
    bool plain[2];
    bool any[2]; /* the same for all tokens, special ones included */
    /* true: some token that is searched for after NFC has non-ASCII characters, so a text may spell
     * it in a form that NFC changes. */
    bool composes;
    int first[257]; /* token[first[b]] to token[first[b + 1] - 1] begin with byte b */
} AddedTokens;

/* An added token in text: bytes [from, to). */
typedef struct {
    const AddedToken *token;
    int64_t from, to;
} AddedMatch;

/* Adds a token; `content` is copied. */
void added_append(AddedTokens *a, const AddedToken *token);
/* Prepares the search. `nfc` may be NULL. */
void added_finish(AddedTokens *a, const Nfc *nfc);
void added_free(AddedTokens *a);
/* Returns whether there are tokens to search for: after NFC if `normalized`, otherwise before it;
 * special tokens only if `specials`. */
bool added_active(const AddedTokens *a, bool normalized, bool specials);
/* Finds the next added token in s[0..n) at or after `from`: the leftmost, and of these the longest.
 * `normalized`: searches for the tokens that are found after NFC, otherwise for those found before
 * it. Returns false if there is none. */
bool added_find(const AddedTokens *a, bool normalized, bool specials, const uint8_t *s, int64_t n,
                int64_t from, AddedMatch *match);
/* Returns whether s[at] is inside, directly after, or the first byte of an added token in the
 * text. */
bool added_across(const AddedTokens *a, const uint8_t *s, int64_t n, int64_t at);

#endif

/* tiktoken.h -- reads .tiktoken files. Each line has a token's bytes in base64 and its rank, which
 * is also its id. Such a file has no merges, special tokens or pattern: merges are computed from
 * the ranks, and the number of tokens shows which known file it is. */
#ifndef DATA_TOKENIZER_TIKTOKEN_H
#define DATA_TOKENIZER_TIKTOKEN_H

#include "data/tokenizer/vocabulary.h"

/* Returns whether the text begins like a .tiktoken file: base64, a space, a number. */
bool tiktoken_recognised(const char *text, size_t length);
/* Makes the tokenizer of r50k_base, p50k_base, cl100k_base, Llama 3 or Qwen. Returns false and sets
 * `err` if the file is damaged, or if its number of tokens is that of none of them. */
bool tiktoken_parse(const char *name, const char *text, size_t length, Tokenizer **out, char *err,
                    size_t n);

/* Special tokens with ids of their own. */
typedef struct {
    const char *name;
    int32_t id;
} SpecialName;
/* Does what tiktoken_parse does for a file with any number of tokens, with the given rules and
 * `n_specials` special tokens. */
bool tiktoken_parse_as(const char *name, const char *text, size_t length, TokenizerRules rules,
                       const SpecialName *special, int n_specials, Tokenizer **out, char *err,
                       size_t n);

#endif

/* words.h -- splits text into words by the pattern of a tokenizer; byte pairs are merged only
 * within a word. */
#ifndef DATA_TOKENIZER_WORDS_H
#define DATA_TOKENIZER_WORDS_H

#include <stdbool.h>
#include <stdint.h>

/* The patterns, each named after the model that made it known. words.c shows them as regular
 * expressions. */
typedef enum {
    SPLIT_GPT2,
    SPLIT_LLAMA3, /* also cl100k_base: contractions in any case, numbers of up to three digits */
    SPLIT_QWEN2,  /* as Llama 3's, but each digit is a word */
    SPLIT_SMOLLM, /* each digit is a word, and GPT-2's pattern is applied to the text in between */
    SPLIT_SPACES, /* a word is a run of spaces and the text up to the next space (Llama 2) */
    SPLIT_WHOLE,  /* the text is a single word */
    SPLIT_PATTERNS
} SplitPattern;

/* Finds a pattern that is a regular expression by its name: "gpt2", "llama3", "qwen2", "smollm".
 * Returns false if there is none. */
bool split_by_name(const char *name, SplitPattern *pattern);

/* Scans text by one pattern. */
typedef struct {
    SplitPattern pattern;
    /* (0x40000) class of each code point below 0x40000 (Unicode planes 0-3; the others have no
     * letters) */
    uint8_t *class_of;
} Splitter;

/* Creates the table of character classes, which makes splitting fast. It does not change
 * afterwards. */
void splitter_init(Splitter *splitter, SplitPattern pattern);
void splitter_free(Splitter *splitter);

/* Returns whether a character is white space (\s). */
bool is_white_space(uint32_t code);

/* Returns the length in bytes of the first word of s[0..n), n >= 1. s must extend to the end of the
 * text, because white space is split differently before other text than at the end. Each byte that
 * is not valid UTF-8 counts as a symbol. */
int64_t word_length(const Splitter *splitter, const uint8_t *s, int64_t n);

/* Returns whether a word certainly ends at s[at], whatever the text before and after, so that the
 * text on either side can be split separately. 0 < at < n. The result is true between a letter or
 * number and a character that is neither; for SPLIT_SPACES instead before a space that follows
 * anything else; for SPLIT_WHOLE nowhere. Elsewhere it is false, even if a word happens to end
 * there. */
bool word_border(const Splitter *splitter, const uint8_t *s, int64_t n, int64_t at);

#endif

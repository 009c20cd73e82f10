/* words.c -- scans text by the pattern that GPT-2's tokenizer uses to split it into words (Radford
 * et al. 2019):
 *
 *   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
 *
 * The scanner is hand-written because a regular-expression engine would be the slowest part of
 * reading text. */
#include "data/tokenizer/words.h"

#include "data/tokenizer/unicode_classes.h"
#include "model/core/utf8.h"

#include <stdbool.h>

typedef enum { CLASS_SYMBOL, CLASS_SPACE, CLASS_LETTER, CLASS_NUMBER } CharClass;

static bool in_ranges(const CodeRange *range, int count, uint32_t code)
{
    int low = 0, high = count;
    while (low < high) {
        int middle = (low + high) / 2;
        if (code > range[middle].last)
            low = middle + 1;
        else
            high = middle;
    }
    return low < count && code >= range[low].first;
}

static bool is_white_space(uint32_t c)
{
    return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
           c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

static CharClass classify(uint32_t c)
{
    if (c < 0x80) {
        uint32_t letter = (c | 0x20) - 'a';
        if (letter < 26) return CLASS_LETTER;
        if (c == ' ' || (c >= '\t' && c <= '\r')) return CLASS_SPACE;
        return c - '0' < 10 ? CLASS_NUMBER : CLASS_SYMBOL;
    }
    if (is_white_space(c)) return CLASS_SPACE;
    if (in_ranges(unicode_letters, (int)(sizeof unicode_letters / sizeof *unicode_letters), c))
        return CLASS_LETTER;
    if (in_ranges(unicode_numbers, (int)(sizeof unicode_numbers / sizeof *unicode_numbers), c))
        return CLASS_NUMBER;
    return CLASS_SYMBOL;
}

/* Returns the class of the character at s, and its length in *length. */
static CharClass next_class(const uint8_t *s, int64_t n, int *length)
{
    uint32_t code;
    *length = utf8_decode(s, n, &code);
    if (*length > 0) return classify(code);
    *length = 1;
    return CLASS_SYMBOL;
}

/* Returns the length of a contraction at s ('s 't 'm 'd 're 've 'll), or 0 if there is none. */
static int contraction(const uint8_t *s, int64_t n)
{
    if (n < 2 || s[0] != '\'') return 0;
    if (s[1] == 's' || s[1] == 't' || s[1] == 'm' || s[1] == 'd') return 2;
    if (n < 3) return 0;
    bool two = (s[1] == 'r' && s[2] == 'e') || (s[1] == 'v' && s[2] == 'e') ||
               (s[1] == 'l' && s[2] == 'l');
    return two ? 3 : 0;
}

/* Returns where the characters of class `kind` that begin at `from` end. *last is where the last of
 * these characters begins; it is `from` if there are none. */
static int64_t run_end(const uint8_t *s, int64_t n, int64_t from, CharClass kind, int64_t *last)
{
    int64_t at = from;
    *last = from;
    while (at < n) {
        int length;
        if (next_class(s + at, n - at, &length) != kind) break;
        *last = at;
        at += length;
    }
    return at;
}

int64_t word_length(const uint8_t *s, int64_t n)
{
    /* Try the pattern's alternatives in order; the first one that matches wins. */
    int short_word = contraction(s, n);
    if (short_word > 0) return short_word;

    int length;
    int64_t last;
    CharClass kind = next_class(s, n, &length);
    if (s[0] == ' ' && n > 1) { /* " ?" adds one space to the word after it */
        CharClass after = next_class(s + 1, n - 1, &length);
        if (after != CLASS_SPACE) return run_end(s, n, 1, after, &last);
    }
    int64_t end = run_end(s, n, 0, kind, &last);
    if (kind != CLASS_SPACE || end == n) return end;
    /* White space before other text leaves its last character to that text, unless it has only
     * one. */
    return last > 0 ? last : end;
}

/* words.c -- scans text by the patterns that tokenizers use to split it into words:
 *
 *   GPT-2    's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
 *   Llama 3  (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}
 *            | ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
 *   Qwen 2   the same with \p{N} instead of \p{N}{1,3}
 *   SmolLM   \p{N}, and GPT-2's pattern on each piece of text between two of them
 *
 * The scanner is hand-written because a regular-expression engine would be the slowest part of
 * reading text. */
#include "data/tokenizer/words.h"

#include "data/tokenizer/unicode_classes.h"
#include "model/core/check.h"
#include "model/core/utf8.h"

#include <stdlib.h>
#include <string.h>

bool split_by_name(const char *name, SplitPattern *pattern)
{
    static const char *const names[] = {[SPLIT_GPT2] = "gpt2",
                                        [SPLIT_LLAMA3] = "llama3",
                                        [SPLIT_QWEN2] = "qwen2",
                                        [SPLIT_SMOLLM] = "smollm"};
    for (int i = 0; i < (int)(sizeof names / sizeof *names); i++)
        if (strcmp(name, names[i]) == 0) {
            *pattern = (SplitPattern)i;
            return true;
        }
    return false;
}

typedef enum { CLASS_SYMBOL, CLASS_SPACE, CLASS_LETTER, CLASS_NUMBER } CharClass;

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

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

bool is_white_space(uint32_t c)
{
    return c == ' ' || (c >= '\t' && c <= '\r') || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
           c == 0x205F || c == 0x3000;
}

static CharClass classify(uint32_t c)
{
    if (is_white_space(c)) return CLASS_SPACE;
    if (in_ranges(unicode_letters, COUNT(unicode_letters), c)) return CLASS_LETTER;
    if (in_ranges(unicode_numbers, COUNT(unicode_numbers), c)) return CLASS_NUMBER;
    return CLASS_SYMBOL;
}

/* Splitter.class_of has the classes of the code points below this limit. There are no letters above
 * it; those code points are classified one by one. */
enum { TABLED = 0x40000 };

static void fill_class(uint8_t *class_of, const CodeRange *range, int count, CharClass kind)
{
    for (int i = 0; i < count && range[i].first < TABLED; i++)
        for (uint32_t c = range[i].first; c <= range[i].last && c < TABLED; c++)
            class_of[c] = (uint8_t)kind;
}

void splitter_init(Splitter *splitter, SplitPattern pattern)
{
    *splitter = (Splitter){.pattern = pattern};
    splitter->class_of = must_calloc(TABLED, 1);
    fill_class(splitter->class_of, unicode_letters, COUNT(unicode_letters), CLASS_LETTER);
    fill_class(splitter->class_of, unicode_numbers, COUNT(unicode_numbers), CLASS_NUMBER);
    for (uint32_t c = 0; c <= 0x3000; c++)
        if (is_white_space(c)) splitter->class_of[c] = CLASS_SPACE;
}

void splitter_free(Splitter *splitter)
{
    free(splitter->class_of);
    *splitter = (Splitter){0};
}

/* Does what next_class does, for a character of several bytes. It is a separate function so that
 * next_class stays small where it is inlined. */
static __attribute__((noinline)) CharClass wide_class(const uint8_t *class_of, const uint8_t *s,
                                                      int64_t n, int *length)
{
    uint32_t code;
    *length = utf8_decode(s, n, &code);
    if (*length > 0) return code < TABLED ? (CharClass)class_of[code] : classify(code);
    *length = 1;
    return CLASS_SYMBOL;
}

/* Returns the class of the character at s, and its length in *length. */
static inline CharClass next_class(const uint8_t *class_of, const uint8_t *s, int64_t n,
                                   int *length)
{
    *length = 1;
    return s[0] < 0x80 ? (CharClass)class_of[s[0]] : wide_class(class_of, s, n, length);
}

/* Returns the end of the run of characters of class `kind` that begins at `from`. */
static inline int64_t run_end(const uint8_t *class_of, const uint8_t *s, int64_t n, int64_t from,
                              CharClass kind)
{
    for (int64_t at = from;;) {
        while (at < n && s[at] < 0x80 && class_of[s[at]] == (uint8_t)kind)
            at++;
        int length;
        if (at >= n || s[at] < 0x80 || wide_class(class_of, s + at, n - at, &length) != kind)
            return at;
        at += length;
    }
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

/* Does what contraction does, but for lower and upper case. The long s (U+017F) is another case of
 * s. */
static int contraction_any_case(const uint8_t *s, int64_t n)
{
    if (n < 2 || s[0] != '\'') return 0;
    const uint8_t lower[3] = {'\'', s[1] < 0x80 ? s[1] | 0x20 : s[1],
                              n < 3 || s[2] >= 0x80 ? 0 : s[2] | 0x20};
    if (n >= 3 && s[1] == 0xC5 && s[2] == 0xBF) return 3;
    return contraction(lower, n < 3 ? n : 3);
}

/* Returns the length of the first word of a text that begins with white space up to `end`, followed
 * by other text. `\s+(?!\S)|\s+` leaves the last white space character to that text, unless it is
 * the only one. */
static int64_t leave_last_space(const uint8_t *s, int64_t end)
{
    int64_t last = end - 1;
    while ((s[last] & 0xC0) == 0x80)
        last--;
    return last > 0 ? last : end;
}

/* Returns the length of the first word by GPT-2's pattern. Tries the pattern's alternatives in
 * order; the first one that matches wins. With `digits` (SmolLM), each digit is a word of its own,
 * and other words end before it. */
static int64_t gpt2_word(const uint8_t *class_of, const uint8_t *s, int64_t n, bool digits)
{
    int short_word = contraction(s, n);
    if (short_word > 0) return short_word;
    int length;
    CharClass kind = next_class(class_of, s, n, &length);
    if (digits && kind == CLASS_NUMBER) return length;
    if (s[0] == ' ' && n > 1) { /* " ?" adds one space to the word after it */
        CharClass after = next_class(class_of, s + 1, n - 1, &length);
        if (after != CLASS_SPACE && !(digits && after == CLASS_NUMBER))
            return run_end(class_of, s, n, 1, after);
    }
    int64_t end = run_end(class_of, s, n, 0, kind);
    if (kind != CLASS_SPACE || end == n) return end;
    if (digits && next_class(class_of, s + end, n - end, &length) == CLASS_NUMBER) return end;
    return leave_last_space(s, end);
}

static bool is_line_end(uint8_t byte)
{
    return byte == '\r' || byte == '\n';
}

/* Returns the length of the first word by Llama 3's pattern, if it is white space. If the run of
 * white space has line ends, the word ends after the last of them (`\s*[\r\n]+`). */
static int64_t llama3_space(const uint8_t *class_of, const uint8_t *s, int64_t n)
{
    int64_t end = run_end(class_of, s, n, 0, CLASS_SPACE);
    for (int64_t at = end; at > 0; at--)
        if (is_line_end(s[at - 1])) return at;
    return end == n ? end : leave_last_space(s, end);
}

/* Returns the length of the first word by Llama 3's pattern, with at most `most` digits in a
 * word. */
static int64_t llama3_word(const uint8_t *class_of, const uint8_t *s, int64_t n, int most)
{
    int short_word = contraction_any_case(s, n), first, length;
    if (short_word > 0) return short_word;
    CharClass kind = next_class(class_of, s, n, &first);
    if (kind == CLASS_LETTER) return run_end(class_of, s, n, first, CLASS_LETTER);
    if (kind == CLASS_NUMBER) {
        int64_t at = first;
        for (int k = 1; k < most && at < n; k++, at += length)
            if (next_class(class_of, s + at, n - at, &length) != CLASS_NUMBER) break;
        return at;
    }
    /* Any one character except a line end may precede letters; a space may precede symbols. */
    CharClass after = first < n ? next_class(class_of, s + first, n - first, &length) : CLASS_SPACE;
    if (after == CLASS_LETTER && !is_line_end(s[0]))
        return run_end(class_of, s, n, first, CLASS_LETTER);
    if (kind == CLASS_SPACE && !(s[0] == ' ' && after == CLASS_SYMBOL))
        return llama3_space(class_of, s, n);
    int64_t end = run_end(class_of, s, n, first, CLASS_SYMBOL);
    while (end < n && is_line_end(s[end]))
        end++;
    return end;
}

/* Returns the length of a space at s, which may be written as U+2581; 0 if there is none. */
static inline int space_length(const uint8_t *s, int64_t n)
{
    if (s[0] == ' ') return 1;
    return s[0] == 0xE2 && n >= 3 && s[1] == 0x96 && s[2] == 0x81 ? 3 : 0;
}

static int64_t spaces_word(const uint8_t *s, int64_t n)
{
    int64_t at = 0;
    int length;
    while (at < n && (length = space_length(s + at, n - at)) > 0)
        at += length;
    while (at < n && space_length(s + at, n - at) == 0)
        at++;
    return at;
}

int64_t word_length(const Splitter *splitter, const uint8_t *s, int64_t n)
{
    switch (splitter->pattern) {
    case SPLIT_GPT2: return gpt2_word(splitter->class_of, s, n, false);
    case SPLIT_LLAMA3: return llama3_word(splitter->class_of, s, n, 3);
    case SPLIT_QWEN2: return llama3_word(splitter->class_of, s, n, 1);
    case SPLIT_SMOLLM: return gpt2_word(splitter->class_of, s, n, true);
    case SPLIT_SPACES: return spaces_word(s, n);
    case SPLIT_WHOLE:
    case SPLIT_PATTERNS: break;
    }
    return n;
}

bool word_border(const Splitter *splitter, const uint8_t *s, int64_t n, int64_t at)
{
    if (splitter->pattern == SPLIT_WHOLE) return false;
    int64_t before = at - 1;
    int length;
    while (before > 0 && at - before < 4 && (s[before] & 0xC0) == 0x80)
        before--;
    if (splitter->pattern == SPLIT_SPACES)
        return space_length(s + at, n - at) > 0 && space_length(s + before, n - before) == 0;
    CharClass kind = next_class(splitter->class_of, s + before, at - before, &length);
    if (before + length != at || (kind != CLASS_LETTER && kind != CLASS_NUMBER)) return false;
    CharClass after = next_class(splitter->class_of, s + at, n - at, &length);
    return after == CLASS_SPACE || after == CLASS_SYMBOL;
}

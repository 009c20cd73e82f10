/* nfc.c -- canonical composition; see nfc.h.
 *
 * Most characters are "inert": composition never changes them, and never combines them with the
 * character before. So text is composed in segments, each of an inert character and the
 * characters after it that are not inert. Text of inert characters alone is not changed. */
#include "data/tokenizer/nfc.h"

#include "data/tokenizer/nfc_codes.h"
#include "data/tokenizer/nfc_pairs.h"
#include "data/tokenizer/pair_table.h"
#include "model/core/check.h"
#include "model/core/utf8.h"

#include <stdlib.h>
#include <string.h>

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

/* Hangul syllables are composed by arithmetic: a leading consonant, a vowel, and perhaps a trailing
 * consonant, each counted from a base (The Unicode Standard, section 3.12). */
enum {
    SYLLABLES = 0xAC00,
    LEADING = 0x1100,
    VOWELS = 0x1161,
    TRAILING = 0x11A7,
    N_LEADING = 19,
    N_VOWELS = 21,
    N_TRAILING = 28,
    N_SYLLABLES = N_LEADING * N_VOWELS * N_TRAILING,
};

enum { UNICODE = 0x110000, LEAST_CHANGING = 0x300 };

/* A character and its combining class. Marks have a class above 0; marks between two characters of
 * class 0 are sorted by class. */
typedef struct {
    uint32_t code;
    uint8_t combining;
} CodeUnit;

struct Nfc {
    uint8_t *combining; /* (UNICODE) combining class of each character */
    uint8_t *changing;  /* (UNICODE) 1: not inert */
    /* Maps (code, 0) to the position of the character's decomposition in composed_pairs,
     * separate_pairs and replaced_codes, counted through all three. */
    PairTable parts;
    PairTable whole; /* maps (first, second) to the character composed of them */
};

void byte_buffer_add(ByteBuffer *b, const void *bytes, int64_t size)
{
    if (b->size + size > b->capacity) {
        b->capacity = 2 * (b->size + size) + 1024;
        b->byte = must_realloc(b->byte, (size_t)b->capacity);
    }
    if (size > 0) memcpy(b->byte + b->size, bytes, (size_t)size);
    b->size += size;
}

static void add_pair(Nfc *nfc, const CodePair *p, int place, bool composed)
{
    pair_table_set(&nfc->parts, (int32_t)p->code, 0, place);
    if (composed) {
        pair_table_set(&nfc->whole, (int32_t)p->first, (int32_t)p->second, (int32_t)p->code);
        nfc->changing[p->second] = 1;
    } else {
        nfc->changing[p->code] = 1;
    }
}

Nfc *nfc_create(void)
{
    Nfc *nfc = must_calloc(1, sizeof *nfc);
    nfc->combining = must_calloc(UNICODE, 1);
    nfc->changing = must_calloc(UNICODE, 1);
    pair_table_init(&nfc->parts, 4096);
    pair_table_init(&nfc->whole, 2048);
    for (int i = 0; i < COUNT(combining_ranges); i++)
        for (uint32_t c = combining_ranges[i].first; c <= combining_ranges[i].last; c++) {
            nfc->combining[c] = combining_ranges[i].combining;
            nfc->changing[c] = 1;
        }
    for (int i = 0; i < COUNT(composed_pairs); i++)
        add_pair(nfc, &composed_pairs[i], i, true);
    for (int i = 0; i < COUNT(separate_pairs); i++)
        add_pair(nfc, &separate_pairs[i], COUNT(composed_pairs) + i, false);
    for (int i = 0; i < COUNT(replaced_codes); i++) {
        pair_table_set(&nfc->parts, (int32_t)replaced_codes[i].code, 0,
                       COUNT(composed_pairs) + COUNT(separate_pairs) + i);
        nfc->changing[replaced_codes[i].code] = 1;
    }
    for (uint32_t c = VOWELS; c < VOWELS + N_VOWELS; c++)
        nfc->changing[c] = 1;
    for (uint32_t c = TRAILING + 1; c < TRAILING + N_TRAILING; c++)
        nfc->changing[c] = 1;
    return nfc;
}

void nfc_free(Nfc *nfc)
{
    if (nfc == NULL) return;
    free(nfc->combining);
    free(nfc->changing);
    pair_table_free(&nfc->parts);
    pair_table_free(&nfc->whole);
    free(nfc);
}

int64_t nfc_first_change(const Nfc *nfc, const uint8_t *s, int64_t n)
{
    for (int64_t at = 0; at < n;) {
        uint32_t code;
        /* All characters below U+0300, whose encoding begins with 0xCC, are inert. */
        if (s[at] < 0xCC) {
            at++;
            continue;
        }
        int length = utf8_decode(s + at, n - at, &code);
        if (length > 0 && nfc->changing[code]) return at;
        at += length > 0 ? length : 1;
    }
    return n;
}

/* ---- one segment ----------------------------------------------------------------------------- */

/* The characters of a segment. Most segments fit into `few`. */
typedef struct {
    CodeUnit few[64], *unit;
    int64_t count, capacity;
} Segment;

static void segment_add(Segment *g, uint32_t code, uint8_t combining)
{
    if (g->count == g->capacity) {
        g->capacity *= 2;
        CodeUnit *more = must_alloc((size_t)g->capacity * sizeof *more);
        memcpy(more, g->unit, (size_t)g->count * sizeof *more);
        if (g->unit != g->few) free(g->unit);
        g->unit = more;
    }
    /* Marks are kept in order of their class; among equals, in order of the text. */
    int64_t at = g->count++;
    for (; combining > 0 && at > 0 && g->unit[at - 1].combining > combining; at--)
        g->unit[at] = g->unit[at - 1];
    g->unit[at] = (CodeUnit){.code = code, .combining = combining};
}

/* Adds a character's full decomposition. */
static void decompose(const Nfc *nfc, uint32_t code, Segment *g)
{
    uint32_t syllable = code - SYLLABLES;
    if (syllable < N_SYLLABLES) {
        segment_add(g, LEADING + syllable / (N_VOWELS * N_TRAILING), 0);
        segment_add(g, VOWELS + syllable / N_TRAILING % N_VOWELS, 0);
        if (syllable % N_TRAILING > 0) segment_add(g, TRAILING + syllable % N_TRAILING, 0);
        return;
    }
    int32_t place = pair_table_get(&nfc->parts, (int32_t)code, 0);
    if (place < 0) {
        segment_add(g, code, nfc->combining[code]);
    } else if (place < COUNT(composed_pairs) + COUNT(separate_pairs)) {
        const CodePair *p = place < COUNT(composed_pairs)
                                ? &composed_pairs[place]
                                : &separate_pairs[place - COUNT(composed_pairs)];
        decompose(nfc, p->first, g);
        decompose(nfc, p->second, g);
    } else {
        place -= COUNT(composed_pairs) + COUNT(separate_pairs);
        decompose(nfc, replaced_codes[place].other, g);
    }
}

/* Returns the character that two others make, or 0 if they make none. */
static uint32_t composed(const Nfc *nfc, uint32_t first, uint32_t second)
{
    uint32_t l = first - LEADING, v = second - VOWELS, t = second - TRAILING, s = first - SYLLABLES;
    if (l < N_LEADING && v < N_VOWELS) return SYLLABLES + (l * N_VOWELS + v) * N_TRAILING;
    if (s < N_SYLLABLES && s % N_TRAILING == 0 && t > 0 && t < N_TRAILING) return first + t;
    int32_t found = pair_table_get(&nfc->whole, (int32_t)first, (int32_t)second);
    return found < 0 ? 0 : (uint32_t)found;
}

/* Combines each character with the last character of class 0 before it, unless a character that
 * stays between them has the same or a higher class. */
static void compose(const Nfc *nfc, Segment *g)
{
    int64_t kept = 0, starter = -1;
    int between = -1; /* the class of the last character kept after the starter; -1: none */
    for (int64_t i = 0; i < g->count; i++) {
        CodeUnit u = g->unit[i];
        uint32_t made = starter >= 0 && between < u.combining
                            ? composed(nfc, g->unit[starter].code, u.code)
                            : 0;
        if (made != 0) {
            g->unit[starter].code = made;
            continue;
        }
        g->unit[kept] = u;
        between = u.combining;
        if (u.combining == 0) {
            starter = kept;
            between = -1;
        }
        kept++;
    }
    g->count = kept;
}

/* Appends the composed segment s[0..n), which is valid UTF-8. */
static void add_segment(const Nfc *nfc, const uint8_t *s, int64_t n, ByteBuffer *out)
{
    Segment g = {.capacity = COUNT(g.few)};
    g.unit = g.few;
    for (int64_t at = 0; at < n;) {
        uint32_t code = 0;
        at += utf8_decode(s + at, n - at, &code);
        decompose(nfc, code, &g);
    }
    compose(nfc, &g);
    for (int64_t i = 0; i < g.count; i++) {
        char bytes[4];
        byte_buffer_add(out, bytes, utf8_encode(g.unit[i].code, bytes));
    }
    if (g.unit != g.few) free(g.unit);
}

void nfc_compose(const Nfc *nfc, const uint8_t *s, int64_t n, ByteBuffer *out)
{
    for (int64_t at = 0; at < n;) {
        int64_t from = at + nfc_first_change(nfc, s + at, n - at), end = from;
        /* The segment begins with the preceding inert character, if there is a valid one. */
        int64_t begin = from;
        while (begin > at && from - begin < 4 && (s[begin - 1] & 0xC0) == 0x80)
            begin--;
        uint32_t code;
        if (begin > at) begin--;
        if (begin < from && utf8_decode(s + begin, n - begin, &code) != from - begin) begin = from;
        for (int length;
             end < n && (length = utf8_decode(s + end, n - end, &code)) > 0 && nfc->changing[code];)
            end += length;
        byte_buffer_add(out, s + at, begin - at);
        if (end > begin) add_segment(nfc, s + begin, end - begin, out);
        at = end > from ? end : from;
    }
}

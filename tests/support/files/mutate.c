/* mutate.c -- makes random changes to an input for fuzz targets. */
#include "tests/support/files/mutate.h"

#include "model/core/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    uint8_t *text;
    size_t n, capacity;
    uint64_t state;
} Mutant;

static uint64_t draw(Mutant *m, uint64_t below)
{
    m->state += 0x9e3779b97f4a7c15u; /* splitmix64 */
    uint64_t z = m->state;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return below ? (z ^ z >> 31) % below : 0;
}

static void splice(Mutant *m, size_t at, size_t removed, const void *with, size_t length)
{
    uint8_t *copy = must_alloc(length + 1);
    if (length) memcpy(copy, with, length); /* `with` may point into m->text */
    size_t n = m->n - removed + length;
    if (n + 1 > m->capacity) m->text = must_realloc(m->text, m->capacity = 2 * n + 1);
    memmove(m->text + at + length, m->text + at + removed, m->n - at - removed);
    memcpy(m->text + at, copy, length);
    m->n = n;
    free(copy);
}

/* Replaces the first number at or after `at` by an extreme one; without one, appends it at the end.
 */
static void replace_number(Mutant *m, size_t at)
{
    static const char *const extreme[] = {"0",
                                          "-1",
                                          "1",
                                          "9223372036854775807",
                                          "9223372036854775808",
                                          "18446744073709551615",
                                          "4294967296",
                                          "-9223372036854775808",
                                          "1e308",
                                          "0.5",
                                          "007",
                                          "",
                                          "null",
                                          "99999999999999999999999"};
    while (at < m->n && (m->text[at] < '0' || m->text[at] > '9'))
        at++;
    size_t length = 0;
    while (at + length < m->n && m->text[at + length] >= '0' && m->text[at + length] <= '9')
        length++;
    const char *with = extreme[draw(m, sizeof extreme / sizeof *extreme)];
    splice(m, at, length, with, strlen(with));
}

static void change(Mutant *m)
{
    static const char structure[] = "{}[]\",:\\ \n0-eu\x80\xff";
    size_t at = draw(m, m->n + 1), span = draw(m, m->n - at + 1) % 64, to = draw(m, m->n + 1);
    uint8_t byte = (uint8_t)draw(m, 256);
    switch (draw(m, 8)) {
    case 0:
        if (at < m->n) m->text[at] ^= (uint8_t)(1u << byte % 8);
        break;
    case 1: splice(m, at, at < m->n, &byte, 1); break;
    case 2: splice(m, at, 0, &structure[byte % (sizeof structure - 1)], 1); break;
    case 3: splice(m, at, span, NULL, 0); break;
    case 4: splice(m, to, 0, m->text + at, span); break;
    case 5: splice(m, at, at < m->n, &structure[byte % (sizeof structure - 1)], 1); break;
    case 6: replace_number(m, at); break;
    default:
        if (byte < 32) m->n = at; /* rarely, because a parser cannot reach the bytes after a cut */
        break;
    }
}

uint8_t *mutate(const void *text, size_t n, uint64_t seed, uint64_t round, size_t *out_n)
{
    Mutant m = {.text = must_alloc(n + 1), .n = n, .capacity = n + 1, .state = seed ^ round << 20};
    memcpy(m.text, text, n);
    for (uint64_t changes = 1 + draw(&m, 4); changes > 0; changes--)
        change(&m);
    *out_n = m.n;
    return m.text;
}

/* json_scan.c -- checks the syntax of a JSON text byte by byte and records where each key and value
 * is; see json.h.
 *
 * A recursive descent parser, at most JSON_MAX_DEPTH deep. Of the extensions that Hjson has
 * (DeepSpeed reads its configs with Hjson), comments and trailing commas are allowed and
 * overwritten with spaces. The other extensions are errors whose messages name them. */
#include "model/core/check.h"
#include "model/core/json.h"
#include "model/core/json_escape.h"
#include "model/core/utf8.h"

#include <stdio.h>
#include <string.h>

typedef struct {
    Json *json;
    size_t at;
    int depth, capacity;
    char *err;
    size_t n;
    size_t *error_at;
} Scan;

#define SCAN_FAIL(s, offset, ...)                                                                  \
    (*(s)->error_at = (offset), error_set((s)->err, (s)->n, __VA_ARGS__))

static bool scan_value(Scan *s);

static int peek(const Scan *s)
{
    return s->at < s->json->length ? (unsigned char)s->json->text[s->at] : -1;
}

static bool starts(const Scan *s, const char *word)
{
    size_t n = strlen(word);
    return s->json->length - s->at >= n && memcmp(s->json->text + s->at, word, n) == 0;
}

/* Overwrites [s->at, end) with spaces but keeps line ends, and moves s->at to `end`. */
static void blank_to(Scan *s, size_t end)
{
    for (; s->at < end; s->at++)
        if (s->json->text[s->at] != '\n') s->json->text[s->at] = ' ';
}

/* Skips white space, and overwrites comments with spaces. */
static bool skip_space(Scan *s)
{
    for (;;) {
        int c = peek(s);
        const char *from = s->json->text + s->at;
        if (c == ' ' || c == '\t' || c == '\n' || c == '\r') {
            s->at++;
        } else if (c == '#' || starts(s, "//")) {
            const char *end = memchr(from, '\n', s->json->length - s->at);
            blank_to(s, end ? (size_t)(end - s->json->text) : s->json->length);
        } else if (starts(s, "/*")) {
            const char *end = memmem(from + 2, s->json->length - s->at - 2, "*/", 2);
            if (end == NULL) return SCAN_FAIL(s, s->at, "this comment is not closed; write */");
            blank_to(s, (size_t)(end - s->json->text) + 2);
        } else {
            return true;
        }
    }
}

static bool is_word(int c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '+' || c == '-' || c == '.' || c >= 0x80;
}

/* Copies the word at s->at to out, cut to a length that suits an error message. */
static const char *word_here(const Scan *s, char out[40])
{
    size_t n = 0;
    while (n < 32 && s->at + n < s->json->length &&
           is_word((unsigned char)s->json->text[s->at + n]))
        n++;
    while (n > 0 && s->at + n < s->json->length &&
           ((unsigned char)s->json->text[s->at + n] & 0xc0u) == 0x80u)
        n--; /* do not cut a character in two */
    snprintf(out, 40, "%.*s", (int)n, s->json->text + s->at);
    return out;
}

static bool scan_escape(Scan *s)
{
    uint32_t code;
    size_t length;
    EscapeKind kind = json_escape(s->json->text + s->at, s->json->length - s->at, &code, &length);
    /* Too few digits after the first \u are an invalid escape; after the second \u they leave half
     * of a surrogate pair. */
    if (kind == ESCAPE_UNKNOWN || (kind == ESCAPE_NO_DIGIT && length < 6))
        return SCAN_FAIL(s, s->at, "there is no such escape in JSON; a backslash is written \\\\");
    if (kind == ESCAPE_NUL) return SCAN_FAIL(s, s->at, "a NUL character has no place in a config");
    if (kind != ESCAPE_GOOD)
        return SCAN_FAIL(s, s->at, "half of a surrogate pair; write the character itself");
    s->at += length;
    return true;
}

static bool scan_string(Scan *s)
{
    size_t from = s->at++;
    for (;;) {
        int c = peek(s);
        if (c == '"') break;
        if (c < 0) return SCAN_FAIL(s, from, "this string is not closed; a quote is missing");
        if (c == '\n' || c == '\r')
            return SCAN_FAIL(s, from,
                             "this string is not closed on its line; write \\n for a line end");
        if (c < 0x20)
            return SCAN_FAIL(s, s->at, "a raw control character in a string; write \\t or \\u%04x",
                             (unsigned)c);
        if (c != '\\')
            s->at++;
        else if (!scan_escape(s))
            return false;
    }
    s->at++;
    return true;
}

static size_t skip_digits(Scan *s)
{
    size_t from = s->at;
    while (peek(s) >= '0' && peek(s) <= '9')
        s->at++;
    return s->at - from;
}

/* Writes the number at `from` to `out`, leaving out blanks inside it. Returns true if there are
 * such blanks and the result looks like one number. */
static bool has_blanks(const Scan *s, size_t from, char out[40])
{
    const char *text = s->json->text;
    size_t n = 0, end = s->json->length, blanks = 0, kept = 0;
    bool dot = false, exponent = false;
    for (size_t i = from; i < end && n < 39; i++) {
        char c = text[i];
        if (c == ' ' || c == '\t') {
            blanks++;
            continue;
        }
        bool digit = c >= '0' && c <= '9', sign = c == '-' || c == '+';
        bool starts = (c == '.' && !dot && !exponent) || ((c == 'e' || c == 'E') && !exponent) ||
                      (sign && (n == 0 || out[n - 1] == 'e' || out[n - 1] == 'E'));
        if (!digit && !starts && strchr(".eE+-", c) != NULL) return false;
        if (!digit && !starts) break;
        dot |= c == '.';
        exponent |= c == 'e' || c == 'E';
        kept = blanks; /* blanks after the last digit are not inside the number */
        out[n++] = c;
    }
    out[n] = '\0';
    return kept > 0 && n > 0 && out[n - 1] >= '0' && out[n - 1] <= '9';
}

static bool scan_number(Scan *s)
{
    size_t from = s->at;
    char word[40];
    word_here(s, word);
    if (peek(s) == '-') s->at++;
    bool zero = peek(s) == '0';
    char whole[40];
    if (has_blanks(s, from, whole))
        return SCAN_FAIL(
            s, from, "a blank inside a number; write %s, or a comma between two numbers", whole);
    size_t digits = skip_digits(s);
    if (zero && digits > 1)
        return SCAN_FAIL(s, from, "%s: JSON numbers have no leading zeros", word);
    bool good = digits > 0;
    if (good && peek(s) == '.') {
        s->at++;
        good = skip_digits(s) > 0;
    }
    if (good && (peek(s) == 'e' || peek(s) == 'E')) {
        s->at++;
        if (peek(s) == '+' || peek(s) == '-') s->at++;
        good = skip_digits(s) > 0;
    }
    if (!good || is_word(peek(s)))
        return SCAN_FAIL(s, from, "%s is not a number in JSON; write it like 12, 0.5 or 6e-4",
                         word);
    if (s->at - from > 60)
        return SCAN_FAIL(s, from, "a number of more than 60 characters; fewer digits say the same");
    return true;
}

static bool scan_word(Scan *s)
{
    static const struct {
        const char *word, *instead;
    } python[] = {{"True", "true"}, {"False", "false"}, {"None", "null"},
                  {"TRUE", "true"}, {"FALSE", "false"}, {"yes", "true"},
                  {"no", "false"},  {"on", "true"},     {"off", "false"}};
    char word[40];
    word_here(s, word);
    if (strcmp(word, "true") == 0 || strcmp(word, "false") == 0 || strcmp(word, "null") == 0) {
        s->at += strlen(word);
        return true;
    }
    for (size_t i = 0; i < sizeof python / sizeof *python; i++)
        if (strcmp(word, python[i].word) == 0)
            return SCAN_FAIL(s, s->at, "%s is not JSON; write %s", word, python[i].instead);
    if (strcmp(word, "NaN") == 0 || strcmp(word, "Infinity") == 0 || strcmp(word, "inf") == 0 ||
        strcmp(word, "nan") == 0)
        return SCAN_FAIL(s, s->at, "%s is not a number in JSON, and no key takes it", word);
    if (peek(s) < 0) return SCAN_FAIL(s, s->at, "the text ends here, but a value is missing");
    if (word[0] == '\0') return SCAN_FAIL(s, s->at, "a value is missing here");
    return SCAN_FAIL(s, s->at,
                     "a word without quotes is Hjson, not JSON; write a value in its place, or "
                     "\"%s\" if a string is meant",
                     word);
}

/* Appends a node and returns its index. An index stays valid when the array is reallocated. */
static int add_node(Scan *s, size_t key_at)
{
    Json *json = s->json;
    if (json->n_nodes == s->capacity) {
        s->capacity = s->capacity ? 2 * s->capacity : 64;
        json->node = must_realloc(json->node, (size_t)s->capacity * sizeof *json->node);
    }
    json->node[json->n_nodes] = (JsonNode){.key_at = key_at, .value_at = s->at};
    return json->n_nodes++;
}

/* Reads what follows a value inside {} or [] and sets *more if another value follows. A comma
 * before the closing bracket is overwritten with a space. */
static bool scan_separator(Scan *s, char close, bool *more)
{
    if (!skip_space(s)) return false;
    *more = false;
    if (peek(s) == close) return true;
    if (peek(s) < 0) return SCAN_FAIL(s, s->at, "the text ends here, but %c is missing", close);
    if (peek(s) != ',') {
        bool wrong_end = peek(s) == '}' || peek(s) == ']';
        if (wrong_end)
            return SCAN_FAIL(s, s->at, "%c ends what began with %c", peek(s),
                             close == '}' ? '{' : '[');
        return SCAN_FAIL(s, s->at,
                         "a comma is missing before this (Hjson does without, JSON does not)");
    }
    /* Whether the comma is a trailing one is known only after the following white space and
     * comments. */
    size_t comma = s->at++;
    if (!skip_space(s)) return false;
    if (peek(s) == close)
        s->json->text[comma] = ' ';
    else
        *more = true;
    return true;
}

static bool scan_key(Scan *s)
{
    char word[40];
    word_here(s, word);
    if (peek(s) == '\'')
        return SCAN_FAIL(s, s->at, "single quotes are Hjson, not JSON; write \"...\"");
    if (word[0] != '\0')
        return SCAN_FAIL(s, s->at, "a key without quotes is Hjson, not JSON; write \"%s\"", word);
    if (peek(s) < 0) return SCAN_FAIL(s, s->at, "the text ends here, but } is missing");
    if (peek(s) != '"') return SCAN_FAIL(s, s->at, "a key in quotes is missing here");
    if (!scan_string(s) || !skip_space(s)) return false;
    if (peek(s) == '=') return SCAN_FAIL(s, s->at, "a key and its value are joined by a colon");
    if (peek(s) != ':') return SCAN_FAIL(s, s->at, "a colon is missing after the key");
    s->at++;
    return skip_space(s);
}

static bool scan_members(Scan *s, int self, char close)
{
    if (++s->depth > JSON_MAX_DEPTH)
        return SCAN_FAIL(s, s->at, "nested more than %d deep", JSON_MAX_DEPTH);
    s->at++;
    if (!skip_space(s)) return false;
    int n_keys = 0;
    bool more = peek(s) != close;
    while (more) {
        size_t key_at = s->at;
        if (close == '}' && ++n_keys > JSON_MAX_KEYS)
            return SCAN_FAIL(s, s->at, "more than %d keys in one object", JSON_MAX_KEYS);
        if (close == '}' && !scan_key(s)) return false;
        /* Add the node before its value is scanned, so that it comes before its children. */
        int child = add_node(s, close == '}' ? key_at : s->at);
        if (!scan_value(s)) return false;
        s->json->node[child].end = s->json->n_nodes;
        if (!scan_separator(s, close, &more)) return false;
    }
    s->json->node[self].end = s->json->n_nodes;
    s->at++;
    s->depth--;
    return true;
}

/* Scans the value at s->at. Its node is the one added last. */
static bool scan_value(Scan *s)
{
    int c = peek(s), self = s->json->n_nodes - 1;
    if (c == '{') return scan_members(s, self, '}');
    if (c == '[') return scan_members(s, self, ']');
    if (c == '"') return scan_string(s);
    if (starts(s, "'''"))
        return SCAN_FAIL(s, s->at,
                         "a text of several lines in ''' is Hjson, not JSON; write \"...\\n...\"");
    if (c == '\'') return SCAN_FAIL(s, s->at, "single quotes are Hjson, not JSON; write \"...\"");
    if (c == '-' && s->at + 1 < s->json->length && s->json->text[s->at + 1] == 'I') {
        s->at++; /* skip the sign of -Infinity */
        return scan_word(s);
    }
    if (c == '-' || c == '+' || c == '.' || (c >= '0' && c <= '9')) return scan_number(s);
    return scan_word(s);
}

static bool check_bytes(Scan *s)
{
    const unsigned char *text = (const unsigned char *)s->json->text;
    int n;
    for (size_t i = 0; i < s->json->length; i += (size_t)n) {
        uint32_t code = 0;
        n = utf8_decode(text + i, (int64_t)(s->json->length - i), &code);
        if (n == 0)
            return SCAN_FAIL(s, i, "the byte 0x%02x here is not UTF-8; save the file as UTF-8",
                             text[i]);
        if (code == 0) return SCAN_FAIL(s, i, "a NUL byte; this is not a text file");
    }
    return true;
}

bool json_scan(Json *json, char *err, size_t n, size_t *error_at)
{
    Scan s = {.json = json, .err = err, .n = n, .error_at = error_at};
    /* Check the bytes first: all later code can then cut error messages between characters. */
    if (!check_bytes(&s) || !skip_space(&s)) return false;
    if (peek(&s) < 0) return SCAN_FAIL(&s, 0, "the text is empty; write an object: { ... }");
    add_node(&s, s.at);
    if (!scan_value(&s)) return false;
    json->node[0].end = json->n_nodes;
    if (!skip_space(&s)) return false;
    if (peek(&s) == ':')
        return SCAN_FAIL(&s, s.at,
                         "keys without braces around them are Hjson, not JSON; write { ... }");
    if (peek(&s) >= 0) return SCAN_FAIL(&s, s.at, "there is text after the end of the value");
    return true;
}

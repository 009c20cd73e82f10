/* text_wrap.c -- implements text_wrap.h: measures text, finds where its lines may end, and folds
 * it. */
#include "model/core/text_wrap.h"

#include "model/core/check.h"
#include "model/core/utf8.h"

#include <stdbool.h>
#include <string.h>

/* ---- the width of characters ----------------------------------------------------------------- */

typedef struct {
    uint32_t first, last;
} CodeRange;

/* Returns whether the code is in one of the ranges, which are in ascending order. */
static bool is_in(const CodeRange *range, size_t n, uint32_t code)
{
    for (size_t i = 0; i < n && range[i].first <= code; i++)
        if (code <= range[i].last) return true;
    return false;
}

/* Returns the columns of a character: 0, 1 or 2. The C library knows widths only after setlocale,
 * and this program keeps the locale "C" so that numbers have a point. The ranges below contain the
 * combining marks that are common in text, and the scripts whose characters are all wide. */
static int character_columns(uint32_t code)
{
    static const CodeRange none[] = {
        {0x0300, 0x036F}, {0x0483, 0x0489}, {0x0591, 0x05BD}, {0x064B, 0x065F}, {0x093C, 0x093C},
        {0x0941, 0x0948}, {0x0E31, 0x0E31}, {0x0E34, 0x0E3A}, {0x0E47, 0x0E4E}, {0x1AB0, 0x1AFF},
        {0x1DC0, 0x1DFF}, {0x200B, 0x200F}, {0x2060, 0x2064}, {0x20D0, 0x20F0}, {0x302A, 0x302D},
        {0x3099, 0x309A}, {0xFE00, 0xFE0F}, {0xFE20, 0xFE2F}, {0xFEFF, 0xFEFF}, {0xE0100, 0xE01EF}};
    static const CodeRange wide[] = {{0x1100, 0x115F},   {0x231A, 0x231B},   {0x2E80, 0x303E},
                                     {0x3041, 0x4DBF},   {0x4E00, 0xA4CF},   {0xA960, 0xA97C},
                                     {0xAC00, 0xD7A3},   {0xF900, 0xFAFF},   {0xFE30, 0xFE6F},
                                     {0xFF00, 0xFF60},   {0xFFE0, 0xFFE6},   {0x17000, 0x18CFF},
                                     {0x1B000, 0x1B2FF}, {0x1F300, 0x1F64F}, {0x1F680, 0x1F6FF},
                                     {0x1F900, 0x1FAFF}, {0x20000, 0x3FFFD}};
    if (code < 0x0300) return 1;
    if (is_in(none, sizeof none / sizeof *none, code)) return 0;
    return is_in(wide, sizeof wide / sizeof *wide, code) ? 2 : 1;
}

/* Returns the length of the character at p, which is before `end`, and adds its columns to
 * *columns. */
static size_t measure(const char *p, const char *end, int *columns)
{
    uint32_t code = 0;
    int length = utf8_decode((const uint8_t *)p, end - p, &code);
    *columns += length > 0 ? character_columns(code) : 1;
    return length > 0 ? (size_t)length : 1;
}

int text_columns(const char *text, size_t n)
{
    int columns = 0;
    for (const char *p = text; p < text + n;)
        p += measure(p, text + n, &columns);
    return columns;
}

size_t text_cut(const char *text, int columns)
{
    const char *p = text, *end = text + strlen(text);
    for (int used = 0; p < end;) {
        size_t length = measure(p, end, &used);
        if (used > columns) break;
        p += length;
    }
    return (size_t)(p - text);
}

/* ---- commands in a message ------------------------------------------------------------------- */

/* How commands that users paste begin, and how many of the following words always belong to the
 * command: names of subcommands look like words of the surrounding sentence. */
static const struct {
    const char *begin;
    int names;
} command_list[] = {{"./train ", 2}, {"apt-get install ", 1}};

/* Returns whether a command begins at p in `text`; *names is then set from command_list. */
static bool begins_command(const char *text, const char *p, int *names)
{
    if (p > text && strchr(" (`\"\n", p[-1]) == NULL) return false;
    for (size_t i = 0; i < sizeof command_list / sizeof *command_list; i++) {
        *names = command_list[i].names;
        if (strncmp(p, command_list[i].begin, strlen(command_list[i].begin)) == 0) return true;
    }
    return false;
}

/* Returns the end of the shell word at p: the next space or line feed that is not in quotes. */
static const char *end_of_word(const char *p)
{
    while (*p && *p != ' ' && *p != '\n') {
        bool bytes = p[0] == '$' && p[1] == '\'';
        const char *quote = p + bytes, *close = quote + 1;
        if (*quote == '\'' || *quote == '"') {
            while (*close && *close != *quote && *close != '\n')
                close += bytes && *close == '\\' && close[1] ? 2 : 1;
            if (*close == *quote) p = close; /* otherwise it is an apostrophe */
        }
        p++;
    }
    return p;
}

/* Returns whether the word looks like an argument: an option, a path, a number, a setting, a name
 * in capital letters. */
static bool is_argument(const char *word, const char *end)
{
    static const char marks[] = "/=._\"'0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ";
    return *word == '-' || strcspn(word, marks) < (size_t)(end - word);
}

/* Returns the end of the command at p. It ends before a word that is not an argument, before two
 * spaces, and after a punctuation mark at the end of a word. */
static const char *end_of_command(const char *p, int names)
{
    bool option = false; /* the last word is an option, and its value may follow */
    for (int words = 0;; words++) {
        const char *word = p, *end = end_of_word(p), *next = end + 1;
        option = strncmp(word, "--", 2) == 0 && memchr(word, '=', (size_t)(end - word)) == NULL;
        p = end;
        if (*end != ' ' || strchr(".,:;?)`", end[-1]) != NULL || *next == ' ') return p;
        if (words >= names && !option && !is_argument(next, end_of_word(next))) return p;
        p = next;
    }
}

/* ---- lines ----------------------------------------------------------------------------------- */

/* The line that is being folded. */
typedef struct {
    const char *text, *at;   /* the whole text, and where the line begins */
    const char *command_end; /* end of the last command longer than a line; if none, `text` */
    int room, full;          /* columns of this line, and of an indented line */
    Wrap wrap;
} Line;

/* Looks for a command that begins at p. Returns its end if it must stay on one line, else p.
 * `alone`: there is no text before it that could stay on the previous line. */
static const char *keep_command(Line *l, const char *p, bool alone)
{
    int names;
    if (l->wrap != WRAP_MESSAGE || !begins_command(l->text, p, &names)) return p;
    const char *end = end_of_command(p, names);
    if (text_columns(p, (size_t)(end - p)) <= (alone ? l->room : l->full)) return end;
    l->command_end = end;
    return p;
}

/* Returns whether the space at p is a better end of a line than other spaces. */
static bool is_preferred(const Line *l, const char *p)
{
    /* An option and its value stay on one line. */
    if (p < l->command_end) return p[1] == '-';
    bool two_spaces = p[1] == ' ' || p[-1] == ' ';
    if (l->wrap == WRAP_FIGURES) return two_spaces || strchr(",:;", p[-1]) != NULL;
    return l->wrap == WRAP_MESSAGE && two_spaces;
}

/* Returns the end of the line: the end of the text, a line feed, or the place where the next line
 * has to begin. If that is before l->command_end, the line needs a backslash. */
static const char *end_of_line(Line *l)
{
    enum { BACKSLASH = 2 }; /* columns of a backslash and the space before it */
    const char *good = NULL, *any = NULL, *p = l->at, *end = p + strlen(p);
    const char *first = p + strspn(p, " "); /* do not break inside the indentation */
    const char *whole = p;                  /* do not break before this position either */
    int columns = 0;
    while (*p && *p != '\n') {
        bool was_inside = p < l->command_end;
        if (p >= whole && !was_inside) whole = keep_command(l, p, any == NULL);
        bool inside = p < l->command_end;
        /* A command that is longer than a line begins on a new line. */
        if (inside && !was_inside && any) {
            l->command_end = l->text;
            return any;
        }
        if (inside && p >= whole) whole = end_of_word(p);
        if (*p == ' ' && p > first && p >= whole) {
            if (columns + (inside ? BACKSLASH : 0) > l->room) return good ? good : any ? any : p;
            any = p;
            if (is_preferred(l, p)) good = p;
        }
        const char *here = p;
        p += measure(p, end, &columns);
        if (columns > l->room && any) return good ? good : any;
        if (columns > l->room && l->wrap == WRAP_HARD && here > l->at) return here;
    }
    return p;
}

/* ---- folding --------------------------------------------------------------------------------- */

/* The result, of which only the part that fits is stored. */
typedef struct {
    char *out;
    size_t n, used;
} Result;

static void put(Result *r, const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++, r->used++)
        if (r->used + 1 < r->n) r->out[r->used] = text[i];
}

size_t text_fold(char *out, size_t n, const char *text, Fold fold)
{
    Result r = {out, n, 0};
    Line l = {.text = text,
              .at = text,
              .command_end = text,
              .room = fold.columns - fold.used,
              .full = fold.columns - fold.indent,
              .wrap = fold.wrap};
    for (;; l.room = l.full) {
        const char *end = end_of_line(&l), *last = end;
        bool feed = *end == '\n', inside = end < l.command_end;
        while (last > l.at && last[-1] == ' ')
            last--;
        put(&r, l.at, (size_t)(last - l.at));
        while (!feed && *end == ' ')
            end++;
        if (*end == '\0') break;
        put(&r, " \\\n", inside ? 3 : 0);
        put(&r, "\n", inside ? 0 : 1);
        l.at = end + feed;
        bool blank = *l.at == '\n' || *l.at == '\0';
        for (int i = 0; i < fold.indent && !blank; i++)
            put(&r, " ", 1);
    }
    if (n > 0) out[r.used < n ? r.used : n - 1] = '\0';
    return r.used;
}

char *text_wrap_to(int columns, const char *text, int used, int indent, Wrap wrap)
{
    Fold fold = {columns, used, indent, wrap};
    size_t n = text_fold(NULL, 0, text, fold) + 1;
    char *out = must_alloc(n);
    text_fold(out, n, text, fold);
    return out;
}

char *text_wrap(const char *text, int used, int indent, Wrap wrap)
{
    return text_wrap_to(LINE_COLUMNS, text, used, indent, wrap);
}

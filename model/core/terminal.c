/* terminal.c -- implements terminal.h: asks for the terminal's width, folds messages and colours
 * their beginnings. */
#include "model/core/terminal.h"

#include "model/core/check.h"
#include "model/core/min_max.h"
#include "model/core/utf8.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* HANG: the indentation of further lines of a message without a label. LABEL: the largest column at
 * which the text after a label begins. */
enum { USUAL = 80, LEAST = 40, MOST = 140, HANG = 4, LABEL = 16 };

bool terminal_is(FILE *to)
{
    int fd = fileno(to); /* -1 for a stream into memory */
    return fd >= 0 && isatty(fd);
}

int terminal_columns(FILE *to)
{
    struct winsize size;
    int fd = fileno(to);
    if (fd >= 0 && ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
    const char *text = getenv("COLUMNS");
    long columns = text ? strtol(text, NULL, 10) : 0;
    return columns > 0 && columns < 10000 ? (int)columns : USUAL;
}

int terminal_line(FILE *to)
{
    if (!terminal_is(to)) return LINE_COLUMNS;
    int columns = terminal_columns(to);
    return (int)max_i64(LEAST, min_i64(MOST, columns)) - 1;
}

bool terminal_colours(void)
{
    const char *none = getenv("NO_COLOR"), *term = getenv("TERM");
    return (none == NULL || *none == '\0') && (term == NULL || strcmp(term, "dumb") != 0);
}

/* ---- messages -------------------------------------------------------------------------------- */

/* Returns the column at which further lines of the message begin. Sets *head, at first 0, to the
 * length of the label, or of the indentation if there is no label. */
static int indent_of(const char *text, size_t *head)
{
    size_t before = strspn(text, " ");
    const char *gap = strstr(text + before, "  ");
    size_t column = gap ? (size_t)(gap - text) + strspn(gap, " ") : LABEL + 1;
    if (before < LABEL / 2 && column > LABEL) return (int)before + HANG;
    *head = before < LABEL / 2 ? column : before;
    return (int)*head;
}

/* How a text is printed: its first `head` bytes as they are, of which `marked` are coloured, and
 * the rest folded. `fold.columns` 0: not folded. */
typedef struct {
    const char *colour;
    size_t marked, head;
    Fold fold;
} Style;

/* Writes the folded rest of the text to out[0..n). Returns the length of the whole result. */
static size_t fold_rest(char *out, size_t n, const char *rest, const Style *style)
{
    if (style->fold.columns > 0) return text_fold(out, n, rest, style->fold);
    size_t length = strlen(rest);
    if (out) memcpy(out, rest, length + 1);
    return length;
}

/* Prints the text and a line feed with one write. Returns false if there is no memory for it. */
static bool print_styled(FILE *to, const char *text, const Style *style)
{
    static const char plain[] = "\033[0m";
    const char *colour = style->colour ? style->colour : "", *end = style->colour ? plain : "";
    size_t marked = style->colour ? style->marked : 0;
    size_t n = fold_rest(NULL, 0, text + style->head, style) + 1;
    char *out = malloc(style->head + n + strlen(colour) + strlen(end) + 1), *at = out;
    if (out == NULL) return false;
    at = stpcpy(at, colour);
    at = mempcpy(at, text, marked);
    at = stpcpy(at, end);
    at = mempcpy(at, text + marked, style->head - marked);
    at += fold_rest(at, n, text + style->head, style);
    *at++ = '\n';
    fwrite(out, 1, (size_t)(at - out), to);
    free(out);
    return true;
}

/* Like print_styled, but escapes the text first, and prints it unfolded if there is no memory. */
static void print_escaped(FILE *to, const char *text, const Style *style)
{
    char *escaped = malloc(4 * strlen(text) + 1);
    /* Line feeds are escaped, too: names in a message may contain them, but a message is one
     * line. */
    if (escaped) utf8_escape(escaped, text, false);
    flockfile(to);
    if (escaped == NULL || !print_styled(to, escaped, style)) {
        utf8_print_escaped(to, text);
        fputc('\n', to);
    }
    fflush(to);
    funlockfile(to);
    free(escaped);
}

void terminal_message(FILE *to, const char *text, Mark mark, size_t marked)
{
    static const char *const colour[] = {
        [MARK_NONE] = NULL, [MARK_WARNING] = "\033[1;33m", [MARK_ERROR] = "\033[1;31m"};
    Style style = {.marked = marked, .head = marked};
    if (terminal_is(to)) {
        style.colour = terminal_colours() ? colour[mark] : NULL;
        int indent = marked > 0 ? HANG : indent_of(text, &style.head);
        style.fold = (Fold){terminal_line(to), (int)style.head, indent, WRAP_MESSAGE};
    }
    print_escaped(to, text, &style);
}

void terminal_field(FILE *to, const char *label, const char *text, int indent)
{
    int used = (int)max_i64((int64_t)strlen(label), indent);
    char *line = text_format("%-*s%s", indent, label, text);
    Fold fold = {terminal_line(to), used, indent, WRAP_FIGURES};
    print_escaped(to, line, &(Style){.head = (size_t)used, .fold = fold});
    free(line);
}

void terminal_print(FILE *to, int indent, const char *fmt, ...)
{
    va_list args;
    char *text;
    size_t n;
    FILE *memory = text_stream(&text, &n);
    va_start(args, fmt);
    vfprintf(memory, fmt, args);
    va_end(args);
    fclose(memory);
    int head = (int)min_i64(indent, (int64_t)n);
    Style style = {.head = (size_t)head};
    if (terminal_is(to)) style.fold = (Fold){terminal_line(to), head, indent, WRAP_MESSAGE};
    if (!print_styled(to, text, &style)) fprintf(to, "%s\n", text);
    free(text);
}

/* args_help.c -- prints the help of a command or of a group of commands from its table. */
#include "model/core/args.h"

#include "model/core/check.h"
#include "model/core/terminal.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* Columns of the help. LEFT: indentation of an option. GAP: least distance between an option and
 * its description. COLUMN: where descriptions begin, unless an option is too long for that.
 * SUMMARY: indentation of a command's summary. */
enum { LEFT = 2, GAP = 2, COLUMN = 21, SUMMARY = 6 };

/* Prints the text as one paragraph that begins at column `indent`, folded to the width of the
 * terminal. Line feeds in the text are taken as spaces. */
static void print_paragraph(FILE *to, const char *text, int indent)
{
    char *words = must_strdup(text);
    for (char *at = words; (at = strchr(at, '\n')) != NULL;)
        *at = ' ';
    char *lines = text_wrap_to(terminal_line(to), words, indent, indent, WRAP_MESSAGE);
    fprintf(to, "%s\n", lines);
    free(lines);
    free(words);
}

/* Prints the text and a line feed. Line breaks in the text are kept, and lines that are too long
 * are folded. */
static void print_lines(FILE *to, const char *text)
{
    for (const char *at = text, *end; at != NULL; at = *end ? end + 1 : NULL) {
        end = at + strcspn(at, "\n");
        char *line = text_format("%.*s", (int)(end - at), at);
        int indent = (int)strspn(line, " ");
        char *lines = text_wrap_to(terminal_line(to), line, 0, indent, WRAP_MESSAGE);
        fprintf(to, "%s\n", lines);
        free(lines);
        free(line);
    }
}

static int option_width(const ArgOption *o)
{
    return (int)strlen(o->name) + (o->value ? 1 + (int)strlen(o->value) : 0);
}

static void print_options(FILE *to, const ArgCommand *c)
{
    int column = COLUMN;
    for (int i = 0; i < c->n_options; i++) {
        int needed = LEFT + option_width(&c->options[i]) + GAP;
        if (needed > column) column = needed;
    }
    for (int i = 0; i < c->n_options; i++) {
        const ArgOption *o = &c->options[i];
        int used = LEFT + option_width(o);
        fprintf(to, "%*s%s%s%s%*s", LEFT, "", o->name, o->value ? " " : "",
                o->value ? o->value : "", column - used, "");
        print_paragraph(to, o->help, column);
    }
}

/* Prints the purpose of the command: its `about` text, or its summary turned into a sentence. */
static void print_about(FILE *to, const ArgCommand *c)
{
    if (c->about)
        print_lines(to, c->about);
    else
        fprintf(to, "%c%s.\n", toupper((unsigned char)c->summary[0]), c->summary + 1);
}

static void print_usage(FILE *to, const char *before, const ArgCommand *c)
{
    char *line =
        text_format("%s%s%s%s", before, c->call, c->usage ? " " : "", c->usage ? c->usage : "");
    char *lines = text_wrap_to(terminal_line(to), line, 0, 2 * SUMMARY, WRAP_PROSE);
    fprintf(to, "%s\n", lines);
    free(lines);
    free(line);
}

static void print_group(FILE *to, const ArgCommand *group)
{
    fprintf(to, "usage:\n");
    for (int i = 0; i < group->n_commands; i++) {
        print_usage(to, "  ", group->commands[i]);
        fprintf(to, "%*s", SUMMARY, "");
        print_paragraph(to, group->commands[i]->summary, SUMMARY);
    }
    if (group->notes) print_lines(to, group->notes);
}

void args_print_help(FILE *to, const ArgCommand *c)
{
    if (c->n_commands > 0) {
        print_group(to, c);
        return;
    }
    print_usage(to, "usage: ", c);
    fputc('\n', to);
    print_about(to, c);
    if (c->n_options > 0) fputc('\n', to);
    print_options(to, c);
    if (c->notes) fputc('\n', to);
    if (c->notes) print_lines(to, c->notes);
}

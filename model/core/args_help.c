/* args_help.c -- prints the help of a command or of a group of commands from its table. */
#include "model/core/args.h"

#include <ctype.h>
#include <string.h>

/* Column at which descriptions of options begin; longer option names push them to the right. */
enum { LEFT = 2, GAP = 2, COLUMN = 21, SUMMARY = 6 };

/* Prints the text and indents every line but the first by `indent` spaces. */
static void print_indented(FILE *to, const char *text, int indent)
{
    for (const char *at = text; *at; at++) {
        fputc(*at, to);
        if (*at == '\n') fprintf(to, "%*s", indent, "");
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
        print_indented(to, o->help, column);
        fputc('\n', to);
    }
}

/* Prints the purpose of the command: its `about` text, or its summary turned into a sentence. */
static void print_about(FILE *to, const ArgCommand *c)
{
    if (c->about)
        fprintf(to, "%s\n", c->about);
    else
        fprintf(to, "%c%s.\n", toupper((unsigned char)c->summary[0]), c->summary + 1);
}

static void print_usage(FILE *to, const ArgCommand *c)
{
    fprintf(to, "%s%s%s\n", c->call, c->usage ? " " : "", c->usage ? c->usage : "");
}

static void print_group(FILE *to, const ArgCommand *group)
{
    fprintf(to, "usage:\n");
    for (int i = 0; i < group->n_commands; i++) {
        fprintf(to, "%*s", LEFT, "");
        print_usage(to, group->commands[i]);
        fprintf(to, "%*s", SUMMARY, "");
        print_indented(to, group->commands[i]->summary, SUMMARY);
        fputc('\n', to);
    }
    if (group->notes) fprintf(to, "%s\n", group->notes);
}

void args_print_help(FILE *to, const ArgCommand *c)
{
    if (c->n_commands > 0) {
        print_group(to, c);
        return;
    }
    fprintf(to, "usage: ");
    print_usage(to, c);
    fputc('\n', to);
    print_about(to, c);
    if (c->n_options > 0) fputc('\n', to);
    print_options(to, c);
    if (c->notes) fprintf(to, "\n%s\n", c->notes);
}

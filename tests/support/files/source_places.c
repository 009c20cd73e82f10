/* source_places.c -- finds the calls of a function in sources, and maps addresses to them. */
#include "tests/support/files/source_places.h"

#include "model/core/check.h"

#include <ctype.h>
#include <glob.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LINE = 512 };

/* ---- calls in sources ------------------------------------------------------------------------ */

/* Returns true if `text` contains `function` as a whole word, followed by a parenthesis. */
static bool calls(const char *text, const char *function)
{
    size_t n = strlen(function);
    for (const char *at = text; (at = strstr(at, function)) != NULL; at += n) {
        bool begins = at == text || !(isalnum((unsigned char)at[-1]) || at[-1] == '_');
        if (begins && at[n] == '(') return true;
    }
    return false;
}

/* If `text` is the first line of a function definition, which begins in the first column, copies
 * the function's name. Example: "static void reduce_bucket(ZeroStore *s)". */
static void note_function(char *function, size_t n, const char *text)
{
    const char *end = strchr(text, '('), *begin = end;
    if (!isalpha((unsigned char)text[0]) || end == NULL || strchr(text, ';') != NULL) return;
    while (begin > text && (isalnum((unsigned char)begin[-1]) || begin[-1] == '_'))
        begin--;
    snprintf(function, n, "%.*s", (int)(end - begin), begin);
}

static void read_file(SourcePlaces *places, const char *path, const char *function)
{
    FILE *f = fopen(path, "r");
    char text[LINE], inside[sizeof places->of[0].function] = "";
    CHECK(f != NULL, "%s cannot be read", path);
    for (int line = 1; fgets(text, sizeof text, f); line++) {
        note_function(inside, sizeof inside, text);
        if (!isspace((unsigned char)text[0]) || !calls(text, function)) continue;
        CHECK(places->n < SOURCE_MOST_PLACES, "more than %d calls of %s", places->n, function);
        SourcePlace *p = &places->of[places->n++];
        p->line = line;
        snprintf(p->file, sizeof p->file, "%s", path);
        snprintf(p->function, sizeof p->function, "%s", inside);
    }
    fclose(f);
}

void source_places_add(SourcePlaces *places, const char *pattern, const char *function)
{
    glob_t found;
    CHECK(glob(pattern, 0, NULL, &found) == 0, "no file is like %s", pattern);
    for (size_t i = 0; i < found.gl_pathc; i++)
        read_file(places, found.gl_pathv[i], function);
    globfree(&found);
}

/* ---- addresses ------------------------------------------------------------------------------- */

static int note_base(struct dl_phdr_info *info, size_t size, void *base)
{
    (void)size;
    *(uintptr_t *)base = info->dlpi_addr;
    return 1; /* stop after the first object, which is the program itself */
}

/* Reads line `line` of the file into text[0..n); "" if there is none. */
static void read_line(const char *path, int line, char *text, size_t n)
{
    FILE *f = fopen(path, "r");
    text[0] = '\0';
    for (int i = 0; f != NULL && i < line; i++)
        if (fgets(text, (int)n, f) == NULL) text[0] = '\0';
    if (f != NULL) fclose(f);
}

/* Returns the place on this line. If there is none, returns the last place in a function that this
 * line calls, or NULL. */
static const SourcePlace *place_on(const SourcePlaces *places, const char *path, int line)
{
    const SourcePlace *found = NULL;
    char text[LINE];
    for (int i = 0; i < places->n; i++)
        if (places->of[i].line == line && strcmp(places->of[i].file, path) == 0)
            return &places->of[i];
    read_line(path, line, text, sizeof text);
    for (int i = 0; i < places->n; i++)
        if (calls(text, places->of[i].function)) found = &places->of[i];
    return found;
}

/* Runs addr2line on all addresses and returns its output. For each address it prints the address
 * and then the source lines of the functions that are inlined there, innermost first. */
static FILE *ask(const void *const *address, int n)
{
    uintptr_t base = 0;
    char exe[256] = "", *command;
    dl_iterate_phdr(note_base, &base);
    CHECK(readlink("/proc/self/exe", exe, sizeof exe - 1) > 0, "/proc/self/exe");
    command = text_format("addr2line -a -i -e '%s'", exe);
    for (int i = 0; i < n; i++) {
        char *before = command;
        /* The return address minus 1 belongs to the call, not to the instruction after it. */
        command = text_format("%s 0x%llx", before,
                              (unsigned long long)((uintptr_t)address[i] - base - 1));
        free(before);
    }
    FILE *said = popen(command, "r");
    CHECK(said != NULL, "%s", command);
    free(command);
    return said;
}

/* Returns where a path of the program, relative to the current folder, begins in `text`; NULL if
 * there is none. */
static char *program_path(char *text)
{
    static const char *const folders[] = {"parallel/", "optim/"};
    char *path = NULL;
    for (size_t i = 0; i < sizeof folders / sizeof *folders && path == NULL; i++)
        path = strstr(text, folders[i]);
    return path;
}

void source_places_of(const SourcePlaces *places, const void *const *address, int n,
                      const SourcePlace **out)
{
    char text[LINE];
    int i = -1;
    FILE *said = ask(address, n);
    while (fgets(text, sizeof text, said)) {
        char *path = program_path(text), *colon = path ? strchr(path, ':') : NULL;
        if (strncmp(text, "0x", 2) == 0) {
            CHECK(++i < n, "more than %d answers of addr2line", n);
            out[i] = NULL;
        } else if (colon != NULL && i >= 0 && out[i] == NULL) {
            *colon = '\0';
            out[i] = place_on(places, path, atoi(colon + 1));
        }
    }
    CHECK(pclose(said) == 0 && i + 1 == n, "%d of %d answers of addr2line", i + 1, n);
}

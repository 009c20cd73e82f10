/* check.c -- printing failures; see check.h for who uses which. */
#include "model/core/check.h"

#include "model/core/log.h"
#include "model/core/utf8.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Prints the sentence behind its exit code, which it returns. */
static ExitCode print_sentence(ExitCode code, const char *fmt, va_list args)
{
    fflush(stdout);
    char text[4096];
    va_list again;
    va_copy(again, args);
    utf8_format(text, sizeof text, fmt, again);
    va_end(again);
    code = error_exit_code(text, code);
    log_prefixed(stderr, "error", (int)code, fmt, args);
    return code;
}

void fail(ExitCode code, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    code = print_sentence(code, fmt, args);
    va_end(args);
    exit((int)code);
}

int error_print(ExitCode code, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    code = print_sentence(code, fmt, args);
    va_end(args);
    return (int)code;
}

void check_failed(const char *file, int line, const char *condition, const char *fmt, ...)
{
    fflush(stdout);
    fprintf(stderr, "%s:%d: CHECK(%s) failed\n", file, line, condition);
    va_list args;
    va_start(args, fmt);
    log_prefixed(stderr, "bug", (int)EXIT_BUG, fmt, args);
    va_end(args);
    fflush(stderr);
    _Exit((int)EXIT_BUG);
}

bool error_set(char *err, size_t n, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    utf8_format(err, n, fmt, args);
    va_end(args);
    return 0;
}

bool error_says(const char *err, int error)
{
    const char *reason = strerror(error);
    for (const char *at = strstr(err, reason); at != NULL; at = strstr(at + 1, reason))
        if (at - err >= 2 && at[-2] == ':' && at[-1] == ' ') return true;
    return false;
}

ExitCode error_exit_code(const char *err, ExitCode code)
{
    return error_says(err, EACCES) || error_says(err, EPERM) ? EXIT_PERMISSION : code;
}

static void *require(void *p, size_t bytes)
{
    if (p == NULL && bytes > 0)
        fail(EXIT_NO_MEMORY, "the system refused %zu bytes of memory", bytes);
    return p;
}

void *must_alloc(size_t bytes)
{
    return require(malloc(bytes), bytes);
}

void *must_calloc(size_t count, size_t size)
{
    void *p = calloc(count, size);
    if (p == NULL && count > 0 && size > 0)
        fail(EXIT_NO_MEMORY, "the system refused %zu items of %zu bytes", count, size);
    return p;
}

void *must_realloc(void *old, size_t bytes)
{
    return require(realloc(old, bytes), bytes);
}

char *must_strdup(const char *text)
{
    size_t n = strlen(text) + 1;
    return memcpy(must_alloc(n), text, n);
}

char *text_format(const char *fmt, ...)
{
    va_list args, again;
    va_start(args, fmt);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    CHECK(n >= 0, "a format that cannot be printed: %s", fmt);
    char *text = must_alloc((size_t)n + 1);
    vsnprintf(text, (size_t)n + 1, fmt, again);
    va_end(again);
    return text;
}

FILE *text_stream(char **text, size_t *bytes)
{
    *text = NULL;
    *bytes = 0;
    FILE *to = open_memstream(text, bytes);
    CHECK(to != NULL, "no stream into memory: %s", strerror(errno));
    return to;
}

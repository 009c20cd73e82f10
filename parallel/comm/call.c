/* call.c -- compares two ranks' calls and describes them. */
#include "parallel/comm/call.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

bool comm_call_same(const CommCall *a, const CommCall *b)
{
    return strcmp(a->name, b->name) == 0 && a->count == b->count && a->dtype == b->dtype &&
           a->op == b->op && a->root == b->root && a->device == b->device &&
           (a->made == NULL || strcmp(a->made, b->made) == 0);
}

/* Appends to text[0..n). What does not fit is cut off. */
static void append(char *text, size_t n, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static void append(char *text, size_t n, const char *fmt, ...)
{
    size_t used = strlen(text);
    va_list args;
    va_start(args, fmt);
    vsnprintf(text + used, n - used, fmt, args);
    va_end(args);
}

const char *comm_call_text(const CommCall *call, char *text, size_t n)
{
    snprintf(text, n, "%s%s", call->name, call->op == REDUCE_MAX ? " (max)" : "");
    if (call->made) append(text, n, " into %s", call->made);
    if (call->count >= 0)
        append(text, n, " of %lld %s%s", (long long)call->count, dtype_name(call->dtype),
               call->device ? "" : " in host memory");
    if (call->root >= 0)
        append(text, n, " %s rank %d", strcmp(call->name, "send") == 0 ? "to" : "from", call->root);
    return text;
}

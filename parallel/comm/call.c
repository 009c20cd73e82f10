/* call.c -- compares two ranks' calls and describes them. */
#include "parallel/comm/call.h"

#include "model/core/check.h"

#include <stdio.h>
#include <string.h>

bool comm_call_same(const CommCall *a, const CommCall *b)
{
    return strcmp(a->name, b->name) == 0 && a->count == b->count && a->dtype == b->dtype &&
           a->op == b->op && a->root == b->root && a->device == b->device &&
           (a->made == NULL || strcmp(a->made, b->made) == 0);
}

const char *comm_call_text(const CommCall *call, char *text, size_t n)
{
    /* A stream, because some parts are optional; it cuts off what does not fit. */
    FILE *to = fmemopen(text, n, "w");
    CHECK(to != NULL, "no stream over %zu bytes", n);
    fputs(call->name, to);
    if (call->op == REDUCE_MAX) fputs(" (max)", to);
    if (call->made) fprintf(to, " into %s", call->made);
    if (call->count >= 0)
        fprintf(to, " of %lld %s%s", (long long)call->count, dtype_name(call->dtype),
                call->device ? "" : " in host memory");
    if (call->root >= 0)
        fprintf(to, " %s rank %d", strcmp(call->name, "send") == 0 ? "to" : "from", call->root);
    fclose(to);
    return text;
}

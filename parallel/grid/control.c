/* control.c -- exchanges small values and decisions between ranks. See control.h. */
#include "parallel/grid/control.h"

#include "model/core/log.h"
#include "parallel/grid/machines.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

int64_t control_max(Comm *world, int64_t value)
{
    comm_all_reduce(world, NULL, tensor_1d(&value, I64, 1), REDUCE_MAX);
    return value;
}

int64_t control_sum(Comm *world, int64_t value)
{
    comm_all_reduce(world, NULL, tensor_1d(&value, I64, 1), REDUCE_SUM);
    return value;
}

void control_share(Comm *world, void *data, size_t bytes)
{
    comm_broadcast(world, NULL, tensor_1d(data, U8, (int64_t)bytes), 0);
}

char *control_share_text(Comm *world, const char *text)
{
    bool lead = world->rank == 0;
    int64_t bytes = lead && text ? (int64_t)strlen(text) + 1 : 0;
    control_share(world, &bytes, sizeof bytes);
    if (bytes == 0) return NULL;
    char *shared = must_alloc((size_t)bytes);
    if (lead) memcpy(shared, text, (size_t)bytes);
    control_share(world, shared, (size_t)bytes);
    return shared;
}

bool control_agree(Comm *world, bool good, char *err, size_t n)
{
    /* The lowest rank that has failed has the largest of these values. */
    int64_t first = control_max(world, good ? 0 : world->size - world->rank);
    if (first == 0) return true;
    /* The buffer has a fixed size, because n may differ between ranks. */
    char sentence[4096] = "";
    int root = world->size - (int)first;
    if (world->rank == root) error_set(sentence, sizeof sentence, "%s", err);
    comm_broadcast(world, NULL, tensor_1d(sentence, U8, (int64_t)sizeof sentence), root);
    return error_set(err, n, "%s", sentence);
}

void control_fail(const Comm *world, ExitCode code, const char *fmt, ...)
{
    char text[4096];
    va_list args;
    /* Rank 0 prints the message and ends the program; the other ranks only wait for that. */
    if (world->rank != 0) ends_wait();
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    log_set_rank(0, NULL); /* an error that all ranks have found is printed without a rank */
    fail(code, "%s", text);
}

void control_require_alike(Comm *world, const char *what, const char *value, const char *advice)
{
    char err[2048] = "", place[300], place_0[300];
    char *first = control_share_text(world, value);
    bool alike = strcmp(value, first) == 0;
    if (!alike)
        error_set(err, sizeof err, "ranks differ: rank 0%s %s %s, rank %d%s %s %s; %s",
                  machines_place(world, 0, place_0, sizeof place_0), what, first, world->rank,
                  machines_place(world, world->rank, place, sizeof place), what, value, advice);
    free(first);
    if (!control_agree(world, alike, err, sizeof err)) control_fail(world, EXIT_CONFIG, "%s", err);
}

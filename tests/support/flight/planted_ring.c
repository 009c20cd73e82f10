/* planted_ring.c -- see planted_ring.h. */
#include "tests/support/flight/planted_ring.h"

#include "model/core/check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

PlantedRing planted_ring(int rank, int ranks)
{
    PlantedRing ring = {.rank = rank,
                        .ranks = ranks,
                        .dump = "0123456789abcdef",
                        .reason = "deadline",
                        .host = "n1",
                        .action = "backward",
                        .time = 1790000000,
                        .step = 12,
                        .micro_batch = 3};
    return ring;
}

/* The stream writes to the ring's own fields, so it is opened where the ring stays. */
static FILE *lines_of(PlantedRing *ring)
{
    if (ring->lines == NULL) ring->lines = text_stream(&ring->text, &ring->size);
    return ring->lines;
}

void planted_group(PlantedRing *ring, int group, const char *name, int first, int stride, int size)
{
    fprintf(lines_of(ring), "{\"group\":%d,\"name\":\"%s\",\"ranks\":[[%d,%d,%d]]}\n", group, name,
            first, stride, size);
}

static void put(PlantedRing *ring, const char *kind, const char *name, const char *stream,
                const char *numbers, double begun, double ended)
{
    FILE *to = lines_of(ring);
    fprintf(to,
            "{\"n\":%" PRId64 ",\"kind\":\"%s\",\"name\":\"%s\",%s\"stream\":\"%s\",%s,"
            "\"step\":%" PRId64 ",\"micro_batch\":%" PRId64
            ",\"action\":\"%s\",\"unit\":-1,\"begun\":%.6f,\"ended\":",
            ++ring->n, kind, name, "\"dtype\":\"f32\",\"elements\":64,", stream, numbers,
            ring->step, ring->micro_batch, ring->action, -begun);
    if (isnan(ended))
        fputs("null}\n", to);
    else
        fprintf(to, "%.6f}\n", -ended);
    ring->entries++;
}

void planted_collective(PlantedRing *ring, const char *name, const char *stream, int group,
                        int64_t call, double begun, double ended)
{
    char numbers[96];
    snprintf(numbers, sizeof numbers, "\"group\":%d,\"call\":%" PRId64 ",\"peer\":-1", group, call);
    put(ring, "collective", name, stream, numbers, begun, ended);
}

void planted_message(PlantedRing *ring, bool send, const char *stream, int group, int peer,
                     int64_t call, double begun, double ended)
{
    char numbers[96];
    snprintf(numbers, sizeof numbers, "\"group\":%d,\"call\":%" PRId64 ",\"peer\":%d", group, call,
             peer);
    put(ring, "exchange", send ? "send" : "receive", stream, numbers, begun, ended);
}

void planted_entry(PlantedRing *ring, const char *kind, const char *name, const char *stream,
                   double begun, double ended)
{
    put(ring, kind, name, stream, "\"group\":-1,\"call\":-1,\"peer\":-1", begun, ended);
}

char *planted_text(PlantedRing *ring)
{
    fclose(lines_of(ring));
    char *text = text_format(
        "{\"format\":\"train.c flight\",\"version\":1,\"dump\":\"%s\",\"reason\":\"%s\","
        "\"rank\":%d,\"ranks\":%d,\"host\":\"%s\",\"pid\":%d,\"time\":%.6f,\"attempt\":1,"
        "\"pp\":0,\"dp\":%d,\"tp\":0,\"step\":%" PRId64 ",\"micro_batch\":%" PRId64
        ",\"action\":\"%s\",\"issued\":%" PRId64 ",\"entries\":%d}\n%s",
        ring->dump, ring->reason, ring->rank, ring->ranks, ring->host, 100 + ring->rank, ring->time,
        ring->rank, ring->step, ring->micro_batch, ring->action, ring->n, ring->entries,
        ring->text);
    free(ring->text);
    return text;
}

RingFile *planted_parse(PlantedRing *ring)
{
    char err[512], *text = planted_text(ring);
    RingFile *file = ring_parse(text, strlen(text), err, sizeof err);
    if (file == NULL) fail_msg("%s\n%s", err, text);
    free(text);
    return file;
}

/* fuzz_flight.c -- fuzz target: reads any bytes as files of flight recorders, each of which begins
 * with a header, and prints what they show. What is accepted must be possible. */
#include "tests/fuzz/fuzz_flight.h"

#include "model/core/check.h"
#include "parallel/flight/print.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_RINGS = 16, SMALL_WORLD = 64 };

static void check_entry(const RingFile *ring, const RingEntry *e)
{
    CHECK(e->n >= 1 && e->group >= -1 && e->group < ring->groups, "group %d", e->group);
    CHECK(e->stream >= 0 && e->stream < FLIGHT_STREAMS, "stream %d", e->stream);
    CHECK(memchr(e->name, 0, sizeof e->name) && memchr(e->dtype, 0, sizeof e->dtype), "endless");
}

static void check_ring(const RingFile *ring)
{
    CHECK(ring->rank >= 0 && ring->rank < ring->ranks && ring->ranks <= COMM_MAX_RANKS,
          "rank %d of %d", ring->rank, ring->ranks);
    CHECK(strlen(ring->dump) == sizeof ring->dump - 1, "dump %s", ring->dump);
    for (int g = 0; g < ring->groups; g++)
        for (int i = 0; i < ring->group[g].size; i++) {
            int rank = ring_member(&ring->group[g], i);
            CHECK(rank >= 0 && rank < ring->ranks, "rank %d of %d", rank, ring->ranks);
        }
    CHECK(ring->opens <= FLIGHT_STREAMS * (RING_FIRST + 1), "%d open entries", ring->opens);
    for (int i = 0; i < ring->opens; i++) {
        check_entry(ring, &ring->open[i]);
        CHECK(isnan(ring->open[i].ended), "an entry that has ended");
        CHECK(i == 0 || ring->open[i].n > ring->open[i - 1].n, "the order");
    }
    for (int i = 0; i < ring->places; i++)
        CHECK(ring->place[i].begun >= ring->place[i].ended, "an end without a begin");
}

static void check_chain(const Chain *c, int ranks)
{
    CHECK(c->lates <= ranks && c->first < ranks && c->other < ranks, "%d late", c->lates);
    for (int i = 0; i < c->lates; i++)
        CHECK(c->late[i] >= 0 && c->late[i] < ranks, "rank %d of %d", c->late[i], ranks);
    for (int w = 0; w < c->waits; w++) {
        CHECK(c->wait[w].ranks >= 1 && c->wait[w].ranks <= ranks, "%d wait", c->wait[w].ranks);
        CHECK(c->wait[w].whoms <= c->wait[w].late, "%d ranks of %d", c->wait[w].whoms,
              c->wait[w].late);
    }
}

/* Analyses the rings, which are freed. */
static void analyse(RingFile **ring, int n)
{
    FlightReading reading;
    char *text;
    size_t bytes;
    flight_reading_take(&reading, ring, n);
    check_chain(&reading.chain, reading.files.ranks);
    FILE *to = text_stream(&text, &bytes);
    flight_print(to, &reading);
    if (reading.files.ranks <= SMALL_WORLD) flight_print_json(to, &reading);
    fclose(to);
    free(text);
    flight_reading_close(&reading);
}

/* Returns the beginning of the next file: a line that begins like a header. */
static const char *next_file(const char *at, const char *end)
{
    static const char begin[] = "\n{\"format\"";
    const char *found = memmem(at, (size_t)(end - at), begin, sizeof begin - 1);
    return found ? found + 1 : end;
}

int fuzz_flight(const uint8_t *data, size_t size)
{
    char err[512];
    RingFile *ring[MOST_RINGS];
    int n = 0;
    const char *at = (const char *)data, *end = at + size;
    while (size > 0 && at < end && n < MOST_RINGS) {
        const char *next = next_file(at, end);
        ring[n] = ring_parse(at, (size_t)(next - at), err, sizeof err);
        if (ring[n]) check_ring(ring[n++]);
        at = next;
    }
    if (n > 0) analyse(ring, n);
    return 0;
}

/* libFuzzer's entry point. It is weak because the test program links all fuzz targets together. */
__attribute__((weak)) int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
__attribute__((weak)) int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_flight(data, size);
    return 0;
}

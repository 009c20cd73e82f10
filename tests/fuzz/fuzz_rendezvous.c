/* fuzz_rendezvous.c -- fuzz target: reads any bytes as a file of a meeting, and as the name of one.
 * What is accepted must print to the same bytes. */
#include "tests/fuzz/fuzz_meeting.h"

#include "model/core/check.h"
#include "parallel/meeting/rendezvous.h"

#include <stdlib.h>
#include <string.h>

int fuzz_rendezvous(const uint8_t *data, size_t size)
{
    Rendezvous r;
    char text[RENDEZVOUS_MOST_BYTES], name[RENDEZVOUS_NAME_BYTES];
    if (rendezvous_parse(&r, (const char *)data, size)) {
        rendezvous_text(&r, text);
        CHECK(strlen(text) == size && memcmp(text, data, size) == 0, "%s", text);
        CHECK(r.at.count >= 1 && r.at.count <= NETWORK_MOST_ADDRESSES, "%d", r.at.count);
    }
    char *copy = must_calloc(1, size + 1);
    memcpy(copy, data, size);
    rendezvous_name(copy, name);
    CHECK(strlen(name) < sizeof name - 1 && strchr(name, '/') == NULL && name[0] != '.', "%s",
          name);
    free(copy);
    return 0;
}

/* libFuzzer's entry point. It is weak because the test program links all fuzz targets together. */
__attribute__((weak)) int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
__attribute__((weak)) int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_rendezvous(data, size);
    return 0;
}

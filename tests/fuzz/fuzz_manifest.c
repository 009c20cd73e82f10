/* fuzz_manifest.c -- fuzz target: reads any bytes as a checkpoint's manifest.json. The checksum in
 * the last line is corrected first, so that the parser behind it is reached. An accepted manifest
 * must print and parse back to the same text. */
#include "tests/fuzz/fuzz_checkpoint.h"

#include "model/core/check.h"
#include "model/core/crc32c.h"
#include "parallel/checkpoint/manifest.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check_sound(const Manifest *m)
{
    char err[300];
    size_t n, n_again;
    Manifest again;
    char *text = manifest_print(m, &n);
    bool good = manifest_parse(&again, text, n, err, sizeof err);
    CHECK(good, "%s", err);
    char *text_again = manifest_print(&again, &n_again);
    CHECK(n == n_again && memcmp(text, text_again, n) == 0, "%zu and %zu bytes", n, n_again);
    free(text_again);
    free(text);
    manifest_free(&again);
}

int fuzz_manifest(const uint8_t *data, size_t n)
{
    static const char tail[] = "\"manifest_crc32c\": \"";
    char err[300], last[40];
    Manifest m;
    size_t body = n; /* length up to the last line, if there is one */
    for (size_t i = n; i-- > 0 && body == n;)
        if (n - i >= sizeof tail - 1 && memcmp(data + i, tail, sizeof tail - 1) == 0) body = i;
    int last_bytes = snprintf(last, sizeof last, "%s%08x\"\n}\n", tail, crc32c(0, data, body));
    char *text = must_alloc(body + (size_t)last_bytes);
    if (body) memcpy(text, data, body);
    memcpy(text + body, last, (size_t)last_bytes);
    bool accepted = manifest_parse(&m, text, body + (size_t)last_bytes, err, sizeof err);
    if (accepted) {
        check_sound(&m);
        manifest_free(&m);
    }
    if (manifest_parse(&m, (const char *)data, n, err, sizeof err)) manifest_free(&m);
    free(text);
    return accepted;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
__attribute__((weak)) int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    fuzz_manifest(data, n);
    return 0;
}

/* fuzz_safetensors.c -- fuzz target: reads any bytes as the JSON of a safetensors header. The
 * header's length field is set correctly first, so that the fuzzer does not spend its time on that
 * check. */
#include "tests/fuzz/fuzz_checkpoint.h"

#include "model/core/check.h"
#include "model/weights/safetensors.h"

#include <stdlib.h>
#include <string.h>

/* Checks what the reader promises of a header that it accepts. */
static void check_sound(const Safetensors *s)
{
    int64_t at = 0;
    for (int i = 0; i < s->n; i++) {
        const SafetensorsEntry *e = &s->entry[i];
        int64_t bytes;
        CHECK(safetensors_name_valid(e->name), "entry %d", i);
        CHECK(safetensors_size(e->dtype, e->ndim, e->dim, &bytes) && bytes == e->bytes, "entry %d",
              i);
        CHECK(e->offset == at && e->ndim <= 4, "entry %d at %lld", i, (long long)e->offset);
        at += e->bytes;
    }
    CHECK(at == s->data_bytes, "%lld of %lld", (long long)at, (long long)s->data_bytes);
}

int fuzz_safetensors(const uint8_t *data, size_t n)
{
    static const int64_t data_bytes[] = {0, 24, 1024, INT64_MAX / 2};
    char err[300];
    Safetensors s;
    uint8_t *file = must_alloc(n + 8);
    int accepted = 0;
    if (n) memcpy(file + 8, data, n);
    for (size_t i = 0, length = n; i < 8; i++, length >>= 8)
        file[i] = (uint8_t)length;
    for (size_t i = 0; i < sizeof data_bytes / sizeof *data_bytes; i++) {
        if (!safetensors_parse(&s, file, n + 8, (int64_t)n + 8 + data_bytes[i], err, sizeof err))
            continue;
        check_sound(&s);
        safetensors_free(&s);
        accepted = 1;
    }
    if (safetensors_parse(&s, data, n, (int64_t)n, err, sizeof err)) safetensors_free(&s);
    free(file);
    return accepted;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
__attribute__((weak)) int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    fuzz_safetensors(data, n);
    return 0;
}

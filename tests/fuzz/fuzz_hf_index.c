/* fuzz_hf_index.c -- fuzz target: reads any bytes as a model.safetensors.index.json. */
#include "tests/fuzz/fuzz_checkpoint.h"

#include "model/core/check.h"
#include "model/weights/hf_index.h"
#include "model/weights/safetensors.h"

#include <string.h>

int fuzz_hf_index(const uint8_t *data, size_t n)
{
    char err[300];
    HfIndex index;
    if (!hf_index_parse(&index, (const char *)data, n, err, sizeof err)) return 0;
    CHECK(index.n > 0, "no tensor");
    for (int i = 0; i < index.n; i++) {
        const HfIndexEntry *e = &index.entry[i];
        CHECK(safetensors_name_valid(e->tensor), "entry %d", i);
        CHECK(e->file >= 0 && e->file < index.files.count, "entry %d: file %d", i, e->file);
        CHECK(i == 0 || strcmp(index.entry[i - 1].tensor, e->tensor) < 0, "%s twice", e->tensor);
    }
    for (int f = 0; f < index.files.count; f++)
        CHECK(strchr(index.files.item[f], '/') == NULL && index.files.item[f][0] != '.', "%s",
              index.files.item[f]);
    hf_index_free(&index);
    return 1;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
__attribute__((weak)) int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    fuzz_hf_index(data, n);
    return 0;
}

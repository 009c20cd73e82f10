/* golden.c -- implements golden.h: reads the reference values that PyTorch computed. */
#include "tests/support/model/golden.h"

#include "model/core/check.h"
#include "model/weights/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct Golden {
    Safetensors header;
    double **values; /* one array per entry */
};

/* Returns the whole file; the caller frees. */
static char *read_file(const char *path, size_t *bytes)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        fail(EXIT_MISSING, "%s cannot be opened; tests run from the repository's root", path);
    fseek(file, 0, SEEK_END);
    long size = ftell(file);
    rewind(file);
    if (size < 0) fail(EXIT_INPUT_OUTPUT, "%s has no size", path);
    char *text = must_alloc((size_t)size + 1);
    *bytes = fread(text, 1, (size_t)size, file);
    fclose(file);
    return text;
}

Golden *golden_open(const char *name)
{
    char err[512], *path = text_format("tests/golden/%s.safetensors", name);
    size_t bytes;
    char *text = read_file(path, &bytes);
    uint64_t header = 0;
    if (bytes >= 8) memcpy(&header, text, 8);
    Golden *golden = must_calloc(1, sizeof *golden);
    size_t front = bytes < 8 || header > bytes - 8 ? bytes : 8 + (size_t)header;
    if (!safetensors_parse(&golden->header, text, front, (int64_t)bytes, err, sizeof err)) {
        fail(EXIT_DAMAGED, "%s: %s", path, err);
    }
    golden->values = must_calloc((size_t)golden->header.n, sizeof *golden->values);
    for (int i = 0; i < golden->header.n; i++) {
        const SafetensorsEntry *entry = &golden->header.entry[i];
        const char *data = text + golden->header.data_at + entry->offset;
        int64_t count = entry->bytes / (int64_t)dtype_size(entry->dtype);
        golden->values[i] = must_alloc((size_t)count * sizeof(double));
        for (int64_t k = 0; k < count; k++)
            golden->values[i][k] = dtype_get(entry->dtype, data, k);
    }
    free(text);
    free(path);
    return golden;
}

void golden_close(Golden *golden)
{
    for (int i = 0; i < golden->header.n; i++)
        free(golden->values[i]);
    free(golden->values);
    safetensors_free(&golden->header);
    free(golden);
}

/* Returns the entry called `name`, or NULL. */
static const SafetensorsEntry *find_entry(const Golden *golden, const char *name)
{
    for (int i = 0; i < golden->header.n; i++)
        if (strcmp(golden->header.entry[i].name, name) == 0) return &golden->header.entry[i];
    return NULL;
}

Tensor golden_tensor(const Golden *golden, const char *name)
{
    const SafetensorsEntry *entry = find_entry(golden, name);
    CHECK(entry != NULL, "no golden tensor %s", name);
    double *values = golden->values[entry - golden->header.entry];
    const int64_t *dim = entry->dim;
    switch (entry->ndim) {
    case 1: return tensor_1d(values, F64, dim[0]);
    case 2: return tensor_2d(values, F64, dim[0], dim[1]);
    case 3: return tensor_3d(values, F64, dim[0], dim[1], dim[2]);
    }
    CHECK(false, "golden tensor %s has %d dimensions", name, entry->ndim);
    return NO_TENSOR;
}

const Config *golden_config(const Golden *golden, bool f64)
{
    ConfigReport report = {0};
    const char *text = safetensors_metadata(&golden->header, "config"),
               *sets[] = {"data.text=unused.txt", "fp64.enabled=false"};
    const Config *c = config_parse(NULL, "golden", text, strlen(text), f64 ? 1 : 2, sets, &report);
    if (c == NULL) {
        config_report_print(&report, true, stderr);
        fail(EXIT_CONFIG, "the golden config is not accepted");
    }
    config_report_free(&report);
    return c;
}

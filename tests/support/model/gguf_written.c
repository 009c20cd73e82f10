/* gguf_written.c -- writes GGUF files for tests. See gguf_written.h. */
#include "tests/support/model/gguf_written.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

void gguf_must_write(const char *path, const GgufModel *model, WeightSource *source)
{
    char err[1024];
    int64_t bytes, overflows = -1;
    if (!gguf_fits(model, err, sizeof err)) fail_msg("%s", err);
    if (!gguf_write(&fs_system, path, model, source, NULL, &bytes, &overflows, err, sizeof err))
        fail_msg("%s", err);
    assert_int_equal(overflows, 0);
}

Tokenizer *small_tokenizer(void)
{
    char err[256];
    Tokenizer *t;
    /* GPT-2 numbers '!' 0, so 't' is 83, 'h' 71 and 'e' 68 */
    Merge merges[] = {{83, 71}, {256, 68}};
    if (!tokenizer_from_merges(merges, 2, &t, err, sizeof err)) fail_msg("%s", err);
    return t;
}

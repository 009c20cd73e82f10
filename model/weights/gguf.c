/* gguf.c -- writes a GGUF file: header, shapes of the tensors, data. See gguf.h. */
#include "model/core/check.h"
#include "model/weights/gguf_parts.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { VERSION = 3 };

/* Returns the number of a type in GGUF files. */
static uint32_t type_number(DType dtype)
{
    return dtype == F32 ? 0 : dtype == F16 ? 1 : 30;
}

static int64_t padded(int64_t bytes)
{
    return (bytes + GGUF_ALIGNMENT - 1) / GGUF_ALIGNMENT * GGUF_ALIGNMENT;
}

static int64_t tensor_bytes_of(const GgufTensor *t)
{
    return t->rows * (t->cols ? t->cols : 1) * (int64_t)dtype_size(t->dtype);
}

/* ---- what fits ------------------------------------------------------------------------------- */

/* Returns whether a GGUF file can represent the order of the merges. If merges join characters, the
 * file has a score for each token instead of merges (gguf_keys.c). The scores give the same order
 * if all merges that make the same token are adjacent. */
static bool merges_fit(const Tokenizer *t)
{
    bool space, fits = true;
    if (!tokenizer_joins_characters(t, &space)) return true;
    bool *made = must_calloc((size_t)tokenizer_vocab_size(t), sizeof *made);
    for (int64_t k = 0; fits && k < tokenizer_merge_count(t); k++) {
        int32_t id = tokenizer_merged(t, k);
        fits = !made[id] || id == tokenizer_merged(t, k - 1);
        made[id] = true;
    }
    free(made);
    return fits;
}

static bool tokenizer_fits(const GgufModel *model, char *err, size_t n)
{
    const Tokenizer *t = model->tokenizer;
    if (t == NULL) return true;
    if (!merges_fit(t))
        return error_set(err, n,
                         "the tokenizer's merges are in an order that GGUF files cannot tell: they "
                         "have one score for all merges that make the same token");
    if (tokenizer_vocab_size(t) <= model->model->vocab) return true;
    return error_set(err, n,
                     "the tokenizer has %" PRId32 " tokens, model.vocab_size is %lld: there would "
                     "be tokens without a row",
                     tokenizer_vocab_size(t), (long long)model->model->vocab);
}

bool gguf_fits(const GgufModel *model, char *err, size_t n)
{
    const Architecture *m = model->model;
    const char *name = architecture_name(m->kind);
    bool llama = m->kind == ARCHITECTURE_LLAMA, qwen = !llama && m->kind != ARCHITECTURE_GPT2;
    if (model->dtype != F32 && model->dtype != F16 && model->dtype != BF16)
        return error_set(err, n,
                         "the weights are %s, which programs for GGUF do not compute with: give "
                         "--dtype f32, f16 or bf16",
                         dtype_name(model->dtype));
    if (qwen && m->scaling.llama3)
        return error_set(err, n,
                         "model.rope_scaling.type is \"llama3\", which GGUF's architecture %s has "
                         "not: it would have to be \"none\"",
                         name);
    if (m->kind == ARCHITECTURE_QWEN3 && strcmp(m->attention_bias, "none") != 0)
        return error_set(
            err, n,
            "model.attention_bias is \"%s\"; with model.qk_norm GGUF's architecture is "
            "%s, where it would have to be \"none\"",
            m->attention_bias, name);
    if (m->kind == ARCHITECTURE_QWEN2 && m->heads * m->head_dim != m->hidden)
        return error_set(err, n,
                         "model.head_dim is %lld; in GGUF's architecture %s it would have to be "
                         "model.hidden_size / model.num_attention_heads",
                         (long long)m->head_dim, name);
    return tokenizer_fits(model, err, n);
}

/* ---- writing --------------------------------------------------------------------------------- */

/* Appends everything before the data; returns the size of the file. */
static int64_t put_header(GgufBytes *b, const GgufModel *model, const GgufTensors *tensors)
{
    GgufBytes keys = {0};
    int64_t at = 0;
    gguf_keys(&keys, model);
    for (const char *c = "GGUF"; *c; c++)
        gguf_put(b, (unsigned char)*c, 1);
    gguf_put(b, VERSION, 4);
    gguf_put(b, (uint64_t)tensors->count, 8);
    gguf_put(b, keys.keys, 8);
    for (size_t i = 0; i < keys.count; i++)
        gguf_put(b, keys.data[i], 1);
    gguf_bytes_free(&keys);
    for (int i = 0; i < tensors->count; i++) {
        const GgufTensor *t = &tensors->tensor[i];
        gguf_put_string(b, t->name);
        gguf_put(b, t->cols ? 2 : 1, 4);
        if (t->cols) gguf_put(b, (uint64_t)t->cols, 8); /* the innermost dimension comes first */
        gguf_put(b, (uint64_t)t->rows, 8);
        gguf_put(b, type_number(t->dtype), 4);
        gguf_put(b, (uint64_t)at, 8);
        at += padded(tensor_bytes_of(t));
    }
    while (b->count % GGUF_ALIGNMENT != 0)
        gguf_put(b, 0, 1);
    return (int64_t)b->count + at;
}

static bool write_tensor(WeightSink *sink, WeightSource *source, const GgufTensor *t, char *err,
                         size_t n)
{
    int64_t bytes = tensor_bytes_of(t);
    bool good = t->values == NULL || sink_write(sink, t->values, (size_t)bytes, err, n);
    for (int p = 0; good && p < t->n_parts; p++)
        good = sink_tensor(sink, source, t->part[p], t->dtype, t->head, err, n);
    return good && sink_zeros(sink, padded(bytes) - bytes, err, n);
}

bool gguf_write(const FsOps *fs, const char *path, const GgufModel *model, WeightSource *source,
                Progress *progress, int64_t *bytes, int64_t *overflows, char *err, size_t n)
{
    GgufTensors tensors;
    GgufBytes header = {0};
    WeightSink sink;
    CHECK(gguf_fits(model, err, n), "%s", err);
    bool good = gguf_tensors(&tensors, model, source, err, n);
    if (good) {
        int64_t total = put_header(&header, model, &tensors);
        good = sink_open(&sink, fs, path, total, err, n);
        if (good) {
            good = sink_write(&sink, header.data, header.count, err, n);
            for (int i = 0; good && i < tensors.count; i++) {
                progress_count(progress, sink.written, total, "exporting the weights");
                good = write_tensor(&sink, source, &tensors.tensor[i], err, n);
            }
            CHECK(!good || sink.written == total, "%s: %lld of %lld bytes", path,
                  (long long)sink.written, (long long)total);
            *bytes = sink.written;
            *overflows = sink.overflows;
            good = sink_close(&sink, good, err, n);
        }
    }
    gguf_bytes_free(&header);
    gguf_tensors_free(&tensors);
    return good;
}

/* llmc.c -- reads and writes the header of llm.c's model files, and computes where each tensor is
 * stored. See llmc.h. */
#include "model/weights/llmc.h"

#include "model/core/check.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- the header ------------------------------------------------------------------------------ */

/* Constants in llm.c's code, which are not in the file. */
#define LLMC_NORM_EPSILON 1e-5
enum { LLMC_MLP_FACTOR = 4 };

enum { MAGIC = 20240326, VERSION_F32 = 3, VERSION_BF16 = 5, HEADER_INTS = LLMC_HEADER_BYTES / 4 };

/* The numbers of the header from index 2 on. */
static const struct {
    const char *name;
    size_t offset;
    int64_t most;
} fields[] = {
    {"context", offsetof(LlmcHeader, context), 1 << 30},
    {"vocabulary", offsetof(LlmcHeader, vocab), 1 << 30},
    {"number of layers", offsetof(LlmcHeader, layers), 1 << 16},
    {"number of heads", offsetof(LlmcHeader, heads), 1 << 20},
    {"number of channels", offsetof(LlmcHeader, channels), 1 << 20},
    {"padded vocabulary", offsetof(LlmcHeader, padded_vocab), 1 << 30},
};
enum { FIRST_FIELD = 2, FIELDS = sizeof fields / sizeof *fields };

static int64_t *field_of(LlmcHeader *header, int i)
{
    return (int64_t *)((char *)header + fields[i].offset);
}

static int32_t int_at(const unsigned char *bytes, int i)
{
    const unsigned char *p = bytes + 4 * i;
    uint32_t value =
        (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
    int32_t out;
    memcpy(&out, &value, sizeof out);
    return out;
}

/* Sets `err` to an error about a file that is not a model. If the first number shows what the file
 * is, the error says so. Returns false. */
static bool other_magic(int32_t magic, char *err, size_t n)
{
    static const struct {
        int32_t magic;
        const char *what;
    } known[] = {
        {20240328, "tokenizer of llm.c; give the model, gpt2_124M.bin or model_00001000.bin"},
        {20240520, "token shard of llm.c; data.train takes it"},
        {20240801, "token shard of llm.c; data.train takes it"},
        {20240522, "evaluation file of llm.c; ./train eval --multiple-choice takes it"},
        {20240527, "optimizer state of llm.c; give the model_ file beside it"},
        {20240327, "debug state of llm.c; give the model, gpt2_124M.bin"},
        {20240803, "Llama of llm.c, whose file is not read; give its Hugging Face folder"},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].magic == magic) return error_set(err, n, "is a %s", known[i].what);
    return error_set(err, n, "does not begin with llm.c's magic number of models, %d", MAGIC);
}

static bool parse_version(LlmcHeader *out, int32_t version, char *err, size_t n)
{
    if (version != VERSION_F32 && version != VERSION_BF16)
        return error_set(err, n,
                         "has version %d; versions 3 (f32) and 5 (bf16) are read: write it again "
                         "with today's train_gpt2.py of llm.c",
                         version);
    out->dtype = version == VERSION_F32 ? F32 : BF16;
    return true;
}

/* Checks the numbers against each other. */
static bool check_numbers(const LlmcHeader *h, char *err, size_t n)
{
    if (h->channels % h->heads != 0)
        return error_set(err, n, "is damaged: %lld channels cannot be divided among %lld heads",
                         (long long)h->channels, (long long)h->heads);
    if (h->padded_vocab >= h->vocab) return true;
    return error_set(err, n,
                     "is damaged: its padded vocabulary, %lld, is smaller than that of %lld",
                     (long long)h->padded_vocab, (long long)h->vocab);
}

bool llmc_parse(LlmcHeader *out, const void *bytes, size_t n, int64_t file_bytes, char *err,
                size_t err_n)
{
    *out = (LlmcHeader){0};
    if (n < 4) return error_set(err, err_n, "has %zu bytes, too few for a model of llm.c", n);
    if (int_at(bytes, 0) != MAGIC) return other_magic(int_at(bytes, 0), err, err_n);
    if (n < LLMC_HEADER_BYTES)
        return error_set(err, err_n, "is damaged: it has %zu bytes, its header alone takes %d", n,
                         LLMC_HEADER_BYTES);
    if (!parse_version(out, int_at(bytes, 1), err, err_n)) return false;
    for (int i = 0; i < FIELDS; i++) {
        int64_t value = int_at(bytes, FIRST_FIELD + i);
        if (value < 1 || value > fields[i].most)
            return error_set(err, err_n, "is damaged: its %s is %lld, which must be from 1 to %lld",
                             fields[i].name, (long long)value, (long long)fields[i].most);
        *field_of(out, i) = value;
    }
    /* The other numbers must be zero: a program that uses them may mean another model. */
    for (int i = FIRST_FIELD + FIELDS; i < HEADER_INTS; i++)
        if (int_at(bytes, i) != 0)
            return error_set(err, err_n,
                             "has %d in number %d of its header, which llm.c leaves zero: it is "
                             "damaged, or from another program",
                             int_at(bytes, i), i);
    if (!check_numbers(out, err, err_n)) return false;
    int64_t expected = llmc_file_bytes(out);
    if (expected == file_bytes) return true;
    return error_set(err, err_n, "is damaged: it has %lld bytes, its header describes %lld",
                     (long long)file_bytes, (long long)expected);
}

void llmc_header_bytes(const LlmcHeader *header, unsigned char out[LLMC_HEADER_BYTES])
{
    LlmcHeader copy = *header;
    int32_t number[HEADER_INTS] = {MAGIC, header->dtype == F32 ? VERSION_F32 : VERSION_BF16};
    for (int i = 0; i < FIELDS; i++)
        number[FIRST_FIELD + i] = (int32_t)*field_of(&copy, i);
    for (int i = 0; i < LLMC_HEADER_BYTES; i++)
        out[i] = (unsigned char)((uint32_t)number[i / 4] >> 8 * (i % 4));
}

/* ---- the places ------------------------------------------------------------------------------ */

/* The kinds of tensors of a block in the order of the file: rows and columns, in units of channels;
 * a vector has no columns. Each kind is stored for all layers before the next one, except that the
 * three parts of q | k | v are together in each layer. */
static const struct {
    const char *name;
    int rows, cols;
    /* Number of our tensors, from this one on, that are one tensor in the file; 0: this one belongs
     * to the tensor of an entry above. */
    int parts;
} kinds[] = {
    {"attn.norm.weight", 1, 0, 1},
    {"attn.norm.bias", 1, 0, 1},
    {"attn.q.weight", 1, 1, 3},
    {"attn.k.weight", 1, 1, 0},
    {"attn.v.weight", 1, 1, 0},
    {"attn.q.bias", 1, 0, 3},
    {"attn.k.bias", 1, 0, 0},
    {"attn.v.bias", 1, 0, 0},
    {"attn.out.weight", 1, 1, 1},
    {"attn.out.bias", 1, 0, 1},
    {"mlp.norm.weight", 1, 0, 1},
    {"mlp.norm.bias", 1, 0, 1},
    {"mlp.up.weight", LLMC_MLP_FACTOR, 1, 1},
    {"mlp.up.bias", LLMC_MLP_FACTOR, 0, 1},
    {"mlp.down.weight", 1, LLMC_MLP_FACTOR, 1},
    {"mlp.down.bias", 1, 0, 1},
};
enum { KINDS = sizeof kinds / sizeof *kinds, OUTSIDE_BLOCKS = 4 };

/* Adds a * b * c to *sum. Returns false on overflow. */
static bool add_product(int64_t *sum, int64_t a, int64_t b, int64_t c)
{
    int64_t product;
    return !__builtin_mul_overflow(a, b, &product) &&
           !__builtin_mul_overflow(product, c, &product) &&
           !__builtin_add_overflow(*sum, product, sum);
}

int64_t llmc_file_bytes(const LlmcHeader *h)
{
    int64_t C = h->channels, elements = 0, bytes = LLMC_HEADER_BYTES;
    bool fits = add_product(&elements, h->padded_vocab, C, 1) &&
                add_product(&elements, h->context, C, 1) && add_product(&elements, 2, C, 1);
    for (int k = 0; fits && k < KINDS; k++) {
        int64_t of_kind = 0;
        fits = add_product(&of_kind, kinds[k].rows * C, kinds[k].cols ? kinds[k].cols * C : 1, 1) &&
               add_product(&elements, of_kind, h->layers, 1);
    }
    fits = fits && add_product(&bytes, elements, (int64_t)dtype_size(h->dtype), 1);
    return fits ? bytes : -1;
}

/* The list that llmc_places builds. */
typedef struct {
    LlmcPlace *place;
    int count;
    int64_t at; /* elements placed so far */
    DType dtype;
} Placing;

/* Places a tensor after the last one placed; a vector has no columns. */
static void place(Placing *p, const char *name, int64_t rows, int64_t cols, int64_t gap)
{
    LlmcPlace *out = &p->place[p->count++];
    *out = (LlmcPlace){.tensor = {.dtype = p->dtype, .ndim = cols ? 2 : 1, .dim = {rows, 1}},
                       .offset = p->at,
                       .gap = gap};
    if (cols) out->tensor.dim[1] = cols;
    snprintf(out->tensor.name, sizeof out->tensor.name, "%s", name);
    p->at += rows * out->tensor.dim[1] + gap;
}

LlmcPlace *llmc_places(const LlmcHeader *h, int *count)
{
    int64_t C = h->channels;
    int total = OUTSIDE_BLOCKS + (int)h->layers * KINDS;
    Placing p = {.place = must_calloc((size_t)total, sizeof *p.place), .dtype = h->dtype};
    place(&p, "token.weight", h->vocab, C, (h->padded_vocab - h->vocab) * C);
    place(&p, "position.weight", h->context, C, 0);
    for (int k = 0; k < KINDS; k += kinds[k].parts)
        for (int layer = 0; layer < (int)h->layers; layer++)
            for (int part = k; part < k + kinds[k].parts; part++) {
                char name[64];
                snprintf(name, sizeof name, "block.%d.%s", layer, kinds[part].name);
                place(&p, name, kinds[part].rows * C, kinds[part].cols * C, 0);
            }
    place(&p, "final_norm.weight", C, 0, 0);
    place(&p, "final_norm.bias", C, 0, 0);
    CHECK(p.count == total, "%d of %d places", p.count, total);
    *count = total;
    return p.place;
}

/* ---- the model ------------------------------------------------------------------------------- */

void llmc_architecture(const LlmcHeader *h, Architecture *out)
{
    *out = (Architecture){.kind = ARCHITECTURE_GPT2,
                          .layers = h->layers,
                          .hidden = h->channels,
                          .heads = h->heads,
                          .kv_heads = h->heads,
                          .head_dim = h->channels / h->heads,
                          .mlp = LLMC_MLP_FACTOR * h->channels,
                          .vocab = h->vocab,
                          .positions = h->context,
                          .attention_bias = "all",
                          .mlp_bias = true,
                          .tied = true,
                          .norm_epsilon = LLMC_NORM_EPSILON,
                          .initializer_range = 0.02};
}

/* Unless `fits`, appends a sentence to the message `err`. Returns `fits`. */
static bool demand(bool fits, char *err, size_t n, const char *fmt, ...)
{
    va_list arguments;
    size_t used = strlen(err);
    if (fits) return true;
    va_start(arguments, fmt);
    if (used > 0 && used + 2 < n) used += (size_t)snprintf(err + used, n - used, "; ");
    if (used < n) vsnprintf(err + used, n - used, fmt, arguments);
    va_end(arguments);
    return false;
}

bool llmc_header_of(const Architecture *m, DType dtype, LlmcHeader *out, char *err, size_t n)
{
    err[0] = '\0';
    if (m->kind != ARCHITECTURE_GPT2)
        return error_set(err, n,
                         "model.norm, model.position and model.activation are those of %s; llm.c "
                         "has GPT-2's alone: \"layernorm\", \"learned\", \"gelu\"",
                         architecture_name(m->kind));
    int64_t mlp = LLMC_MLP_FACTOR * m->hidden;
    /* All conditions are checked, so that all errors are reported at once. */
    bool good = demand(m->mlp == mlp, err, n,
                       "model.intermediate_size is %lld; in llm.c it is four times "
                       "model.hidden_size, here %lld",
                       (long long)m->mlp, (long long)mlp);
    good &=
        demand(m->tied, err, n, "model.tie_word_embeddings is false; llm.c has one table for both");
    good &= demand(m->kv_heads == m->heads, err, n,
                   "model.num_key_value_heads is %lld; in llm.c it is model.num_attention_heads, "
                   "here %lld",
                   (long long)m->kv_heads, (long long)m->heads);
    good &= demand(m->head_dim * m->heads == m->hidden, err, n,
                   "model.head_dim is %lld; in llm.c it is model.hidden_size / "
                   "model.num_attention_heads, here %lld",
                   (long long)m->head_dim, (long long)(m->hidden / m->heads));
    good &= demand(m->norm_epsilon == LLMC_NORM_EPSILON, err, n,
                   "model.norm_epsilon is %g; llm.c computes with %g", m->norm_epsilon,
                   LLMC_NORM_EPSILON);
    good &= demand(dtype == F32 || dtype == BF16, err, n,
                   "the weights are %s; llm.c has f32 and bf16: give --dtype f32 or --dtype bf16",
                   dtype_name(dtype));
    int64_t padded = (m->vocab + LLMC_VOCAB_MULTIPLE - 1) / LLMC_VOCAB_MULTIPLE;
    *out = (LlmcHeader){.dtype = dtype,
                        .context = m->positions,
                        .vocab = m->vocab,
                        .layers = m->layers,
                        .heads = m->heads,
                        .channels = m->hidden,
                        .padded_vocab = padded * LLMC_VOCAB_MULTIPLE};
    return good;
}

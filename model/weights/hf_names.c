/* hf_names.c -- implements hf_names.h with one table, which is searched in both directions. */
#include "model/weights/hf_names.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One row for each kind of tensor. Names are without the ending ".weight" or ".bias", and in a
 * block also without "block.7.", "transformer.h.7." or "model.layers.7.". `gpt2` and `llama` are
 * the names in files of GPT-2 and of Llama-like models; NULL: these models have no such tensor. */
typedef struct {
    const char *ours;
    bool of_block;
    const char *gpt2;
    int part;        /* which third of a tensor it is in GPT-2's files; -1: a whole tensor */
    bool transposed; /* stored transposed in GPT-2's files */
    const char *llama;
} Row;

static const Row rows[] = {
    {"token", false, "wte", -1, false, "embed_tokens"},
    {"position", false, "wpe", -1, false, NULL},
    {"attn.norm", true, "ln_1", -1, false, "input_layernorm"},
    {"attn.q", true, "attn.c_attn", 0, true, "self_attn.q_proj"},
    {"attn.k", true, "attn.c_attn", 1, true, "self_attn.k_proj"},
    {"attn.v", true, "attn.c_attn", 2, true, "self_attn.v_proj"},
    {"attn.q_norm", true, NULL, -1, false, "self_attn.q_norm"},
    {"attn.k_norm", true, NULL, -1, false, "self_attn.k_norm"},
    {"attn.out", true, "attn.c_proj", -1, true, "self_attn.o_proj"},
    {"mlp.norm", true, "ln_2", -1, false, "post_attention_layernorm"},
    {"mlp.gate", true, NULL, -1, false, "mlp.gate_proj"},
    {"mlp.up", true, "mlp.c_fc", -1, true, "mlp.up_proj"},
    {"mlp.down", true, "mlp.c_proj", -1, true, "mlp.down_proj"},
    {"final_norm", false, "ln_f", -1, false, "norm"},
    {"head", false, "lm_head", -1, false, "lm_head"},
};
enum { N_ROWS = sizeof rows / sizeof *rows };

/* The parts of a name: "block.7.attn.q.weight" is block 7, stem "attn.q", ending ".weight". */
typedef struct {
    int64_t block; /* -1: not of a block */
    char stem[64];
    const char *ending;
} Parts;

/* Removes "PREFIX7." from the start of the name and returns 7; returns -1 if the name does not
 * begin in this way. */
static int64_t take_block(const char **name, const char *prefix)
{
    size_t n = strlen(prefix);
    const char *digits = *name + n;
    if (strncmp(*name, prefix, n) != 0) return -1;
    size_t length = strspn(digits, "0123456789");
    /* Refuses leading zeros ("07" is not "7") and numbers of more than six digits (no model has a
     * million blocks). */
    if (length == 0 || length > 6 || (length > 1 && *digits == '0') || digits[length] != '.')
        return -1;
    *name = digits + length + 1;
    return strtoll(digits, NULL, 10);
}

static bool split(const char *name, const char *block_prefix, Parts *out)
{
    static const char *const endings[] = {".weight", ".bias"};
    out->block = take_block(&name, block_prefix);
    for (int i = 0; i < 2; i++) {
        size_t n = strlen(name), e = strlen(endings[i]);
        if (n <= e || n - e >= sizeof out->stem || strcmp(name + n - e, endings[i]) != 0) continue;
        memcpy(out->stem, name, n - e);
        out->stem[n - e] = '\0';
        out->ending = endings[i];
        return true;
    }
    return false;
}

static bool is_gpt2(ArchitectureKind kind)
{
    return kind == ARCHITECTURE_GPT2;
}

static const char *theirs_of(ArchitectureKind kind, const Row *row)
{
    return is_gpt2(kind) ? row->gpt2 : row->llama;
}

static bool is_transposed(ArchitectureKind kind, const Row *row, const char *ending)
{
    return is_gpt2(kind) && row->transposed && strcmp(ending, ".weight") == 0;
}

bool hf_name_of(ArchitectureKind kind, const char *ours, HfPlace *out)
{
    Parts p;
    if (!split(ours, "block.", &p)) return false;
    for (int i = 0; i < N_ROWS; i++) {
        const char *theirs = theirs_of(kind, &rows[i]);
        if (theirs == NULL || rows[i].of_block != (p.block >= 0) ||
            strcmp(rows[i].ours, p.stem) != 0)
            continue;
        /* lm_head gets no prefix: in transformers, it is not part of the inner model ("transformer"
         * or "model") that the prefix names. */
        const char *prefix = strcmp(theirs, "lm_head") == 0 ? ""
                             : is_gpt2(kind)                ? "transformer."
                                                            : "model.";
        char block[32] = "";
        if (p.block >= 0)
            snprintf(block, sizeof block, "%s%" PRId64 ".", is_gpt2(kind) ? "h." : "layers.",
                     p.block);
        snprintf(out->name, sizeof out->name, "%s%s%s%s", prefix, block, theirs, p.ending);
        out->part = is_gpt2(kind) ? rows[i].part : -1;
        out->transposed = is_transposed(kind, &rows[i], p.ending);
        return true;
    }
    return false;
}

/* Returns the name without the prefix that some files add. */
static const char *bare(ArchitectureKind kind, const char *theirs)
{
    const char *prefix = is_gpt2(kind) ? "transformer." : "model.";
    size_t n = strlen(prefix);
    return strncmp(theirs, prefix, n) == 0 ? theirs + n : theirs;
}

int hf_names_in(ArchitectureKind kind, const char *theirs, HfPart out[HF_MOST_PARTS])
{
    Parts p;
    int n = 0;
    if (!split(bare(kind, theirs), is_gpt2(kind) ? "h." : "layers.", &p)) return 0;
    for (int i = 0; i < N_ROWS; i++) {
        const char *name = theirs_of(kind, &rows[i]);
        if (name == NULL || rows[i].of_block != (p.block >= 0) || strcmp(name, p.stem) != 0)
            continue;
        HfPart *part = &out[n++];
        if (p.block >= 0)
            snprintf(part->name, sizeof part->name, "block.%" PRId64 ".%s%s", p.block, rows[i].ours,
                     p.ending);
        else
            snprintf(part->name, sizeof part->name, "%s%s", rows[i].ours, p.ending);
        part->part = is_gpt2(kind) ? rows[i].part : -1;
        part->transposed = is_transposed(kind, &rows[i], p.ending);
    }
    return n;
}

bool hf_name_is_buffer(ArchitectureKind kind, const char *theirs)
{
    static const char *const buffers[2][2] = {
        {"attn.bias", "attn.masked_bias"},
        {"self_attn.rotary_emb.inv_freq", "rotary_emb.inv_freq"}};
    const char *rest = bare(kind, theirs);
    int64_t block = take_block(&rest, is_gpt2(kind) ? "h." : "layers.");
    for (int i = 0; i < 2; i++)
        if ((block >= 0 || !is_gpt2(kind)) && strcmp(rest, buffers[!is_gpt2(kind)][i]) == 0)
            return true;
    return false;
}

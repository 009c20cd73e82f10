/* hf_names.h -- the names of weights in Hugging Face's files, and this program's names for them. */
#ifndef MODEL_WEIGHTS_HF_NAMES_H
#define MODEL_WEIGHTS_HF_NAMES_H

#include "model/weights/architecture.h"
#include "model/weights/source.h"

enum { HF_NAME = 80, HF_MOST_PARTS = 3 };

/* Where and how one of our tensors is stored in Hugging Face's files. */
typedef struct {
    char name[HF_NAME]; /* such as "transformer.h.7.attn.c_attn.weight" */
    /* For q, k and v of GPT-2, which are stored side by side in one tensor: which third of it this
     * tensor is (0, 1 or 2). -1: it is a whole tensor. */
    int part;
    /* A matrix of GPT-2's blocks, which is stored as (in, out); ours is (out, in). */
    bool transposed;
} HfPlace;

/* Finds where our tensor `ours` is stored in files of this architecture. Returns false if such
 * models have no tensor of this name. */
bool hf_name_of(ArchitectureKind kind, const char *ours, HfPlace *out);

/* One of our tensors that is stored in a tensor of Hugging Face's; `part` and `transposed` as in
 * HfPlace. */
typedef struct {
    char name[sizeof((SourceTensor *)0)->name];
    int part;
    bool transposed;
} HfPart;

/* Finds which of our tensors are stored in the tensor `theirs` of a file of this architecture; the
 * name may lack the prefix "transformer." or "model.". Writes them to `out` and returns their
 * number: 0 if such models have no tensor of this name, 3 for joint q, k and v. */
int hf_names_in(ArchitectureKind kind, const char *theirs, HfPart out[HF_MOST_PARTS]);

/* Returns whether a file's tensor is not a weight, but a causal mask or RoPE's frequencies, which
 * old versions of transformers saved. */
bool hf_name_is_buffer(ArchitectureKind kind, const char *theirs);

#endif

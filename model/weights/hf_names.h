/* hf_names.h -- the names of weights in Hugging Face's files, and this program's names for them. */
#ifndef MODEL_WEIGHTS_HF_NAMES_H
#define MODEL_WEIGHTS_HF_NAMES_H

#include "model/weights/architecture.h"
#include "model/weights/source.h"

enum { HF_NAME = 80, HF_MOST_PARTS = 3 };

/* Where Hugging Face's files have one of our tensors. */
typedef struct {
    char name[HF_NAME]; /* "transformer.h.7.attn.c_attn.weight" */
    /* GPT-2's q, k and v are thirds of one tensor, side by side: number of this one's third;
     * -1: the tensor is whole. */
    int part;
    /* A matrix of GPT-2's blocks, which is stored as (in, out); ours is (out, in). */
    bool transposed;
} HfPlace;

/* Finds the place of our tensor `ours` in files of this architecture. Returns false if such a model
 * has no tensor of this name. */
bool hf_name_of(ArchitectureKind kind, const char *ours, HfPlace *out);

/* One of our tensors in a tensor of Hugging Face's. */
typedef struct {
    char name[sizeof((SourceTensor *)0)->name];
    int part;
    bool transposed;
} HfPart;

/* Finds our tensors in the tensor `theirs` of a file of this architecture, whose name may lack the
 * prefix "transformer." or "model.". Writes them to `out` and returns their number: 0 if such a
 * model has no tensor of this name, 3 for q, k and v in one. */
int hf_names_in(ArchitectureKind kind, const char *theirs, HfPart out[HF_MOST_PARTS]);

/* Returns whether a file's tensor is no weight: a causal mask or RoPE's frequencies, which old
 * versions of transformers have saved. */
bool hf_name_is_buffer(ArchitectureKind kind, const char *theirs);

#endif

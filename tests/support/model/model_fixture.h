/* model_fixture.h -- a whole small GPT with gradients and an optimizer, without data or files, for
 * tests. */
#ifndef TESTS_SUPPORT_MODEL_MODEL_FIXTURE_H
#define TESTS_SUPPORT_MODEL_MODEL_FIXTURE_H

#include "model/gpt.h"
#include "parallel/zero/zero.h"

typedef struct {
    Device dev;
    Grid grid;
    Region tp;
    ParamTable table;
    GptLayers layers;
    ZeroStore *store;
    size_t store_bytes; /* that the device holds for it */
    ParamStore *params;
    Gpt *gpt;
    StepStats stats; /* of the last run */
    double scale;    /* at the loss's source */
    int64_t B, T, micros;
    int32_t *tokens, *targets, *positions; /* (micros, B*T), host */
    struct FixtureFar *far;                /* device: stats and scale while a run goes on */
    GptBatch batch;                        /* device: one micro-batch */
    bool poison;                           /* activations and scratch, before every micro-batch */
} Fixture;

/* A tiny GPT-2-like shape in f64; tests change fields of it. */
GptShape fixture_shape(void);
/* The same size as Llama has it: GQA, RMSNorm, RoPE, SwiGLU, QK-norm, no biases, untied. */
GptShape fixture_llama_shape(void);
/* One kv head, a head size that is not C / H, ReLU squared, logits in chunks of 5 rows. */
GptShape fixture_mqa_shape(void);
/* GPT-2 of 124 million parameters, in f32: a shape to count with. */
GptShape fixture_gpt2_shape(void);
/* The tiny shape in its i-th combination, of FIXTURE_VARIANTS: with and without biases (and with
 * all kv heads, or shared ones), tied head and QK-norm; with each norm and positions of each kind;
 * with GELU and SwiGLU. */
enum { FIXTURE_VARIANTS = 64 };
GptShape fixture_variant(int i);
/* The shape in another dtype, with gradients in its compute dtype and smaller weights. */
GptShape fixture_with_dtype(GptShape shape, DType dtype);
/* Opens a device of `threads` threads: the one that the environment's TEST_DEVICE names ("cpu",
 * "cuda"), the CPU without it and for f64 (level CPU_LEVEL_AUTO: the best) and the model with
 * weights drawn so that nothing is degenerate (norm weights near 1, biases near 0); tokens and
 * targets are drawn. scale is 1 / (micros B T). */
void fixture_open(Fixture *f, const GptShape *shape, int64_t B, int64_t T, int64_t micros,
                  int threads, CpuLevel level);
/* The same on this backend. */
void fixture_open_on(Fixture *f, const char *backend, const GptShape *shape, int64_t B, int64_t T,
                     int64_t micros, int threads, CpuLevel level);
/* One rank of a grid of data- and tensor-parallel ranks, on fixture_open's device with one CPU
 * thread, with a store of these options; all ranks of the world call it. The shape is the whole
 * model's, its vocabulary padded for the ranks; zero->sequence_parallel cuts the rows of the
 * stream. Data-parallel rank r of n has micro-batches r, r + n, ... of those that a single rank
 * with n x micros would have, and scale is that rank's: gradients are a sum over all. */
void fixture_open_place(Fixture *f, Comm *world, GridPlace size, const ZeroOptions *zero,
                        const GptShape *shape, int64_t B, int64_t T, int64_t micros);
void fixture_close(Fixture *f);

/* Logical rows of parameter `param` where they lie: the weight, or the gradient of the last
 * fixture_backward. */
Tensor fixture_weight(Fixture *f, int param);
Tensor fixture_grad(Fixture *f, int param);
/* A dense copy in host memory, whose data the caller frees; and the way back. */
Tensor fixture_fetch(Fixture *f, Tensor t);
void fixture_store(Fixture *f, Tensor t, Tensor host);

/* Summed loss of all micro-batches times scale, forward only. */
double fixture_loss(Fixture *f);
/* The same with gradients: one step without update. */
double fixture_backward(Fixture *f);
/* A copy of all gradients of the last fixture_backward, one shard after the other; the caller
 * frees. */
unsigned char *fixture_gradients(Fixture *f, size_t *bytes);
/* Logits (B*T, Vp) of micro-batch `micro` into `logits`, host memory. */
void fixture_logits(Fixture *f, int64_t micro, Tensor logits);

#endif

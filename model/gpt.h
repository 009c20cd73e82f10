/* gpt.h -- the GPT: memory for a micro-batch, and its layers as a Stage.
 *
 * The model says when it needs weights and when it is done with gradients (ParamStore), and where a
 * tensor-parallel region begins and ends (Region). It knows neither ranks nor files. */
#ifndef MODEL_GPT_H
#define MODEL_GPT_H

#include "model/layers.h"

/* Floating-point operations of one token of training: 6 W + 6 L H D T, with W the weights of all
 * matrix products. The second term is attention, half of 12 L H D T: masked scores are not counted.
 * Nor is recompute, which is no progress. */
double gpt_flops_per_token(const GptShape *shape, int64_t T);
/* What of it one layer has: row 0 the embedding, 1 ... L the blocks, L + 1 the head. */
double gpt_layer_flops(const GptShape *shape, int64_t T, int row);

typedef enum { GPT_TRAIN, GPT_EVALUATE } GptMode;

/* Bytes of the slots (what forward leaves for backward), of scratch and of rotary angles, for the
 * memory plan; layers and slots as gpt_create takes them. */
typedef struct {
    size_t activations, scratch, angles;
} GptBytes;
GptBytes gpt_bytes(const GptLayers *layers, const int *slots, int64_t B, int64_t T, GptMode mode);

/* One micro-batch, i32 (N) each, on the device. */
typedef struct {
    Tensor tokens, targets, positions;
} GptBatch;
/* The batch of an action, called at each: of the place action->batch, which a forward or evaluation
 * of a stage's first chunk fills anew. */
typedef GptBatch (*GptFeed)(void *context, const Action *action);

typedef struct Gpt Gpt;

/* A stage's part of the model over micro-batches of B x T, its memory allocated; slots: sets of
 * activations of each of its chunks (NULL: one each). Borrows layers, store and tp. */
Gpt *gpt_create(Device *dev, const GptLayers *layers, ParamStore *store, const Region *tp,
                int64_t B, int64_t T, GptMode mode, const int *slots);
void gpt_destroy(Gpt *gpt);
/* Says where batches come from and where the loss goes: stats, StepStats on the device, nats and
 * targets +=; scale, (1) f64 on the device, the factor at the loss's source (NULL: no backward). */
void gpt_connect(Gpt *gpt, GptFeed feed, void *feed_context, StepStats *stats, double *scale);
/* Where an evaluation adds up its loss: other StepStats than the step's. */
void gpt_set_stats(Gpt *gpt, StepStats *stats);
/* This rank's part as a stage. */
Stage gpt_stage(Gpt *gpt);
/* The uses of units that the actions will make, in order (exchanges make none), into `uses` unless
 * it is NULL. Returns their number. */
int64_t gpt_uses(const GptLayers *layers, const Action *actions, int64_t n, Use *uses);

/* For tests: the memory of a model, as tensors of bytes on its device, and the work of a chunk on
 * one of its slots. */
typedef struct {
    LayerWork work;              /* without a batch */
    Tensor slots, slot, scratch; /* all slots; the one asked for */
    GptBytes used;               /* of gpt_bytes so far, by the layout and by the steps since */
} GptInside;
GptInside gpt_inside(const Gpt *gpt, int chunk, int slot);

/* A place for the table of rotary angles, (P, D) in the compute dtype; NO_TENSOR with learned
 * positions. */
Tensor rope_table_layout(const GptShape *shape, Arena *arena);
/* cosines | sines of position p and pair i at (p, i): angle p * theta^(-2i/D); (P, D) in the
 * compute dtype. */
void rope_table_fill(Device *dev, Tensor table, double theta);

#endif

/* gpt.h -- the GPT as a pipeline stage: memory for its micro-batches, and its layers as a Stage.
 *
 * The model announces when it needs weights and when gradients are complete (ParamStore), and where
 * a tensor-parallel region begins and ends (Region). It has no code for ranks or files. */
#ifndef MODEL_GPT_H
#define MODEL_GPT_H

#include "model/layers.h"

/* Returns the floating-point operations per token of training: 6 W + 6 L H D T, where W is the
 * number of weights in matrix products. The second term is attention: half of 12 L H D T, because
 * masked scores are not counted. Recomputation is not counted either. */
double gpt_flops_per_token(const GptShape *shape, int64_t T);
/* Returns one layer's part of that number: row 0 is the embedding, 1 to L are the blocks, L + 1 is
 * the head. */
double gpt_layer_flops(const GptShape *shape, int64_t T, int row);

typedef enum { GPT_TRAIN, GPT_EVALUATE } GptMode;

/* Bytes of all slots (activations kept for backward), of scratch and of the table of rotary
 * angles. */
typedef struct {
    size_t activations, scratch, angles;
} GptBytes;
/* Returns the bytes that gpt_create needs, for the memory plan. `layers` and `slots` as there. */
GptBytes gpt_bytes(const GptLayers *layers, const int *slots, int64_t B, int64_t T, GptMode mode);

/* One micro-batch on the device; tokens, targets and positions are (N) i32. */
typedef struct {
    Tensor tokens, targets, positions;
    /* (B, 2) f64: the loss in nats and the number of targets of each sequence are added (+=) here;
     * absent: the sums over all sequences are added to the stats of gpt_connect. */
    Tensor sequence_stats;
} GptBatch;
/* Returns the batch at index action->batch; called at each action. For a forward or an evaluation
 * of a stage's first chunk, it first loads a new micro-batch at that index. */
typedef GptBatch (*GptFeed)(void *context, const Action *action);

typedef struct Gpt Gpt;

/* Creates the model part of one stage, with memory for micro-batches of B x T tokens. `slots` is
 * the number of micro-batches whose activations are kept, per chunk (NULL: one each). Keeps
 * pointers to layers, store and tp. */
Gpt *gpt_create(Device *dev, const GptLayers *layers, ParamStore *store, const Region *tp,
                int64_t B, int64_t T, GptMode mode, const int *slots);
void gpt_destroy(Gpt *gpt);
/* Sets where batches come from and where the loss is added: the loss in nats and the number of
 * targets are added (+=) to `stats` on the device. `scale` is one f64 on the device, the factor by
 * which the loss is multiplied before backward (NULL: no backward). */
void gpt_connect(Gpt *gpt, GptFeed feed, void *feed_context, StepStats *stats, double *scale);
/* Sets other StepStats for the loss, for an evaluation. */
void gpt_set_stats(Gpt *gpt, StepStats *stats);
/* Returns the interface through which the pipeline runs this part of the model. */
Stage gpt_stage(Gpt *gpt);
/* Lists the uses of parameter units in these actions, in order, and writes the list to `uses`
 * unless that is NULL. Returns their number. An action of kind ACT_EXCHANGE uses no units. */
int64_t gpt_uses(const GptLayers *layers, const Action *actions, int64_t n, Use *uses);

/* For tests: the model's memory as byte tensors on the device, and the buffers that one chunk of
 * layers uses for one micro-batch. */
typedef struct {
    LayerWork work;              /* the data of the chunk's layers, without the batch */
    Tensor slots, slot, scratch; /* all slots; the requested slot; all of scratch */
    GptBytes used;               /* how much of gpt_bytes has been used so far */
} GptInside;
GptInside gpt_inside(const Gpt *gpt, int chunk, int slot);

/* Reserves memory for the table of rotary angles, (P, D) in the compute dtype. Returns NO_TENSOR
 * with learned positions. */
Tensor rope_table_layout(const GptShape *shape, Arena *arena);
/* Fills the table (P, D) in the compute dtype with cosines | sines: position p and pair i have the
 * angle p f, where the pair's frequency f is theta^(-2i/D), changed as shape->rope_scaling says. */
void rope_table_fill(Device *dev, Tensor table, const GptShape *shape);

#endif

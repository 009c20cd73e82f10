/* layers.h -- the model as a table of layers in their order, and the one walk over it: training,
 * evaluation, decoding and the uses of units that the store is given all follow the rows of this
 * table.
 */
#ifndef MODEL_LAYERS_H
#define MODEL_LAYERS_H

#include "model/block.h"
#include "model/embedding.h"
#include "model/head.h"
#include "model/param/stage.h"

typedef struct GptLayers GptLayers;
typedef struct Layer Layer;

/* What a walk over a chunk works on: inputs and parameters are borrowed through `pass` and
 * `layers`.
 */
typedef struct {
    const Pass *pass;
    const GptLayers *layers;
    int first; /* block of the chunk, or of none after its embedding: acts[0] and x[0] are its */
    Tensor *x; /* one for each block and one more: the residual stream before it, and at the end */
    BlockActs *acts; /* one for each block */
    HeadActs *head;
    ResidualGrad *grad; /* of the stream; NULL without backward */
    Tensor stats;       /* (2) f64: loss and targets are added */
    Tensor scale;       /* (1) f64: factor at the loss's source, for backward */
    Tensor logits;      /* (n, Vp): where layers_logits writes those of the last n rows */
} LayerWork;

/* Runs one layer between acquire and release of its units. accumulate: for each of them, whether
 * gradients are added or written; only backward looks. */
typedef void (*LayerRun)(const LayerWork *work, const Layer *layer, const bool *accumulate);

struct Layer {
    int unit[2], n_units; /* in the order in which they are acquired */
    int block;            /* which block; -1: none */
    LayerRun forward;     /* NULL: nothing to do before backward */
    LayerRun evaluate, backward, logits;
    bool backward_reads_weights;
};

/* Neighbouring layers: rows [first, end) of the table. */
typedef struct {
    int first, end;
} LayerRange;

struct GptLayers {
    GptShape whole;    /* of the model: FLOPs, names, logical dimensions */
    GptShape shape;    /* of this rank's part, which tensors and layouts follow; one tensor-parallel
                          rank has the whole */
    LayerRange *chunk; /* of this stage: chunk c of stage s is run c * stages + s of the model */
    int n_chunks;
    Embedding embedding;
    Block *block; /* L */
    Head head;
    Layer *row; /* all layers, first to last */
    int n_rows;
};

/* How a model is cut over a grid, and whose part is asked for. */
typedef struct {
    GridPlace size, at;
    bool sequence_parallel;
    int chunks;        /* runs of layers of a stage */
    const int *border; /* run r is layers [border[r], border[r + 1]); size.pp * chunks + 1 of them;
                          NULL: one run of all */
} LayersPart;
/* All of a model, on one rank. */
#define LAYERS_WHOLE ((LayersPart){.size = GRID_OF_ONE, .chunks = 1})

/* Fills `layers` and an empty table, laid out, with a rank's part of the model `whole`: the rows of
 * all layers, homes of units included, and the runs of this stage. Free with gpt_layers_free and
 * param_table_free. */
void gpt_layers_build(GptLayers *layers, ParamTable *table, const GptShape *whole,
                      const LayersPart *part);
void gpt_layers_free(GptLayers *layers);

/* The blocks of a chunk: indices [first, end), where there is none between those before and after
 * it. Whether it begins with the embedding, and ends with the head. */
LayerRange layers_blocks(const GptLayers *layers, int chunk);
static inline bool layers_begin(const GptLayers *layers, int chunk)
{
    return layers->chunk[chunk].first == 0;
}
static inline bool layers_end(const GptLayers *layers, int chunk)
{
    return layers->chunk[chunk].end == layers->n_rows;
}

/* Runs every layer of a chunk of this stage that takes part in an action of this kind: first to
 * last, or last to first backward. Acquires and releases their units. */
void layers_run(const LayerWork *work, ActionKind kind, int chunk);
/* The uses that layers_run makes of units, in order, into `uses` unless it is NULL. Returns their
 * number. */
int64_t layers_uses(const GptLayers *layers, ActionKind kind, int chunk, Use *uses);
/* Runs the layers of a chunk forward; with the head, logits (n, Vp) = those of the last n rows of
 * the stream. */
void layers_logits(const LayerWork *work, int chunk, Tensor logits);

#endif

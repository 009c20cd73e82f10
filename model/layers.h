/* layers.h -- the model as a table of layers in order. Training, evaluation and decoding walk this
 * table, and so does the code that lists for the parameter store which units a step uses (Use in
 * store.h). */
#ifndef MODEL_LAYERS_H
#define MODEL_LAYERS_H

#include "model/block.h"
#include "model/embedding.h"
#include "model/head.h"
#include "model/param/stage.h"

typedef struct GptLayers GptLayers;
typedef struct Layer Layer;

/* The data for one walk over a chunk of layers. `pass` and `layers` are borrowed. */
typedef struct {
    const Pass *pass;
    const GptLayers *layers;
    /* The chunk's first block: acts[0] and x[0] belong to it. */
    int first;
    /* The residual stream before each block, and one more after the last. */
    Tensor *x;
    BlockActs *acts; /* activations of each block */
    HeadActs *head;
    ResidualGrad *grad; /* gradient of the residual stream; NULL without backward */
    Tensor stats;       /* as in head_loss: loss and number of targets are added */
    Tensor scale;       /* (1) f64: multiplies the loss before backward */
    Tensor logits;      /* (n, Vp): output of layers_logits for the last n rows */
} LayerWork;

/* Runs one layer while its units are acquired. accumulate[i] is true if the gradients of its i-th
 * unit are added (+=), false if they are written (=); only backward reads it. */
typedef void (*LayerRun)(const LayerWork *work, const Layer *layer, const bool *accumulate);

struct Layer {
    int unit[2], n_units; /* in the order in which they are acquired */
    int block;            /* index of the block; -1: not a block */
    LayerRun forward;     /* NULL: nothing to do before backward */
    LayerRun evaluate, backward, logits;
    bool backward_reads_weights;
};

/* Adjacent layers: rows [first, end) of the table. */
typedef struct {
    int first, end;
} LayerRange;

struct GptLayers {
    GptShape whole; /* of the whole model: for FLOPs, names, logical dimensions */
    /* The shape of this rank's part of the model, used for tensors and layouts. With one
     * tensor-parallel rank it equals `whole`. */
    GptShape shape;
    /* This stage's chunks. The model is divided into runs of adjacent layers; chunk c of stage s is
     * run number c * stages + s. */
    LayerRange *chunk;
    int n_chunks;
    Embedding embedding;
    Block *block; /* L blocks */
    Head head;
    Layer *row; /* all layers, first to last */
    int n_rows;
};

/* How a model is distributed over a grid, and which rank's part is wanted. */
typedef struct {
    GridPlace size, at;
    bool sequence_parallel;
    int chunks; /* chunks (runs of adjacent layers) per stage */
    /* Run r has the layers [border[r], border[r + 1]); size.pp * chunks + 1 entries. NULL: a
     * single run with all layers. */
    const int *border;
} LayersPart;
/* The whole model on one rank. */
#define LAYERS_WHOLE ((LayersPart){.size = GRID_OF_ONE, .chunks = 1})

/* Builds one rank's part of the model `whole`: fills `layers` and the empty `table`, and lays the
 * table out. They describe all layers, the stages on which each unit is stored (Unit.home), and the
 * chunks of this stage. Free with gpt_layers_free and param_table_free. */
void gpt_layers_build(GptLayers *layers, ParamTable *table, const GptShape *whole,
                      const LayersPart *part);
void gpt_layers_free(GptLayers *layers);

/* Returns the blocks of a chunk as indices [first, end). If it has no block, both are the index of
 * the block that would come next. */
LayerRange layers_blocks(const GptLayers *layers, int chunk);
/* Returns whether the chunk has the embedding. */
static inline bool layers_begin(const GptLayers *layers, int chunk)
{
    return layers->chunk[chunk].first == 0;
}
/* Returns whether the chunk has the head. */
static inline bool layers_end(const GptLayers *layers, int chunk)
{
    return layers->chunk[chunk].end == layers->n_rows;
}

/* Runs all layers of a chunk that take part in an action of this kind: first to last, or last to
 * first for backward. Acquires and releases their units. */
void layers_run(const LayerWork *work, ActionKind kind, int chunk);
/* Lists the uses of units by layers_run, in order, and writes the list to `uses` unless that is
 * NULL. Returns their number. */
int64_t layers_uses(const GptLayers *layers, ActionKind kind, int chunk, Use *uses);
/* Runs the layers of a chunk forward. If the chunk has the head, writes logits (n, Vp) of the last
 * n rows of the stream. */
void layers_logits(const LayerWork *work, int chunk, Tensor logits);

#endif

/* layers.c -- implements layers.h. gpt_layers_build defines the order of the layers. */
#include "model/layers.h"

#include "model/core/check.h"

#include <stdlib.h>

static void run_embedding(const LayerWork *w, const Layer *layer, const bool *accumulate)
{
    (void)layer, (void)accumulate;
    embedding_forward(w->pass, &w->layers->embedding, w->x[0]);
}

/* Returns the residual stream before block l. */
static Tensor stream_at(const LayerWork *w, int64_t l)
{
    return w->x[l - w->first];
}

static void run_embedding_backward(const LayerWork *w, const Layer *layer, const bool *accumulate)
{
    (void)layer;
    embedding_backward(w->pass, &w->layers->embedding, w->grad->d, accumulate);
}

static void run_block(const LayerWork *w, const Layer *layer, const bool *accumulate)
{
    int l = layer->block;
    (void)accumulate;
    block_forward(w->pass, &w->layers->block[l], &w->acts[l - w->first], stream_at(w, l),
                  stream_at(w, l + 1));
}

static void run_block_backward(const LayerWork *w, const Layer *layer, const bool *accumulate)
{
    int l = layer->block;
    const Block *block = &w->layers->block[l];
    const BlockActs *acts = &w->acts[l - w->first];
    block_recompute(w->pass, block, &w->acts[l - w->first], stream_at(w, l));
    block_backward(w->pass, block, acts, stream_at(w, l), w->grad, accumulate[0]);
}

static void run_head(const LayerWork *w, const Layer *layer, const bool *accumulate)
{
    (void)layer, (void)accumulate;
    head_loss(w->pass, &w->layers->head, w->head, stream_at(w, w->layers->shape.L), w->stats,
              NO_TENSOR, NULL, NULL);
}

static void run_head_backward(const LayerWork *w, const Layer *layer, const bool *accumulate)
{
    (void)layer;
    head_loss(w->pass, &w->layers->head, w->head, stream_at(w, w->layers->shape.L), w->stats,
              w->scale, w->grad, accumulate);
}

static void run_head_logits(const LayerWork *w, const Layer *layer, const bool *accumulate)
{
    const GptShape *s = w->pass->shape;
    int64_t n = shape_stream_rows(s, tensor_rows(w->logits)),
            N = shape_stream_rows(s, pass_rows(w->pass));
    (void)layer, (void)accumulate;
    CHECK(s->row_parts == 1 || n == N, "logits of %lld rows of a part of %lld", (long long)n,
          (long long)N);
    head_logits(w->pass, &w->layers->head, w->head,
                tensor_slice_rows(stream_at(w, w->layers->shape.L), N - n, n), w->logits);
}

/* Each add_* function below appends one layer: it adds the layer's parameters to the parameter
 * table and the layer's row to the table of layers. The first new unit gets the number `unit`, and
 * the units after it get the next numbers. Each function returns the next free unit number. */

static int add_embedding(GptLayers *m, ParamTable *table, int unit)
{
    Embedding *e = &m->embedding;
    int next = embedding_add_params(e, table, &m->whole, unit);
    /* Computing a table's gradient does not read its weights, so backward does not acquire them.
     * Acquiring them would cost another gather at ZeRO stage 3. */
    m->row[m->n_rows++] = (Layer){.unit = {e->token_unit, e->position_unit},
                                  .n_units = e->position >= 0 ? 2 : 1,
                                  .block = -1,
                                  .forward = run_embedding,
                                  .evaluate = run_embedding,
                                  .logits = run_embedding,
                                  .backward = run_embedding_backward};
    return next;
}

static int add_block(GptLayers *m, ParamTable *table, int l, int unit)
{
    block_add_params(&m->block[l], table, &m->whole, l, unit);
    m->row[m->n_rows++] = (Layer){.unit = {unit},
                                  .n_units = 1,
                                  .block = l,
                                  .forward = run_block,
                                  .evaluate = run_block,
                                  .logits = run_block,
                                  .backward = run_block_backward,
                                  .backward_reads_weights = true};
    return unit + 1;
}

static int add_head(GptLayers *m, ParamTable *table, int unit)
{
    Head *h = &m->head;
    int next =
        head_add_params(h, table, &m->whole, unit, m->embedding.token_unit, m->embedding.token);
    /* The head runs forward and backward together, chunk by chunk, so it has no separate forward
     * function. */
    m->row[m->n_rows++] = (Layer){.unit = {h->norm_unit, h->table_unit},
                                  .n_units = 2,
                                  .block = -1,
                                  .evaluate = run_head,
                                  .logits = run_head_logits,
                                  .backward = run_head_backward,
                                  .backward_reads_weights = true};
    return next;
}

/* Records that a unit is stored on stage `stage`. A unit is stored where its layers run: a tied
 * token table on the first stage and also on the last, where the head uses it. */
static void add_home(Unit *unit, int stage)
{
    Home *home = &unit->home;
    if (home->n > 0 && home->stage[home->n - 1] == stage) return;
    CHECK(home->n < 2, "a unit of three stages");
    home->stage[home->n++] = stage;
}

/* Distributes the layers over the pipeline stages: sets the stages on which each unit is stored
 * (Unit.home), and the chunks of this stage. */
static void share_out(GptLayers *m, ParamTable *table, const LayersPart *part)
{
    int stages = part->size.pp;
    const int all[] = {0, m->n_rows}, *border = part->border ? part->border : all;
    CHECK(part->border || stages * part->chunks == 1, "no borders for %d chunks on %d stages",
          part->chunks, stages);
    CHECK(border[0] == 0 && border[stages * part->chunks] == m->n_rows,
          "runs of layers from %d to %d of %d", border[0], border[stages * part->chunks],
          m->n_rows);
    /* The model is cut into runs of adjacent layers, which are assigned to the stages in turn. So
     * the chunks of one stage are `stages` runs apart (interleaved 1F1B). */
    m->n_chunks = part->chunks;
    m->chunk = must_calloc((size_t)m->n_chunks, sizeof *m->chunk);
    for (int u = 0; u < table->n_units; u++)
        table->unit[u].home.n = 0;
    for (int run = 0; run < stages * part->chunks; run++) {
        int stage = run % stages;
        CHECK(border[run] < border[run + 1], "no layer in run %d", run);
        if (stage == part->at.pp)
            m->chunk[run / stages] = (LayerRange){border[run], border[run + 1]};
        for (int r = border[run]; r < border[run + 1]; r++)
            for (int u = 0; u < m->row[r].n_units; u++)
                add_home(&table->unit[m->row[r].unit[u]], stage);
    }
}

void gpt_layers_build(GptLayers *layers, ParamTable *table, const GptShape *whole,
                      const LayersPart *part)
{
    *layers = (GptLayers){.whole = *whole,
                          .shape = gpt_local_shape(whole, part->size.tp, part->sequence_parallel)};
    const GptShape *shape = &layers->shape;
    table->tp = part->size.tp;
    table->kv = (int)whole->G;
    layers->block = must_calloc((size_t)shape->L, sizeof *layers->block);
    layers->row = must_calloc((size_t)shape->L + 2, sizeof *layers->row);
    int unit = add_embedding(layers, table, 0);
    for (int l = 0; l < (int)shape->L; l++)
        unit = add_block(layers, table, l, unit);
    add_head(layers, table, unit);
    share_out(layers, table, part);
    param_table_layout(table);
}

void gpt_layers_free(GptLayers *layers)
{
    free(layers->block);
    free(layers->row);
    free(layers->chunk);
    *layers = (GptLayers){0};
}

/* Returns the i-th layer that an action of this kind visits in a chunk, and sets *run to the
 * function to call (NULL: none). */
static const Layer *row_met(const GptLayers *m, ActionKind kind, int chunk, int i, LayerRun *run)
{
    const LayerRange *rows = &m->chunk[chunk];
    const Layer *layer = &m->row[kind == ACT_BACKWARD ? rows->end - 1 - i : rows->first + i];
    *run = kind == ACT_FORWARD    ? layer->forward
           : kind == ACT_BACKWARD ? layer->backward
                                  : layer->evaluate;
    return layer;
}

static bool reads_weights(const Layer *layer, ActionKind kind)
{
    return kind != ACT_BACKWARD || layer->backward_reads_weights;
}

static void layer_acquire(ParamStore *store, const Layer *layer, ActionKind kind, bool *accumulate)
{
    for (int u = 0; u < layer->n_units; u++) {
        if (reads_weights(layer, kind)) store->acquire(store, layer->unit[u]);
        if (kind == ACT_BACKWARD) accumulate[u] = store->grad_acquire(store, layer->unit[u]);
    }
}

static void layer_release(ParamStore *store, const Layer *layer, ActionKind kind)
{
    for (int u = layer->n_units; u-- > 0;) {
        if (kind == ACT_BACKWARD) store->grad_release(store, layer->unit[u]);
        if (reads_weights(layer, kind)) store->release(store, layer->unit[u]);
    }
}

static void run_layer(const LayerWork *w, const Layer *layer, ActionKind kind, LayerRun run)
{
    bool accumulate[2] = {false, false};
    layer_acquire(w->pass->store, layer, kind, accumulate);
    run(w, layer, accumulate);
    layer_release(w->pass->store, layer, kind);
}

LayerRange layers_blocks(const GptLayers *layers, int chunk)
{
    /* The first row is the embedding and the last the head, so block l is row l + 1. */
    int blocks = layers->n_rows - 2, first = layers->chunk[chunk].first - 1,
        end = layers->chunk[chunk].end - 1;
    return (LayerRange){first < 0 ? 0 : first, end > blocks ? blocks : end};
}

static int rows_of_chunk(const GptLayers *m, int chunk)
{
    return m->chunk[chunk].end - m->chunk[chunk].first;
}

void layers_run(const LayerWork *w, ActionKind kind, int chunk)
{
    for (int i = 0; i < rows_of_chunk(w->layers, chunk); i++) {
        LayerRun run;
        const Layer *layer = row_met(w->layers, kind, chunk, i, &run);
        if (run != NULL) run_layer(w, layer, kind, run);
    }
}

int64_t layers_uses(const GptLayers *layers, ActionKind kind, int chunk, Use *uses)
{
    int64_t n = 0;
    for (int i = 0; i < rows_of_chunk(layers, chunk); i++) {
        LayerRun run;
        const Layer *layer = row_met(layers, kind, chunk, i, &run);
        for (int u = 0; run != NULL && u < layer->n_units; u++, n++)
            if (uses)
                uses[n] = (Use){.unit = layer->unit[u],
                                .weight = reads_weights(layer, kind),
                                .gradient = kind == ACT_BACKWARD};
    }
    return n;
}

void layers_logits(const LayerWork *w, int chunk, Tensor logits)
{
    LayerWork work = *w;
    work.logits = logits;
    for (int i = w->layers->chunk[chunk].first; i < w->layers->chunk[chunk].end; i++) {
        const Layer *layer = &w->layers->row[i];
        run_layer(&work, layer, ACT_EVALUATE, layer->logits);
    }
}

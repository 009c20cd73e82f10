/* score.c -- see score.h. */
#include "parallel/trainer/score.h"

#include "model/core/check.h"
#include "model/kernels/ops.h"
#include "parallel/trainer/evaluate.h"

#include <stdlib.h>

void scoring_open(Scoring *s, Feed *feed, Session *session, const ChoiceFile *file, int64_t B,
                  int64_t T)
{
    int64_t count = B * T, rows = B * session->grid.size.dp;
    *s = (Scoring){.feed = feed, .session = session, .file = file};
    s->batches = (file->n_rows + rows - 1) / rows;
    s->memory = must_calloc((size_t)(3 * count), sizeof *s->memory);
    s->batch = (Batch){.tokens = tensor_2d(s->memory, I32, B, T),
                       .targets = tensor_2d(s->memory + count, I32, B, T),
                       .positions = tensor_1d(s->memory + 2 * count, I32, count)};
    for (int64_t i = 0; i < count; i++)
        s->memory[2 * count + i] = (int32_t)(i % T);
    s->stats = tensor_2d(NULL, F64, s->batches * rows, 2);
    s->stats.data = device_alloc(&session->dev, tensor_bytes(s->stats), "losses of completions");
}

void scoring_close(Scoring *s)
{
    device_release(&s->session->dev, s->stats.data, tensor_bytes(s->stats));
    free(s->memory);
    *s = (Scoring){0};
}

GptBatch scoring_batch(void *context, const Action *action)
{
    Scoring *s = context;
    const Grid *grid = &s->session->grid;
    if (action->chunk > 0) return s->feed->batch[action->batch];
    int64_t B = s->batch.tokens.dim[0], T = s->batch.tokens.dim[1];
    int64_t first = (action->micro * grid->size.dp + grid->at.dp) * B;
    for (int64_t i = 0; i < B; i++) {
        int32_t *tokens = tensor_row(s->batch.tokens, i),
                *targets = tensor_row(s->batch.targets, i);
        if (first + i < s->file->n_rows)
            choice_file_sequence(s->file, first + i, T, tokens, targets);
        for (int64_t t = 0; first + i >= s->file->n_rows && t < T; t++) {
            tokens[t] = 0; /* any id */
            targets[t] = -1;
        }
    }
    GptBatch batch = feed_send(s->feed, action, &s->batch);
    batch.sequence_stats = tensor_slice_rows(s->stats, first, B);
    return s->feed->batch[action->batch] = batch;
}

void scoring_run(Scoring *s, Gpt *gpt, double *nats)
{
    Session *session = s->session;
    Device *dev = &session->dev;
    Grid *grid = &session->grid;
    double *sums = must_alloc(tensor_bytes(s->stats));
    Tensor host = tensor_2d(sums, F64, s->stats.dim[0], 2);
    op_fill(dev, s->stats, 0.0);
    evaluate_batches(s->feed, session, gpt, s->batches);
    /* Each row is computed by one data-parallel rank, on its last stage. All tensor-parallel ranks
     * have its whole loss, so only one of them is counted. All other summands are zeros. */
    if (grid->at.tp > 0) op_fill(dev, s->stats, 0.0);
    comm_all_reduce(&grid->tp, dev, s->stats, REDUCE_SUM);
    comm_all_reduce(&grid->dp, dev, s->stats, REDUCE_SUM);
    comm_all_reduce(&grid->pp, dev, s->stats, REDUCE_SUM);
    device_copy(dev, host, s->stats);
    device_synchronize(dev);
    for (int64_t i = 0; i < s->file->n_rows; i++) {
        CHECK(sums[2 * i + 1] == (double)s->file->row[i].completion_tokens,
              "%g targets in row %lld", sums[2 * i + 1], (long long)i);
        nats[i] = sums[2 * i];
    }
    free(sums);
}

/* score.h -- computes the loss of each completion of a multiple-choice file, on any grid of ranks.
 */
#ifndef PARALLEL_TRAINER_SCORE_H
#define PARALLEL_TRAINER_SCORE_H

#include "data/tokens/choice_file.h"
#include "parallel/trainer/feed.h"
#include "parallel/trainer/session.h"

/* A feed of the file's rows: each row is one sequence of a micro-batch of B x T tokens. The
 * micro-batches are dealt to the data-parallel ranks in turn; sequences after the last row have no
 * targets. */
typedef struct {
    Feed *feed;
    Session *session;
    const ChoiceFile *file;
    Batch batch;     /* on the host */
    int32_t *memory; /* memory of `batch` */
    int64_t batches; /* micro-batches of each rank */
    /* (batches x dp x B, 2) f64 on the device: for each row of all ranks, the summed loss and the
     * number of targets */
    Tensor stats;
} Scoring;

/* Allocates what a scoring needs, for micro-batches of B x T tokens; choice_file_fits must have
 * returned true for T. `feed` must have been opened for micro-batches of this size; it needs no
 * loader. All arguments must outlive the scoring. */
void scoring_open(Scoring *scoring, Feed *feed, Session *session, const ChoiceFile *file, int64_t B,
                  int64_t T);
void scoring_close(Scoring *scoring);
/* Implements GptFeed for a Scoring. */
GptBatch scoring_batch(void *context, const Action *action);
/* Runs the model, which must be connected to scoring_batch, over all rows. Writes the summed loss
 * in nats of each row's completion to nats[0..n_rows), with the same result on all ranks, which
 * must call it together. */
void scoring_run(Scoring *scoring, Gpt *gpt, double *nats);

#endif

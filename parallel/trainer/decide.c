/* decide.c -- sums a step's statistics over the ranks, decides on the update, and sends records to
 * the host. See decide.h. */
#include "parallel/trainer/decide.h"

#include <math.h>
#include <stdlib.h>

/* ---- the decision ---------------------------------------------------------------------------- */

/* Makes the sums the same on all ranks. NCCL may add the same numbers in another order in each
 * group, unless a group has only two ranks, so the groups may get different sums. All ranks
 * therefore take the sums of the first group. Other transports add in the same order in every
 * group, but make the same calls. */
static void take_first_sums(Session *s, Tensor sums)
{
    const GridPlace *size = &s->grid.size;
    if (size->pp > 2) comm_broadcast(&s->grid.dp, &s->dev, sums, 0);
    if (size->pp > 2 || size->dp > 2) comm_broadcast(&s->grid.tp, &s->dev, sums, 0);
}

void session_sum_stats(Session *s, StepStats *stats)
{
    Grid *grid = &s->grid;
    Tensor sums = tensor_1d(stats, F64, 3);
    /* All ranks of a tensor-parallel group read the same targets and compute their whole loss, so
     * only one of the ranks is counted. */
    if (grid->at.tp > 0) op_fill(&s->dev, tensor_slice_rows(sums, 1, 2), 0.0);
    comm_all_reduce(&grid->tp, &s->dev, sums, REDUCE_SUM);
    comm_all_reduce(&grid->cp, &s->dev, sums, REDUCE_SUM);
    comm_all_reduce(&grid->dp, &s->dev, sums, REDUCE_SUM);
    comm_all_reduce(&grid->pp, &s->dev, sums, REDUCE_SUM);
    take_first_sums(s, sums);
}

void trainer_decide(Trainer *t)
{
    Device *dev = &t->session.dev;
    grad_norm_add(&t->norm, dev, &t->state->stats);
    session_sum_stats(&t->session, &t->state->stats);
    /* The device decides, not the host: after an overflow neither Adam's step count nor the
     * learning rate advances, and a host that runs ahead of the device could not know of the
     * overflow. */
    op_step_decide(dev, &t->state->state, &t->state->stats, &t->state->decision, t->lr_table,
                   &t->constants);
}

/* ---- records for the host -------------------------------------------------------------------- */

void decide_open(Trainer *t)
{
    Device *dev = &t->session.dev;
    /* Page-locked, because copies to pageable memory would wait for the device. */
    t->records = device_host_alloc(dev, TRAINER_HISTORY * sizeof *t->records, "steps' records");
    t->recorded = must_calloc(TRAINER_HISTORY, sizeof *t->recorded);
    /* An event is created when it is first recorded. Recording all of them here means that no step
     * has to create one. */
    for (int i = 0; i < TRAINER_HISTORY; i++)
        device_event_record(dev, &t->recorded[i]);
}

void decide_close(Trainer *t)
{
    Device *dev = &t->session.dev;
    for (int i = 0; i < TRAINER_HISTORY; i++)
        device_event_destroy(dev, &t->recorded[i]);
    free(t->recorded);
    device_host_release(dev, t->records, TRAINER_HISTORY * sizeof *t->records);
}

void trainer_record(Trainer *t)
{
    Device *dev = &t->session.dev;
    int64_t at = t->steps % TRAINER_HISTORY;
    /* The entry of the ring buffer is reused, so its old record must have been read by then; the
     * caller must call trainer_read often enough. */
    CHECK(t->steps - t->steps_read < TRAINER_HISTORY, "%lld steps not read",
          (long long)(t->steps - t->steps_read));
    device_copy_words(dev, &t->records[at].decision, &t->state->decision,
                      sizeof t->state->decision);
    device_copy_words(dev, &t->records[at].after, &t->state->state, sizeof t->state->state);
    /* The host reads the record once this event is reached. Waiting for the copies here would
     * prevent the host from running ahead of the device. */
    device_event_record(dev, &t->recorded[at]);
}

StepRecord decide_totals(const StepState *s)
{
    return (StepRecord){.step = s->steps,
                        .updates = s->updates,
                        .samples = s->samples,
                        .tokens = s->tokens,
                        .skipped = s->skipped,
                        .skipped_tokens = s->skipped_tokens,
                        .skips_in_row = s->skips_in_row,
                        .spikes = s->spikes,
                        .spikes_in_row = s->spikes_in_row,
                        .data_offset = s->data_offset,
                        .rollbacks = s->rollbacks,
                        .loss = NAN};
}

static StepRecord step_record(const TrainerRecord *r)
{
    const StepDecision *d = &r->decision;
    StepRecord out = decide_totals(&r->after);
    out.stop = r->after.stop != 0;
    out.loss = d->loss;
    out.lr = d->lr;
    out.grad_norm = d->grad_norm;
    out.loss_scale = d->loss_scale;
    out.median = d->median;
    out.deviation = d->deviation;
    out.spike = d->spike != 0;
    out.applied = d->apply != 0;
    return out;
}

int trainer_read(Trainer *t, StepRecord *out)
{
    int n = 0;
    for (; t->steps_read < t->steps; t->steps_read++) {
        int64_t at = t->steps_read % TRAINER_HISTORY;
        /* Steps end in order: if this one has not ended, no later one has. */
        if (!device_event_reached(&t->session.dev, &t->recorded[at])) break;
        out[n++] = step_record(&t->records[at]);
    }
    return n;
}

int trainer_read_all(Trainer *t, StepRecord *out)
{
    if (t->steps_read < t->steps)
        device_event_synchronize(&t->session.dev, &t->recorded[(t->steps - 1) % TRAINER_HISTORY]);
    return trainer_read(t, out);
}

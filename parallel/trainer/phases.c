/* phases.c -- marks the borders between the phases of a step and adds up the times between them.
 * See phases.h. */
#include "parallel/trainer/phases.h"

#include "model/core/check.h"

#include <stdlib.h>

/* Measures how long the compute stream waits for the groups of an axis, if there are several ranks
 * on it. */
static void open_axis(Phases *p, Session *session, ExposedAxis axis, Comm *group, Comm *part)
{
    if (group->size == 1) return;
    p->exposed[axis] = exposed_create(&session->dev);
    group->exposed = part->exposed = p->exposed[axis];
}

static void open_exposed(Phases *p, Session *session)
{
    Grid *grid = &session->grid;
    if (session->dev.backend->place == PLACE_HOST) return;
    open_axis(p, session, EXPOSED_DP, &grid->dp, &grid->shard);
    grid->replicate.exposed = p->exposed[EXPOSED_DP];
    open_axis(p, session, EXPOSED_TP, &grid->tp, &grid->kv);
    open_axis(p, session, EXPOSED_PP, &grid->pp, &grid->tie);
    if (session->config->zero_optimization.offload_optimizer.device != OFFLOAD_CPU) return;
    p->exposed[EXPOSED_HOST] = exposed_create(&session->dev);
    zero_measure_updates(session->store, p->exposed[EXPOSED_HOST]);
}

static void close_axis(Phases *p, ExposedAxis axis, Comm *group, Comm *part)
{
    group->exposed = part->exposed = NULL;
    exposed_destroy(p->exposed[axis]);
}

static void close_exposed(Phases *p, Session *session)
{
    Grid *grid = &session->grid;
    grid->replicate.exposed = NULL;
    close_axis(p, EXPOSED_DP, &grid->dp, &grid->shard);
    close_axis(p, EXPOSED_TP, &grid->tp, &grid->kv);
    close_axis(p, EXPOSED_PP, &grid->pp, &grid->tie);
    if (session->store) zero_measure_updates(session->store, NULL);
    exposed_destroy(p->exposed[EXPOSED_HOST]);
}

void phases_open(Phases *p, Session *session, int64_t actions)
{
    *p = (Phases){.n = actions + 2};
    p->border = must_calloc((size_t)p->n, sizeof *p->border);
    p->at = must_calloc((size_t)p->n, sizeof *p->at);
    for (int64_t i = 0; i < p->n; i++)
        device_event_record_timed(&session->dev, &p->border[i]);
    open_exposed(p, session);
}

void phases_close(Phases *p, Session *session)
{
    close_exposed(p, session);
    for (int64_t i = 0; i < p->n; i++)
        device_event_destroy(&session->dev, &p->border[i]);
    free(p->border);
    free(p->at);
    *p = (Phases){0};
}

static void measure_exposed(Phases *p, bool on)
{
    for (int a = 0; a < EXPOSED_AXES; a++)
        if (p->exposed[a]) exposed_measure(p->exposed[a], on);
}

void phases_begin(Phases *p)
{
    measure_exposed(p, true);
}

void phases_mark(Phases *p, Session *session, double data)
{
    device_event_record_timed(&session->dev, &p->border[p->next]);
    p->at[p->next++] = (PhaseClocks){.comm = session_comm_seconds(session), .data = data};
}

/* The kind of work between two borders. */
typedef enum { PHASE_FORWARD, PHASE_BACKWARD, PHASE_EXCHANGE, PHASE_UPDATE } Phase;

static Phase phase_of(ActionKind kind)
{
    return kind == ACT_FORWARD    ? PHASE_FORWARD
           : kind == ACT_BACKWARD ? PHASE_BACKWARD
                                  : PHASE_EXCHANGE;
}

/* Returns the counter of a phase's time. */
static double *clock_of(PhaseSeconds *s, Phase phase, bool immediate)
{
    switch (phase) {
    case PHASE_FORWARD: return &s->forward;
    case PHASE_BACKWARD: return &s->backward;
    case PHASE_UPDATE: return &s->optimizer;
    case PHASE_EXCHANGE: break;
    }
    /* On a GPU an exchange does not run on the compute stream. The two marks around it are almost
     * at the same time, and the little between them is counted as backward. */
    return immediate ? &s->exchange : &s->backward;
}

/* Adds the time from border i to the next. If calls finish before they return (on the CPU), the
 * time spent in communication and in waiting for data is subtracted, and communication is added to
 * its own counters. */
static void add_phase(Phases *p, Session *session, int64_t i, Phase phase)
{
    Device *dev = &session->dev;
    const PhaseClocks *a = &p->at[i], *b = &p->at[i + 1];
    PhaseSeconds *s = &p->seconds;
    bool immediate = dev->backend->place == PLACE_HOST;
    double *clock = clock_of(s, phase, immediate);
    *clock += device_event_seconds(dev, &p->border[i], &p->border[i + 1]);
    if (!immediate) return;
    double communication = b->comm.collectives - a->comm.collectives,
           tensor = b->comm.tensor - a->comm.tensor,
           exchange = b->comm.exchanges - a->comm.exchanges,
           bubble = b->comm.stages - a->comm.stages;
    *clock -= tensor + communication + exchange + bubble + b->data - a->data;
    /* In the update, tensor-parallel ranks send norms and gradients that are partial sums. This
     * belongs to no layer. */
    *(phase == PHASE_UPDATE ? &s->communication : &s->layers) += tensor;
    s->communication += communication;
    s->exchange += exchange;
    s->bubble += bubble;
}

void phases_add(Phases *p, Session *session, const Schedule *schedule)
{
    CHECK(p->next == schedule->n + 2, "%lld borders for %lld actions", (long long)p->next,
          (long long)schedule->n);
    for (int64_t i = 0; i < schedule->n; i++)
        add_phase(p, session, i, phase_of(schedule->action[i].kind));
    add_phase(p, session, schedule->n, PHASE_UPDATE);
    p->next = 0;
    /* Waits are measured only within steps, not in evaluations and samples. */
    measure_exposed(p, false);
    for (int a = 0; a < EXPOSED_AXES; a++)
        if (p->exposed[a]) p->seconds.exposed[a] += exposed_take(p->exposed[a]);
}

StepTimes phases_times(const PhaseSeconds *s, double data)
{
    return (StepTimes){.micro_batch = s->forward + s->backward + s->layers + s->exchange + data,
                       .update = s->optimizer,
                       .communication = s->communication};
}

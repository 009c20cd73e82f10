/* phases.c -- see phases.h. */
#include "parallel/trainer/phases.h"

#include "model/core/check.h"

#include <stdlib.h>

/* Measures what the groups of an axis have the compute stream wait for, where there are several
 * ranks on it. */
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
    open_axis(p, session, EXPOSED_TP, &grid->tp, &grid->kv);
    open_axis(p, session, EXPOSED_PP, &grid->pp, &grid->tie);
}

static void close_axis(Phases *p, ExposedAxis axis, Comm *group, Comm *part)
{
    group->exposed = part->exposed = NULL;
    exposed_destroy(p->exposed[axis]);
}

static void close_exposed(Phases *p, Session *session)
{
    Grid *grid = &session->grid;
    close_axis(p, EXPOSED_DP, &grid->dp, &grid->shard);
    close_axis(p, EXPOSED_TP, &grid->tp, &grid->kv);
    close_axis(p, EXPOSED_PP, &grid->pp, &grid->tie);
}

void phases_open(Phases *p, Session *session, int64_t actions)
{
    *p = (Phases){.n = actions + 2};
    p->border = must_calloc((size_t)p->n, sizeof *p->border);
    p->at = must_calloc((size_t)p->n, sizeof *p->at);
    for (int64_t i = 0; i < p->n; i++)
        device_event_record(&session->dev, &p->border[i]);
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
    device_event_record(&session->dev, &p->border[p->next]);
    p->at[p->next++] = (PhaseClocks){.comm = session_comm_seconds(session), .data = data};
}

/* Adds the time between two borders to `phase`, less what others took of it where the device stands
 * still meanwhile. */
static void add_phase(Phases *p, Session *session, int64_t i, double *phase)
{
    Device *dev = &session->dev;
    const PhaseClocks *a = &p->at[i], *b = &p->at[i + 1];
    PhaseSeconds *s = &p->seconds;
    *phase += device_event_seconds(dev, &p->border[i], &p->border[i + 1]);
    if (dev->backend->place != PLACE_HOST) return;
    double communication = b->comm.collectives - a->comm.collectives,
           tensor = b->comm.tensor - a->comm.tensor,
           exchange = b->comm.exchanges - a->comm.exchanges,
           bubble = b->comm.stages - a->comm.stages;
    *phase -= tensor + communication + exchange + bubble + b->data - a->data;
    /* The update's, of norms and of gradients that are partial sums, are of no layer. */
    *(phase == &s->optimizer ? &s->communication : &s->layers) += tensor;
    s->communication += communication;
    s->exchange += exchange;
    s->bubble += bubble;
}

void phases_add(Phases *p, Session *session, const Schedule *schedule)
{
    PhaseSeconds *s = &p->seconds;
    CHECK(p->next == schedule->n + 2, "%lld borders for %lld actions", (long long)p->next,
          (long long)schedule->n);
    /* On a device an exchange is not the compute stream's, where two marks around it are one. */
    double *exchange = session->dev.backend->place == PLACE_HOST ? &s->exchange : &s->backward;
    for (int64_t i = 0; i < schedule->n; i++) {
        ActionKind kind = schedule->action[i].kind;
        add_phase(p, session, i,
                  kind == ACT_FORWARD    ? &s->forward
                  : kind == ACT_BACKWARD ? &s->backward
                                         : exchange);
    }
    add_phase(p, session, schedule->n, &s->optimizer);
    p->next = 0;
    measure_exposed(p, false);
    for (int a = 0; a < EXPOSED_AXES; a++)
        if (p->exposed[a]) s->exposed[a] += exposed_take(p->exposed[a]);
}

StepTimes phases_times(const PhaseSeconds *s, double data)
{
    return (StepTimes){.micro_batch = s->forward + s->backward + s->layers + s->exchange + data,
                       .update = s->optimizer,
                       .communication = s->communication};
}

/* step_graph.c -- records the state of each rank's host with everything it issues, and builds the
 * graph of a burst. See step_graph.h. */
#include "tests/support/trainer/step_graph.h"

#include "model/core/check.h"
#include "parallel/zero/state.h"
#include "tests/support/device/late_inside.h"
#include "tests/support/grid/comm_spy.h"

#include <stdlib.h>
#include <string.h>

/* The state of a rank's thread in the current step. */
typedef struct {
    Trainer *trainer;
    StepPlanted planted;
    ParamStore store; /* the store's original functions */
    Region region;
    int64_t step, action, entered, awaited;
    bool ended; /* the step's gradients are final */
    Event event;
} Watch;

static _Thread_local Watch watch;
static const Session *watched[8];

/* ---- notes ----------------------------------------------------------------------------------- */

int64_t step_key(const Session *s, int64_t step, int64_t uses)
{
    return step * (s->step.n_uses + 2) + uses;
}

static int number_of_comm(const Session *s, const Comm *comm)
{
    const Comm *of[GRID_COMMS];
    grid_comms(&s->grid, of);
    for (int i = 0; i < GRID_COMMS; i++)
        if (of[i] == comm) return i;
    return -1;
}

/* Returns the unit that a call of the store moves: for a gather, the unit with these whole weights,
 * or with this part of them; for a sum, the unit in the bucket, or with this part of the gradient.
 * -1: none. */
static int unit_of(const ZeroStore *z, const CommSpied *call)
{
    bool gather = call->verb == COMM_ALL_GATHER, parts = call->comm == &z->grid->replicate;
    if (call->comm != &z->grid->shard && !parts) return -1;
    if (!gather && !parts) return call->call < z->summing.n ? z->summing.unit[call->call] : -1;
    for (int u = 0; u < z->base.table->n_units; u++) {
        const UnitState *unit = &z->unit[u];
        Tensor part = gather ? unit->weight_part : unit->grad_part;
        if ((parts ? part : unit->weight).data == call->x.data && call->x.data != NULL) return u;
    }
    return -1;
}

static void note_work(int64_t *note)
{
    if (watch.trainer == NULL) return;
    const Session *s = &watch.trainer->session;
    CommSpied call = comm_spied();
    int64_t uses = watch.ended ? s->step.n_uses + 1 : s->store->next_use;
    note[STEP_USE] = step_key(s, watch.step, uses);
    note[STEP_ACTION] = watch.step * s->step.schedule.n + watch.action;
    note[STEP_COMM] = call.comm ? number_of_comm(s, call.comm) : -1;
    note[STEP_VERB] = call.verb;
    note[STEP_UNIT] = unit_of(s->store, &call);
    note[STEP_BUNDLE] = call.bundle;
    note[STEP_ENTERED] = watch.entered;
    note[STEP_AWAITED] = watch.awaited;
}

/* ---- what the host comes through ------------------------------------------------------------- */

/* Plants a needless wait, for everything that has been put on the stream. */
static void wait_for(Stream stream)
{
    Device *dev = &watch.trainer->session.dev, view = device_on(dev, stream);
    device_event_record(&view, &watch.event);
    device_event_wait(dev, &watch.event);
}

static void step_begins(ParamStore *store, const Use *uses, int64_t n)
{
    watch.step += watch.ended;
    watch.ended = false;
    watch.action = 0;
    watch.store.step_begin(store, uses, n);
}

static void step_ends(ParamStore *store)
{
    watch.store.step_end(store);
    watch.ended = true;
}

static void grad_released(ParamStore *store, int unit)
{
    watch.store.grad_release(store, unit);
    if (watch.planted == STEP_WAITS_FOR_SUMS) wait_for(watch.trainer->session.dev.comm);
}

static void released(ParamStore *store, int unit)
{
    watch.store.release(store, unit);
    if (watch.planted == STEP_WAITS_FOR_GATHERS) wait_for(watch.trainer->session.dev.comm);
}

static void entered_backward(void *self, Tensor dst, Tensor src)
{
    watch.entered++;
    watch.region.enter_backward(self, dst, src);
    if (watch.planted == STEP_WAITS_FOR_TP_SUMS) wait_for(watch.trainer->session.dev.tp);
}

static void awaited(void *self)
{
    watch.region.await(self);
    watch.awaited++;
}

static void store_waits(void)
{
    Device *dev = &watch.trainer->session.dev;
    Device comm = device_on(dev, dev->comm), p2p = device_on(dev, dev->p2p);
    device_event_record(&p2p, &watch.event);
    device_event_wait(&comm, &watch.event);
}

void __real_pipeline_run(Pipeline *pipeline, const Stage *stage, const Action *actions, int64_t n,
                         const Transfer *transfers) __attribute__((weak));
void __wrap_pipeline_run(Pipeline *pipeline, const Stage *stage, const Action *actions, int64_t n,
                         const Transfer *transfers);

void __wrap_pipeline_run(Pipeline *pipeline, const Stage *stage, const Action *actions, int64_t n,
                         const Transfer *transfers)
{
    for (int64_t i = 0; i < n; i++) {
        if (watch.trainer) watch.action = &actions[i] - watch.trainer->session.step.schedule.action;
        __real_pipeline_run(pipeline, stage, &actions[i], 1, transfers);
        if (actions[i].kind == ACT_EXCHANGE && watch.planted == STEP_WAITS_FOR_EXCHANGES)
            wait_for(watch.trainer->session.dev.p2p);
        if (actions[i].kind == ACT_EXCHANGE && watch.planted == STEP_STORE_WAITS) store_waits();
    }
}

/* ---- watching -------------------------------------------------------------------------------- */

void step_watch(Trainer *t, StepPlanted planted)
{
    Session *s = &t->session;
    int rank = s->world ? s->world->rank : 0;
    watch = (Watch){.trainer = t, .planted = planted, .store = *s->params, .region = s->tp};
    watched[rank] = s;
    s->params->step_begin = step_begins;
    s->params->step_end = step_ends;
    s->params->grad_release = grad_released;
    s->params->release = released;
    s->tp.enter_backward = entered_backward;
    s->tp.await = awaited;
    device_event_record(&s->dev, &watch.event);
    comm_spy(&s->grid);
    late_notes(note_work);
}

void step_unwatch(void)
{
    Session *s = &watch.trainer->session;
    s->params->step_begin = watch.store.step_begin;
    s->params->step_end = watch.store.step_end;
    s->params->grad_release = watch.store.grad_release;
    s->params->release = watch.store.release;
    s->tp.enter_backward = watch.region.enter_backward;
    s->tp.await = watch.region.await;
    device_event_destroy(&s->dev, &watch.event);
    watch = (Watch){0};
}

/* ---- the graph ------------------------------------------------------------------------------- */

/* The target of a wait: the first `point` nodes of another stream. 0 means none of them, or a
 * stream that had no work. */
typedef struct {
    int stream;
    int64_t point;
} Target;

typedef struct {
    LateStream *late[8 * LATE_STREAMS];
    Target *target[8 * LATE_STREAMS];
} Sources;

static int stream_number(const Sources *from, int n, const LateStream *late)
{
    for (int i = 0; i < n; i++)
        if (from->late[i] == late) return i;
    return -1;
}

static void list_streams(StepGraph *g, Sources *from)
{
    for (LateDevice *d = late_all.devices; d != NULL; d = d->next) {
        CHECK(d->index < 8, "rank %d", d->index);
        if (!d->closed && d->index >= g->ranks) g->ranks = d->index + 1;
        for (int i = 0; i < LATE_STREAMS; i++)
            if (d->stream[i].issued > d->stream[i].first) from->late[g->streams++] = &d->stream[i];
    }
    g->stream = must_calloc((size_t)g->streams + 1, sizeof *g->stream);
}

static void list_nodes(StepGraph *g, Sources *from, int which)
{
    LateStream *late = from->late[which];
    StepStream *s = &g->stream[which];
    *s = (StepStream){
        .rank = late->device->index, .name = late->name, .n = late->issued - late->first};
    s->node = must_calloc((size_t)s->n, sizeof *s->node);
    s->seen = must_calloc((size_t)((s->n + 1) * g->streams), sizeof *s->seen);
    from->target[which] = must_calloc((size_t)s->n, sizeof(Target));
    for (int64_t i = 0; i < s->n; i++) {
        const LateWork *work = late->work[late->first + i];
        memcpy(s->node[i].note, work->note, sizeof work->note);
        s->node[i].name = work->run ? work->name : NULL;
        if (work->run) continue;
        int other = stream_number(from, g->streams, work->wait.stream);
        int64_t point = work->wait.point - work->wait.stream->first;
        from->target[which][i] = (Target){other, other >= 0 && point > 0 ? point : 0};
    }
}

/* Computes `seen` of node i + 1 of stream s from that of node i; returns false if the target of its
 * wait has not been computed yet. */
static bool follow(StepGraph *g, const Sources *from, int s, int64_t i, const int64_t *known)
{
    StepStream *stream = &g->stream[s];
    int64_t *now = stream->seen + (i + 1) * g->streams;
    Target to = stream->node[i].name ? (Target){0} : from->target[s][i];
    if (to.point > 0 && known[to.stream] < to.point) return false;
    memcpy(now, now - g->streams, (size_t)g->streams * sizeof *now);
    now[s] = i + 1;
    for (int t = 0; t < g->streams && to.point > 0; t++) {
        int64_t seen = g->stream[to.stream].seen[to.point * g->streams + t];
        if (seen > now[t]) now[t] = seen;
    }
    return true;
}

StepGraph step_graph_take(void)
{
    StepGraph g = {0};
    Sources from = {0};
    int64_t known[8 * LATE_STREAMS] = {0};
    pthread_mutex_lock(&late_all.mutex);
    CHECK(late_all.burst, "a graph of no burst, of %d memories", late_all.memories);
    list_streams(&g, &from);
    for (int s = 0; s < g.streams; s++)
        list_nodes(&g, &from, s);
    for (bool moved = true; moved;) {
        moved = false;
        for (int s = 0; s < g.streams; s++)
            for (; known[s] < g.stream[s].n && follow(&g, &from, s, known[s], known); known[s]++)
                moved = true;
    }
    for (int s = 0; s < g.streams; s++) {
        CHECK(known[s] == g.stream[s].n, "streams wait for each other for ever (%d)", s);
        free(from.target[s]);
    }
    pthread_mutex_unlock(&late_all.mutex);
    memcpy(g.session, watched, sizeof g.session);
    return g;
}

void step_graph_free(StepGraph *g)
{
    for (int s = 0; s < g->streams; s++) {
        free(g->stream[s].node);
        free(g->stream[s].seen);
    }
    free(g->stream);
    *g = (StepGraph){0};
}

int step_stream(const StepGraph *g, int rank, const char *name)
{
    for (int s = 0; s < g->streams; s++)
        if (g->stream[s].rank == rank && strcmp(g->stream[s].name, name) == 0) return s;
    return -1;
}

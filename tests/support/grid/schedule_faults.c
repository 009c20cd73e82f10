/* schedule_faults.c -- injects faults into the actions of a pipeline schedule. */
#include "tests/support/grid/schedule_faults.h"

/* Returns whether an exchange among the actions [first, end) sends or receives the buffer. */
static bool received_between(const Schedule *s, int64_t first, int64_t end, int buffer)
{
    for (int64_t i = first; i < end; i++) {
        const Action *a = &s->action[i];
        for (int k = 0; a->kind == ACT_EXCHANGE && k < a->n_transfers; k++)
            if (s->transfer[a->transfer + k].buffer == buffer) return true;
    }
    return false;
}

bool schedule_swap_inputs(Schedule *s)
{
    for (int64_t i = 0; i < s->n; i++) {
        Action *a = &s->action[i];
        int64_t j = i + 1;
        while (j < s->n && s->action[j].kind == ACT_EXCHANGE)
            j++;
        if (a->kind == ACT_EXCHANGE || a->in < 0 || j == s->n) continue;
        Action *b = &s->action[j];
        if (b->in < 0 || a->kind == b->kind || b->in == a->out || b->out == a->in) continue;
        if (received_between(s, i, j, b->in) || received_between(s, i, j, a->in)) continue;
        int in = a->in;
        a->in = b->in;
        b->in = in;
        return true;
    }
    return false;
}

bool schedule_swap_batches(Schedule *s)
{
    for (int64_t i = 0; i < s->n; i++)
        if (s->action[i].kind == ACT_BACKWARD)
            s->action[i].batch = (s->action[i].batch + 1) % s->batches;
    return s->batches > 1;
}

bool schedule_set_beyond(Schedule *s, int64_t at, int which, const ScheduleSpec *spec)
{
    Action *a = &s->action[at];
    bool exchange = a->kind == ACT_EXCHANGE;
    Transfer *t = exchange ? &s->transfer[a->transfer] : NULL;
    const struct {
        int *number;
        int first, end;
    } numbers[SCHEDULE_BEYONDS / 2] = {
        {exchange ? NULL : &a->chunk, 0, spec->chunks},
        {exchange ? NULL : &a->slot, 0, exchange ? 0 : s->slots[a->chunk]},
        {exchange ? NULL : &a->batch, 0, s->batches},
        {exchange || a->in < 0 ? NULL : &a->in, 0, s->buffers},
        {exchange || a->out < 0 ? NULL : &a->out, 0, s->buffers},
        {exchange ? &a->transfer : NULL, 0, (int)s->n_transfers - a->n_transfers + 1},
        {exchange ? &a->n_transfers : NULL, 1, 4},
        {exchange ? &t->peer : NULL, 0, spec->stages},
        {exchange ? &t->buffer : NULL, 0, s->buffers},
    };
    int *number = numbers[which / 2].number;
    if (number == NULL) return false;
    *number = which % 2 ? numbers[which / 2].end : numbers[which / 2].first - 1;
    return true;
}

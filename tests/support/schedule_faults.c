/* schedule_faults.c -- see schedule_faults.h. */
#include "tests/support/schedule_faults.h"

/* Whether a buffer is written by an exchange of the schedule between two actions. */
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

/* trainer_fixture.c -- opens a trainer of one rank, makes steps, and compares the results of two.
 * See trainer_fixture.h. */
#include "tests/support/trainer/trainer_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

void trainer_run_open(Opened *o, const Folder *folder, const char *const *sets)
{
    Training t;
    training_of_text(&t, folder, 1, sets);
    *o = (Opened){.config = t.config, .data = t.data};
    training_lay_out(&o->trainer, NULL, &t);
    o->plan = memory_plan(&o->trainer, &o->data);
    char err[1024];
    if (!trainer_allocate(&o->trainer, o->config, &o->data, err, sizeof err)) fail_msg("%s", err);
}

void trainer_run_close(Opened *o)
{
    trainer_close(&o->trainer);
    data_close(&o->data);
    config_free(o->config);
}

size_t trainer_run_host_bytes(const Opened *o)
{
    const Trainer *t = &o->trainer;
    const StepPlan *step = &t->session.step;
    return t->session.dev.host_held + (size_t)step->schedule.n * sizeof *step->schedule.action +
           (size_t)step->schedule.n_transfers * sizeof *step->schedule.transfer +
           (size_t)step->n_uses * sizeof *step->uses;
}

void trainer_run_steps(Opened *o, Trained *out, int64_t until)
{
    while (o->trainer.steps < until)
        trainer_step(&o->trainer);
    out->n += trainer_read_all(&o->trainer, out->record + out->n);
}

void trainer_run_read(Opened *o, Trained *out)
{
    Trainer *t = &o->trainer;
    int n = t->session.table.n_params;
    /* Shards and slots are read, which an update may still write. */
    device_synchronize(&t->session.dev);
    out->size = 0;
    for (int i = 0; i < n + t->n_slots; i++)
        out->size += tensor_bytes((i < n ? &t->weights[i] : &t->slots[i - n])->data);
    out->bytes = must_alloc(out->size);
    unsigned char *at = out->bytes;
    for (int i = 0; i < n + t->n_slots; i++) {
        Tensor x = (i < n ? &t->weights[i] : &t->slots[i - n])->data;
        device_copy(&t->session.dev, tensor_1d(at, x.dtype, tensor_count(x)), tensor_flat(x));
        at += tensor_bytes(x);
    }
    out->state = trainer_state(t);
}

/* Compares bits, because the norm of a skipped step may be NaN. */
static bool same_bits(double a, double b)
{
    return memcmp(&a, &b, sizeof a) == 0;
}

/* Compares field by field: a record has padding, whose bytes mean nothing. */
static bool records_equal(const StepRecord *a, const StepRecord *b)
{
    return a->step == b->step && a->updates == b->updates && a->samples == b->samples &&
           a->tokens == b->tokens && a->skipped == b->skipped &&
           a->skips_in_row == b->skips_in_row && a->stop == b->stop && a->applied == b->applied &&
           same_bits(a->loss, b->loss) && same_bits(a->lr, b->lr) &&
           same_bits(a->grad_norm, b->grad_norm) && same_bits(a->loss_scale, b->loss_scale);
}

void step_records_equal(const StepRecord *a, const StepRecord *b, int n, const char *what)
{
    for (int i = 0; i < n; i++)
        if (!records_equal(&a[i], &b[i]))
            fail_msg("%s: step %d: loss %.17g and %.17g, lr %.17g and %.17g", what, i + 1,
                     a[i].loss, b[i].loss, a[i].lr, b[i].lr);
}

void trained_equal(const Trained *a, const Trained *b, const char *what)
{
    assert_int_equal(a->size, b->size);
    for (size_t i = 0; i < a->size; i++)
        if (a->bytes[i] != b->bytes[i])
            fail_msg("%s: byte %zu of %zu of weights and slots differs", what, i, a->size);
    if (memcmp(&a->state, &b->state, sizeof a->state) != 0) fail_msg("%s: the states differ", what);
    assert_int_equal(a->n, b->n);
    step_records_equal(a->record, b->record, a->n, what);
}

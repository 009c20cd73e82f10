/* late_clock.c -- the test's notes on a late device's work, and the simulated clock. See
 * late_device.h. */
#include "tests/support/device/late_inside.h"

#include "model/core/check.h"

static void expect_idle(void)
{
    for (const LateDevice *d = late_all.devices; d != NULL; d = d->next)
        for (int i = 0; i < LATE_STREAMS; i++)
            CHECK(d->stream[i].done == d->stream[i].issued, "rank %d %s has work", d->index,
                  d->stream[i].name);
}

void late_notes(void (*note)(int64_t *notes))
{
    pthread_mutex_lock(&late_all.mutex);
    late_all.note = note;
    pthread_mutex_unlock(&late_all.mutex);
}

void late_clock(double (*seconds)(const LateSeen *work))
{
    pthread_mutex_lock(&late_all.mutex);
    expect_idle();
    late_all.seconds = seconds;
    pthread_mutex_unlock(&late_all.mutex);
}

/* A stream without any work has no array of times. */
static double ended_at(LatePoint at)
{
    return at.point == 0 ? 0 : at.stream->ended[at.point];
}

void late_tick(LateStream *s, const LateWork *work)
{
    double *now = &s->ended[s->done];
    now[1] = now[0];
    if (work->run == NULL) {
        double other = ended_at(work->wait);
        if (other > now[1]) now[1] = other;
    } else if (late_all.seconds) {
        now[1] += late_all.seconds(&(LateSeen){
            .name = work->name, .stream = s->name, .rank = s->device->index, .note = work->note});
    }
}

double late_between(LatePoint from, LatePoint to)
{
    CHECK(from.stream->done >= from.point && to.stream->done >= to.point,
          "an event of rank %d that was not reached", to.stream->device->index);
    return ended_at(to) - ended_at(from);
}

/* wait_sites.c -- replaces the program's calls of device_event_wait and device_event_record (the
 * linker redirects them here) to record where streams wait. */
#include "tests/support/device/wait_sites.h"

#include "model/core/check.h"
#include "model/core/device.h"

enum { MOST_EVENTS = 2048 };

const char *const wait_stream_name[] = {"compute", "copy", "comm", "p2p", "tp", "update"};

/* Where and on which stream this thread last recorded an event since it started to record waits. */
typedef struct {
    const Event *event;
    const void *at; /* NULL: not recorded since then */
    int stream;
} Record;
static _Thread_local Record recorded[MOST_EVENTS];
static _Thread_local int n_recorded;
static _Thread_local WaitSites *noted;

void wait_sites_note(WaitSites *sites)
{
    noted = sites;
}

bool wait_site_same(const WaitSite *a, const WaitSite *b)
{
    return a->wait == b->wait && a->record == b->record && a->stream == b->stream &&
           a->other == b->other;
}

static Record *record_of(const Event *event)
{
    int i = 0;
    while (i < n_recorded && recorded[i].event != event)
        i++;
    CHECK(i < MOST_EVENTS, "more than %d events", i);
    if (i == n_recorded) recorded[n_recorded++].event = event;
    return &recorded[i];
}

static int stream_of(const Device *d)
{
    const Stream *of[] = {&d->copy, &d->comm, &d->p2p, &d->tp, &d->update};
    for (int i = 0; i < 5; i++)
        if (d->view && d->compute.impl == of[i]->impl) return i + 1;
    return 0;
}

/* Counts the wait. Returns whether it is the one to be left out. */
static bool is_left_out(const WaitSite *wait)
{
    pthread_mutex_lock(&noted->mutex);
    WaitSite *s = noted->site, *end = s + noted->n;
    while (s < end && !wait_site_same(s, wait))
        s++;
    CHECK(s < noted->site + MOST_WAIT_SITES, "more than %d places that wait", MOST_WAIT_SITES);
    if (s == end) {
        *s = *wait;
        noted->n++;
    }
    s->met++;
    pthread_mutex_unlock(&noted->mutex);
    return s == noted->left_out;
}

void __real_device_event_wait(Device *device, Event *event) __attribute__((weak));
void __wrap_device_event_wait(Device *device, Event *event);
void __real_device_event_record(Device *device, Event *event) __attribute__((weak));
void __wrap_device_event_record(Device *device, Event *event);

/* Waits of a stream for itself are not counted. */
void __wrap_device_event_wait(Device *device, Event *event)
{
    const Record none = {NULL}, *record = noted != NULL ? record_of(event) : &none;
    WaitSite site = {.wait = __builtin_return_address(0),
                     .record = record->at,
                     .stream = stream_of(device),
                     .other = record->stream};
    if (record->at && site.stream != site.other && is_left_out(&site)) return;
    __real_device_event_wait(device, event);
}

void __wrap_device_event_record(Device *device, Event *event)
{
    if (noted != NULL) {
        Record *record = record_of(event);
        record->at = __builtin_return_address(0);
        record->stream = stream_of(device);
    }
    __real_device_event_record(device, event);
}

/* wait_sites.h -- the places where a stream waits for another, noted as they are met, and one of
 * them left out: in programs that are linked with --wrap=device_event_wait and
 * --wrap=device_event_record. */
#ifndef TESTS_SUPPORT_DEVICE_WAIT_SITES_H
#define TESTS_SUPPORT_DEVICE_WAIT_SITES_H

#include <pthread.h>
#include <stdbool.h>

/* Where the wait is asked for, and where the event was recorded last: a place that waits for two
 * events is two. Addresses are the same in all children of a process. */
typedef struct {
    const void *wait, *record;
    int stream, other; /* that waits; that recorded */
    int met;           /* how often */
} WaitSite;
extern const char *const wait_stream_name[]; /* of both */
/* Whether it is the same place, however often it was met. */
bool wait_site_same(const WaitSite *a, const WaitSite *b);

enum { MOST_WAIT_SITES = 96 };
typedef struct {
    pthread_mutex_t mutex;
    WaitSite site[MOST_WAIT_SITES];
    int n;
    const WaitSite *left_out; /* of these; NULL: none */
} WaitSites;

/* The calling thread's waits are noted in `sites` from here on, but for those for what was recorded
 * before; NULL: no longer. */
void wait_sites_note(WaitSites *sites);

#endif

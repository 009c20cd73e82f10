/* wait_sites.h -- records the places in the program where one stream waits for another, and can
 * leave out the waits of one place. For programs that are linked with --wrap=device_event_wait and
 * --wrap=device_event_record. */
#ifndef TESTS_SUPPORT_DEVICE_WAIT_SITES_H
#define TESTS_SUPPORT_DEVICE_WAIT_SITES_H

#include <pthread.h>
#include <stdbool.h>

/* A place is identified by where the wait is requested and where the event was last recorded, so a
 * line that waits for two events counts as two places. The addresses are the same in all child
 * processes. */
typedef struct {
    const void *wait, *record;
    int stream, other; /* the waiting stream; the stream that recorded the event */
    int met;           /* how often the place was reached */
} WaitSite;
extern const char *const wait_stream_name[]; /* names of the stream numbers above */
/* Returns whether both are the same place, ignoring how often they were met. */
bool wait_site_same(const WaitSite *a, const WaitSite *b);

enum { MOST_WAIT_SITES = 96 };
typedef struct {
    pthread_mutex_t mutex;
    WaitSite site[MOST_WAIT_SITES];
    int n;
    const WaitSite *left_out; /* one of `site`, or NULL: none is left out */
} WaitSites;

/* From now on records the calling thread's waits in `sites`, except waits for events that were
 * recorded earlier. NULL: stops recording. */
void wait_sites_note(WaitSites *sites);

#endif

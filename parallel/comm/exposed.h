/* exposed.h -- exposed communication: for how long a device's compute stream waits for what other
 * ranks send, from pairs of events around each of its waits. Communication that overlaps
 * computation is not counted, however long it takes. */
#ifndef PARALLEL_COMM_EXPOSED_H
#define PARALLEL_COMM_EXPOSED_H

#include "model/core/device.h"

/* It is measured for each axis of a grid. */
typedef enum { EXPOSED_DP, EXPOSED_TP, EXPOSED_PP, EXPOSED_AXES } ExposedAxis;
extern const char *const exposed_axis_name[EXPOSED_AXES]; /* "dp", "tp", "pp" */

typedef struct Exposed Exposed;

/* Makes all events that it will record, on the device, which must outlive it. Measures nothing yet.
 */
Exposed *exposed_create(Device *dev);
/* NULL is left alone. */
void exposed_destroy(Exposed *exposed);
/* From here on waits are measured, or not. */
void exposed_measure(Exposed *exposed, bool on);
/* Around what the compute stream waits for: an event, or a collective that it carries itself.
 * Nothing where `exposed` is NULL or does not measure. Pairs do not nest. The host waits only for a
 * device that is hundreds of waits late. */
void exposed_begin(Exposed *exposed);
void exposed_end(Exposed *exposed);
/* Seconds between the events of all pairs since the last call; the host waits for the last pair. A
 * pair around nothing takes what recording an event takes: a microsecond or less. */
double exposed_take(Exposed *exposed);

#endif

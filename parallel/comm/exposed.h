/* exposed.h -- measures exposed communication: how long a device's compute stream waits for other
 * ranks' data. A pair of events is recorded around each wait. Communication that overlaps
 * computation is not counted, however long it takes. */
#ifndef PARALLEL_COMM_EXPOSED_H
#define PARALLEL_COMM_EXPOSED_H

#include "model/core/device.h"

/* What the compute stream waits for; each is measured separately: communication on an axis of the
 * rank grid, and (EXPOSED_HOST) updates of optimizer states in host memory, which are not
 * communication. */
typedef enum { EXPOSED_DP, EXPOSED_TP, EXPOSED_PP, EXPOSED_HOST, EXPOSED_AXES } ExposedAxis;
extern const char *const exposed_axis_name[EXPOSED_AXES]; /* "dp", "tp", "pp", "host" */

typedef struct Exposed Exposed;

/* Creates the object, and all events that it will record, on the device. The device must outlive
 * it. Measuring is off at first. */
Exposed *exposed_create(Device *dev);
/* Frees the object. Does nothing if it is NULL. */
void exposed_destroy(Exposed *exposed);
/* Turns measuring on or off. */
void exposed_measure(Exposed *exposed, bool on);
/* To be called before and after each wait of the compute stream: for an event, or in a collective
 * that the stream carries itself. Both do nothing if `exposed` is NULL or measuring is off. Pairs
 * do not nest. The host waits only if the device is hundreds of waits behind. */
void exposed_begin(Exposed *exposed);
void exposed_end(Exposed *exposed);
/* Returns the seconds between the two events of each pair, summed over all pairs since the last
 * call. The host waits for the last pair to complete. A pair without any wait in between adds the
 * time to record an event: a microsecond or less. */
double exposed_take(Exposed *exposed);

#endif

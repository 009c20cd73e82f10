/* clock.h -- the program's two clocks: a monotonic one and the time of day.
 *
 * Durations and deadlines are computed from seconds_now, which never jumps. wall_seconds_now gives
 * the time of day of an event; its clock may be set back or forward while the program runs. */
#ifndef MODEL_CORE_CLOCK_H
#define MODEL_CORE_CLOCK_H

/* Returns the seconds since an arbitrary moment (CLOCK_MONOTONIC). */
double seconds_now(void);
/* Returns the seconds since 1970-01-01 00:00 UTC (CLOCK_REALTIME). */
double wall_seconds_now(void);

#endif

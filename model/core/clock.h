/* clock.h -- the two clocks of the program.
 *
 * Durations and deadlines are differences of seconds_now, which never jumps. wall_seconds_now says
 * when something happened; it may be set back or forward while the program runs. */
#ifndef MODEL_CORE_CLOCK_H
#define MODEL_CORE_CLOCK_H

/* Host seconds since an arbitrary moment (CLOCK_MONOTONIC). */
double seconds_now(void);
/* Seconds since 1970-01-01 00:00 UTC (CLOCK_REALTIME). */
double wall_seconds_now(void);

#endif

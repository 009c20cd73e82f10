/* plot.h -- draws curves over the steps of a run as an SVG image in an HTML page. */
#ifndef PARALLEL_REPORT_PLOT_H
#define PARALLEL_REPORT_PLOT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* A list of points. Each point is a struct that begins with its step (int64_t) and has its value
 * (double) at the offset value_at. Steps increase. A value that is not finite is a gap. */
typedef struct {
    const void *point;
    int64_t n;
    size_t size, value_at;
} Curve;

typedef struct {
    const char *title, *unit; /* HTML */
    const Curve *curve;       /* curve r is drawn in the colour of run r */
    int n_curves;
    int64_t first_step, last_step; /* ends of the horizontal axis */
    bool from_zero;                /* the vertical axis begins at zero */
    bool may_log; /* the vertical axis is logarithmic if the values differ by a large factor */
    bool band;    /* if several steps become one point, also fill the range of their values */
    int most;     /* the largest number of points of a curve; more steps are averaged */
} Plot;

/* Prints the plot as a <figure>; its size depends on `most` and not on the number of steps. Prints
 * nothing and returns false if no value is finite. */
bool plot_print(FILE *to, const Plot *plot);

#endif

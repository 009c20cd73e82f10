/* plot.c -- draws curves as SVG. See plot.h.
 *
 * A page is as wide as its window, and the image is scaled to it. A long curve is drawn as at most
 * Plot.most points: the horizontal axis is divided into this number of parts, and each point is the
 * mean of the steps in one part. */
#include "parallel/report/plot.h"

#include "model/core/check.h"
#include "model/core/figures.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Size of the image, and the edges of the area with the curves, in units of the image. */
enum { WIDTH = 400, HEIGHT = 220, LEFT = 56, RIGHT = 388, TOP = 8, BOTTOM = 192 };

/* If the ratio of the largest to the smallest value is at least this, the vertical axis may be
 * logarithmic. */
enum { LOG_RATIO = 30 };

/* An axis has about 5 ticks. This bound ends the loop even if rounding errors are large. */
enum { TICKS_MOST = 20 };

/* A value with a larger magnitude is drawn as a gap: sums of such values might not be finite. */
#define VALUE_MOST 1e60

/* Several steps drawn as one point. */
typedef struct {
    double step, mean, low, high;
    int64_t finite, steps; /* how many values are finite; how many there are */
} Spot;

/* The ends of an axis. */
typedef struct {
    double from, to;
    double tick; /* distance of the ticks of an axis that is not logarithmic */
    bool log;
} Axis;

/* ---- averaging --------------------------------------------------------------------------------
 */

static double step_of(const Curve *c, int64_t i)
{
    int64_t step;
    memcpy(&step, (const char *)c->point + (size_t)i * c->size, sizeof step);
    return (double)step;
}

static double value_of(const Curve *c, int64_t i)
{
    double value;
    memcpy(&value, (const char *)c->point + (size_t)i * c->size + c->value_at, sizeof value);
    return fabs(value) <= VALUE_MOST ? value : NAN;
}

static void spot_add(Spot *s, double step, double value)
{
    s->step += (step - s->step) / (double)++s->steps;
    if (isnan(value)) return;
    s->low = s->finite == 0 || value < s->low ? value : s->low;
    s->high = s->finite == 0 || value > s->high ? value : s->high;
    s->mean += (value - s->mean) / (double)++s->finite;
}

/* Averages a curve to at most plot->most spots; returns their number. */
static int average(const Plot *plot, const Curve *c, Spot *spot)
{
    double first = (double)plot->first_step, span = (double)plot->last_step - first + 1;
    int n = 0, part = -1;
    for (int64_t i = 0; i < c->n; i++) {
        double step = step_of(c, i);
        double part_of = fmin(fmax((step - first) / span * plot->most, 0), plot->most - 1);
        int next = c->n <= plot->most ? (int)i : (int)part_of;
        if (next != part) spot[n++] = (Spot){0};
        part = next;
        spot_add(&spot[n - 1], step, value_of(c, i));
    }
    return n;
}

/* ---- axes -------------------------------------------------------------------------------------
 */

/* Extends the axis to the spots of a curve, or with `band` to their ranges. `empty`: the axis
 * covers nothing yet. */
static void axis_cover(Axis *axis, const Spot *spot, int n, bool band, bool *empty)
{
    for (int i = 0; i < n; i++) {
        if (spot[i].finite == 0) continue;
        double low = band ? spot[i].low : spot[i].mean, high = band ? spot[i].high : spot[i].mean;
        axis->from = *empty ? low : fmin(axis->from, low);
        axis->to = *empty ? high : fmax(axis->to, high);
        *empty = false;
    }
}

/* Returns the distance of about `parts` round ticks between the ends of an axis: 1, 2 or 5 times a
 * power of ten. */
static double tick_distance(double span, int parts)
{
    double power = pow(10, floor(log10(span / parts)));
    double times = span / parts / power;
    return power * (times <= 1 ? 1 : times <= 2 ? 2 : times <= 5 ? 5 : 10);
}

/* Chooses the kind of the vertical axis and moves its ends to round values. */
static void axis_round(Axis *axis, const Plot *plot)
{
    axis->log = plot->may_log && axis->from > 0 && axis->to > LOG_RATIO * axis->from;
    if (axis->log) return;
    if (plot->from_zero) {
        axis->from = fmin(axis->from, 0);
        axis->to = fmax(axis->to, 0);
    }
    double size = fmax(fabs(axis->from), fabs(axis->to));
    /* If values are almost equal, the labels of ticks between them would be the same. */
    if (axis->to - axis->from <= 1e-3 * size) {
        axis->from -= 0.05 * size;
        axis->to += 0.05 * size;
    }
    if (size <= 1e-60) axis->to = axis->from + 1;
    axis->tick = tick_distance(axis->to - axis->from, 4);
    axis->from = axis->tick * floor(axis->from / axis->tick + 1e-9);
    axis->to = axis->tick * ceil(axis->to / axis->tick - 1e-9);
}

static double position(const Axis *axis, double value)
{
    if (axis->log) return log(value / axis->from) / log(axis->to / axis->from);
    return (value - axis->from) / (axis->to - axis->from);
}

static double across(const Axis *x, double step)
{
    return LEFT + position(x, step) * (RIGHT - LEFT);
}

static double height(const Axis *y, double value)
{
    return BOTTOM - position(y, value) * (BOTTOM - TOP);
}

/* Writes the label of a tick; `distance`: between neighbouring ticks. */
static const char *tick_text(char *text, size_t n, double value, double distance)
{
    int decimals = (int)fmax(0, -floor(log10(distance) + 1e-9));
    if (fabs(value) >= 1e15)
        snprintf(text, n, "%.3g", value);
    else if (fabs(value) >= 1000 && decimals == 0)
        snprintf(text, n, "%s", figure_short(value).text);
    else if (decimals <= 4)
        snprintf(text, n, "%.*f", decimals, fabs(value) < distance / 2 ? 0 : value);
    else
        snprintf(text, n, "%.3g", fabs(value) < distance / 2 ? 0 : value);
    return text;
}

static void print_tick_y(FILE *to, const Axis *y, double value, double distance)
{
    char text[40];
    double at = height(y, value);
    fprintf(
        to,
        "<path class=\"grid\" d=\"M%d %.1fH%d\"/><text x=\"%d\" y=\"%.1f\" class=\"y\">%s</text>\n",
        LEFT, at, RIGHT, LEFT - 6, at + 4, tick_text(text, sizeof text, value, distance));
}

/* Prints the ticks of a logarithmic axis: powers of ten, and 2 and 5 times these on a short one. */
static void print_log_ticks(FILE *to, const Axis *y)
{
    static const int times[] = {1, 2, 5};
    double first = floor(log10(y->from)), last = ceil(log10(y->to));
    double every = ceil((last - first) / 6);
    int some = last - first <= 3 ? 3 : 1;
    for (double power = first; power <= last; power += every)
        for (int i = 0; i < some; i++) {
            double value = times[i] * pow(10, power);
            if (value >= y->from && value <= y->to) print_tick_y(to, y, value, pow(10, power));
        }
}

static void print_tick_x(FILE *to, const Axis *x, double step)
{
    char text[40];
    double at = across(x, step);
    /* A label that is centred at the last tick would not fit into the image, so it ends at the
     * edge. */
    bool ends = at > RIGHT - 20;
    fprintf(to,
            "<path class=\"grid\" d=\"M%.1f %dV%d\"/><text x=\"%.1f\" y=\"%d\" "
            "class=\"%s\">%s</text>\n",
            at, TOP, BOTTOM, ends ? WIDTH - 2 : at, BOTTOM + 18, ends ? "y" : "x",
            tick_text(text, sizeof text, step, x->tick));
}

static void print_axes(FILE *to, const Axis *x, const Axis *y)
{
    if (y->log)
        print_log_ticks(to, y);
    else
        for (int i = 0; i <= (int)lrint((y->to - y->from) / y->tick); i++)
            print_tick_y(to, y, y->from + i * y->tick, y->tick);
    fprintf(to, "<text x=\"%d\" y=\"%d\" class=\"y\">step</text>\n", LEFT - 6, BOTTOM + 18);
    double first = ceil(x->from / x->tick), ticks = floor(x->to / x->tick) - first;
    for (int i = 0; i <= fmin(ticks, TICKS_MOST); i++)
        print_tick_x(to, x, x->tick * (first + i));
}

/* ---- curves -----------------------------------------------------------------------------------
 */

/* Prints the range of the values of spots [from, end), which lie between two gaps, as a closed
 * path. */
static void print_band(FILE *to, const Axis *x, const Axis *y, const Spot *spot, int from, int end)
{
    for (int i = from; i < end; i++)
        fprintf(to, "%s%.1f %.1f", i == from ? "M" : "L", across(x, spot[i].step),
                height(y, spot[i].high));
    for (int i = end - 1; i >= from; i--)
        fprintf(to, "L%.1f %.1f", across(x, spot[i].step), height(y, spot[i].low));
    fputs("Z", to);
}

/* Prints the means of spots [from, end), which lie between two gaps. A single mean is drawn as a
 * dot: a line of no length with round ends. */
static void print_line(FILE *to, const Axis *x, const Axis *y, const Spot *spot, int from, int end)
{
    for (int i = from; i < end; i++)
        fprintf(to, "%s%.1f %.1f", i == from ? "M" : "L", across(x, spot[i].step),
                height(y, spot[i].mean));
    if (end - from == 1) fputs("h0", to);
}

typedef void PrintPart(FILE *to, const Axis *x, const Axis *y, const Spot *spot, int from, int end);

/* Prints a path with one part for each sequence of spots between two gaps. */
static void print_path(FILE *to, const char *kind, PrintPart *part, const Axis *x, const Axis *y,
                       const Spot *spot, int n)
{
    fprintf(to, "<path class=\"%s\" d=\"", kind);
    for (int from = 0, end; from < n; from = end + 1) {
        end = from;
        while (end < n && spot[end].finite > 0)
            end++;
        if (end > from) part(to, x, y, spot, from, end);
    }
    fputs("\"/>\n", to);
}

static bool any_finite(const Spot *spot, int n)
{
    for (int i = 0; i < n; i++)
        if (spot[i].finite > 0) return true;
    return false;
}

bool plot_print(FILE *to, const Plot *plot)
{
    size_t most = (size_t)plot->most;
    Spot *spot = must_calloc((size_t)plot->n_curves * most, sizeof *spot);
    int *n = must_calloc((size_t)plot->n_curves, sizeof *n);
    Axis x = {.from = (double)plot->first_step, .to = (double)plot->last_step}, y = {0};
    bool empty = true;
    if (x.to <= x.from) x.to = x.from + 1;
    x.tick = fmax(1, tick_distance(x.to - x.from, 5));
    for (int r = 0; r < plot->n_curves; r++) {
        n[r] = average(plot, &plot->curve[r], spot + (size_t)r * most);
        axis_cover(&y, spot + (size_t)r * most, n[r], plot->band, &empty);
    }
    if (!empty) {
        axis_round(&y, plot);
        fprintf(to,
                "<figure><figcaption>%s <small>%s%s</small></figcaption>\n"
                "<svg viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"%s\">\n",
                plot->title, plot->unit, y.log ? ", logarithmic" : "", WIDTH, HEIGHT, plot->title);
        print_axes(to, &x, &y);
        for (int r = 0; r < plot->n_curves; r++) {
            const Spot *own = spot + (size_t)r * most;
            if (!any_finite(own, n[r])) continue;
            fprintf(to, "<g class=\"r%d\">", r);
            if (plot->band && plot->curve[r].n > plot->most)
                print_path(to, "band", print_band, &x, &y, own, n[r]);
            print_path(to, "line", print_line, &x, &y, own, n[r]);
            fputs("</g>\n", to);
        }
        fputs("</svg></figure>\n", to);
    }
    free(spot);
    free(n);
    return !empty;
}

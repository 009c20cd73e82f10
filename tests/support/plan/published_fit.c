/* published_fit.c -- see published_fit.h. A few steps of Gauss and Newton: the logarithms of the
 * times are taken as linear in the constants, which have been scaled to [0, 1], and the best point
 * within the bounds is searched one constant at a time. */
#include "tests/support/plan/published_fit.h"

#include "model/core/check.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static const double WEIGHT = 4e-3; /* of the distance from the start */

typedef struct {
    double x[FITTED]; /* in [0, 1] */
} Point;

static Fitted at_point(const Point *p)
{
    Fitted f;
    for (int k = 0; k < FITTED; k++)
        f.value[k] = fitted_least(k) + p->x[k] * (fitted_most(k) - fitted_least(k));
    return f;
}

static Point point_of(const Fitted *f)
{
    Point p;
    for (int k = 0; k < FITTED; k++)
        p.x[k] = (f->value[k] - fitted_least(k)) / (fitted_most(k) - fitted_least(k));
    return p;
}

double published_error(const RecordedRun *recorded, const Fitted *f)
{
    return log(published_predict(recorded, f) / recorded->run->seconds);
}

static void replay_all(const RecordedRun *recorded, int n, const Point *p, double *error)
{
    const Fitted f = at_point(p);
    for (int i = 0; i < n; i++)
        error[i] = published_error(&recorded[i], &f);
}

bool published_is_used(const PublishedRun *run, const char *left_out)
{
    return strcmp(run->family, left_out) != 0 && strcmp(run->family, PUBLISHED_NOT_FITTED) != 0;
}

double published_penalty(const Fitted *f)
{
    Point start = point_of(&fitted_start), p = point_of(f);
    double sum = 0;
    for (int k = 0; k < FITTED; k++)
        sum += (p.x[k] - start.x[k]) * (p.x[k] - start.x[k]);
    return WEIGHT * sum;
}

/* The slope of the linear model's misfit along constant k, and its curvature. */
typedef struct {
    int n;
    const bool *used;
    const double *error;
    double *const *slope; /* of each run's error, for each constant */
    int runs;
} Model;

/* Moves x to the best point of the linear model around `from`. */
static void improve(const Model *m, const Point *from, const Point *start, Point *to)
{
    for (int round = 0; round < 500; round++)
        for (int k = 0; k < FITTED; k++) {
            double down = WEIGHT * (to->x[k] - start->x[k]), curve = WEIGHT;
            for (int i = 0; i < m->n; i++) {
                if (!m->used[i]) continue;
                double error = m->error[i];
                for (int j = 0; j < FITTED; j++)
                    error += m->slope[j][i] * (to->x[j] - from->x[j]);
                down += error * m->slope[k][i] / m->runs;
                curve += m->slope[k][i] * m->slope[k][i] / m->runs;
            }
            to->x[k] = fmin(fmax(to->x[k] - down / curve, 0), 1);
        }
}

Fitted published_fit(const RecordedRun *recorded, int n, const char *left_out)
{
    enum { STEPS = 4 };
    const double little = 0.02;
    size_t bytes = (size_t)n * sizeof(double);
    double *error = must_alloc(bytes), *slope[FITTED];
    bool *used = must_calloc((size_t)n, sizeof *used);
    Model m = {.n = n, .used = used, .error = error, .slope = slope};
    Point first = point_of(&fitted_start), at;
    for (int i = 0; i < n; i++)
        m.runs += used[i] = published_is_used(recorded[i].run, left_out);
    for (int k = 0; k < FITTED; k++)
        slope[k] = must_alloc(bytes);
    at = first;
    for (int s = 0; s < STEPS; s++) {
        replay_all(recorded, n, &at, error);
        for (int k = 0; k < FITTED; k++) {
            Point beside = at;
            double step = at.x[k] > 0.5 ? -little : little;
            beside.x[k] += step;
            replay_all(recorded, n, &beside, slope[k]);
            for (int i = 0; i < n; i++)
                slope[k][i] = (slope[k][i] - error[i]) / step;
        }
        Point next = at;
        improve(&m, &at, &first, &next);
        at = next;
    }
    for (int k = 0; k < FITTED; k++)
        free(slope[k]);
    free(error);
    free(used);
    return at_point(&at);
}

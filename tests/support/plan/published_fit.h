/* published_fit.h -- fits the four constants of a GPU to published runs (published.h). */
#ifndef TESTS_SUPPORT_PLAN_PUBLISHED_FIT_H
#define TESTS_SUPPORT_PLAN_PUBLISHED_FIT_H

#include "tests/support/plan/published.h"

/* Returns whether a fit without the family `left_out` ("": none) uses the run. */
bool published_is_used(const PublishedRun *run, const char *left_out);
/* Returns log(predicted / published) of the run's step time. */
double published_error(const RecordedRun *recorded, const Fitted *fitted);
/* Returns 0.004 of the squared distance from fitted_start, relative to the distance of the bounds.
 * It keeps constants that the runs hardly determine away from their bounds; with a quarter of it,
 * all errors are a little smaller. */
double published_penalty(const Fitted *fitted);
/* Returns the constants within their bounds with the smallest sum of published_penalty and the mean
 * square of published_error over the runs of one machine that are used. Replays every run 20 times.
 */
Fitted published_fit(const RecordedRun *recorded, int n, const char *left_out);

#endif

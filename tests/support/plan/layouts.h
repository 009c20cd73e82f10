/* layouts.h -- plans layouts of a search one by one, for tests that compare the search, and its
 * closed forms, with plans. */
#ifndef TESTS_SUPPORT_PLAN_LAYOUTS_H
#define TESTS_SUPPORT_PLAN_LAYOUTS_H

#include "parallel/plan/search.h"

/* Returns the hardware of a machine file; fails the test if it cannot be read. */
Hardware layout_machine(const char *name);
/* Reads a config for source->world ranks with source->sets, and then those of a layout of `given`,
 * unless that is NULL; fails the test if it has errors. The caller frees it. */
const Config *layout_config(const SearchSource *source, const Hardware *hardware,
                            const Config *given, const PlanLayout *layout);

/* What a plan of a layout says. */
typedef struct {
    double seconds; /* of a step */
    double bytes;   /* of a rank's device memory; on CPUs, of a node's divided by its ranks */
    bool fits;
} LayoutPlan;
/* Plans a layout of the config `given`. Fails the test if a lower bound is above the plan. */
LayoutPlan layout_plan(const SearchSource *source, const Config *given, const Hardware *hardware,
                       const PlanLayout *layout);

#endif

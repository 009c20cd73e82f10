/* layouts.c -- plans layouts of a search one by one; see layouts.h. */
#include "tests/support/plan/layouts.h"

#include "parallel/plan/plan.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

Hardware layout_machine(const char *name)
{
    Hardware hardware;
    ExitCode code;
    char err[512];
    if (!hardware_load(&hardware, name, &code, err, sizeof err)) fail_msg("%s", err);
    return hardware;
}

const Config *layout_config(const SearchSource *source, const Hardware *hardware,
                            const Config *given, const PlanLayout *layout)
{
    StringList sets = {0};
    ConfigReport report;
    ConfigContext context = plan_context(hardware, source->world);
    for (int i = 0; i < source->n_sets; i++)
        string_list_add(&sets, source->sets[i]);
    if (given != NULL) plan_layout_sets(given, layout, &sets);
    const Config *c =
        config_load(source->path, sets.count, (const char *const *)sets.item, &context, &report);
    if (c == NULL) fail_msg("%s", report.error[0]);
    config_report_free(&report);
    string_list_free(&sets);
    return c;
}

LayoutPlan layout_plan(const SearchSource *source, const Config *given, const Hardware *hardware,
                       const PlanLayout *layout)
{
    char err[1024];
    const Hardware rank = hardware_of_rank(hardware, source->world);
    const Config *c =
        plan_settle(layout_config(source, hardware, given, layout), hardware, err, sizeof err);
    assert_non_null(c);
    Plan plan;
    assert_true(plan_make(&plan, c, hardware, err, sizeof err));
    double least = plan_least_seconds(c, &rank, layout, c->world),
           bytes = plan_least_bytes(c, layout, c->world);
    if (least > plan.step.seconds || bytes > (double)plan.device.needed)
        fail_msg("%s, tensor %d, pipeline %d, chunks %d, micro %d, zero %d, policy %d, rows %d: %g "
                 "of %g s, %g of %g bytes",
                 source->path, (int)layout->tensor, (int)layout->pipeline, (int)layout->chunks,
                 (int)layout->micro, (int)layout->zero, (int)layout->recompute,
                 layout->sequence_parallel, least, plan.step.seconds, bytes,
                 (double)plan.device.needed);
    const LayoutPlan planned = {.seconds = plan.step.seconds,
                                .bytes = (double)plan.device.needed /
                                         (double)(hardware->cuda ? 1 : plan.ranks_of_node),
                                .fits = plan.fits};
    plan_free(&plan);
    config_free(c);
    return planned;
}

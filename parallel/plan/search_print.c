/* search_print.c -- prints the layouts that a search has found; see search.h. */
#include "configs/advice.h"
#include "optim/step_constants.h"
#include "parallel/plan/plan.h"
#include "parallel/plan/search.h"

#include <stdio.h>
#include <stdlib.h>

void plan_search_print(const PlanSearch *search, const Config *settled, const Hardware *hardware)
{
    double tokens = (double)step_tokens(settled);
    printf("%d best of %lld legal layouts for %lld ranks of %s; all times are predicted\n",
           search->found, (long long)search->space, (long long)settled->world, hardware->name);
    printf("%lld planned, %lld cannot fit, %lld left%s\n", (long long)search->planned,
           (long long)search->misfits, (long long)search->left,
           search->left > 0 ? ": these seemed slower, but that is not proven" : "");
    if (search->found == 0)
        printf("no layout that was planned fits into memory; more ranks, or a smaller micro-batch "
               "or model, would\n");
    for (int i = 0; i < search->found; i++) {
        StringList sets = {0};
        plan_layout_sets(settled, &search->best[i], &sets);
        char *options = config_options(sets.count, (const char *const *)sets.item, 1);
        printf("%2d. %.4g s a step, %.4g tokens/s\n   %s\n", i + 1, search->seconds[i],
               tokens / search->seconds[i], sets.count > 0 ? options : " (the config as it is)");
        free(options);
        string_list_free(&sets);
    }
}

/* comms.c -- see comms.h. */
#include "parallel/report/comms.h"

#include "model/core/figures.h"
#include "model/core/log.h"

static void print_line(const Comm *comm, CommVerb verb, DType dtype, const CommCount *count)
{
    log_field("", "%-9s %-15s%-5s%9s%12s%13s", comm->name, comm_verb_name[verb], dtype_name(dtype),
              figure_short((double)count->calls).text, figure_short((double)count->elements).text,
              figure_bytes((double)count->bytes).text);
}

void comms_print(const Comm *const *group, int n_groups)
{
    log_field("comms", "%-9s %-15s%-5s%9s%12s%13s", "group", "operation", "type", "calls",
              "elements", "bytes");
    for (int g = 0; g < n_groups; g++) {
        const CommCounts *counts = comm_counts(group[g]);
        for (int verb = 0; verb < COMM_VERBS && group[g]->size > 1; verb++)
            for (int dtype = 0; dtype < DTYPE_COUNT; dtype++)
                if (counts->of[verb][dtype].calls > 0)
                    print_line(group[g], verb, dtype, &counts->of[verb][dtype]);
    }
}

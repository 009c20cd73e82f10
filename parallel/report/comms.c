/* comms.c -- prints the communication counts of all groups as a table or as JSON. See comms.h. */
#include "parallel/report/comms.h"

#include "model/core/figures.h"
#include "model/core/log.h"

/* One line of the report: the counts of a group, an operation and a dtype. */
typedef struct {
    const Comm *comm;
    CommVerb verb;
    DType dtype;
    const CommCount *count;
} Line;

/* Finds the next line of the report. *g and *cell hold the position of the search and must be 0 at
 * the start. Returns false after the last line. */
static bool next_line(const Comm *const *group, int n_groups, int *g, int *cell, Line *line)
{
    for (; *g < n_groups; ++*g, *cell = 0) {
        const Comm *comm = group[*g];
        /* A group of one rank sends nothing, although its calls are counted. */
        while (comm->size > 1 && *cell < COMM_VERBS * DTYPE_COUNT) {
            int verb = *cell / DTYPE_COUNT, dtype = *cell % DTYPE_COUNT;
            const CommCount *count = &comm_counts(comm)->of[verb][dtype];
            ++*cell;
            if (count->calls == 0) continue;
            *line = (Line){comm, verb, dtype, count};
            return true;
        }
    }
    return false;
}

void comms_print(const Comm *const *group, int n_groups)
{
    Line line;
    log_field("comms", "what rank 0 has called since the program started");
    log_field("", "%-9s %-15s%-5s%9s%12s%13s", "group", "operation", "type", "calls", "elements",
              "bytes");
    for (int g = 0, cell = 0; next_line(group, n_groups, &g, &cell, &line);)
        log_field("", "%-9s %-15s%-5s%9s%12s%13s", line.comm->name, comm_verb_name[line.verb],
                  dtype_name(line.dtype), figure_short((double)line.count->calls).text,
                  figure_short((double)line.count->elements).text,
                  figure_bytes((double)line.count->bytes).text);
}

void comms_print_json(const Comm *const *group, int n_groups, FILE *to)
{
    Line line;
    const char *comma = "";
    fputc('[', to);
    for (int g = 0, cell = 0; next_line(group, n_groups, &g, &cell, &line); comma = ", ")
        fprintf(to,
                "%s{\"group\": \"%s\", \"operation\": \"%s\", \"type\": \"%s\", \"calls\": %lld, "
                "\"elements\": %lld, \"bytes\": %lld}",
                comma, line.comm->name, comm_verb_name[line.verb], dtype_name(line.dtype),
                (long long)line.count->calls, (long long)line.count->elements,
                (long long)line.count->bytes);
    fputc(']', to);
}

/* node_list.h -- expands SLURM's lists of machines, such as "n[1-2,5],gpu-07". */
#ifndef PARALLEL_GRID_NODE_LIST_H
#define PARALLEL_GRID_NODE_LIST_H

#include "model/core/string_list.h"

#include <stdbool.h>
#include <stddef.h>

/* The largest number of machines in a list, and of bytes in a name. */
enum { NODE_LIST_MOST = 65536, NODE_NAME_MOST = 255 };

/* Appends the names of a list of machines to `names`, in the list's order, as `scontrol show
 * hostnames` prints them. Names are separated by commas and consist of letters, digits, '-', '_'
 * and '.'. Numbers in brackets stand for several names: "n[08-10]" for n08, n09 and n10. A name may
 * have several brackets, of which the last one, at its end, changes fastest. Returns false and
 * writes an error message for anything else, such as an empty name or a descending range; `names`
 * may then contain some of the names. */
bool node_list_expand(const char *list, StringList *names, char *err, size_t n);

/* Appends the machine of each of a step's tasks to `hosts`, in the order of the tasks. `list` is
 * SLURM_STEP_NODELIST, and `tasks` SLURM_STEP_TASKS_PER_NODE, such as "2(x3),1". The result is
 * correct for the distribution "block", with which srun places consecutive tasks on a machine.
 * Returns false and writes an error message if one of the lists is not valid, if they do not have
 * the same number of machines, or if there are not `ranks` tasks. */
bool node_list_of_tasks(const char *list, const char *tasks, int ranks, StringList *hosts,
                        char *err, size_t n);

#endif

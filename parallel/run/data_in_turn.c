/* data_in_turn.c -- see data_in_turn.h. */
#include "parallel/run/data_in_turn.h"

#include "data/identity.h"
#include "model/core/progress.h"
#include "parallel/grid/control.h"
#include "parallel/grid/machines.h"
#include "parallel/run/waiting.h"

#include <stdlib.h>

bool data_in_turn(Comm *world, DataOpen open, const Config *config, DataSet *data, char *err,
                  size_t n, ExitCode *code)
{
    enum { TURNS = 3 };
    static const char *const what[TURNS] = {"rank 0 to prepare the text",
                                            "the other machines to prepare the text",
                                            "the other ranks to open the data"};
    Machines machines = machines_of(world);
    int rank = world->rank, turn = rank == 0 ? 0 : machines.local_rank == 0 ? 1 : 2;
    bool good = true, all = true;
    Comm patient = comm_split(world, "data", 0, rank);
    comm_wait_without_limit(&patient);
    for (int t = 0; t < TURNS && all; t++) {
        char why[2048] = "", place[300];
        if (t == turn) good = open(config, data, why, sizeof why, code);
        if (!good && rank > 0)
            error_set(err, n, "rank %d%s: %s", rank,
                      machines_place(world, rank, place, sizeof place), why);
        else
            error_set(err, n, "%s", why);
        /* While rank 0 prepares the text, it shows its own progress. On every other machine one
         * rank prints that it waits. */
        Waiting *waiting = t == 0 && turn == 1 ? waiting_begin(what[t]) : NULL;
        Progress progress = progress_begin();
        if (t > turn) progress_print(&progress, "waiting for %s", what[t]);
        all = control_agree(&patient, good, err, n);
        progress_end(&progress);
        waiting_end(waiting);
    }
    comm_close(&patient);
    /* The maximum comes from the lowest rank that has failed; its last byte is that rank's exit
     * code. */
    int64_t first = control_max(world, good ? 0 : ((world->size - rank) << 8) + *code);
    if (!all) *code = (ExitCode)(first & 0xff);
    return all;
}

/* Ends the program on all ranks if this rank's identity of some data differs from rank 0's. */
static void require_same(Comm *world, const char *identity)
{
    char err[2048] = "", place[300];
    char *first = control_share_text(world, identity);
    char *other = first && identity ? data_identity_difference(first, identity) : NULL;
    int rank = world->rank;
    if (other)
        error_set(err, sizeof err,
                  "rank %d%s has other data than rank 0: %s; give all machines the same files",
                  rank, machines_place(world, rank, place, sizeof place), other);
    if (!control_agree(world, other == NULL, err, sizeof err))
        control_fail(world, EXIT_CONFIG, "%s", err);
    free(other);
    free(first);
}

void data_require_same(Comm *world, const DataSet *data)
{
    require_same(world, data->identity);
    require_same(world, data->sets_identity);
}

/* nccl.cu -- tests whether NCCL works between 2 and 4 processes on one GPU, each with its own
 * NCCL_HOSTID, over the loopback interface. It tests which collectives give right results and how
 * fast they are, what happens if two communicators are used in different orders, what surviving
 * ranks see when a peer is killed, and whether threads of one process can be ranks.
 *
 * B/s are a message's bytes divided by its time: the whole buffer of an all-reduce, the input of a
 * reduce-scatter, the output of an all-gather, what one rank sends in a ring. */
#include "tests/probe/nccl_collectives.h"
#include "tests/probe/nccl_faults.h"

/* Runs in the first child and tests whether there is a GPU and a library. The parent itself never
 * calls CUDA. */
static void device_body(struct set *s, int rank)
{
    char why[256];
    struct rank at = {s, rank, 1, NULL, NULL, NULL, NULL, NULL};
    probe_device();
    if (api_open(why, sizeof why)) {
        set_one_line(why);
        probe_word("nccl", probe_name("skipped: %.140s", why));
        _exit(SET_SKIPPED);
    }
    NCCL(&at, GetVersion, &s->version);
    probe_word("nccl.version", probe_name("%d.%d.%d", s->version / 10000, s->version / 100 % 100,
                                          s->version % 100));
}

/* The optional argument is the number of seconds for all tests together. Killing a set of processes
 * that is stuck can take 4 more. */
int main(int argc, char **argv)
{
    struct set *s = set_make(argc > 1 ? atof(argv[1]) : 55);
    int code = set_run(s, "nccl", 1, device_body, 15);
    if (code == SET_SKIPPED) return 0;
    if (code) return code == PROBE_NO_GPU ? PROBE_NO_GPU : PROBE_FAILED;
    if (collectives_run(s, "nccl.2", 2, OPERATIONS, 14)) {
        /* NCCL's default choices fail here, so all later tests use fixed settings. */
        s->pinned = 1;
        if (collectives_run(s, "nccl.2.pinned", 2, OPERATIONS, 14)) {
            faults_threads_run(s);
            return 0;
        }
    }
    collectives_run(s, "nccl.4", 4, OPERATIONS, 14);
    s->report_init = 0;
    faults_run(s);
    if (!s->pinned) {
        s->pinned = 1;
        collectives_run(s, "nccl.2.pinned", 2, 1, 8);
    }
    return 0;
}

/* test_faulty_grid.c -- two stages of two tensor-parallel ranks, one of which fails, leaves or
 * hangs during an exchange between stages or a sum inside a layer: all ranks must end at once, with
 * an error message that names the group, the call and the missing rank. */
#include "model/core/check.h"
#include "model/core/log.h"
#include "parallel/grid/launch.h"
#include "tests/support/files/child.h"
#include "tests/support/grid/faulty_comm.h"
#include "tests/support/trainer/training.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { PATIENCE = 6 /* seconds */, STEPS = 3 };
static const GridPlace size = {.pp = 2, .dp = 1, .cp = 1, .tp = 2};

typedef struct {
    CommFault fault;
    ExitCode code;
    const char *said;
} Row;

/* Ranks 0 and 1 are stage 0; 2 and 3 are stage 1. Ranks 0 and 2 exchange tensors, and so do 1 and
 * 3. The model uses sequence parallelism and a tied table, and one head of keys and values is
 * shared by both tensor-parallel ranks. */
static const Row rows[] = {
    {{.kind = COMM_FAIL, COMM_SEND, "pp", 1, 3},
     EXIT_UNAVAILABLE,
     "rank 1 pp 0 tp 1: planted: send 3 of group pp\n"},
    {{.kind = COMM_FAIL, COMM_REDUCE_SCATTER, "tp", 2, 9},
     EXIT_UNAVAILABLE,
     "rank 2 pp 1 tp 0: planted: reduce-scatter 9 of group tp\n"},
    /* All ranks that wait for the one that left fail at once; any of them may print the message. */
    {{.kind = COMM_LEAVE, COMM_RECEIVE, "pp", 3, 2},
     EXIT_PEER_LOST,
     ", which has left the group\n"},
    {{.kind = COMM_LEAVE, COMM_SEND, "pp", 2, 2}, EXIT_PEER_LOST, ", which has left the group\n"},
    {{.kind = COMM_LEAVE, COMM_ALL_GATHER, "tp", 0, 7},
     EXIT_PEER_LOST,
     ", which has left the group\n"},
    {{.kind = COMM_LEAVE, COMM_ALL_REDUCE, "tie", 2, 1},
     EXIT_PEER_LOST,
     ", which has left the group\n"},
    /* The peer of the hanging rank prints the message, or a rank that has waited longer, which then
     * names the rank for which it waits. */
    {{.kind = COMM_HANG, COMM_SEND, "pp", 0, 2}, EXIT_HANG, ", which has not arrived"},
    {{.kind = COMM_HANG, COMM_RECEIVE, "pp", 1, 3}, EXIT_HANG, ", which has not arrived"},
    {{.kind = COMM_HANG, COMM_REDUCE_SCATTER, "tp", 3, 5}, EXIT_HANG, ", which has not arrived"},
    {{.kind = COMM_HANG, COMM_ALL_REDUCE, "kv", 1, 1}, EXIT_HANG, ", which has not arrived"},
    /* A message is never sent: in the end both ranks wait for a message from the other. */
    {{.kind = COMM_SKIP, COMM_SEND, "pp", 0, 1},
     EXIT_HANG,
     ", which has not arrived; they wait for each other\n"},
};
enum { ROWS = sizeof rows / sizeof *rows };

typedef struct {
    const Row *row;
    const Training *training;
} Job;

static int train(Comm *world, void *context)
{
    const Job *job = context;
    Comm comm = faulty_comm(world, &job->row->fault, 1);
    Trainer trainer;
    training_open_rank(&trainer, &comm, job->training);
    for (int i = 0; i < STEPS; i++)
        trainer_step(&trainer);
    trainer_close(&trainer);
    comm_close(&comm);
    return EXIT_OK;
}

static void run_ranks(void *context)
{
    const Job *job = context;
    LaunchOptions options = {.size = size, .timeout = job->row->code == EXIT_HANG ? PATIENCE : 0};
    int code = launch_ranks(4, &options, train, context);
    /* All ranks have ended, so this ends the program like a single rank. */
    (fail)((ExitCode)code, "the fault did not show");
}

/* Returns whether the message begins with a rank's place and its call, "group tp, call 12, ...". */
static bool names_a_call(const char *text)
{
    int rank, pp, tp, call;
    char group[16];
    return sscanf(text, "error[%*d] rank %d pp %d tp %d: group %15[a-z], call %d,", &rank, &pp, &tp,
                  group, &call) == 5 &&
           rank == pp * size.tp + tp && call > 0;
}

/* Returns the last rank for which the message says that others wait. */
static int missing(const char *text)
{
    int rank = -1;
    for (const char *at = text; (at = strstr(at, " for rank ")); at++)
        sscanf(at, " for rank %d", &rank);
    return rank;
}

static void expect_end(const Row *row, pid_t child, int said)
{
    char text[2048], what[64];
    const CommFault *f = &row->fault;
    int code = child_end(child, said, text, sizeof text);
    snprintf(what, sizeof what, "%s %lld of %s on rank %d", comm_verb_name[f->verb],
             (long long)f->call, f->group, f->rank);
    if (code != (int)row->code) fail_msg("%s: %d, not %d: %s", what, code, row->code, text);
    if (strstr(text, row->said) == NULL)
        fail_msg("%s: \"%s\" is not in: %s", what, row->said, text);
    if (strchr(text, '\n') != text + strlen(text) - 1) fail_msg("no single line: %s", text);
    if (f->kind != COMM_FAIL && !names_a_call(text)) fail_msg("%s: no call in: %s", what, text);
    if ((f->kind == COMM_LEAVE || f->kind == COMM_HANG) && missing(text) != f->rank)
        fail_msg("%s: it is not named: %s", what, text);
}

static void test_bug_29_a_failing_or_hanging_rank_of_a_grid_ends_all_ranks(void **state)
{
    Training training;
    pid_t child[ROWS];
    int said[ROWS];
    training_of_text(&training, *state, 4,
                     (const char *[]){"parallel.tensor=2", "parallel.pipeline=2",
                                      "parallel.sequence_parallel=true", "cpu.threads=1",
                                      "model.num_key_value_heads=1", "train_batch_size=8",
                                      "cpu.blas=builtin", NULL});
    for (int i = 0; i < ROWS; i++)
        child[i] = child_start(run_ranks, &(Job){&rows[i], &training}, &said[i]);
    for (int i = 0; i < ROWS; i++)
        expect_end(&rows[i], child[i], said[i]);
    training_close(&training);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bug_29_a_failing_or_hanging_rank_of_a_grid_ends_all_ranks),
    };
    /* Without messages, preparing the text starts no thread that shows its progress: under
     * ThreadSanitizer, children of a process with several threads cannot start threads. */
    log_set_level(LOG_ERROR);
    return cmocka_run_group_tests_name("faulty grid", tests, trainer_folder_setup,
                                       trainer_folder_teardown);
}

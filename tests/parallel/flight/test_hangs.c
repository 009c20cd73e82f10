/* test_hangs.c -- whole runs in which one rank hangs before each kind of collective and exchange,
 * in the loader, in a save, or at a console that nobody reads, or is stopped, or makes another call
 * than the others. The analysis of the flight recorders must name this rank, the entry that it is
 * in, and the cause; so must the message that rank 0 prints. */
#include "model/core/check.h"
#include "model/core/log.h"
#include "parallel/flight/words.h"
#include "tests/parallel/flight/hang_calls.h"
#include "tests/parallel/flight/hang_works.h"
#include "tests/support/files/child.h"
#include "tests/support/trainer/run_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- the planted hang; the linker redirects the calls to these functions (--wrap) --------------
 */

static const HangRow *planted;
static Run *planted_run; /* of the rank that hangs */
static _Thread_local bool armed;
static int times;

static bool is_here(Point point, CommVerb verb, const char *group)
{
    return armed && planted->point == point && planted->rank == log_rank() &&
           (point != AT_CALL || planted->verb == verb) &&
           (group == NULL || strcmp(planted->group, group) == 0) && ++times == planted->nth;
}

/* Does what planted->deed says: never returns (HANG), stops this process (STOP), or makes a barrier
 * of the same group (OTHER) or of the world (WORLD) before the call that the rank should make. */
static void act(Comm *comm)
{
    while (planted->deed == HANG)
        pause();
    if (planted->deed == STOP) raise(SIGSTOP);
    comm_barrier(planted->deed == WORLD ? planted_run->world : comm);
}

#define CALL(verb, comm)                                                                           \
    do {                                                                                           \
        if (is_here(AT_CALL, verb, (comm)->name)) act(comm);                                       \
    } while (0)

void __real_comm_all_reduce(Comm *comm, Device *on, Tensor x, ReduceOp op);
void __wrap_comm_all_reduce(Comm *comm, Device *on, Tensor x, ReduceOp op)
{
    CALL(COMM_ALL_REDUCE, comm);
    __real_comm_all_reduce(comm, on, x, op);
}

void __real_comm_reduce_scatter(Comm *comm, Device *on, Tensor part, Tensor whole);
void __wrap_comm_reduce_scatter(Comm *comm, Device *on, Tensor part, Tensor whole)
{
    CALL(COMM_REDUCE_SCATTER, comm);
    __real_comm_reduce_scatter(comm, on, part, whole);
}

void __real_comm_all_gather(Comm *comm, Device *on, Tensor whole, Tensor part);
void __wrap_comm_all_gather(Comm *comm, Device *on, Tensor whole, Tensor part)
{
    CALL(COMM_ALL_GATHER, comm);
    __real_comm_all_gather(comm, on, whole, part);
}

void __real_comm_broadcast(Comm *comm, Device *on, Tensor x, int root);
void __wrap_comm_broadcast(Comm *comm, Device *on, Tensor x, int root)
{
    CALL(COMM_BROADCAST, comm);
    __real_comm_broadcast(comm, on, x, root);
}

void __real_comm_send(Comm *comm, Device *on, Tensor x, int to);
void __wrap_comm_send(Comm *comm, Device *on, Tensor x, int to)
{
    CALL(COMM_SEND, comm);
    __real_comm_send(comm, on, x, to);
}

void __real_comm_receive(Comm *comm, Device *on, Tensor x, int from);
void __wrap_comm_receive(Comm *comm, Device *on, Tensor x, int from)
{
    CALL(COMM_RECEIVE, comm);
    __real_comm_receive(comm, on, x, from);
}

void __real_comm_group_begin(Comm *comm);
void __wrap_comm_group_begin(Comm *comm)
{
    if (is_here(AT_GROUP, 0, comm->name)) act(comm);
    __real_comm_group_begin(comm);
}

bool __real_loader_next(Loader *loader, int64_t position, int64_t micro, Batch *batch, char *err,
                        size_t n);
bool __wrap_loader_next(Loader *loader, int64_t position, int64_t micro, Batch *batch, char *err,
                        size_t n);
bool __wrap_loader_next(Loader *loader, int64_t position, int64_t micro, Batch *batch, char *err,
                        size_t n)
{
    if (is_here(AT_LOADER, 0, NULL)) act(NULL);
    return __real_loader_next(loader, position, micro, batch, err, n);
}

static int hang_in_sync(void *self, int fd)
{
    /* `armed` is true only in the ranks' own threads, not in threads that write files beside the
     * steps. */
    if (is_here(AT_DISK, 0, NULL) || (planted->point == AT_WRITER && !armed)) act(NULL);
    return fs_system.sync(self, fd);
}

static const OpTable *real_ops;

static void never_ends(void *unused)
{
    (void)unused;
    for (;;)
        pause();
}

/* Blocks the stream: nothing that is issued to it from now on is executed. */
static void hang_stream(Stream stream)
{
    int (*launch)(void *, void (*)(void *), void *);
    *(void **)&launch = dlsym(RTLD_DEFAULT, "cudaLaunchHostFunc");
    CHECK(launch != NULL && launch(stream.impl, never_ends, NULL) == 0, "no stream");
}

static void hang_in_adamw(Device *dev, const UpdateRange *range, int n,
                          const StepDecision *decision, const AdamW *hyper)
{
    if (is_here(AT_OP, 0, NULL)) act(NULL);
    if (is_here(AT_STREAM, 0, NULL)) hang_stream(dev->compute);
    real_ops->adamw(dev, range, n, decision, hyper);
}

/* Requests a dump (SIGUSR2) while rank 0 waits for its console, and ends the program three seconds
 * later, when the dump has been written. */
static void *ask(void *unused)
{
    (void)unused;
    sleep(3);
    kill(getpid(), SIGUSR2);
    sleep(3);
    _exit(EXIT_HANG);
}

/* From now on nobody reads what the process prints on stdout. */
static void block_console(void)
{
    int ends[2];
    pthread_t thread;
    CHECK(pipe(ends) == 0 && fcntl(ends[1], F_SETFL, O_NONBLOCK) == 0, "no pipe");
    while (write(ends[1], "x", 1) == 1) {
    }
    CHECK(fcntl(ends[1], F_SETFL, 0) == 0 && dup2(ends[1], STDOUT_FILENO) >= 0, "no pipe");
    CHECK(pthread_create(&thread, NULL, ask, NULL) == 0, "no thread");
}

/* Called on each rank when the run has been opened: installs the planted hang. */
static void plant(Run *run)
{
    static FsOps fs;
    static OpTable ops;
    Device *dev = &run->trainer.session.dev;
    armed = true;
    if (run->world->rank != planted->rank) return;
    planted_run = run;
    fs = fs_system;
    fs.sync = hang_in_sync;
    if (planted->point == AT_DISK || planted->point == AT_WRITER) run->trainer.io.fs = &fs;
    real_ops = dev->ops;
    ops = *real_ops;
    ops.adamw = hang_in_adamw;
    if (planted->point == AT_OP || planted->point == AT_STREAM) dev->ops = &ops;
    if (planted->point == AT_CONSOLE) block_console();
}

enum {
    CALLS = sizeof hang_calls / sizeof *hang_calls,
    WORKS = sizeof hang_works / sizeof *hang_works,
    ROWS = CALLS + WORKS,
    AT_ONCE = 8,
    TIMEOUT = 3
};

static const HangRow *row_of(int i)
{
    return i < CALLS ? &hang_calls[i] : &hang_works[i - CALLS];
}

/* Returns the folder of the row's run, for the caller to free. */
static char *folder_of(const HangRow *row)
{
    int i = 0;
    while (row_of(i) != row)
        i++;
    return text_format("run-%d", i);
}

/* ---- the runs ----------------------------------------------------------------------------------
 */

static void run_row(void *context)
{
    const char *arguments[32] = {"tiny.json"}, *const * set;
    int n = 1;
    planted = context;
    char *out = folder_of(planted);
    char *ranks = text_format("%d", planted->ranks),
         *timeout = text_format("parallel.timeout=%d", TIMEOUT);
    const char *fixed[] = {"--out", out, "--ranks", ranks, "--set", timeout};
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++)
        arguments[n++] = fixed[i];
    for (set = planted->sets; *set; set++) {
        arguments[n++] = "--set";
        arguments[n++] = *set;
    }
    if (planted->processes) arguments[n++] = "--processes";
    ChildPlace place = {.opened = plant};
    ChildResult r = train_in_child(&place, arguments);
    fputs(r.text, stderr);
    _exit(r.code);
}

static void expect_row(const HangRow *row, pid_t child, int said)
{
    static char text[1 << 16];
    char err[1024], *run = folder_of(row);
    bool missing;
    FlightReading r;
    int code = child_end(child, said, text, sizeof text);
    if (code != (int)row->code) fail_msg("%s: %d, not %d:\n%s", row->name, code, row->code, text);
    if (!flight_reading_open(&r, run, 0, &missing, err, sizeof err))
        fail_msg("%s: %s:\n%s", row->name, err, text);
    char *begin = flight_words_begin(&r);
    char *wait = r.chain.waits > 0 ? flight_words_wait(&r, &r.chain.wait[0]) : must_strdup("none");
    /* If rank 0 is stopped, it is not certain that the other ranks write files of the same dump, so
     * only the command that shows more is printed. */
    bool alone = row->deed == STOP && row->rank == 0;
    char *line = alone ? text_format("flight: ./train flight %s shows more\n", run)
                       : text_format("flight: %s\n", begin);
    if (r.chain.cause != row->cause || r.chain.lates != 1 || r.chain.late[0] != row->rank ||
        strstr(begin, row->begin) == NULL || strstr(begin, row->action) == NULL ||
        strstr(wait, row->wait) == NULL)
        fail_msg("%s: %s, \"%s\", \"%s\"; expected: %s, \"%s ... %s\", \"%s\"\n%s", row->name,
                 flight_cause_name[r.chain.cause], begin, wait, flight_cause_name[row->cause],
                 row->begin, row->action, row->wait, text);
    if (strstr(text, line) == NULL) fail_msg("%s: \"%s\" is not in:\n%s", row->name, line, text);
    print_message("%s: %s; %s\n", row->name, flight_cause_name[row->cause], begin);
    free(line);
    free(begin);
    free(wait);
    free(run);
    flight_reading_close(&r);
}

/* Hangs of a stream need a CUDA device; the others need none. */
static void test_each_planted_hang_is_reported_with_its_cause_and_rank(void **state)
{
    const char *device = getenv("TEST_DEVICE");
    bool cuda = device != NULL && strcmp(device, "cuda") == 0;
    const HangRow *row[ROWS];
    int rows = 0;
    (void)state;
    for (int i = 0; i < ROWS; i++)
        if ((row_of(i)->point == AT_STREAM) == cuda) row[rows++] = row_of(i);
    for (int first = 0; first < rows; first += AT_ONCE) {
        pid_t child[AT_ONCE];
        int said[AT_ONCE], n = rows - first < AT_ONCE ? rows - first : AT_ONCE;
        for (int i = 0; i < n; i++)
            child[i] = child_start(run_row, (void *)row[first + i], &said[i]);
        for (int i = 0; i < n; i++)
            expect_row(row[first + i], child[i], said[i]);
    }
}

static int setup(void **state)
{
    setenv("EMU_STREAMS", "deferred", 0); /* otherwise emulated streams do their work at once */
    return run_fixture_setup(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_planted_hang_is_reported_with_its_cause_and_rank),
    };
    return cmocka_run_group_tests(tests, setup, leave_scratch);
}

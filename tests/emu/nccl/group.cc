/* group.cc -- queues the calls that a host thread makes between ncclGroupStart and ncclGroupEnd,
 * and launches them: one plan per communicator. */
#include "tests/emu/nccl/rules.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    Call **call;
    int n, capacity, depth;
} Group;

static __thread Group group;

/* ---- plans ----------------------------------------------------------------------------------- */

static bool is_message(const Call *call)
{
    return call->verb == SEND || call->verb == RECEIVE;
}

static void plan_add(Plan *plan, Call *call)
{
    int s = 0;
    plan->call[plan->n++] = call;
    while (s < plan->n_streams && plan->stream[s] != call->stream)
        s++;
    plan->stream[s] = call->stream;
    if (s == plan->n_streams) plan->n_streams++;
}

/* Makes a plan of the calls of this communicator among the n calls, collectives first, and numbers
 * them. */
static Plan *plan_make(ncclComm *comm, Call *const *call, int n)
{
    Plan *plan = (Plan *)calloc(1, sizeof *plan);
    if (plan != NULL) plan->call = (Call **)calloc((size_t)n, sizeof *plan->call);
    if (plan != NULL) plan->stream = (cudaStream_t *)calloc((size_t)n, sizeof *plan->stream);
    if (plan == NULL || plan->call == NULL || plan->stream == NULL) emu_die("no memory for a plan");
    plan->comm = comm;
    for (int i = 0; i < n; i++) {
        if (call[i]->comm != comm || is_message(call[i])) continue;
        call[i]->place = plan->collectives++;
        call[i]->number = comm->issued++;
        plan_add(plan, call[i]);
    }
    for (int i = 0; i < n; i++) {
        if (call[i]->comm != comm) continue;
        call[i]->collectives = plan->collectives;
        if (!is_message(call[i])) continue;
        Link *link = &comm->link[call[i]->peer];
        call[i]->number = call[i]->verb == SEND ? link->sent++ : link->received++;
        plan_add(plan, call[i]);
    }
    return plan;
}

static void run(void *context)
{
    plan_run(*(Plan **)context);
}

/* Enqueues the plan after all earlier work on its streams and after the communicator's previous
 * plan. Later work on its streams waits for it. */
static void plan_launch(Plan *plan)
{
    ncclComm *comm = plan->comm;
    cudaStream_t *stream = plan->stream;
    int n = plan->n_streams, before = emu_current_device();
    plan->stream = NULL;
    if (before != comm->device) cudaSetDevice(comm->device);
    for (int i = 1; i < n; i++) {
        cudaEventRecord(comm->reached, stream[i]);
        cudaStreamWaitEvent(stream[0], comm->reached, 0);
    }
    if (comm->planned) cudaStreamWaitEvent(stream[0], comm->finished, 0);
    emu_stream_do_host(stream[0], run, &plan, sizeof plan); /* plan_run also frees the plan */
    cudaEventRecord(comm->finished, stream[0]);
    comm->planned = true;
    for (int i = 1; i < n; i++)
        cudaStreamWaitEvent(stream[i], comm->finished, 0);
    if (before != comm->device) cudaSetDevice(before);
    free(stream);
}

/* ---- the group ------------------------------------------------------------------------------- */

static bool seen_before(Call *const *call, int i)
{
    for (int j = 0; j < i; j++)
        if (call[j]->comm == call[i]->comm) return true;
    return false;
}

static ncclResult_t launch(Call *const *call, int n)
{
    Plan *plans[n];
    int n_plans = 0, p = 0;
    for (int i = 0; i < n; i++) {
        if (call[i]->comm->device != call[0]->comm->device)
            emu_die("a group of calls for devices %d and %d: the stand-in has one host thread to a "
                    "device",
                    call[0]->comm->device, call[i]->comm->device);
        if (!seen_before(call, i)) plans[n_plans++] = plan_make(call[i]->comm, call, n);
    }
    bool never = !rules_launch(call, n);
    ncclResult_t code = never ? ncclSuccess : first_use(plans, n_plans);
    faults_delay();
    for (; p < n_plans && code == ncclSuccess; p++) {
        plans[p]->never = never;
        plan_launch(plans[p]);
    }
    for (; p < n_plans; p++)
        plan_free(plans[p]);
    return code;
}

static ncclResult_t launch_all(void)
{
    Call **call = group.call; /* take the list now: carrying out a plan may start another group */
    int n = group.n;
    group.call = NULL;
    group.n = group.capacity = 0;
    ncclResult_t code = n > 0 ? launch(call, n) : ncclSuccess;
    free(call);
    return code;
}

ncclResult_t group_add(const Call *call)
{
    if (group.n == group.capacity) {
        group.capacity = group.capacity ? 2 * group.capacity : 16;
        group.call = (Call **)realloc(group.call, (size_t)group.capacity * sizeof *group.call);
        if (group.call == NULL) emu_die("no memory for a group");
    }
    Call *copy = (Call *)malloc(sizeof *copy);
    if (copy == NULL) emu_die("no memory for a call");
    *copy = *call;
    group.call[group.n++] = copy;
    return group.depth > 0 ? ncclSuccess : launch_all();
}

ncclResult_t ncclGroupStart(void)
{
    ncclResult_t code = rules_enter("ncclGroupStart", NULL);
    if (code == ncclSuccess) group.depth++;
    return rules_leave("ncclGroupStart", NULL, code);
}

ncclResult_t ncclGroupEnd(void)
{
    ncclResult_t code = rules_enter("ncclGroupEnd", NULL);
    if (code == ncclSuccess && group.depth == 0)
        code = last_error(ncclInvalidUsage, "ncclGroupEnd: not in a group call.");
    else if (code == ncclSuccess && --group.depth == 0)
        code = launch_all();
    return rules_leave("ncclGroupEnd", NULL, code);
}

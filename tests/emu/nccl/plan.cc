/* plan.cc -- carries out a plan when its streams have reached it. Inputs are copied early or late.
 * Outputs are filled with poison until all results are written at the end. */
#include "tests/emu/nccl/rules.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { POISON = 0xff }; /* every byte: NaN in all float types */

static char *room(size_t bytes)
{
    char *p = (char *)malloc(bytes > 0 ? bytes : 1);
    if (p == NULL) emu_die("no memory for %zu bytes that a communicator carries", bytes);
    return p;
}

void call_read(Call *call)
{
    if (call->input != NULL || call->send == NULL) return;
    call->input = room(call->send_bytes);
    emu_memory_open();
    memcpy(call->input, call->send, call->send_bytes);
    emu_memory_close();
}

/* Fills the output with poison, except for bytes that the call still has to read in place. */
static void spoil(const Call *call)
{
    char *at = (char *)call->recv, *end = at + call->recv_bytes;
    const char *keep = (const char *)call->send, *keep_end = keep + call->send_bytes;
    if (call->recv == NULL) return;
    bool in_place = call->input == NULL && keep != NULL && keep < end && at < keep_end;
    emu_memory_open();
    if (!in_place) {
        memset(at, POISON, call->recv_bytes);
    } else {
        if (at < keep) memset(at, POISON, (size_t)(keep - at));
        if (keep_end < end) memset((char *)keep_end, POISON, (size_t)(end - keep_end));
    }
    emu_memory_close();
}

static void begin(Plan *plan)
{
    for (int i = 0; i < plan->n; i++) {
        if (!plan->comm->late) call_read(plan->call[i]);
        plan->call[i]->result = room(plan->call[i]->recv_bytes);
    }
    for (int i = 0; i < plan->n; i++)
        spoil(plan->call[i]);
}

/* Changes the sign of each number in the result. */
static void make_wrong(const Call *call)
{
    size_t size = type_size(call->type);
    for (size_t i = size; i <= call->recv_bytes; i += size)
        call->result[i - 1] = (char)(call->result[i - 1] ^ 0x80);
}

static void end(Plan *plan)
{
    for (int i = 0; i < plan->n; i++)
        if (plan->call[i]->wrong) make_wrong(plan->call[i]);
    emu_memory_open();
    for (int i = 0; i < plan->n; i++)
        if (plan->call[i]->recv != NULL)
            memcpy(plan->call[i]->recv, plan->call[i]->result, plan->call[i]->recv_bytes);
    emu_memory_close();
    rules_done(plan->call, plan->n);
}

/* Waits until the communicator is aborted, as a kernel does whose peers never arrive. */
static void spin(ncclComm *comm)
{
    struct pollfd sockets[1];
    while (!comm->aborted)
        net_poll(comm, sockets, 0);
}

static bool all_moved(Plan *plan)
{
    bool well = true;
    for (int i = 0; i < plan->collectives && well; i++)
        well = collective_run(plan->call[i]);
    if (well && plan->n > plan->collectives)
        well =
            messages_run(plan->comm, plan->call + plan->collectives, plan->n - plan->collectives);
    return well;
}

void plan_free(Plan *plan)
{
    for (int i = 0; i < plan->n; i++) {
        free(plan->call[i]->input);
        free(plan->call[i]->result);
        free(plan->call[i]);
    }
    free(plan->call);
    free(plan->stream);
    free(plan);
}

void plan_run(Plan *plan)
{
    ncclComm *comm = plan->comm;
    comm->inside++;
    begin(plan);
    if (plan->never || comm->async != ncclSuccess) {
        if (plan->never) fprintf(stderr, "emu: EMU_NCCL_FAULT: device %d stands\n", comm->device);
        spin(comm);
    } else if (all_moved(plan)) {
        end(plan);
    } else {
        if (!comm->aborted)
            comm->async =
                last_error(ncclRemoteError, "%s : a remote peer has closed the connection",
                           verb_name(plan->call[0]->verb));
        spin(comm);
    }
    plan_free(plan);
    comm->inside--;
}

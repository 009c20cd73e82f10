/* calls.cc -- the exported collectives and messages: they check their arguments and queue the call
 * in the group. */
#include "tests/emu/nccl/rules.h"

static ncclResult_t check(const Call *call)
{
    const char *name = verb_name(call->verb) + 4;
    if (call->comm == NULL)
        return last_error(ncclInvalidArgument, "%s : comm argument is NULL", name);
    if (call->comm->async != ncclSuccess) return (ncclResult_t)call->comm->async.load();
    if (type_size(call->type) == 0)
        return last_error(ncclInvalidArgument, "%s : invalid type %d", name, call->type);
    if (call->reduction < -1 || call->reduction > ncclAvg)
        return last_error(ncclInvalidArgument, "%s : invalid reduction operation %d", name,
                          call->reduction);
    bool has_peer = call->verb == BROADCAST || call->verb == SEND || call->verb == RECEIVE;
    if (has_peer && (call->peer < 0 || call->peer >= call->comm->ranks))
        return last_error(ncclInvalidArgument,
                          "%s : invalid root %d (root should be in the 0..%d range)", name,
                          call->peer, call->comm->ranks);
    return ncclSuccess;
}

/* Computes how many bytes the call reads and writes. */
static void measure(Call *call)
{
    size_t ranks = (size_t)call->comm->ranks, bytes = call->count * type_size(call->type);
    call->send_bytes = call->verb == REDUCE_SCATTER ? ranks * bytes : bytes;
    call->recv_bytes = call->verb == ALL_GATHER ? ranks * bytes : bytes;
    if (call->verb == BROADCAST && call->peer != call->comm->rank) call->send = NULL;
    if (call->send == NULL) call->send_bytes = 0;
    if (call->recv == NULL) call->recv_bytes = 0;
}

static ncclResult_t queue(Call call)
{
    ncclResult_t code = rules_enter(verb_name(call.verb), call.comm);
    if (code == ncclSuccess) code = check(&call);
    if (code == ncclSuccess) {
        measure(&call);
        rules_call(&call);
        call.wrong = faults_wrong();
        bool nothing = call.count == 0 && call.verb != SEND && call.verb != RECEIVE;
        if (!nothing) code = group_add(&call);
    }
    return rules_leave(verb_name(call.verb), call.comm, code);
}

static Call call_of(Verb verb, ncclComm *comm, const void *send, void *recv, size_t count, int type,
                    cudaStream_t stream)
{
    Call call = {};
    call.comm = comm;
    call.verb = verb;
    call.send = send;
    call.recv = recv;
    call.count = count;
    call.type = type;
    call.reduction = call.peer = -1;
    call.stream = stream;
    return call;
}

ncclResult_t ncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t type,
                           ncclRedOp_t reduction, ncclComm_t comm, cudaStream_t stream)
{
    Call call = call_of(ALL_REDUCE, comm, send, recv, count, type, stream);
    call.reduction = reduction;
    return queue(call);
}

ncclResult_t ncclReduceScatter(const void *send, void *recv, size_t count, ncclDataType_t type,
                               ncclRedOp_t reduction, ncclComm_t comm, cudaStream_t stream)
{
    Call call = call_of(REDUCE_SCATTER, comm, send, recv, count, type, stream);
    call.reduction = reduction;
    return queue(call);
}

ncclResult_t ncclAllGather(const void *send, void *recv, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream)
{
    return queue(call_of(ALL_GATHER, comm, send, recv, count, type, stream));
}

ncclResult_t ncclBroadcast(const void *send, void *recv, size_t count, ncclDataType_t type,
                           int root, ncclComm_t comm, cudaStream_t stream)
{
    Call call = call_of(BROADCAST, comm, send, recv, count, type, stream);
    call.peer = root;
    return queue(call);
}

ncclResult_t ncclSend(const void *send, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream)
{
    Call call = call_of(SEND, comm, send, NULL, count, type, stream);
    call.peer = peer;
    return queue(call);
}

ncclResult_t ncclRecv(void *recv, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    Call call = call_of(RECEIVE, comm, NULL, recv, count, type, stream);
    call.peer = peer;
    return queue(call);
}

/* query.cc -- the exported functions that report versions, errors and a communicator's properties,
 * and the texts of error messages. */
#include "tests/emu/nccl/rules.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char sentence[1024]; /* the last error message of any thread */

ncclResult_t last_error(ncclResult_t code, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    pthread_mutex_lock(&lock);
    vsnprintf(sentence, sizeof sentence, format, arguments);
    pthread_mutex_unlock(&lock);
    va_end(arguments);
    return code;
}

const char *ncclGetLastError(ncclComm_t)
{
    static __thread char copy[sizeof sentence];
    pthread_mutex_lock(&lock);
    memcpy(copy, sentence, sizeof copy);
    pthread_mutex_unlock(&lock);
    return copy;
}

const char *ncclGetErrorString(ncclResult_t result)
{
    switch (result) {
    case ncclSuccess: return "no error";
    case ncclUnhandledCudaError:
        return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    case ncclSystemError: return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case ncclInternalError:
        return "internal error - please report this issue to the NCCL developers";
    case ncclInvalidArgument: return "invalid argument (run with NCCL_DEBUG=WARN for details)";
    case ncclInvalidUsage: return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    case ncclRemoteError: return "remote process exited or there was a network error";
    case ncclInProgress: return "NCCL operation in progress";
    }
    return "unknown result code";
}

ncclResult_t ncclGetVersion(int *version)
{
    ncclResult_t code = rules_enter("ncclGetVersion", NULL);
    if (code == ncclSuccess && version == NULL)
        code = last_error(ncclInvalidArgument, "GetVersion : version argument is NULL");
    if (code == ncclSuccess) *version = rules_version(NCCL_VERSION_CODE);
    return rules_leave("ncclGetVersion", NULL, code);
}

/* Stores a number of the communicator in *to. Fails if one of the pointers is NULL. */
static ncclResult_t ask(const char *function, ncclComm *comm, int *to, int ncclComm::*what)
{
    ncclResult_t code = rules_enter(function, comm);
    if (code == ncclSuccess && (comm == NULL || to == NULL))
        code = last_error(ncclInvalidArgument, "%s : %s argument is NULL", function + 4,
                          comm == NULL ? "comm" : "out");
    if (code == ncclSuccess) *to = comm->*what;
    return rules_leave(function, comm, code);
}

ncclResult_t ncclCommCount(ncclComm_t comm, int *ranks)
{
    return ask("ncclCommCount", comm, ranks, &ncclComm::ranks);
}

ncclResult_t ncclCommUserRank(ncclComm_t comm, int *rank)
{
    return ask("ncclCommUserRank", comm, rank, &ncclComm::rank);
}

ncclResult_t ncclCommCuDevice(ncclComm_t comm, int *device)
{
    return ask("ncclCommCuDevice", comm, device, &ncclComm::device);
}

/* Any thread may call it at any time. */
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error)
{
    ncclResult_t code = rules_enter("ncclCommGetAsyncError", comm);
    if (code == ncclSuccess && (comm == NULL || error == NULL))
        code = last_error(ncclInvalidArgument, "ncclGetAsyncError : %s argument is NULL",
                          comm == NULL ? "comm" : "asyncError");
    if (code == ncclSuccess) *error = (ncclResult_t)comm->async.load();
    return rules_leave("ncclCommGetAsyncError", comm, code);
}

/* ---- texts ----------------------------------------------------------------------------------- */

const char *verb_name(int verb)
{
    static const char *const names[] = {"ncclAllReduce", "ncclReduceScatter", "ncclAllGather",
                                        "ncclBroadcast", "ncclSend",          "ncclRecv"};
    return verb >= 0 && verb < VERBS ? names[verb] : "no call";
}

void call_describe(const Header *header, char *buf, size_t n)
{
    char what[64] = "", where[64] = "";
    if (header->frame == FRAME_BYE) {
        snprintf(buf, n, "ncclCommDestroy");
        return;
    }
    if (header->reduction >= 0)
        snprintf(what, sizeof what, ", %s", reduction_name(header->reduction));
    if (header->verb == BROADCAST) snprintf(what, sizeof what, ", root %d", header->root);
    if (header->collectives > 1)
        snprintf(where, sizeof where, ", %d. of the %d in its group", header->place + 1,
                 header->collectives);
    snprintf(buf, n, "%s of %llu %s%s%s (its number %llu)", verb_name(header->verb),
             (unsigned long long)header->count, type_name(header->type), what, where,
             (unsigned long long)header->number);
}

const char *comm_describe(const ncclComm *comm, char *buf, size_t n)
{
    snprintf(buf, n, "communicator %llx%s%s%s of %d", (unsigned long long)comm->id,
             comm->name[0] ? " (" : "", comm->name, comm->name[0] ? ")" : "", comm->ranks);
    return buf;
}

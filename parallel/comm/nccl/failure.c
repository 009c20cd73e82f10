/* failure.c -- ends the program when an NCCL call fails: chooses the exit code and prints the error
 * message with NCCL's own text. Calls that never end are handled by the watchdog (watchdog.c). */
#include "model/core/log.h"
#include "parallel/comm/nccl/group.h"
#include "parallel/comm/rank_list.h"

#include <stdio.h>
#include <string.h>

void nccl_speak_for(const NcclGroup *g)
{
    log_set_rank(nccl_own_rank(g), g->place);
    log_set_file(g->log);
}

void nccl_end_for(const NcclGroup *g)
{
    nccl_speak_for(g);
    ends_share(true);
}

/* NCCL has one error code for all CUDA errors. Only its text shows that GPU memory has run out:
 * CUDA's own text, or NCCL's log line ("Failed to CUDA calloc async 64 bytes"). */
static bool out_of_memory(NcclResult result, const char *said)
{
    return result == NCCL_UNHANDLED_CUDA_ERROR &&
           (strstr(said, "CUDA malloc") != NULL || strstr(said, "CUDA calloc") != NULL ||
            strstr(said, "out of memory") != NULL);
}

void nccl_end_failed(NcclGroup *g, int64_t number, NcclResult result)
{
    const NcclLibrary *nccl = nccl_library();
    char call[BLAME_CALL_BYTES], list[RANK_LIST_BYTES], said[512] = "", advice[128] = "";
    const char *last = nccl->last_error(g->handle);
    /* NCCL's log may begin with blank lines. Its first line of text is enough for the error
     * message. */
    while (last && (*last == '\n' || *last == ' '))
        last++;
    if (last && *last) snprintf(said, sizeof said, ": %.*s", (int)strcspn(last, "\n"), last);
    /* A full GPU is the only failure for which the user can be advised. */
    bool full = out_of_memory(result, said);
    int fewer = nccl_fewer_channels(g->use.max_ctas);
    if (full) snprintf(advice, sizeof advice, "; free some of the GPU's memory");
    if (full && fewer > 0)
        snprintf(advice + strlen(advice), sizeof advice - strlen(advice),
                 ", or set NCCL_MAX_CTAS=%d in the environment", fewer);
    nccl_end_for(g);
    fail(full                          ? EXIT_NO_MEMORY
         : result == NCCL_REMOTE_ERROR ? EXIT_PEER_LOST
                                       : EXIT_SYSTEM,
         "%s of %s: NCCL on rank %d says: %s%s%s", nccl_describe_call(g, number, call, sizeof call),
         rank_list(g->world_rank, g->size, list, sizeof list), nccl_own_rank(g),
         nccl->error_string(result), said, advice);
}

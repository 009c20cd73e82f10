/* root.cc -- how the ranks of a communicator find each other. A thread of the process that made the
 * id receives a Hello from every rank and sends all of them to all ranks. */
#include "tests/emu/nccl/inside.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

typedef struct {
    int listener, n, ranks; /* n: number of Hellos received so far */
    uint64_t id;
    int *socket;
    Hello *hello;
} Root;

static Welcome refusal(ncclResult_t code, bool fatal, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static Welcome refusal(ncclResult_t code, bool fatal, const char *format, ...)
{
    Welcome welcome;
    va_list arguments;
    memset(&welcome, 0, sizeof welcome);
    welcome.code = code;
    welcome.fatal = fatal;
    va_start(arguments, format);
    vsnprintf(welcome.sentence, sizeof welcome.sentence, format, arguments);
    va_end(arguments);
    return welcome;
}

/* Checks whether the newest rank fits those before it. */
static Welcome judge_newcomer(const Root *root, const Hello *come)
{
    if (root->n > 0 && come->ranks != root->ranks)
        return refusal(ncclInvalidUsage, true,
                       "communicator %llx: rank %d says it has %d ranks, rank %d says %d",
                       (unsigned long long)root->id, root->hello[0].rank, root->ranks, come->rank,
                       come->ranks);
    if (root->n > 0 && come->max_ctas != root->hello[0].max_ctas)
        return refusal(ncclInvalidUsage, true,
                       "communicator %llx: rank %d has at most %d CTAs, rank %d has %d",
                       (unsigned long long)root->id, root->hello[0].rank, root->hello[0].max_ctas,
                       come->rank, come->max_ctas);
    for (int i = 0; i < root->n; i++)
        if (root->hello[i].rank == come->rank)
            return refusal(ncclInvalidUsage, true,
                           "communicator %llx: rank %d of %d came twice, on device %s and on %s",
                           (unsigned long long)root->id, come->rank, come->ranks,
                           root->hello[i].bus_id, come->bus_id);
    return refusal(ncclSuccess, false, "%s", "");
}

/* Checks whether the ranks can form one communicator. */
static Welcome judge_all(const Root *root)
{
    const char *shared = getenv("NCCL_MULTI_RANK_GPU_ENABLE");
    bool one_each = shared == NULL || strcmp(shared, "1") != 0;
    for (int i = 0; i < root->n; i++)
        for (int j = 0; j < i; j++) {
            const Hello *a = &root->hello[j], *b = &root->hello[i];
            if (a->version != b->version)
                return refusal(ncclInvalidUsage, false,
                               "Mismatched NCCL version detected : rank %d version %d rank %d "
                               "version %d",
                               a->rank, a->version, b->rank, b->version);
            if (one_each && a->host == b->host && strcmp(a->bus_id, b->bus_id) == 0)
                return refusal(ncclInvalidUsage, false,
                               "Duplicate GPU detected : rank %d and rank %d both on CUDA device "
                               "%s",
                               a->rank, b->rank, a->bus_id);
        }
    return refusal(ncclSuccess, false, "%s", "");
}

/* Accepts one connection. Closes it if the caller does not know the id. */
static bool hear_one(Root *root, Hello *come, int *from)
{
    *from = accept4(root->listener, NULL, NULL, SOCK_CLOEXEC);
    if (*from < 0) return false;
    if (net_read(*from, come, sizeof *come) && come->id == root->id && come->rank >= 0 &&
        come->rank < come->ranks)
        return true;
    close(*from);
    return false;
}

static Welcome hear_all(Root *root)
{
    do {
        Hello come;
        int from;
        if (!hear_one(root, &come, &from)) continue;
        Welcome welcome = judge_newcomer(root, &come);
        if (root->n == 0) {
            root->ranks = come.ranks;
            root->hello = (Hello *)calloc((size_t)come.ranks + 1, sizeof *root->hello);
            root->socket = (int *)calloc((size_t)come.ranks + 1, sizeof *root->socket);
            if (root->hello == NULL || root->socket == NULL) emu_die("no memory for an init");
        }
        root->socket[root->n] = from;
        root->hello[root->n++] = come;
        if (welcome.code != ncclSuccess) return welcome;
    } while (root->n == 0 || root->n < root->ranks);
    return judge_all(root);
}

/* Sends the reply to the ranks in the root's own process, or to those in other processes. */
static void tell(const Root *root, bool own, const Welcome *welcome, const Hello *by_rank)
{
    for (int i = 0; i < root->n; i++) {
        if ((root->hello[i].process == getpid()) != own) continue;
        net_write(root->socket[i], welcome, sizeof *welcome);
        if (welcome->code == ncclSuccess)
            net_write(root->socket[i], by_rank, (size_t)root->ranks * sizeof *by_rank);
        close(root->socket[i]);
    }
}

/* A refused rank may end its process, and this thread with it. Therefore the ranks in the root's
 * own process get their reply last. */
static void *root_run(void *context)
{
    Root *root = (Root *)context;
    Welcome welcome = hear_all(root);
    Hello *by_rank = (Hello *)calloc((size_t)root->ranks, sizeof *by_rank);
    if (by_rank == NULL) emu_die("no memory for an init");
    for (int i = 0; i < root->n && welcome.code == ncclSuccess; i++)
        by_rank[root->hello[i].rank] = root->hello[i];
    tell(root, false, &welcome, by_rank);
    tell(root, true, &welcome, by_rank);
    close(root->listener);
    free(by_rank);
    free(root->hello);
    free(root->socket);
    free(root);
    return NULL;
}

ncclResult_t root_start(ncclUniqueId *id)
{
    IdContent content;
    pthread_t thread;
    Root *root = (Root *)calloc(1, sizeof *root);
    if (root == NULL) return last_error(ncclSystemError, "no memory for an id");
    memset(&content, 0, sizeof content);
    ncclResult_t code = net_interface(&content.address);
    if (code == ncclSuccess) {
        root->listener = net_listen(&content.address);
        if (root->listener < 0) code = last_error(ncclSystemError, "Bootstrap : cannot listen");
    }
    if (code == ncclSuccess && getrandom(&content.id, sizeof content.id, 0) != sizeof content.id)
        code = last_error(ncclSystemError, "no random number for an id");
    if (code == ncclSuccess) {
        root->id = content.id;
        static_assert(sizeof content <= sizeof *id, "an id's room");
        memset(id, 0, sizeof *id);
        memcpy(id, &content, sizeof content);
        if (pthread_create(&thread, NULL, root_run, root) == 0) {
            pthread_detach(thread);
            return ncclSuccess;
        }
        close(root->listener);
        code = last_error(ncclSystemError, "no thread for an id");
    }
    free(root);
    return code;
}

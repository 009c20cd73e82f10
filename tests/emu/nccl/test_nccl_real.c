/* test_nccl_real.c -- makes the same calls to the emulated NCCL and, if one is installed, to the
 * real library, without a GPU and on loopback. Both must return the same codes and texts. */
#include "parallel/comm/nccl/library.h"
#include "tests/emu/nccl/nccl_ranks.h"
#include "tests/support/support.h"

enum { STAND_IN_VERSION = 22809 };

/* Makes calls and returns whether the results are right. Each question runs in its own thread,
 * because a thread may not call NCCL again after an error. */
typedef bool (*Question)(const Nccl *nccl);

static bool says(const Nccl *nccl, ncclResult_t code, ncclResult_t expected, const char *words)
{
    const char *said = nccl->GetLastError(NULL);
    if (code == expected && said && strstr(said, words)) return true;
    fprintf(stderr, "code %d, \"%s\" instead of %d, \"%s\"\n", code, said ? said : "(nothing)",
            expected, words);
    return false;
}

static bool version(const Nccl *nccl)
{
    int code = 0;
    OK(nccl->GetVersion(&code));
    return code >= STAND_IN_VERSION;
}

static bool version_into_nothing(const Nccl *nccl)
{
    return nccl->GetVersion(NULL) == ncclInvalidArgument;
}

static bool ids(const Nccl *nccl)
{
    ncclUniqueId a = {{0}}, b = {{0}};
    OK(nccl->GetUniqueId(&a));
    OK(nccl->GetUniqueId(&b));
    return memcmp(&a, &b, sizeof a) != 0;
}

static bool id_into_nothing(const Nccl *nccl)
{
    return says(nccl, nccl->GetUniqueId(NULL), ncclInvalidArgument,
                "GetUniqueId : out argument is NULL");
}

static bool sentences(const Nccl *nccl)
{
    static const char *const list[] = {
        "no error",
        "unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
        "unhandled system error (run with NCCL_DEBUG=INFO for details)",
        "internal error - please report this issue to the NCCL developers",
        "invalid argument (run with NCCL_DEBUG=WARN for details)",
        "invalid usage (run with NCCL_DEBUG=WARN for details)",
        "remote process exited or there was a network error",
        "NCCL operation in progress"};
    bool well = strcmp(nccl->GetErrorString((ncclResult_t)99), "unknown result code") == 0;
    for (int i = 0; i < (int)(sizeof list / sizeof *list); i++)
        if (strcmp(nccl->GetErrorString((ncclResult_t)i), list[i]) != 0) {
            fprintf(stderr, "%d: \"%s\"\n", i, nccl->GetErrorString((ncclResult_t)i));
            well = false;
        }
    return well;
}

/* Defines a question that makes a call without a communicator. */
#define WITHOUT_COMM(name, call, words)                                                            \
    static bool name(const Nccl *nccl)                                                             \
    {                                                                                              \
        ncclResult_t code;                                                                         \
        int n = 0;                                                                                 \
        (void)n, (void)code;                                                                       \
        return says(nccl, nccl->call, ncclInvalidArgument, words " : comm argument is NULL");      \
    }

WITHOUT_COMM(reduce_nowhere, AllReduce(NULL, NULL, 1, ncclFloat32, ncclSum, NULL, NULL),
             "AllReduce")
WITHOUT_COMM(scatter_nowhere, ReduceScatter(NULL, NULL, 1, ncclFloat32, ncclSum, NULL, NULL),
             "ReduceScatter")
WITHOUT_COMM(gather_nowhere, AllGather(NULL, NULL, 1, ncclFloat32, NULL, NULL), "AllGather")
WITHOUT_COMM(broadcast_nowhere, Broadcast(NULL, NULL, 1, ncclFloat32, 0, NULL, NULL), "Broadcast")
WITHOUT_COMM(send_nowhere, Send(NULL, 1, ncclFloat32, 0, NULL, NULL), "Send")
WITHOUT_COMM(receive_nowhere, Recv(NULL, 1, ncclFloat32, 0, NULL, NULL), "Recv")
WITHOUT_COMM(count_nowhere, CommCount(NULL, &n), "CommCount")
WITHOUT_COMM(rank_nowhere, CommUserRank(NULL, &n), "CommUserRank")
WITHOUT_COMM(error_nowhere, CommGetAsyncError(NULL, &code), "ncclGetAsyncError")

static bool destroy_nothing(const Nccl *nccl)
{
    return nccl->CommDestroy(NULL) == ncclSuccess;
}

static bool groups(const Nccl *nccl)
{
    OK(nccl->GroupStart());
    OK(nccl->GroupStart());
    OK(nccl->GroupEnd());
    OK(nccl->GroupEnd());
    return says(nccl, nccl->GroupEnd(), ncclInvalidUsage, "ncclGroupEnd: not in a group call.");
}

static const struct {
    const char *what;
    Question ask;
} questions[] = {{"version", version},
                 {"version into nothing", version_into_nothing},
                 {"ids", ids},
                 {"id into nothing", id_into_nothing},
                 {"sentences", sentences},
                 {"all-reduce without communicator", reduce_nowhere},
                 {"reduce-scatter without communicator", scatter_nowhere},
                 {"all-gather without communicator", gather_nowhere},
                 {"broadcast without communicator", broadcast_nowhere},
                 {"send without communicator", send_nowhere},
                 {"receive without communicator", receive_nowhere},
                 {"count without communicator", count_nowhere},
                 {"rank without communicator", rank_nowhere},
                 {"asynchronous error without communicator", error_nowhere},
                 {"destroy without communicator", destroy_nothing},
                 {"groups", groups}};

typedef struct {
    Nccl nccl;
    Question ask;
    bool well;
} Asking;

static void *ask(void *argument)
{
    Asking *asking = argument;
    asking->well = asking->ask(&asking->nccl);
    return NULL;
}

static bool asked(Asking *asking, Question question)
{
    pthread_t thread;
    asking->ask = question;
    OK(pthread_create(&thread, NULL, ask, asking));
    OK(pthread_join(thread, NULL));
    return asking->well;
}

/* Opens the library. Its sockets will use the interface. */
static void load(Asking *asking, const char *library, const char *interface)
{
    const char *missing;
    setenv("NCCL_SOCKET_IFNAME", interface, 1);
    setenv("NCCL_RAS_ENABLE", "0", 1);
    if (nccl_load(&asking->nccl, library, &missing)) return;
    fprintf(stderr, "%s: %s\n", library, missing ? missing : dlerror());
    _exit(9);
}

/* Checks that the library has all functions that the program opens. */
static void look_up(const char *library)
{
    static const char *const list[] = {
#define X(field, name, result, arguments) #name,
        NCCL_FUNCTIONS(X)
#undef X
    };
    void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        if (dlsym(handle, list[i]) == NULL) {
            fprintf(stderr, "%s has no %s\n", library, list[i]);
            _exit(9);
        }
}

static void ask_all(void *library)
{
    Asking asking;
    look_up(library);
    load(&asking, library, "lo");
    for (size_t i = 0; i < sizeof questions / sizeof *questions; i++)
        if (!asked(&asking, questions[i].ask)) {
            fprintf(stderr, "%s\n", questions[i].what);
            _exit(8);
        }
}

static bool no_interface(const Nccl *nccl)
{
    ncclUniqueId id;
    return says(nccl, nccl->GetUniqueId(&id), ncclInvalidUsage, "no socket interface found");
}

static void ask_without_interface(void *library)
{
    Asking asking;
    load(&asking, library, "nosuch");
    if (!asked(&asking, no_interface)) _exit(8);
}

/* A failed init leaves its thread inside a group, so a GroupEnd without a GroupStart succeeds. The
 * emulated NCCL ends the program there instead. */
static bool after_a_failed_init(const Nccl *nccl)
{
    ncclUniqueId id;
    ncclComm_t comm = NULL;
    ncclConfig_t config = rank_config("x");
    OK(nccl->GetUniqueId(&id));
    if (nccl->CommInitRankConfig(&comm, 2, id, 5, &config) == ncclSuccess) return false;
    const char *said = nccl->GetLastError(NULL);
    return said && *said && nccl->GroupEnd() == ncclSuccess;
}

static void ask_after_a_failed_init(void *library)
{
    Asking asking;
    load(&asking, library, "lo");
    if (!asked(&asking, after_a_failed_init)) _exit(8);
}

static void ends_well(ChildBody body, char *library)
{
    char text[4096];
    int code = child_run(body, library, text, sizeof text);
    if (code != 0) fail_msg("%s: ended with %d: %s", library, code, text);
}

/* Finds the libnccl.so.2 in the loader's cache. Programs here find the emulated one first. */
static bool real_library(char *path, size_t n)
{
    FILE *list = popen("PATH=$PATH:/sbin:/usr/sbin ldconfig -p 2>/dev/null", "r");
    char line[1024], *at;
    *path = '\0';
    while (list && fgets(line, sizeof line, list))
        if (!*path && strstr(line, "libnccl.so.2 ") && (at = strstr(line, "=> ")) != NULL)
            snprintf(path, n, "%.*s", (int)strcspn(at + 3, "\n"), at + 3);
    if (list) pclose(list);
    return *path != '\0';
}

static void test_the_emulated_nccl_returns_the_expected_codes_and_texts(void **state)
{
    (void)state;
    ends_well(ask_all, "libnccl.so.2");
    ends_well(ask_without_interface, "libnccl.so.2");
}

static void test_the_real_nccl_returns_the_same_codes_and_texts(void **state)
{
    char path[1024];
    (void)state;
    if (!real_library(path, sizeof path))
        skip_because("no libnccl.so.2 in the loader's cache (ldconfig -p)");
    ends_well(ask_all, path);
    ends_well(ask_without_interface, path);
    ends_well(ask_after_a_failed_init, path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_emulated_nccl_returns_the_expected_codes_and_texts),
        cmocka_unit_test(test_the_real_nccl_returns_the_same_codes_and_texts),
    };
    return cmocka_run_group_tests_name("answers of NCCL", tests, NULL, NULL);
}

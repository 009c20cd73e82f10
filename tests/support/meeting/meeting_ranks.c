/* meeting_ranks.c -- real processes that meet. */
#include "tests/support/meeting/meeting_ranks.h"

#include "model/core/check.h"
#include "model/core/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* Receives a byte within 20 s. Returns it, or -1. */
static int get(int fd)
{
    unsigned char byte;
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    return poll(&wait, 1, 20000) == 1 && recv(fd, &byte, 1, 0) == 1 ? byte : -1;
}

static bool put(int fd, int byte)
{
    unsigned char one = (unsigned char)byte;
    return send(fd, &one, 1, MSG_NOSIGNAL) == 1;
}

/* Rank 0 sends each rank a byte of its own and gets it back. */
static const char *check_control(const Meeting *m)
{
    if (m->rank != 0) {
        int byte = get(m->control[0]);
        return byte == (m->rank & 0x7f) && put(m->control[0], byte ^ 0x80) ? ""
                                                                           : "control of a rank";
    }
    if (m->control[0] != -1) return "rank 0 has a connection to itself";
    for (int i = 1; i < m->size; i++)
        if (!put(m->control[i], i & 0x7f)) return "control of rank 0 cannot be written";
    for (int i = 1; i < m->size; i++)
        if (get(m->control[i]) != ((i & 0x7f) | 0x80)) return "control of rank 0 is another's";
    return "";
}

/* Each rank connects with the next one's listening socket and says its own number. */
static const char *check_listener(const Meeting *m)
{
    const SocketMember *next = &m->member[(m->rank + 1) % m->size];
    if (m->size == 1) return "";
    int fd = socket(next->address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0), before = -1;
    if (connect(fd, (const struct sockaddr *)&next->address, next->address_bytes) != 0 ||
        !put(fd, m->rank & 0xff))
        return "the next rank cannot be reached";
    struct pollfd wait = {.fd = m->listener, .events = POLLIN};
    if (poll(&wait, 1, 20000) == 1) before = accept4(m->listener, NULL, NULL, SOCK_CLOEXEC);
    int byte = before >= 0 ? get(before) : -1;
    close(before);
    close(fd);
    return byte == ((m->rank + m->size - 1) % m->size & 0xff) ? "" : "another rank has connected";
}

static const char *check_members(const Meeting *m)
{
    for (int i = 0; i < m->size; i++) {
        const SocketMember *member = &m->member[i];
        if (member->machine < 0 || member->machine >= m->machines) return "machine of a member";
        if (member->host[0] == 0) return "host of a member";
        if (member->address_bytes == 0) return "address of a member";
    }
    return "";
}

static void be_rank(const MeetingRun *run, int i, MeetingResult *result)
{
    MeetingOptions o = {.rank = i, .size = run->processes, .local_rank = -1, .timeout = 20};
    Meeting m;
    if (run->output) {
        int fd = open(run->output, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
        dup2(fd, 1);
        dup2(fd, 2);
    }
    if (run->set) run->set(run->context, i, &o);
    double start = seconds_now();
    result->met = meeting_hold(&m, &o, &result->code, result->err, sizeof result->err);
    result->seconds = seconds_now() - start;
    result->told = m.told;
    if (result->met) {
        const char *wrong = check_members(&m);
        if (!*wrong) wrong = check_control(&m);
        if (!*wrong) wrong = check_listener(&m);
        if (!*wrong && run->check) wrong = run->check(run->context, &m);
        snprintf(result->wrong, sizeof result->wrong, "%s", wrong);
        result->m = m;
        result->last = m.member[m.size - 1];
    }
    meeting_free(&m);
    fflush(NULL);
}

MeetingResult *meeting_ranks(const MeetingRun *run)
{
    size_t bytes = (size_t)run->processes * sizeof(MeetingResult);
    MeetingResult *shared =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t *pid = must_calloc((size_t)run->processes, sizeof *pid), self = getpid();
    CHECK(shared != MAP_FAILED, "%zu bytes: %s", bytes, strerror(errno));
    fflush(NULL);
    for (int i = 0; i < run->processes; i++) {
        pid[i] = fork();
        CHECK(pid[i] >= 0, "fork %d: %s", i, strerror(errno));
        if (pid[i] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (getppid() != self) _exit(70);
            be_rank(run, i, &shared[i]);
            _exit(0);
        }
    }
    if (run->meanwhile) run->meanwhile(run->context, pid);
    for (int i = 0; i < run->processes; i++)
        while (waitpid(pid[i], NULL, 0) < 0 && errno == EINTR) {
        }
    MeetingResult *result = must_alloc(bytes);
    memcpy(result, shared, bytes);
    munmap(shared, bytes);
    free(pid);
    return result;
}

/* process_ranks.c -- see process_ranks.h. */
#include "tests/support/grid/process_ranks.h"

#include "model/core/check.h"
#include "model/core/clock.h"
#include "model/core/log.h"
#include "model/core/machine.h"
#include "parallel/comm/socket/socket.h"
#include "parallel/comm/socket/tree.h"

#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* A rank that hangs is killed after so many seconds; all ranks are, so many after the first has
 * failed. */
enum { LONGEST = 60, AFTER_FAILURE = 5 };
static const double BEFORE_KILLING = 0.6;

typedef struct {
    atomic_int reported;
    atomic_bool go;  /* all processes are known */
    atomic_bool cut; /* nothing passes the relay any more */
    char wrong[512];
    pid_t pid[]; /* [ranks] */
} Shared;

static struct {
    bool chosen;
    ProcessLinks links;
    int machines, cuttable;
    void (*before)(int rank);
} choice = {.machines = 2, .cuttable = -1};

static Shared *shared; /* in a rank's process: what it shares with the test */

enum { KEPT_CODES = 64 };
static int ended_with[KEPT_CODES]; /* exit codes of the last process_ranks, by rank */

void *shared_memory(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(p != MAP_FAILED, "no shared memory of %zu bytes", bytes);
    return p;
}

bool ranks_are_processes(void)
{
    const char *kind = getenv("TEST_RANKS");
    return kind && strcmp(kind, "processes") == 0;
}

bool process_rank_wrong(const char *text)
{
    if (shared == NULL) return false;
    if (atomic_fetch_add(&shared->reported, 1) == 0)
        snprintf(shared->wrong, sizeof shared->wrong, "%s", text);
    return true;
}

static const char *place_of(int rank, char text[16])
{
    text[0] = '\0';
    if (rank > 0) snprintf(text, 16, "dp %d", rank);
    return text;
}

/* ---- connections ----------------------------------------------------------------------------- */

void process_links_choose(ProcessLinks links)
{
    choice.chosen = true;
    choice.links = links;
}

ProcessLinks process_links(void)
{
    const char *kind = getenv("TEST_LINKS");
    if (choice.chosen) return choice.links;
    return kind == NULL ? LINKS_LOCAL : strcmp(kind, "tcp6") == 0 ? LINKS_IPV6 : LINKS_IPV4;
}

void process_machines_choose(int machines)
{
    choice.machines = machines;
}

void process_before_choose(void (*before)(int rank))
{
    choice.before = before;
}

void process_cuttable_choose(int rank)
{
    choice.cuttable = rank;
}

void process_cut(void)
{
    atomic_store(&shared->cut, true);
}

/* What the test makes before it forks, and each rank takes its part of. */
typedef struct {
    int ranks;
    SocketLinks *local; /* or, of joined ranks: */
    SocketMember *member;
    int *listener, *control[2]; /* control[0][rank]: rank 0's end; control[1][rank]: the rank's */
    unsigned char secret[SHA256_BYTES];
    int relay[2]; /* passes on what comes from one to the other */
    pid_t relaying;
} Wires;

/* Makes a socket that listens on the loopback interface, and writes its address. Returns -1 if
 * there is no such interface. */
static int listen_on_loopback(ProcessLinks links, SocketMember *member)
{
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_addr = in6addr_loopback};
    struct sockaddr *address = (struct sockaddr *)&member->address;
    member->address_bytes = links == LINKS_IPV6 ? sizeof v6 : sizeof v4;
    memcpy(address, links == LINKS_IPV6 ? (void *)&v6 : (void *)&v4, member->address_bytes);
    int fd = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && bind(fd, address, member->address_bytes) == 0 && listen(fd, SOMAXCONN) == 0 &&
        getsockname(fd, address, &member->address_bytes) == 0)
        return fd;
    if (fd >= 0) close(fd);
    return -1;
}

bool process_links_exist(ProcessLinks links)
{
    SocketMember member;
    int fd = links == LINKS_LOCAL ? 0 : listen_on_loopback(links, &member);
    if (fd > 0) close(fd);
    return fd >= 0;
}

static void connect_to_rank_0(Wires *wires, int rank)
{
    const SocketMember *zero = &wires->member[0];
    int fd = socket(zero->address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0 && connect(fd, (const struct sockaddr *)&zero->address, zero->address_bytes) == 0,
          "rank %d cannot connect: %s", rank, strerror(errno));
    wires->control[1][rank] = fd;
    wires->control[0][rank] = accept(wires->listener[0], NULL, NULL);
    CHECK(wires->control[0][rank] >= 0, "rank 0 cannot accept: %s", strerror(errno));
}

/* Puts a relay into the connection between rank 0 and a rank. */
static void add_relay(Wires *wires, int rank)
{
    int of_rank_0 = wires->control[0][rank];
    wires->relay[0] = wires->control[1][rank];
    connect_to_rank_0(wires, rank); /* another connection */
    wires->relay[1] = wires->control[0][rank];
    wires->control[0][rank] = of_rank_0;
}

static void join_wires(Wires *wires, ProcessLinks links)
{
    size_t ranks = (size_t)wires->ranks;
    wires->member = must_calloc(ranks, sizeof *wires->member);
    wires->listener = must_calloc(ranks, sizeof *wires->listener);
    for (int i = 0; i < 2; i++)
        wires->control[i] = must_calloc(ranks, sizeof *wires->control[i]);
    wires->control[0][0] = wires->control[1][0] = -1;
    for (size_t i = 0; i < sizeof wires->secret; i++)
        wires->secret[i] = (unsigned char)(7 * i + 1);
    for (int i = 0; i < wires->ranks; i++) {
        SocketMember *member = &wires->member[i];
        member->machine = i % choice.machines;
        member->local_rank = i / choice.machines;
        snprintf(member->host, sizeof member->host, "host%d", member->machine);
        wires->listener[i] = listen_on_loopback(links, member);
        CHECK(wires->listener[i] >= 0, "rank %d cannot listen: %s", i, strerror(errno));
        if (i > 0) connect_to_rank_0(wires, i);
        if (i > 0 && i == choice.cuttable) add_relay(wires, i);
    }
}

static Wires make_wires(int ranks)
{
    char err[256], place[16];
    Wires wires = {.ranks = ranks};
    if (process_links() != LINKS_LOCAL) {
        raise_limit_of_open_files();
        join_wires(&wires, process_links());
        return wires;
    }
    wires.local = socket_links_create(ranks, err, sizeof err);
    CHECK(wires.local != NULL, "%s", err);
    for (int i = 0; i < ranks; i++)
        socket_links_name(wires.local, i, place_of(i, place));
    return wires;
}

/* Closes what belongs to other ranks than this one (-1: to all). */
static void release_wires(Wires *wires, int rank)
{
    if (wires->local) socket_links_release(wires->local);
    for (int i = 0; wires->local == NULL && i < wires->ranks; i++) {
        if (i != rank) close(wires->listener[i]);
        if (i > 0 && rank != 0) close(wires->control[0][i]);
        if (i > 0 && i != rank) close(wires->control[1][i]);
    }
    for (int i = 0; i < 2; i++)
        if (wires->relay[i] > 0) close(wires->relay[i]);
}

/* The process of the relay. */
static void relay_main(Wires *wires)
{
    char bytes[4096];
    struct pollfd fd[] = {{.fd = wires->relay[0], .events = POLLIN},
                          {.fd = wires->relay[1], .events = POLLIN}};
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    wires->relay[0] = wires->relay[1] = 0; /* they stay open */
    release_wires(wires, -1);
    while (poll(fd, 2, 10) >= 0 && !atomic_load(&shared->cut))
        for (int i = 0; i < 2; i++) {
            ssize_t got = fd[i].revents ? read(fd[i].fd, bytes, sizeof bytes) : 0;
            if (fd[i].revents && got <= 0) _exit(0);
            if (got > 0 && write(fd[!i].fd, bytes, (size_t)got) != got) _exit(0);
        }
    pause();
}

static void free_wires(Wires *wires)
{
    if (wires->local) socket_links_destroy(wires->local);
    free(wires->member);
    free(wires->listener);
    free(wires->control[0]);
    free(wires->control[1]);
}

/* In a rank's process: returns its links. */
static SocketLinks *take_wires(Wires *wires, int rank)
{
    char place[16];
    if (wires->local) return wires->local;
    release_wires(wires, rank);
    const int *control = rank == 0 ? wires->control[0] : &wires->control[1][rank];
    SocketLinks *links = socket_links_join(wires->ranks, rank, wires->member, wires->secret,
                                           wires->listener[rank], control);
    for (int i = 0; i < wires->ranks; i++)
        socket_links_name(links, i, place_of(i, place));
    free_wires(wires);
    return links;
}

/* ---- ranks ----------------------------------------------------------------------------------- */

static void rank_main(Wires *wires, int rank, double timeout, RankBody body, void *context)
{
    char place[16];
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(LONGEST);
    log_set_rank(rank, place_of(rank, place));
    ends_share(true);
    int ranks = wires->ranks;
    if (choice.before) choice.before(rank);
    Comm world = socket_world_join(take_wires(wires, rank), rank, timeout);
    while (!atomic_load(&shared->go))
        usleep((useconds_t)(100 + 100 * ranks)); /* so that many do not keep the cores busy */
    body(&world, context);
    comm_close(&world);
    fflush(NULL);
    _exit(0);
}

pid_t process_of_rank(int rank)
{
    return shared->pid[rank];
}

int process_code_of_rank(int rank)
{
    return ended_with[rank];
}

static int rank_of(int ranks, pid_t process)
{
    for (int i = 0; i < ranks; i++)
        if (shared->pid[i] == process) return i;
    return -1;
}

static void kill_ranks(int ranks, const bool *which)
{
    for (int i = 0; i < ranks; i++)
        if (which == NULL || which[i]) kill(shared->pid[i], SIGKILL);
}

/* Waits until all ranks have ended, and returns the code of the first that has failed. */
static int wait_for_all(const Wires *wires)
{
    int ranks = wires->ranks, code = 0, left = ranks, status, ended = -1;
    double failed = 0;
    bool *stopped = must_calloc((size_t)ranks, sizeof *stopped), without_0 = false;
    while (left > 0) {
        pid_t process = waitpid(-1, &status, WUNTRACED | WCONTINUED | (code ? WNOHANG : 0));
        int rank = rank_of(ranks, process);
        if (rank >= 0) stopped[rank] = WIFSTOPPED(status);
        if (rank >= 0 && !WIFSTOPPED(status) && !WIFCONTINUED(status)) {
            left--;
            if (wires->local) socket_links_report_end(wires->local, rank, status, false);
            if (status == 0) ended = rank;
            if (rank < KEPT_CODES) ended_with[rank] = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
            if (code == 0 && status != 0) {
                code = WIFEXITED(status) ? WEXITSTATUS(status) : (int)EXIT_PEER_LOST;
                failed = seconds_now();
            }
            /* Without rank 0 there is no verdict. */
            without_0 = without_0 || (rank == 0 && WIFSIGNALED(status));
            if (WIFEXITED(status) && WEXITSTATUS(status) != code && !without_0)
                snprintf(shared->wrong, sizeof shared->wrong, "rank %d has ended with %d, not %d",
                         rank, WEXITSTATUS(status), code);
        }
        without_0 = without_0 || (code && stopped[0]);
        /* Without a launcher, others may still be about to say that a rank is stopped. */
        if (code && (wires->local || seconds_now() > failed + BEFORE_KILLING))
            kill_ranks(ranks, seconds_now() > failed + AFTER_FAILURE ? NULL : stopped);
        if (rank < 0) usleep(1000);
    }
    /* Joined ranks end together. */
    if (code != 0 && ended >= 0 && !wires->local && !without_0)
        snprintf(shared->wrong, sizeof shared->wrong, "rank %d has ended with 0, not %d", ended,
                 code);
    free(stopped);
    return code;
}

int process_ranks(int ranks, double timeout, RankBody body, void *context, char *wrong, size_t n)
{
    size_t bytes = sizeof *shared + (size_t)ranks * sizeof shared->pid[0];
    const char *fan_out = getenv("TEST_FAN_OUT"), *machines = getenv("TEST_MACHINES");
    if (fan_out) socket_tree_set_fan_out(atoi(fan_out));
    if (machines) choice.machines = atoi(machines);
    Wires wires = make_wires(ranks);
    shared = shared_memory(bytes);
    fflush(NULL);
    if (wires.relay[0] > 0 && (wires.relaying = fork()) == 0) relay_main(&wires);
    for (int i = 0; i < ranks; i++) {
        pid_t process = fork();
        CHECK(process >= 0, "rank %d is not forked", i);
        if (process == 0) rank_main(&wires, i, timeout, body, context);
        shared->pid[i] = process;
    }
    release_wires(&wires, -1);
    atomic_store(&shared->go, true);
    int code = wait_for_all(&wires);
    if (wires.relaying > 0) kill(wires.relaying, SIGKILL);
    if (wires.relaying > 0) waitpid(wires.relaying, NULL, 0);
    free_wires(&wires);
    snprintf(wrong, n, "%s", shared->wrong);
    munmap(shared, bytes);
    shared = NULL;
    return code;
}

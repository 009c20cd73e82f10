/* hub.c -- receives the reports of all ranks in rank 0's process. They are kept in a table
 * (table.c), and what follows from it is in judge.c. */
#include "parallel/comm/socket/hub.h"

#include "model/core/check.h"
#include "model/core/clock.h"
#include "model/core/min_max.h"
#include "model/core/pool.h"
#include "parallel/comm/deadline.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* Seconds between two looks at the table, at most, and while answers are awaited. A deadline is
 * looked at this many times, so that at most one part of it counts while the process is stopped. */
static const double LONGEST_LOOK = 1, SOON = 0.01;
enum { LOOKS = 16 };
/* In worlds of more ranks packets are taken together: for so many microseconds a rank, at most. */
enum { SMALL_WORLD = 64, MOMENT = 10, LONGEST_MOMENT = 50000 };
/* For so many seconds rank 0 waits at most until joined ranks have its last words; or a verdict. */
static const double SEND_SECONDS = 1, VERDICT_SECONDS = 0.3;
/* At the end of the program, rank 0 waits at least so many seconds for the next rank to leave: a
 * rank may need longer than a short timeout to release what it has. */
static double last_wait = 30;

void socket_hub_set_last_wait(double seconds)
{
    last_wait = seconds;
}

SocketHub *socket_hub_create(SocketService *service, SocketLinks *links, double timeout)
{
    SocketHub *hub = must_calloc(1, sizeof *hub);
    hub->service = service;
    hub->links = links;
    hub->ranks = links->ranks;
    hub->timeout = timeout;
    hub->asked_for = -1;
    hub->room = blame_room_create(hub->ranks);
    hub->first_call = must_calloc((size_t)hub->ranks, sizeof *hub->first_call);
    hub->rank = must_calloc((size_t)hub->ranks, sizeof *hub->rank);
    hub->stream = must_calloc((size_t)hub->ranks, sizeof *hub->stream);
    hub->fd = must_calloc((size_t)hub->ranks + 1, sizeof *hub->fd);
    hub->launcher.fd = links->launcher[1];
    for (int i = 0; i < hub->ranks; i++) {
        hub->rank[i].limit = timeout;
        hub->stream[i].fd = links->star[0][i];
    }
    socket_hub_make_table(hub);
    atomic_store(&hub->claimed, -1);
    return hub;
}

void socket_hub_destroy(SocketHub *hub)
{
    if (hub == NULL) return;
    socket_hub_free_table(hub);
    blame_room_destroy(hub->room);
    free(hub->rank);
    free(hub->stream);
    free(hub->fd);
    free(hub);
}

/* ---- sending --------------------------------------------------------------------------------- */

/* A word that finds no room is lost: its receiver is stopped, or is about to find out that rank 0
 * has ended. Room is left for those that come once. The caller may be a thread that fails, so it
 * does not wait for long. */
static void tell(SocketHub *hub, int rank, SocketWord word)
{
    SocketStream *stream = &hub->stream[rank];
    word.head.rank = rank;
    bool heartbeat = word.head.kind == PACKET_ASK;
    if (!mutex_lock_within(&hub->service->sends, DEADLINE_LOCK)) return;
    if (!heartbeat || stream->left == 0) socket_stream_put(stream, &word);
    pthread_mutex_unlock(&hub->service->sends);
}

/* Sends what is left. Returns whether some still is. */
static bool flush(SocketHub *hub, int rank)
{
    SocketStream *stream = &hub->stream[rank];
    if (!mutex_lock_within(&hub->service->sends, DEADLINE_LOCK)) return false;
    socket_stream_flush(stream);
    bool left = stream->left > 0;
    pthread_mutex_unlock(&hub->service->sends);
    return left;
}

static SocketWord question(const SocketHub *hub)
{
    SocketWord word = socket_word(PACKET_ASK);
    word.asked = hub->asked;
    return word;
}

void socket_hub_ask(SocketHub *hub, bool anew)
{
    SocketService *service = hub->service;
    if (anew) socket_service_nudge(service, ++hub->asked);
    for (int i = 1; i < hub->ranks; i++)
        tell(hub, i, question(hub));
}

void socket_hub_ask_one(SocketHub *hub, int rank)
{
    hub->asked++;
    if (rank == 0)
        socket_service_nudge(hub->service, hub->asked);
    else
        tell(hub, rank, question(hub));
}

static bool is_sending(SocketHub *hub, int rank)
{
    if (!mutex_lock_within(&hub->service->sends, DEADLINE_LOCK)) return false;
    bool sending = socket_stream_is_sending(&hub->stream[rank]);
    pthread_mutex_unlock(&hub->service->sends);
    return sending;
}

/* This process is about to end. Then the system resets connections on which it has not read all,
 * and drops what the other machines have not received yet. Those that are cut off are not waited
 * for. */
static void send_the_rest(SocketHub *hub)
{
    double end = seconds_now() + VERDICT_SECONDS;
    for (bool left = true; left && seconds_now() < end; usleep(left ? 1000 : 0)) {
        left = false;
        for (int i = 1; i < hub->ranks; i++)
            left = is_sending(hub, i) || left;
    }
}

bool socket_hub_claim(SocketHub *hub, int rank, int code)
{
    int none = -1;
    SocketWord verdict = socket_word(PACKET_VERDICT);
    verdict.code = code;
    if (!atomic_compare_exchange_strong(&hub->claimed, &none, rank)) return false;
    if (rank != 0) tell(hub, rank, socket_word(PACKET_GRANT));
    for (int i = 1; i < hub->ranks; i++)
        if (i != rank) tell(hub, i, verdict);
    if (hub->links->joined) send_the_rest(hub);
    return true;
}

/* ---- receiving ------------------------------------------------------------------------------- */

/* Receives all that has come from a rank. What makes no sense ends the connection. */
static void listen_to(SocketHub *hub, int rank)
{
    SocketStream *stream = &hub->stream[rank];
    while (socket_stream_take(stream, &hub->packet)) {
        hub->rank[rank].silent = 0;
        bool own = hub->packet.head.rank == rank;
        if (!own || !socket_hub_take(hub, rank, &hub->packet)) stream->lost = true;
    }
    if (stream->lost) hub->rank[rank].ended = true;
}

/* Receives the launcher's reports of ranks whose processes have ended. */
static void listen_to_launcher(SocketHub *hub)
{
    SocketPacket packet;
    while (socket_stream_take(&hub->launcher, &packet)) {
        const SocketWord *word = &packet.word;
        if (word->head.kind != PACKET_ENDED || word->rank <= 0 || word->rank >= hub->ranks)
            continue;
        SocketHubRank *rank = &hub->rank[word->rank];
        listen_to(hub, word->rank); /* its goodbye came before */
        rank->ended = rank->known = true;
        rank->status = word->code;
        rank->spoken = word->spoken;
        rank->order = hub->reported++;
    }
}

static double look_after(const SocketHub *hub, bool soon)
{
    /* The silence of a joined rank may be all that there is to notice. */
    double longest = hub->links->joined ? LONGEST_LOOK / 2 : LONGEST_LOOK;
    if (soon) return SOON;
    return watched_pace(hub->timeout > 0 ? fmin(longest, hub->timeout / LOOKS) : longest);
}

/* Waits for packets for at most `seconds`, and takes them. */
static void listen_for(SocketHub *hub, double seconds)
{
    struct pollfd *fd = hub->fd;
    uint64_t times;
    int n = hub->ranks;
    /* Each time costs work for each rank. So in a large world the packets of a moment are taken
     * together. */
    if (n > SMALL_WORLD) usleep((useconds_t)min_i64(LONGEST_MOMENT, MOMENT * n));
    for (int i = 1; i < n; i++) {
        bool sends = flush(hub, i);
        fd[i] = (struct pollfd){.fd = hub->rank[i].ended ? -1 : hub->stream[i].fd,
                                .events = (short)(POLLIN | (sends ? POLLOUT : 0))};
    }
    fd[0] = (struct pollfd){.fd = hub->service->wake, .events = POLLIN};
    fd[n] = (struct pollfd){.fd = hub->launcher.lost ? -1 : hub->launcher.fd, .events = POLLIN};
    if (poll(fd, (nfds_t)n + 1, (int)ceil(1000 * seconds)) <= 0) return;
    if (fd[0].revents && read(hub->service->wake, &times, sizeof times) < 0) return;
    for (int i = 1; i < n; i++)
        if (fd[i].revents) listen_to(hub, i);
    if (fd[n].revents) listen_to_launcher(hub);
}

/* Rank 0 has left and waits for the others to leave, as in a call of the world. The time has a
 * limit, so a rank that never leaves cannot keep all others from ending. It begins again whenever a
 * rank has left. */
static void wait_for_the_others(SocketHub *hub)
{
    SocketHubRank *own = &hub->rank[0];
    own->left = false; /* it still waits; its groups are closed */
    own->asked = hub->asked;
    own->wait = (SocketWait){.waits = 1, .wait = UINT64_MAX, .confirmed = hub->asked};
    for (int i = 1; i < hub->ranks; i++) {
        if (hub->rank[i].left) continue;
        if (own->wait.whos < SOCKET_NAMED) own->wait.rank[own->wait.whos++] = i;
        own->wait.wait--; /* another wait for each number of ranks that have not left */
    }
    own->limit = fmax(hub->timeout, last_wait);
    snprintf(own->wait.call, sizeof own->wait.call, "%s", SOCKET_LAST_WAIT);
    if (last_wait > hub->timeout)
        snprintf(own->wait.call, sizeof own->wait.call, "%s, which may take at least %g s",
                 SOCKET_LAST_WAIT, last_wait);
}

/* Joined ranks end only now, so no failure of another one is missed. Their connections stay open
 * until they have heard it. */
static void say_farewell(SocketHub *hub)
{
    double end = seconds_now() + SEND_SECONDS;
    int ended = 0;
    for (int i = 1; i < hub->ranks; i++)
        tell(hub, i, socket_word(PACKET_FAREWELL));
    while (ended < hub->ranks - 1 && seconds_now() < end) {
        listen_for(hub, SOON);
        ended = 0;
        for (int i = 1; i < hub->ranks; i++)
            ended += hub->rank[i].ended;
    }
}

void socket_hub_main(SocketHub *hub)
{
    SocketService *service = hub->service;
    bool soon = false, goodbye = false;
    double asked = seconds_now();
    while (!atomic_load(&service->stop) || hub->left < hub->ranks - 1) {
        double seconds = look_after(hub, soon), start = seconds_now();
        listen_for(hub, seconds);
        /* After the process was stopped, at most one look counts: its peers may have been stopped,
         * too. */
        double passed = fmin(seconds_now() - start, seconds);
        watched_pass(passed);
        /* So that the others know that this process lives. They measure how long it is silent, so
         * time in which it was stopped counts. */
        if (seconds_now() - asked >= socket_heartbeat(hub->links, hub->timeout)) {
            socket_hub_ask(hub, false);
            asked = seconds_now();
        }
        bool leaves = atomic_load(&service->stop);
        if (!leaves || !goodbye) socket_service_report(service, leaves);
        goodbye = leaves;
        if (goodbye) wait_for_the_others(hub);
        if (atomic_load(&hub->claimed) < 0) soon = socket_hub_judge(hub, passed);
    }
    if (hub->links->joined) say_farewell(hub);
}

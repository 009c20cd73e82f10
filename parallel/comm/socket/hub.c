/* hub.c -- receives the reports of all ranks in rank 0's process. They are stored in a table
 * (table.c); judge.c draws the conclusions. */
#include "parallel/comm/socket/hub.h"

#include "model/core/check.h"
#include "model/core/clock.h"
#include "model/core/dumps.h"
#include "model/core/min_max.h"
#include "model/core/pool.h"
#include "parallel/comm/deadline.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* Seconds between two checks of the table: LONGEST_LOOK at most, SOON while rank 0 waits for
 * answers. The checks divide a timeout into at least LOOKS parts. If the process is stopped between
 * two checks, about one part counts against the timeout, however long it is stopped. */
static const double LONGEST_LOOK = 1, SOON = 0.01;
enum { LOOKS = 16 };
/* In worlds of more than SMALL_WORLD ranks packets are handled in batches, for which the thread
 * waits MOMENT microseconds per rank, but at most LONGEST_MOMENT. */
enum { SMALL_WORLD = 64, MOMENT = 10, LONGEST_MOMENT = 50000 };
/* For how many seconds rank 0 waits at most until joined ranks have received its last packets. */
static const double SEND_SECONDS = 1;
/* At the end of the program, rank 0 waits at least this many seconds for the next rank to leave:
 * releasing its resources may take a rank longer than a short timeout. */
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
    hub->polled = must_calloc((size_t)hub->ranks + 1, sizeof *hub->polled);
    hub->launcher.fd = links->launcher[1];
    for (int i = 0; i < hub->ranks; i++) {
        hub->rank[i].limit = timeout;
        hub->stream[i].fd = links->star[0][i];
        if (i > 0) hub->rank[socket_links_parent(links, i)].carries = true;
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
    free(hub->polled);
    free(hub);
}

/* ---- sending --------------------------------------------------------------------------------- */

/* Sends a packet to `rank`, or through it to ranks below it. If there is no room, the packet is
 * dropped: its receiver is stopped, or is about to find out that rank 0 has ended. Packets that are
 * sent often (ASK, DUMP) are also dropped if an earlier packet is still unsent, so that there is
 * room for those that are sent only once. The caller may be a thread that fails, so this does not
 * wait for long. */
static void tell_over(SocketHub *hub, int rank, const SocketWord *word)
{
    SocketStream *stream = &hub->stream[rank];
    bool often = word->head.kind == PACKET_ASK || word->head.kind == PACKET_DUMP;
    if (!mutex_lock_within(&hub->service->sends, DEADLINE_LOCK)) return;
    if (!often || stream->left == 0) socket_stream_put(stream, word);
    pthread_mutex_unlock(&hub->service->sends);
}

static void tell(SocketHub *hub, int rank, SocketWord word)
{
    bool tree = atomic_load(&hub->tree);
    word.head.rank = rank;
    tell_over(hub, tree ? socket_links_towards(hub->links, 0, rank) : rank, &word);
}

static void tell_all(SocketHub *hub, SocketWord word)
{
    bool tree = atomic_load(&hub->tree);
    for (int i = 1; i < hub->ranks; i++) {
        word.head.rank = tree ? -1 : i;
        if (!tree || socket_links_parent(hub->links, i) == 0) tell_over(hub, i, &word);
    }
}

void socket_hub_use_tree(SocketHub *hub)
{
    atomic_store(&hub->tree, true);
}

/* Sends what could not be sent before. Returns whether something is still left. */
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
    tell_all(hub, question(hub));
}

void socket_hub_ask_one(SocketHub *hub, int rank)
{
    hub->asked++;
    if (rank == 0)
        socket_service_nudge(hub->service, hub->asked);
    else
        tell(hub, rank, question(hub));
}

void socket_hub_dump(SocketHub *hub, int64_t number)
{
    SocketWord order = socket_word(PACKET_DUMP);
    if (number <= hub->dumps) return;
    hub->dumps = number;
    order.asked = (uint64_t)number;
    tell_all(hub, order);
    dumps_order(number);
}

bool socket_hub_claim(SocketHub *hub, int rank, int code)
{
    int none = -1;
    SocketWord verdict = socket_word(PACKET_VERDICT);
    verdict.code = code;
    verdict.rank = rank;
    if (!atomic_compare_exchange_strong(&hub->claimed, &none, rank)) return false;
    /* Send the verdict before the permission, because the failing rank may have to forward the
     * verdict, and it ends when it has the permission. */
    tell_all(hub, verdict);
    if (rank != 0) tell(hub, rank, socket_word(PACKET_GRANT));
    if (hub->links->joined) socket_streams_finish(hub->stream, hub->ranks, &hub->service->sends);
    return true;
}

/* ---- receiving ------------------------------------------------------------------------------- */

/* Closes the rank's own connection to rank 0, on which the rank has sent its last packet. Its later
 * packets will come through its parent. */
static void leave_star(SocketHub *hub, int rank)
{
    SocketStream *stream = &hub->stream[rank];
    pthread_mutex_lock(&hub->service->sends);
    close(stream->fd);
    *stream = (SocketStream){.fd = -1};
    hub->links->star[0][rank] = -1;
    pthread_mutex_unlock(&hub->service->sends);
}

/* Handles a packet that has come over the connection of `rank`, from `rank` itself or from a rank
 * below it. Returns false if neither can have sent it, or if `rank` itself has sent a packet that
 * makes no sense. */
static bool take_from(SocketHub *hub, int rank)
{
    int from = hub->packet.head.rank;
    bool own = from == rank;
    if (!own &&
        (from <= rank || from >= hub->ranks || socket_links_towards(hub->links, rank, from) < 0))
        return false;
    hub->rank[from].silent = 0;
    if (socket_hub_take(hub, from, &hub->packet)) return true;
    hub->rank[from].ended = true; /* as if it had closed its connection */
    return !own;
}

/* Receives all that has come over the connection of a rank. The connection counts as lost if
 * take_from returns false. */
static void listen_to(SocketHub *hub, int rank)
{
    SocketStream *stream = &hub->stream[rank];
    while (socket_stream_take(stream, &hub->packet)) {
        const SocketPacketHead *head = &hub->packet.head;
        bool leaves = head->kind == PACKET_TREE && head->rank == rank && atomic_load(&hub->tree) &&
                      socket_links_parent(hub->links, rank) > 0;
        if (leaves)
            leave_star(hub, rank);
        else if (!take_from(hub, rank))
            stream->lost = true;
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
        listen_to(hub, word->rank); /* read its goodbye first, which came before this report */
        rank->ended = rank->known = true;
        rank->status = word->code;
        rank->spoken = word->spoken;
        rank->order = hub->reported++;
    }
}

static double look_after(const SocketHub *hub, bool soon)
{
    /* The only sign that a joined rank has failed may be its silence, so check more often. */
    double longest = hub->links->joined ? LONGEST_LOOK / 2 : LONGEST_LOOK;
    if (soon) return SOON;
    return watched_pace(hub->timeout > 0 ? fmin(longest, hub->timeout / LOOKS) : longest);
}

/* Waits for packets for at most `seconds`, and handles them. */
static void listen_for(SocketHub *hub, double seconds)
{
    struct pollfd *fd = hub->fd;
    uint64_t times;
    int n = hub->ranks, polls = 0;
    /* Each round costs work for each rank, so in a large world it waits a moment and handles a
     * batch of packets. */
    if (n > SMALL_WORLD) usleep((useconds_t)min_i64(LONGEST_MOMENT, MOMENT * n));
    fd[polls++] = (struct pollfd){.fd = hub->service->wake, .events = POLLIN};
    fd[polls++] =
        (struct pollfd){.fd = hub->launcher.lost ? -1 : hub->launcher.fd, .events = POLLIN};
    for (int i = 1; i < n; i++) {
        if (hub->stream[i].fd < 0) continue;
        bool sends = flush(hub, i);
        hub->polled[polls] = i;
        fd[polls++] = (struct pollfd){.fd = hub->rank[i].ended ? -1 : hub->stream[i].fd,
                                      .events = (short)(POLLIN | (sends ? POLLOUT : 0))};
    }
    if (poll(fd, (nfds_t)polls, (int)ceil(1000 * seconds)) <= 0) return;
    if (fd[0].revents && read(hub->service->wake, &times, sizeof times) < 0) return;
    for (int k = 2; k < polls; k++)
        if (fd[k].revents) listen_to(hub, hub->polled[k]);
    if (fd[1].revents) listen_to_launcher(hub);
}

/* Called when rank 0 has left: makes it wait until the other ranks have left, as if in a call of
 * the world. The time is limited, so a rank that never leaves cannot keep all other ranks from
 * ending. It restarts whenever a rank has left. */
static void wait_for_the_others(SocketHub *hub)
{
    SocketHubRank *own = &hub->rank[0];
    own->left = false; /* it still waits, although its groups are closed */
    own->asked = hub->asked;
    own->wait = (SocketWait){.waits = 1, .wait = UINT64_MAX, .confirmed = hub->asked};
    for (int i = 1; i < hub->ranks; i++) {
        if (hub->rank[i].left) continue;
        if (own->wait.whos < SOCKET_NAMED) own->wait.rank[own->wait.whos++] = i;
        own->wait.wait--; /* when a rank leaves, the number changes, and the deadline restarts */
    }
    own->limit = fmax(hub->timeout, last_wait);
    snprintf(own->wait.call, sizeof own->wait.call, "%s", SOCKET_LAST_WAIT);
    if (last_wait > hub->timeout)
        snprintf(own->wait.call, sizeof own->wait.call, "%s, which may take at least %g s",
                 SOCKET_LAST_WAIT, last_wait);
}

/* Tells joined ranks that all ranks have left. They end only after this packet, so none misses the
 * failure of another one. Keeps the connections open until the others have closed them, but at most
 * SEND_SECONDS. */
static void say_farewell(SocketHub *hub)
{
    double end = seconds_now() + SEND_SECONDS;
    bool open = true;
    tell_all(hub, socket_word(PACKET_FAREWELL));
    while (open && seconds_now() < end) {
        listen_for(hub, SOON);
        open = false;
        for (int i = 1; i < hub->ranks; i++)
            open = open || (hub->stream[i].fd >= 0 && !hub->rank[i].ended);
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
        double passed = deadline_passed(start, seconds);
        watched_pass(passed);
        /* A sign of life for the other ranks. They measure how long this process is silent, so the
         * time in which it was stopped counts here. */
        if (seconds_now() - asked >= socket_heartbeat(hub->links, hub->timeout)) {
            socket_hub_ask(hub, false);
            asked = seconds_now();
        }
        int64_t wish = atomic_exchange(&service->wish, 0);
        if (wish > 0) socket_hub_dump(hub, wish);
        bool leaves = atomic_load(&service->stop);
        if (!leaves || !goodbye) socket_service_report(service, leaves);
        goodbye = leaves;
        if (goodbye) wait_for_the_others(hub);
        if (atomic_load(&hub->claimed) < 0) soon = socket_hub_judge(hub, passed);
    }
    if (hub->links->joined) say_farewell(hub);
}

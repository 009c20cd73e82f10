/* message.cc -- carries out all messages of a plan at once. Data is sent once the receiver has made
 * its call. Messages between two ranks keep their order. With EMU_NCCL_LEAVE=early data is sent at
 * once: receivers announce no call, and their peers wait for none. */
#include "tests/emu/nccl/inside.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

/* The exchange with one peer. First the headers of all the plan's messages are sent. Then, as the
 * peer's headers arrive, the data is sent, each message after its own header. */
typedef struct {
    ncclComm *comm;
    Link *link;
    Call **send, **receive;
    int sends, receives;
    Header *headers; /* headers of all messages that this rank announces */
    int n_headers;
    int asked, sent;       /* sends for which the peer has made its call; sends that are complete */
    int offered, received; /* receives for which the peer has made its call; receives that are
                            * complete */
    Header out, in;        /* header of the data being sent; header of what is being received */
    size_t headers_at, out_at, in_at;
} Talk;

static void queue_push(HeaderQueue *queue, const Header *header)
{
    if (queue->first + queue->n == queue->capacity) {
        queue->capacity = queue->capacity ? 2 * queue->capacity : 8;
        queue->header =
            (Header *)realloc(queue->header, (size_t)queue->capacity * sizeof *queue->header);
        if (queue->header == NULL) emu_die("no memory for headers");
    }
    queue->header[queue->first + queue->n++] = *header;
}

static Header queue_pop(HeaderQueue *queue)
{
    Header header = queue->header[queue->first++];
    if (--queue->n == 0) queue->first = 0;
    return header;
}

/* ---- receiving ------------------------------------------------------------------------------- */

/* Ends the program unless both ends of a message agree on its number, count and type. */
static void match(const Call *call, const Header *theirs)
{
    Header mine = call_header(call);
    if (mine.number != theirs->number || mine.count != theirs->count || mine.type != theirs->type)
        mismatch(call->comm, &mine, theirs);
}

static void offered(Talk *talk, const Header *header)
{
    match(talk->receive[talk->offered++], header);
}

static void asked(Talk *talk, const Header *header)
{
    match(talk->send[talk->asked], header);
    call_read(talk->send[talk->asked++]);
}

static bool wants_more(const Talk *talk)
{
    return talk->asked < talk->sends || talk->received < talk->receives;
}

/* Handles a complete header. After a FRAME_DATA header the data follows. */
static void header_came(Talk *talk)
{
    const Header *in = &talk->in;
    if (in->frame == FRAME_SEND && talk->offered < talk->receives) {
        offered(talk, in);
    } else if (in->frame == FRAME_SEND) {
        queue_push(&talk->link->sends, in);
    } else if (in->frame == FRAME_RECEIVE && talk->asked < talk->sends) {
        asked(talk, in);
    } else if (in->frame == FRAME_RECEIVE) {
        queue_push(&talk->link->receives, in);
    } else if (in->frame != FRAME_DATA || talk->received == talk->offered) {
        const Call *call =
            talk->asked < talk->sends ? talk->send[talk->asked] : talk->receive[talk->received];
        Header mine = call_header(call);
        mismatch(talk->comm, &mine, in);
    }
}

/* Reads into p, beginning at position in_at. Returns 1 if it is full, 0 if more must arrive, and -1
 * if the peer has closed the connection. */
static int fill(Talk *talk, void *p, size_t from, size_t bytes)
{
    while (talk->in_at < from + bytes) {
        ssize_t n =
            recv(talk->link->data, (char *)p + (talk->in_at - from), from + bytes - talk->in_at, 0);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return 0;
        if (n <= 0) return -1;
        talk->in_at += (size_t)n;
    }
    return 1;
}

/* Reads everything that has arrived and that this plan needs. Returns false if the peer has closed
 * the connection. */
static bool hear(Talk *talk)
{
    const size_t head = sizeof talk->in;
    while (wants_more(talk)) {
        int state = 1;
        if (talk->in_at < head) {
            state = fill(talk, &talk->in, 0, head);
            if (state == 1) header_came(talk);
        }
        bool data = state == 1 && talk->in.frame == FRAME_DATA;
        if (data) state = fill(talk, talk->receive[talk->received]->result, head, talk->in.count);
        if (state == 0) return true;
        if (state < 0) return false;
        if (data) talk->received++;
        talk->in_at = 0;
    }
    return true;
}

/* ---- sending --------------------------------------------------------------------------------- */

/* Writes p, beginning at position *at. Returns 1 if all is written, 0 if it must wait, and -1 if
 * the peer has closed the connection. */
static int drop(const Talk *talk, const void *p, size_t from, size_t bytes, size_t *at)
{
    while (*at < from + bytes) {
        ssize_t n = send(talk->link->data, (const char *)p + (*at - from), from + bytes - *at,
                         MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return 0;
        if (n <= 0) return -1;
        *at += (size_t)n;
    }
    return 1;
}

static bool has_to_say(const Talk *talk)
{
    return talk->headers_at < (size_t)talk->n_headers * sizeof(Header) || talk->sent < talk->asked;
}

static bool say(Talk *talk)
{
    const size_t head = sizeof talk->out;
    int state = drop(talk, talk->headers, 0, (size_t)talk->n_headers * head, &talk->headers_at);
    while (state == 1 && talk->sent < talk->asked) {
        const Call *call = talk->send[talk->sent];
        if (talk->out_at == 0) {
            talk->out = call_header(call);
            talk->out.frame = FRAME_DATA;
            talk->out.count = call->send_bytes;
        }
        state = talk->out_at < head ? drop(talk, &talk->out, 0, head, &talk->out_at) : 1;
        if (state == 1) state = drop(talk, call->input, head, call->send_bytes, &talk->out_at);
        if (state != 1) break;
        talk->sent++;
        talk->out_at = 0;
    }
    return state >= 0;
}

/* ---- all peers ------------------------------------------------------------------------------- */

/* Matches this rank's sends to itself with its receives, in order. */
static void to_oneself(Call **send, int sends, Call **receive, int receives)
{
    for (int i = 0; i < sends || i < receives; i++) {
        const Call *alone = i < sends ? send[i] : receive[i];
        if (i >= sends || i >= receives)
            emu_die("rank %d calls %s of its own rank, with nothing on the other side in its group",
                    alone->comm->rank, verb_name(alone->verb));
        Header header = call_header(send[i]);
        match(receive[i], &header);
        call_read(send[i]);
        memcpy(receive[i]->result, send[i]->input, send[i]->send_bytes);
    }
}

/* Collects the calls for this peer, and the peer's headers that have already arrived. */
static void talk_begin(Talk *talk, ncclComm *comm, int peer, Call **call, int n)
{
    talk->comm = comm;
    talk->link = &comm->link[peer];
    talk->send = (Call **)calloc(2 * (size_t)n, sizeof *talk->send);
    talk->headers = (Header *)calloc((size_t)n, sizeof *talk->headers);
    if (talk->send == NULL || talk->headers == NULL) emu_die("no memory for messages");
    talk->receive = talk->send + n;
    for (int i = 0; i < n; i++) {
        if (call[i]->peer != peer) continue;
        bool send = call[i]->verb == SEND;
        if (send || !comm->early) talk->headers[talk->n_headers++] = call_header(call[i]);
        if (send)
            talk->send[talk->sends++] = call[i];
        else
            talk->receive[talk->receives++] = call[i];
    }
    if (peer == comm->rank) {
        to_oneself(talk->send, talk->sends, talk->receive, talk->receives);
        talk->sends = talk->receives = talk->n_headers = 0;
    }
    for (; comm->early && talk->asked < talk->sends; talk->asked++)
        call_read(talk->send[talk->asked]);
    while (talk->asked < talk->sends && talk->link->receives.n > 0) {
        Header header = queue_pop(&talk->link->receives);
        asked(talk, &header);
    }
    while (talk->offered < talk->receives && talk->link->sends.n > 0) {
        Header header = queue_pop(&talk->link->sends);
        offered(talk, &header);
    }
}

/* Sends and receives until all exchanges are complete. */
static bool talk_all(ncclComm *comm, Talk *talk)
{
    struct pollfd sockets[comm->ranks + 1];
    for (;;) {
        int n = 0;
        for (int r = 0; r < comm->ranks; r++) {
            if (!hear(&talk[r]) || !say(&talk[r])) return false;
            short events =
                (short)((wants_more(&talk[r]) ? POLLIN : 0) | (has_to_say(&talk[r]) ? POLLOUT : 0));
            if (events == 0) continue;
            sockets[n].fd = talk[r].link->data;
            sockets[n++].events = events;
        }
        if (n == 0) return true;
        if (!net_poll(comm, sockets, n)) return false;
    }
}

bool messages_run(ncclComm *comm, Call **call, int n)
{
    Talk *talk = (Talk *)calloc((size_t)comm->ranks, sizeof *talk);
    if (talk == NULL) emu_die("no memory for messages");
    for (int r = 0; r < comm->ranks; r++)
        talk_begin(&talk[r], comm, r, call, n);
    bool well = talk_all(comm, talk);
    for (int r = 0; r < comm->ranks; r++) {
        free(talk[r].send);
        free(talk[r].headers);
    }
    free(talk);
    return well;
}

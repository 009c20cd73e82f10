/* handshake.c -- two processes prove to each other that they know a secret. */
#include "parallel/comm/socket/handshake.h"

#include "model/core/check.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>

enum { PROGRAM_BYTES = 8, LABEL_BYTES = 16 };
/* Offsets in a hello. */
enum { AT_VERSION = 8, AT_RANK = 12, AT_NAME = 16, AT_NONCE = 24, NONCE_BYTES = 32 };
_Static_assert((int)AT_NONCE + (int)NONCE_BYTES == (int)HANDSHAKE_HELLO_BYTES, "layout of a hello");

/* Indexed by whether this side accepts: the beginning of its hello, and the beginning of the text
 * from which its code is computed. The strings of the two sides differ, so a side refuses its own
 * bytes if they are sent back to it, or if a socket is connected to itself. */
static const char *const program[2] = {"train.c>", "train.c<"};
static const char *const label[2] = {"train.c connects", "train.c accepts "};

static void put_number(unsigned char *to, uint64_t number, int bytes)
{
    for (int i = 0; i < bytes; i++)
        to[i] = (unsigned char)(number >> 8 * i);
}

static uint64_t get_number(const unsigned char *from, int bytes)
{
    uint64_t number = 0;
    for (int i = 0; i < bytes; i++)
        number |= (uint64_t)from[i] << 8 * i;
    return number;
}

/* Queues bytes to be sent. */
static void put(Handshake *h, const void *data, int bytes)
{
    CHECK(h->out_bytes + bytes <= HANDSHAKE_BYTES, "%d bytes", h->out_bytes + bytes);
    memcpy(h->out + h->out_bytes, data, (size_t)bytes);
    h->out_bytes += bytes;
}

void handshake_begin(Handshake *h, const unsigned char secret[SHA256_BYTES], bool accepts,
                     int32_t own_rank)
{
    *h = (Handshake){.accepts = accepts, .peer_rank = -1};
    memcpy(h->secret, secret, SHA256_BYTES);
    memcpy(h->hello, program[accepts], PROGRAM_BYTES);
    put_number(h->hello + AT_VERSION, HANDSHAKE_VERSION, 4);
    put_number(h->hello + AT_RANK, (uint32_t)own_rank, 4);
    if (getrandom(h->hello + AT_NONCE, NONCE_BYTES, 0) != NONCE_BYTES)
        fail(EXIT_SYSTEM, "the system gives no random bytes: %s", strerror(errno));
    if (!accepts) put(h, h->hello, HANDSHAKE_HELLO_BYTES);
}

void handshake_name(Handshake *h, uint64_t name)
{
    put_number(h->hello + AT_NAME, name, 8);
    if (!h->accepts) memcpy(h->out, h->hello, HANDSHAKE_HELLO_BYTES);
}

bool handshake_sends(const Handshake *h)
{
    return h->sent < h->out_bytes;
}

/* Writes the code by which the accepting or the connecting side proves that it knows the secret. */
static void prove(const Handshake *h, bool accepts, unsigned char mac[SHA256_BYTES])
{
    unsigned char text[LABEL_BYTES + 2 * HANDSHAKE_HELLO_BYTES];
    memcpy(text, label[accepts], LABEL_BYTES);
    memcpy(text + LABEL_BYTES, h->accepts ? h->in : h->hello, HANDSHAKE_HELLO_BYTES);
    memcpy(text + LABEL_BYTES + HANDSHAKE_HELLO_BYTES, h->accepts ? h->hello : h->in,
           HANDSHAKE_HELLO_BYTES);
    hmac_sha256(h->secret, sizeof h->secret, text, sizeof text, mac);
}

static void refuse(Handshake *h, HandshakeReason reason)
{
    h->outcome = HANDSHAKE_REFUSED;
    h->reason = reason;
    /* If only the version or the name differs, send the hello, from which the other side sees the
     * difference, too. */
    if (h->accepts && reason != HANDSHAKE_OTHER_PROGRAM && h->got <= HANDSHAKE_HELLO_BYTES)
        put(h, h->hello, HANDSHAKE_HELLO_BYTES);
}

/* Checks the part of the other side's hello that has arrived. */
static void check_hello(Handshake *h)
{
    size_t begin = (size_t)h->got < PROGRAM_BYTES ? (size_t)h->got : PROGRAM_BYTES;
    if (memcmp(h->in, program[!h->accepts], begin) != 0) {
        refuse(h, HANDSHAKE_OTHER_PROGRAM);
        return;
    }
    /* The first 12 bytes have the same meaning in all versions. */
    if (h->got < AT_RANK) return;
    h->peer_version = (uint32_t)get_number(h->in + AT_VERSION, 4);
    if (h->peer_version != HANDSHAKE_VERSION) {
        refuse(h, HANDSHAKE_OTHER_VERSION);
        return;
    }
    if (h->got < HANDSHAKE_HELLO_BYTES) return;
    if (memcmp(h->in + AT_NAME, h->hello + AT_NAME, 8) != 0) {
        refuse(h, HANDSHAKE_OTHER_NAME);
    } else if (h->accepts) {
        put(h, h->hello, HANDSHAKE_HELLO_BYTES);
    } else {
        unsigned char proof[HANDSHAKE_PROOF_BYTES] = {1};
        prove(h, false, proof + 1);
        put(h, proof, HANDSHAKE_PROOF_BYTES);
    }
}

static void check_proof(Handshake *h)
{
    const unsigned char *theirs = h->in + HANDSHAKE_HELLO_BYTES;
    unsigned char expected[SHA256_BYTES], answer[HANDSHAKE_PROOF_BYTES] = {0};
    prove(h, !h->accepts, expected);
    bool right = theirs[0] == 1 && same_bytes(theirs + 1, expected, SHA256_BYTES);
    if (h->accepts) {
        answer[0] = right;
        if (right) prove(h, true, answer + 1);
        put(h, answer, HANDSHAKE_PROOF_BYTES);
    }
    if (right)
        h->outcome = HANDSHAKE_PROVEN;
    else
        refuse(h, HANDSHAKE_WRONG_SECRET);
}

/* Sends what is queued. Returns whether all of it was sent. */
static bool flush(Handshake *h, int fd)
{
    while (h->sent < h->out_bytes) {
        ssize_t sent = send(fd, h->out + h->sent, (size_t)(h->out_bytes - h->sent),
                            MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0 && errno == EAGAIN) return false;
        if (sent < 0) {
            /* If the outcome is a refusal, it does not matter that the peer did not receive it. */
            h->state = h->outcome == HANDSHAKE_REFUSED ? HANDSHAKE_REFUSED : HANDSHAKE_LOST;
            return false;
        }
        h->sent += (int)sent;
    }
    return true;
}

/* Receives a part of the hello or of the proof. Returns whether there was one. */
static bool receive(Handshake *h, int fd)
{
    int end = h->got < HANDSHAKE_HELLO_BYTES ? HANDSHAKE_HELLO_BYTES : HANDSHAKE_BYTES;
    ssize_t got = recv(fd, h->in + h->got, (size_t)(end - h->got), MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) return true;
    /* ENOTCONN: the connect is still in progress. */
    if (got < 0 && (errno == EAGAIN || errno == ENOTCONN)) return false;
    if (got <= 0) {
        if (got == 0) errno = 0;
        h->state = HANDSHAKE_LOST;
        return false;
    }
    h->got += (int)got;
    if (end == HANDSHAKE_HELLO_BYTES)
        check_hello(h);
    else if (h->got == end)
        check_proof(h);
    return true;
}

HandshakeState handshake_move(Handshake *h, int fd)
{
    while (h->state == HANDSHAKE_GOES_ON) {
        if (!flush(h, fd)) break;
        if (h->outcome != HANDSHAKE_GOES_ON) {
            h->state = h->outcome;
            if (h->state == HANDSHAKE_PROVEN)
                h->peer_rank = (int32_t)(uint32_t)get_number(h->in + AT_RANK, 4);
            break;
        }
        if (!receive(h, fd)) break;
    }
    return h->state;
}

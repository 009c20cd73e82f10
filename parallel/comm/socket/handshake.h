/* handshake.h -- two processes on different machines prove to each other that they know a secret,
 * before either reads anything else from the other. The secret itself is never sent.
 *
 *     connecting side                                    accepting side
 *       hello: program, version, rank, name, nonce  --->
 *                                                   <---   its hello
 *       HMAC-SHA256(secret, "connects", both hellos) -->
 *                                <---  HMAC-SHA256(secret, "accepts", both hellos), or a refusal
 *
 * The nonces are new for each connection, so recorded bytes of another connection prove nothing.
 * The inputs of the two codes begin with different words, so a code that is sent back to its sender
 * proves nothing either. Anybody may connect to the accepting side, so it proves its knowledge only
 * after the connecting side has done so. What follows on the connection is neither encrypted nor
 * authenticated: whoever can change packets between the machines can take over a connection. */
#ifndef PARALLEL_COMM_SOCKET_HANDSHAKE_H
#define PARALLEL_COMM_SOCKET_HANDSHAKE_H

#include "model/core/sha256.h"

enum {
    /* Must be changed whenever the format of the handshake, or of what follows it, changes. */
    HANDSHAKE_VERSION = 2,
    /* A hello: 8 bytes of program and direction, 4 of version, 4 of rank, 8 of name, 32 of nonce.
     * Numbers are little-endian. */
    HANDSHAKE_HELLO_BYTES = 56,
    /* A proof: a byte that is 1 if the other side's code was right, else 0; then this side's
     * code. */
    HANDSHAKE_PROOF_BYTES = 1 + SHA256_BYTES,
    /* The most that each side sends or receives. */
    HANDSHAKE_BYTES = HANDSHAKE_HELLO_BYTES + HANDSHAKE_PROOF_BYTES
};

typedef enum {
    HANDSHAKE_GOES_ON, /* call handshake_move again when the descriptor is ready */
    HANDSHAKE_PROVEN,
    HANDSHAKE_REFUSED, /* by one of the sides, for the HandshakeReason */
    HANDSHAKE_LOST     /* the connection has failed (errno) or was closed (errno is 0) */
} HandshakeState;

typedef enum {
    HANDSHAKE_NO_REASON,
    HANDSHAKE_OTHER_PROGRAM, /* the peer is no train.c process, or is on the same side of the
                              * handshake as this process */
    HANDSHAKE_OTHER_VERSION, /* the peer uses another version of this protocol */
    HANDSHAKE_OTHER_NAME,    /* the peer has another handshake_name: it belongs to another job */
    HANDSHAKE_WRONG_SECRET   /* the two sides do not have the same secret */
} HandshakeReason;

typedef struct Handshake {
    unsigned char secret[SHA256_BYTES];
    bool accepts;
    HandshakeState state, outcome; /* outcome: the state once `out` has been sent */
    HandshakeReason reason;
    int32_t peer_rank;     /* set once the state is PROVEN; before that -1 */
    uint32_t peer_version; /* 0: not known */
    int sent, out_bytes, got;
    unsigned char hello[HANDSHAKE_HELLO_BYTES]; /* this side's hello */
    unsigned char out[HANDSHAKE_BYTES], in[HANDSHAKE_BYTES];
} Handshake;

/* Begins a handshake on one connection. `accepts`: the other side has opened the connection.
 * own_rank: the number that the other side gets as peer_rank. Ends the program (EXIT_SYSTEM) if the
 * system gives no random bytes. */
void handshake_begin(Handshake *h, const unsigned char secret[SHA256_BYTES], bool accepts,
                     int32_t own_rank);
/* Sets the name, which both sides must have in common (default 0); it is no secret. Called before
 * the first handshake_move. The name distinguishes a rank of another job from a rank that was given
 * a wrong secret. */
void handshake_name(Handshake *h, uint64_t name);
/* Sends and receives what is possible without waiting, whether or not the descriptor is in
 * O_NONBLOCK mode. A socket whose connect is in progress is allowed. Reads no byte that follows the
 * handshake. Once the handshake has ended, always returns its final state. */
HandshakeState handshake_move(Handshake *h, int fd);
/* Returns whether the handshake waits until it can send (POLLOUT), not receive (POLLIN). */
bool handshake_sends(const Handshake *h);

#endif

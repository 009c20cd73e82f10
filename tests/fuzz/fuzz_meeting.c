/* fuzz_meeting.c -- fuzz target: any bytes as messages of a meeting, and as what a stranger says.
 */
#include "tests/fuzz/fuzz_meeting.h"

#include "model/core/check.h"
#include "parallel/comm/socket/handshake.h"
#include "parallel/meeting/channel.h"

#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* A message that was accepted has no second spelling. */
static void same(Bytes *written, const uint8_t *data, size_t n)
{
    CHECK(written->used == n && memcmp(written->data, data, n) == 0, "%zu bytes, not %zu",
          written->used, n);
}

static void read_table(Bytes *b, const uint8_t *data, size_t n)
{
    static const int sizes[] = {1, 2, 3, 40};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        Table t;
        if (table_read(&t, sizes[i], data, n)) {
            for (int k = 0; k < t.size; k++)
                CHECK(t.rank[k].machine < t.machines && t.rank[k].address.port > 0, "rank %d", k);
            CHECK(n <= table_most_bytes(sizes[i]), "%zu bytes", n);
            table_write(b, &t);
            same(b, data, n);
        }
        table_free(&t);
    }
}

/* Sends the bytes to a socket, and returns the other end. */
static int sent(const uint8_t *data, size_t n, int *other)
{
    int fd[2], room = 1 << 20;
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd) == 0, "no socket");
    setsockopt(fd[1], SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
    ssize_t bytes = send(fd[1], data, n, MSG_DONTWAIT | MSG_NOSIGNAL);
    CHECK(bytes <= (ssize_t)n, "%zd bytes", bytes);
    shutdown(fd[1], SHUT_WR);
    *other = fd[1];
    return fd[0];
}

static void be_strange(const uint8_t *data, size_t n)
{
    static const unsigned char secret[SHA256_BYTES] = "not known to the fuzzer";
    for (int accepts = 0; accepts < 2; accepts++) {
        Handshake h;
        int other, fd = sent(data, n, &other);
        handshake_begin(&h, secret, accepts, 0);
        HandshakeState state = handshake_move(&h, fd);
        CHECK(state == HANDSHAKE_REFUSED || state == HANDSHAKE_LOST, "state %d", (int)state);
        close(fd);
        close(other);
    }
}

static void read_stream(const uint8_t *data, size_t n)
{
    Channel c;
    const unsigned char *body;
    size_t bytes;
    int kind, other, fd = sent(data, n, &other);
    channel_open(&c, fd);
    while (channel_take(&c, 4096, &kind, &body, &bytes)) {
        Bytes again = {0};
        CHECK(bytes <= 4096, "%zu bytes", bytes);
        bytes_put(&again, body, bytes); /* a sanitizer sees a body that is too short */
        bytes_free(&again);
    }
    CHECK(c.gone, "the stream has ended");
    CHECK(c.wrong || c.body_bytes <= 4096, "%zu bytes were expected", c.body_bytes);
    channel_close(&c);
    close(other);
}

int fuzz_meeting(const uint8_t *data, size_t size)
{
    Bytes b = {0};
    Greeting g;
    Answer a;
    Verdict v;
    if (size == 0) return 0;
    int kind = *data++ % FUZZ_KINDS;
    size--;
    if (kind == FUZZ_GREETING && greeting_read(&g, data, size)) {
        CHECK(g.rank < g.size && size <= GREETING_MOST_BYTES, "rank %d", g.rank);
        greeting_write(&b, &g);
        same(&b, data, size);
    }
    if (kind == FUZZ_ANSWER && answer_read(&a, data, size)) {
        CHECK(size <= ANSWER_MOST_BYTES, "%zu bytes", size);
        answer_write(&b, &a);
        same(&b, data, size);
    }
    if (kind == FUZZ_VERDICT && verdict_read(&v, data, size)) {
        CHECK(size <= VERDICT_MOST_BYTES, "%zu bytes", size);
        verdict_write(&b, &v);
        same(&b, data, size);
    }
    if (kind == FUZZ_TABLE) read_table(&b, data, size);
    if (kind == FUZZ_STRANGER) be_strange(data, size);
    if (kind == FUZZ_STREAM) read_stream(data, size);
    bytes_free(&b);
    return 0;
}

/* libFuzzer's entry point. It is weak because the test program links all fuzz targets together. */
__attribute__((weak)) int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
__attribute__((weak)) int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_meeting(data, size);
    return 0;
}

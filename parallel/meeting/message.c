/* message.c -- writes and reads the messages of a meeting. See message.h. */
#include "parallel/meeting/message.h"

#include "model/core/check.h"
#include "model/core/min_max.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

/* ---- bytes ----------------------------------------------------------------------------------- */

void bytes_put(Bytes *b, const void *data, size_t n)
{
    if (b->used + n > b->room) {
        b->room = 2 * (b->used + n) + 256;
        b->data = must_realloc(b->data, b->room);
    }
    if (n > 0) memcpy(b->data + b->used, data, n);
    b->used += n;
}

void bytes_put_number(Bytes *b, uint64_t number, int width)
{
    unsigned char bytes[8];
    for (int i = 0; i < width; i++)
        bytes[i] = (unsigned char)(number >> 8 * i);
    bytes_put(b, bytes, (size_t)width);
}

void bytes_free(Bytes *b)
{
    free(b->data);
    *b = (Bytes){0};
}

void reader_take(Reader *r, void *to, size_t n)
{
    if ((size_t)(r->end - r->at) < n) r->bad = true;
    if (r->bad) {
        memset(to, 0, n);
        return;
    }
    memcpy(to, r->at, n);
    r->at += n;
}

uint64_t reader_number(Reader *r, int width)
{
    unsigned char bytes[8];
    uint64_t number = 0;
    reader_take(r, bytes, (size_t)width);
    for (int i = 0; i < width; i++)
        number |= (uint64_t)bytes[i] << 8 * i;
    return number;
}

/* Reads a signed 32-bit number that must be in [least, most]. */
static int reader_int(Reader *r, int least, int most)
{
    int number = (int)(int32_t)(uint32_t)reader_number(r, 4);
    if (number < least || number > most) r->bad = true;
    return r->bad ? 0 : number;
}

static void put_text(Bytes *b, const char *text, size_t room)
{
    size_t n = strnlen(text, room - 1);
    bytes_put_number(b, n, 2);
    bytes_put(b, text, n);
}

/* Reads a text without zero bytes that must fit into to[0..room). */
static void reader_text(Reader *r, char *to, size_t room)
{
    size_t n = (size_t)reader_number(r, 2);
    if (n >= room) r->bad = true;
    to[0] = 0;
    if (r->bad) return;
    reader_take(r, to, n);
    to[r->bad ? 0 : n] = 0;
    if (strlen(to) != n) r->bad = true;
}

/* Returns whether the whole message was read, and nothing beyond its end. */
static bool reader_done(const Reader *r)
{
    return !r->bad && r->at == r->end;
}

static Reader reader_of(const void *data, size_t n)
{
    return (Reader){data, (const unsigned char *)data + n, false};
}

/* ---- addresses ------------------------------------------------------------------------------- */

static size_t ip_bytes(const Address *address)
{
    return address->family == 4 ? 4 : address->family == 6 ? 16 : 0;
}

void bytes_put_address(Bytes *b, const Address *address)
{
    bytes_put_number(b, address->family, 1);
    bytes_put_number(b, address->port, 2);
    bytes_put(b, address->ip, ip_bytes(address));
}

void reader_address(Reader *r, Address *address)
{
    *address = (Address){.family = (uint8_t)reader_number(r, 1)};
    address->port = (uint16_t)reader_number(r, 2);
    reader_take(r, address->ip, ip_bytes(address));
    /* Valid are a known address family with a port, or neither of them. */
    if (address->family == 0 ? address->port != 0 : ip_bytes(address) == 0 || address->port == 0)
        r->bad = true;
}

bool address_from(Address *address, const struct sockaddr *from)
{
    *address = (Address){0};
    if (from->sa_family == AF_INET) {
        struct sockaddr_in in;
        memcpy(&in, from, sizeof in);
        address->family = 4;
        address->port = ntohs(in.sin_port);
        memcpy(address->ip, &in.sin_addr, 4);
    } else if (from->sa_family == AF_INET6) {
        struct sockaddr_in6 in;
        memcpy(&in, from, sizeof in);
        address->family = 6;
        address->port = ntohs(in.sin6_port);
        memcpy(address->ip, &in.sin6_addr, 16);
    }
    return address->family != 0;
}

socklen_t address_to(const Address *address, struct sockaddr_storage *to)
{
    *to = (struct sockaddr_storage){0};
    if (address->family == 4) {
        struct sockaddr_in in = {.sin_family = AF_INET, .sin_port = htons(address->port)};
        memcpy(&in.sin_addr, address->ip, 4);
        memcpy(to, &in, sizeof in);
        return sizeof in;
    }
    struct sockaddr_in6 in = {.sin6_family = AF_INET6, .sin6_port = htons(address->port)};
    memcpy(&in.sin6_addr, address->ip, 16);
    memcpy(to, &in, sizeof in);
    return sizeof in;
}

const char *address_text(const Address *address, char buf[ADDRESS_TEXT_BYTES])
{
    char ip[INET6_ADDRSTRLEN] = "?";
    inet_ntop(address->family == 6 ? AF_INET6 : AF_INET, address->ip, ip, sizeof ip);
    snprintf(buf, ADDRESS_TEXT_BYTES, address->family == 6 ? "[%s]:%d" : "%s:%d", ip,
             address->port);
    return buf;
}

/* ---- messages -------------------------------------------------------------------------------- */

void greeting_write(Bytes *b, const Greeting *g)
{
    bytes_put_number(b, (uint32_t)g->rank, 4);
    bytes_put_number(b, (uint32_t)g->size, 4);
    bytes_put_number(b, (uint32_t)g->local_rank, 4);
    bytes_put_number(b, (uint32_t)g->cpu_level, 4);
    put_text(b, g->host, sizeof g->host);
    put_text(b, g->boot, sizeof g->boot);
    bytes_put_address(b, &g->address);
    bytes_put_number(b, (uint32_t)g->facts, 4);
    for (int i = 0; i < g->facts; i++) {
        put_text(b, g->fact[i].name, sizeof g->fact[i].name);
        put_text(b, g->fact[i].value, sizeof g->fact[i].value);
    }
}

bool greeting_read(Greeting *g, const void *data, size_t n)
{
    Reader r = reader_of(data, n);
    g->rank = reader_int(&r, 0, MEETING_MOST_RANKS - 1);
    g->size = reader_int(&r, 1, MEETING_MOST_RANKS);
    g->local_rank = reader_int(&r, -1, MEETING_MOST_RANKS - 1);
    g->cpu_level = reader_int(&r, INT32_MIN, INT32_MAX);
    reader_text(&r, g->host, sizeof g->host);
    reader_text(&r, g->boot, sizeof g->boot);
    reader_address(&r, &g->address);
    g->facts = reader_int(&r, 0, MEETING_MOST_FACTS);
    for (int i = 0; i < g->facts; i++) {
        reader_text(&r, g->fact[i].name, sizeof g->fact[i].name);
        reader_text(&r, g->fact[i].value, sizeof g->fact[i].value);
    }
    return reader_done(&r) && g->rank < g->size;
}

void answer_write(Bytes *b, const Answer *a)
{
    bytes_put(b, a->secret, sizeof a->secret);
    bytes_put_number(b, (uint32_t)a->cpu_level, 4);
    bytes_put_number(b, (uint32_t)a->parent, 4);
    bytes_put_address(b, &a->reach);
}

bool answer_read(Answer *a, const void *data, size_t n)
{
    Reader r = reader_of(data, n);
    reader_take(&r, a->secret, sizeof a->secret);
    a->cpu_level = reader_int(&r, INT32_MIN, INT32_MAX);
    a->parent = reader_int(&r, 0, MEETING_MOST_RANKS - 1);
    reader_address(&r, &a->reach);
    return reader_done(&r) && (a->parent == 0) == (a->reach.family == 0);
}

/* Largest sizes, in bytes, of a rank and of a machine in the table. */
enum { RANK_BYTES = 4 + 4 + 1 + 2 + 16, MACHINE_BYTES = 2 + MEETING_NAME_BYTES };

size_t table_most_bytes(int size)
{
    return 8 + (size_t)size * (RANK_BYTES + MACHINE_BYTES);
}

void table_write(Bytes *b, const Table *t)
{
    bytes_put_number(b, (uint32_t)t->size, 4);
    bytes_put_number(b, (uint32_t)t->machines, 4);
    for (int i = 0; i < t->machines; i++)
        put_text(b, t->host[i], sizeof t->host[i]);
    for (int i = 0; i < t->size; i++) {
        bytes_put_number(b, (uint32_t)t->rank[i].machine, 4);
        bytes_put_number(b, (uint32_t)t->rank[i].local_rank, 4);
        bytes_put_address(b, &t->rank[i].address);
    }
}

bool table_read(Table *t, int size, const void *data, size_t n)
{
    Reader r = reader_of(data, n);
    *t = (Table){.size = reader_int(&r, size, size)};
    t->machines = reader_int(&r, 1, size);
    if (r.bad) return false;
    t->host = must_calloc((size_t)t->machines, sizeof *t->host);
    t->rank = must_calloc((size_t)size, sizeof *t->rank);
    for (int i = 0; i < t->machines && !r.bad; i++)
        reader_text(&r, t->host[i], sizeof t->host[i]);
    for (int i = 0; i < size && !r.bad; i++) {
        t->rank[i].machine = reader_int(&r, 0, t->machines - 1);
        t->rank[i].local_rank = reader_int(&r, 0, size - 1);
        reader_address(&r, &t->rank[i].address);
        if (t->rank[i].address.family == 0) r.bad = true;
    }
    return reader_done(&r);
}

void table_free(Table *t)
{
    free(t->host);
    free(t->rank);
    *t = (Table){0};
}

void verdict_write(Bytes *b, const Verdict *v)
{
    bytes_put_number(b, (uint32_t)v->code, 4);
    put_text(b, v->sentence, sizeof v->sentence);
}

bool verdict_read(Verdict *v, const void *data, size_t n)
{
    Reader r = reader_of(data, n);
    v->code = (ExitCode)reader_int(&r, 1, 255);
    reader_text(&r, v->sentence, sizeof v->sentence);
    return reader_done(&r);
}

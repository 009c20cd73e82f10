/* message.h -- inside parallel/meeting: the messages that ranks exchange after the handshake has
 * proven that they know the secret. A message consists of its kind, its length and its body. All
 * numbers are little-endian. The readers here accept exactly what the writers write. */
#ifndef PARALLEL_MEETING_MESSAGE_H
#define PARALLEL_MEETING_MESSAGE_H

#include "parallel/meeting/meeting.h"

#include <stdint.h>
#include <sys/socket.h>

typedef enum {
    MESSAGE_GREETING = 1, /* to rank 0: which rank has arrived */
    MESSAGE_ANSWER,       /* from rank 0: all have arrived */
    MESSAGE_ASK, /* to the parent, the rank that sends the table to this one (relay.h): asks for the
                    table, to be sent as soon as the parent has it */
    MESSAGE_TABLE,  /* the table of members: the machine, local rank and address of each rank */
    MESSAGE_READY,  /* to rank 0: the sender has the table, and has passed it on */
    MESSAGE_GO,     /* from rank 0: all have the table */
    MESSAGE_VERDICT /* the meeting fails: exit code and message */
} MessageKind;

enum { MESSAGE_HEAD_BYTES = 8 };

/* ---- bytes ----------------------------------------------------------------------------------- */

/* A buffer that grows. {0} is empty. */
typedef struct {
    unsigned char *data;
    size_t used, room;
} Bytes;
void bytes_put(Bytes *b, const void *data, size_t n);
void bytes_put_number(Bytes *b, uint64_t number, int width);
void bytes_free(Bytes *b);

/* The unread rest of a message. Reading beyond the end gives zeros and sets `bad`. */
typedef struct {
    const unsigned char *at, *end;
    bool bad;
} Reader;
void reader_take(Reader *r, void *to, size_t n);
uint64_t reader_number(Reader *r, int width);

/* ---- addresses ------------------------------------------------------------------------------- */

/* An IPv4 or IPv6 address and a port. */
typedef struct {
    uint8_t family; /* 4 or 6; 0: none */
    uint16_t port;
    unsigned char ip[16]; /* 4 or 16 bytes, the rest zeros */
} Address;
void bytes_put_address(Bytes *b, const Address *address);
void reader_address(Reader *r, Address *address);
/* Convert an address from and to the system's form. address_from returns false for other address
 * families. */
bool address_from(Address *address, const struct sockaddr *from);
socklen_t address_to(const Address *address, struct sockaddr_storage *to);
/* Writes "10.0.0.1:4711" or "[fd00::1]:4711" to buf and returns buf. */
enum { ADDRESS_TEXT_BYTES = 64 };
const char *address_text(const Address *address, char buf[ADDRESS_TEXT_BYTES]);

/* ---- messages -------------------------------------------------------------------------------- */

typedef struct {
    char name[MEETING_NAME_BYTES], value[MEETING_FACT_BYTES];
} GreetingFact;

typedef struct {
    int rank, size;
    int local_rank; /* -1: unknown */
    int cpu_level;
    char host[MEETING_NAME_BYTES], boot[MEETING_NAME_BYTES]; /* of the machine */
    Address address;                                         /* of the rank's listening socket */
    int facts;
    GreetingFact fact[MEETING_MOST_FACTS];
} Greeting;
enum { GREETING_MOST_BYTES = 16384 };
void greeting_write(Bytes *b, const Greeting *g);
bool greeting_read(Greeting *g, const void *data, size_t n);

typedef struct {
    unsigned char secret[SHA256_BYTES]; /* of this start (Meeting.secret) */
    int cpu_level;
    int parent;    /* the rank that sends the table */
    Address reach; /* the parent's address; family 0: it is rank 0, which sends the table on this
                    * connection */
} Answer;
enum { ANSWER_MOST_BYTES = 128 };
void answer_write(Bytes *b, const Answer *a);
bool answer_read(Answer *a, const void *data, size_t n);

/* The table of members: the machine, local rank and address of each rank, and the name of each
 * machine. */
typedef struct {
    int machine, local_rank;
    Address address;
} TableRank;
typedef struct {
    int size, machines;
    TableRank *rank;
    char (*host)[MEETING_NAME_BYTES];
} Table;
/* Returns the largest size, in bytes, of a table of `size` ranks. */
size_t table_most_bytes(int size);
void table_write(Bytes *b, const Table *t);
/* Allocates memory, which table_free frees, also after a failure. The table must have `size`
 * ranks. */
bool table_read(Table *t, int size, const void *data, size_t n);
void table_free(Table *t);

typedef struct {
    ExitCode code;
    char sentence[MEETING_SENTENCE_BYTES];
} Verdict;
enum { VERDICT_MOST_BYTES = 8 + MEETING_SENTENCE_BYTES };
void verdict_write(Bytes *b, const Verdict *v);
bool verdict_read(Verdict *v, const void *data, size_t n);

#endif

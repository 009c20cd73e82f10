/* fuzz_meeting.h -- the functions of the fuzz targets fuzz_meeting.c and fuzz_rendezvous.c, for
 * tests that pass mutated inputs to them. */
#ifndef TESTS_FUZZ_FUZZ_MEETING_H
#define TESTS_FUZZ_FUZZ_MEETING_H

#include <stddef.h>
#include <stdint.h>

/* The first byte says what the others are: a greeting, an answer, a table of members or a verdict;
 * what a stranger says in a handshake; or a stream of messages. Fails a CHECK if an accepted
 * message has a second spelling, or if a stranger is let in. Returns 0. */
enum {
    FUZZ_GREETING,
    FUZZ_ANSWER,
    FUZZ_TABLE,
    FUZZ_VERDICT,
    FUZZ_STRANGER,
    FUZZ_STREAM,
    FUZZ_KINDS
};
int fuzz_meeting(const uint8_t *data, size_t size);
/* Reads data[0..size) as a file of a meeting. Fails a CHECK if an accepted one is not printed as it
 * was. Returns 0. */
int fuzz_rendezvous(const uint8_t *data, size_t size);

#endif

/* rendezvous.h -- inside parallel/meeting: the file by which rank 0 tells the other ranks where it
 * listens and what the secret is. Only this user can read the file. It is in a folder that all
 * machines see and to which only this user can write. Its lines:
 *
 *     train.c meeting 1
 *     secret 64 hexadecimal digits
 *     address 10.0.0.1 4711             one line for each address, IPv4 or IPv6
 *     end */
#ifndef PARALLEL_MEETING_RENDEZVOUS_H
#define PARALLEL_MEETING_RENDEZVOUS_H

#include "parallel/meeting/network.h"

enum { RENDEZVOUS_MOST_BYTES = 2048 };

typedef struct {
    unsigned char secret[SHA256_BYTES];
    AddressList at;
} Rendezvous;

/* Parses the text of a file. Accepts only what rendezvous_text writes. */
bool rendezvous_parse(Rendezvous *r, const char *text, size_t n);
void rendezvous_text(const Rendezvous *r, char text[RENDEZVOUS_MOST_BYTES]);

/* Writes the name of a file for the name of a meeting: other characters than [A-Za-z0-9.-], and a
 * dot at the beginning, become "_" and two hexadecimal digits. The end of a long name is replaced
 * by a hash. Different names stay different. */
enum { RENDEZVOUS_NAME_BYTES = 160 };
void rendezvous_name(const char *name, char file[RENDEZVOUS_NAME_BYTES]);

/* On rank 0: writes the file under a temporary name, syncs it and renames it, so it replaces the
 * file of an earlier rank 0, and nobody reads an incomplete one. Creates the folder (0700) if it is
 * missing. Refuses a folder that is a link, belongs to another user, or in which others may
 * write. */
bool rendezvous_publish(const Rendezvous *r, const char *folder, const char *name, ExitCode *code,
                        char *err, size_t n);
/* Returns whether rank 0 could write a file to the folder if it were on this machine. Creates the
 * folder if it is missing. */
bool rendezvous_can_publish(const char *folder, ExitCode *code, char *err, size_t n);
/* Removes the file unless another rank 0 has replaced it. */
void rendezvous_remove(const Rendezvous *r, const char *folder, const char *name);

typedef enum { RENDEZVOUS_READ, RENDEZVOUS_NOT_THERE, RENDEZVOUS_REFUSED } RendezvousState;
/* Reads the file if it is there. Refuses a folder or file that is a link, belongs to another user
 * or may be changed by others, a file that others may read, and one with invalid content; *code and
 * err then give the reason. */
RendezvousState rendezvous_look(Rendezvous *r, const char *folder, const char *name, ExitCode *code,
                                char *err, size_t n);

#endif

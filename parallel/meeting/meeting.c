/* meeting.c -- meeting_hold, and code that both sides of a meeting use. */
#include "parallel/meeting/meeting.h"

#include "model/core/check.h"
#include "model/core/files.h"
#include "parallel/meeting/sides.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool verdict_set(Verdict *v, ExitCode code, const char *fmt, ...)
{
    va_list args;
    v->code = code;
    va_start(args, fmt);
    vsnprintf(v->sentence, sizeof v->sentence, fmt, args);
    va_end(args);
    return false;
}

uint64_t meeting_tag(const MeetingOptions *o)
{
    unsigned char digest[SHA256_BYTES];
    uint64_t tag;
    sha256(o->name, strlen(o->name), digest);
    memcpy(&tag, digest, sizeof tag);
    return tag;
}

void greeting_own(Greeting *g, const MeetingOptions *o, const Address *address)
{
    char host[MEETING_NAME_BYTES] = "";
    *g = (Greeting){.rank = o->rank,
                    .size = o->size,
                    .local_rank = o->local_rank,
                    .cpu_level = o->cpu_level,
                    .address = *address,
                    .facts = o->facts};
    gethostname(host, sizeof host - 1);
    snprintf(g->host, sizeof g->host, "%s", host);
    file_head("/proc/sys/kernel/random/boot_id", g->boot, sizeof g->boot);
    g->boot[strcspn(g->boot, "\n")] = 0;
    for (int i = 0; i < o->facts; i++) {
        snprintf(g->fact[i].name, sizeof g->fact[i].name, "%s", o->fact[i].name);
        snprintf(g->fact[i].value, sizeof g->fact[i].value, "%s", o->fact[i].value);
    }
}

void meeting_fill(Meeting *m, const Table *t)
{
    m->machines = t->machines;
    m->member = must_calloc((size_t)t->size, sizeof *m->member);
    for (int i = 0; i < t->size; i++) {
        SocketMember *member = &m->member[i];
        member->address_bytes = address_to(&t->rank[i].address, &member->address);
        member->machine = t->rank[i].machine;
        member->local_rank = t->rank[i].local_rank;
        snprintf(member->host, sizeof member->host, "%s", t->host[member->machine]);
    }
}

bool meeting_hold(Meeting *m, const MeetingOptions *o, ExitCode *code, char *err, size_t n)
{
    Verdict v = {.code = EXIT_BUG};
    CHECK(o->rank >= 0 && o->rank < o->size && o->size <= MEETING_MOST_RANKS &&
              o->facts <= MEETING_MOST_FACTS && o->name && (o->folder || (o->master && o->secret)),
          "rank %d of %d, %d facts", o->rank, o->size, o->facts);
    *m = (Meeting){.size = o->size, .rank = o->rank, .listener = -1};
    m->control = must_alloc((size_t)o->size * sizeof *m->control);
    for (int i = 0; i < o->size; i++)
        m->control[i] = -1;
    if (o->rank == 0 ? host_hold(m, o, &v) : guest_hold(m, o, &v)) return true;
    bool told = m->told;
    meeting_free(m);
    m->told = told;
    *code = v.code;
    return error_set(err, n, "%s", v.sentence);
}

void meeting_free(Meeting *m)
{
    for (int i = 0; i < m->size && m->control; i++)
        if (m->control[i] >= 0) close(m->control[i]);
    if (m->listener >= 0) close(m->listener);
    free(m->control);
    free(m->member);
    explicit_bzero(m, sizeof *m); /* it contains the secret */
    m->listener = -1;
}

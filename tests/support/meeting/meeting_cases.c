/* meeting_cases.c -- real processes that meet, one of which may be different. */
#include "tests/support/meeting/meeting_cases.h"

#include "model/core/check.h"
#include "model/core/files.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static const unsigned char SECRET[SHA256_BYTES] = "a secret of thirty-two bytes";

int meeting_free_ports(void)
{
    return 15000 + (int)(getpid() % 700) * 20;
}

static const char *host_of(const void *context, int rank, char *buf, size_t n)
{
    (void)context;
    snprintf(buf, n, "node%d", rank / 2);
    return buf;
}

static const char *place_of(const void *context, int rank, char *buf, size_t n)
{
    (void)context;
    snprintf(buf, n, "dp %d", rank);
    return buf;
}

void meeting_case_set(void *context, int i, MeetingOptions *o)
{
    MeetingCase *c = context;
    bool odd = i == c->odd;
    o->folder = c->folder;
    if (c->size > 0) o->size = c->size;
    o->name = MEETING_CASE_NAME;
    o->local_size = c->folder ? o->size : 0;
    o->master = c->folder ? NULL : c->master ? c->master : "127.0.0.1";
    o->port = c->port;
    o->secret = SECRET;
    o->cpu_level = 3 + i % 3;
    o->host = host_of;
    o->place = place_of;
    if (c->timeout > 0) o->timeout = c->timeout;
    snprintf(c->value, sizeof c->value, "%s", odd && c->how == OTHER_FACT ? "cd34" : "12ab");
    c->fact[0] = (MeetingFact){"version", "1", NULL};
    c->fact[1] = (MeetingFact){"config", c->value, "start all with the same config"};
    o->fact = c->fact;
    o->facts = 2;
    if (c->late > 0 && i == c->late) usleep(1500000);
    if (!odd) return;
    if (c->how == OTHER_SIZE) o->size++;
    if (c->how == OTHER_SECRET)
        o->secret = (const unsigned char *)"another secret of thirty-two bytes";
    if (c->how == TWICE) o->rank--;
    if (c->how == TWICE && o->rank == 0) usleep(700000);
    if (c->how == DEAF) c->make_deaf();
    if (c->how == ABSENT) _exit(0);
    if (c->how == LATE) usleep(700000);
    if (c->how == DECLINES) o->fails = EXIT_MISSING;
    if (c->how == DECLINES) o->sentence = "none.json cannot be read";
    if (c->how == DIES) alarm(1); /* while it waits for the others */
}

MeetingResult *meeting_case(MeetingCase *c, int processes)
{
    MeetingRun run = {
        .processes = processes, .set = meeting_case_set, .context = c, .output = "/dev/null"};
    MeetingResult *r = meeting_ranks(&run);
    for (int i = 0; i < processes; i++)
        if (!r[i].met && !r[i].told && r[i].code != EXIT_OK)
            print_message("process %d: %d after %.2f s: %s\n", i, (int)r[i].code, r[i].seconds,
                          r[i].err);
    return r;
}

void assert_met(const MeetingResult *r, int processes)
{
    for (int i = 0; i < processes; i++) {
        assert_string_equal(r[i].err, "");
        assert_string_equal(r[i].wrong, "");
        assert_true(r[i].met);
        assert_int_equal(r[i].m.rank, i);
        assert_int_equal(r[i].m.size, processes);
        assert_int_equal(r[i].m.machines, 1);
        assert_int_equal(r[i].m.cpu_level, 3);
        assert_memory_equal(r[i].m.secret, r[0].m.secret, SHA256_BYTES);
        assert_int_equal(r[i].last.local_rank, processes - 1);
        assert_memory_equal(&r[i].last.address, &r[0].last.address, sizeof r[0].last.address);
    }
}

void assert_failed(MeetingResult *r, int processes, int except, ExitCode code, const char *says)
{
    for (int i = 0; i < processes; i++) {
        if (i == except) continue;
        assert_false(r[i].met);
        if (strstr(r[i].err, says) == NULL) fail_msg("rank %d: \"%s\"", i, r[i].err);
        assert_int_equal(r[i].code, code);
        assert_true(r[i].told);
    }
}

int folder_entries(const char *folder)
{
    StringList found = {0}, pattern = {0};
    char err[256], *stars = text_format("%s/{*,.[a-z]*}", folder);
    int count = 0;
    string_list_add(&pattern, stars);
    if (file_list(&pattern, &found, err, sizeof err)) count = found.count;
    string_list_free(&pattern);
    string_list_free(&found);
    free(stars);
    return count;
}

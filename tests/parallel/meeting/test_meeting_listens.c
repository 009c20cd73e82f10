/* test_meeting_listens.c -- at which addresses ranks listen while they meet and afterwards, as the
 * kernel reports it: no rank listens at an address where it need not. */
#include "model/core/check.h"
#include "model/core/clock.h"
#include "tests/support/files/data_support.h"
#include "tests/support/meeting/listening.h"
#include "tests/support/meeting/meeting_ranks.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define NAME "listens"
static const unsigned char SECRET[SHA256_BYTES] = "a secret of thirty-two bytes";

typedef struct {
    const char *what, *folder, *master, *interface;
    int port, local_size,
        addresses;       /* addresses: at how many rank 0 listens; 0: at all that are allowed */
    int gate[2];         /* a pipe: rank 1 waits until there is something in it */
    AddressList allowed; /* addresses at which ranks may listen, at any port */
    AddressList seen;    /* addresses at which rank 0 listens while it waits */
} Where;

static void set_where(void *context, int i, MeetingOptions *o)
{
    const Where *w = context;
    o->name = NAME;
    o->folder = w->folder;
    o->master = w->master;
    o->port = w->port;
    o->secret = SECRET;
    o->interface = w->interface;
    o->local_size = w->local_size;
    char byte;
    if (i == 1) assert_int_equal(read(w->gate[0], &byte, 1), 1);
}

static bool allowed(const Where *w, const AddressList *list)
{
    for (int i = 0; i < list->count; i++) {
        bool found = false;
        for (int k = 0; k < w->allowed.count; k++)
            found |= list->address[i].family == w->allowed.address[k].family &&
                     memcmp(list->address[i].ip, w->allowed.address[k].ip, 16) == 0;
        if (!found) return false;
    }
    return true;
}

/* Finds out at which addresses rank 0 listens while it waits for rank 1. */
static void look_while_waiting(void *context, const pid_t *pid)
{
    Where *w = context;
    /* Rank 0 opens one socket after the other, so this waits until it listens at all addresses. */
    int all = w->addresses ? w->addresses : w->allowed.count;
    for (double end = seconds_now() + 15; w->seen.count < all && seconds_now() < end; usleep(1000))
        listening(pid[0], &w->seen);
    usleep(100000); /* it might open further sockets */
    listening(pid[0], &w->seen);
    assert_int_equal(write(w->gate[1], "", 1), 1);
}

/* Called in each rank after the meeting: checks at which addresses it listens. */
static const char *look_afterwards(void *context, const Meeting *m)
{
    static char wrong[256];
    const Where *w = context;
    AddressList now;
    Address own;
    char text[ADDRESS_TEXT_BYTES] = "";
    listening(getpid(), &now);
    network_name(m->listener, &own);
    if (now.count > 0) address_text(&now.address[0], text);
    snprintf(wrong, sizeof wrong, "rank %d listens at %d addresses, %s", m->rank, now.count, text);
    return now.count == 1 && allowed(w, &now) && memcmp(&own, &now.address[0], sizeof own) == 0
               ? ""
               : wrong;
}

static void test_ranks_listen_only_on_the_chosen_interface(void **state)
{
    char *folder = folder_new(), err[512];
    int port = 15000 + (int)(getpid() % 700) * 20;
    ExitCode code;
    Where row[] = {
        {"address 127.0.0.1", NULL, "127.0.0.1", NULL, port, 0, 1, .allowed = {0}},
        {"address ::1", NULL, "::1", NULL, port, 0, 1, .allowed = {0}},
        {"file, all on this machine", folder, NULL, NULL, 0, 3, 1, .allowed = {0}},
        {"file, parallel.interface lo", folder, NULL, "lo", 0, 0, 0, .allowed = {0}},
        {"address, parallel.interface lo", NULL, "127.0.0.1", "lo", port, 0, 1, .allowed = {0}},
        {"file, no interface given", folder, NULL, NULL, 0, 0, 0, .allowed = {0}},
    };
    (void)state;
    for (size_t k = 0; k < sizeof row / sizeof row[0]; k++) {
        Where *w = &row[k];
        MeetingRun run = {.processes = 3,
                          .set = set_where,
                          .context = w,
                          .meanwhile = look_while_waiting,
                          .check = look_afterwards,
                          .output = "/dev/null"};
        /* The allowed addresses are those of the loopback, or those of all other interfaces. */
        bool own = w->folder && !w->interface && w->local_size == 0;
        assert_true(network_own(&w->allowed, own ? NULL : "lo", &code, err, sizeof err));
        assert_int_equal(pipe2(w->gate, O_CLOEXEC), 0);
        MeetingResult *r = meeting_ranks(&run);
        close(w->gate[0]);
        close(w->gate[1]);
        for (int i = 0; i < 3; i++) {
            assert_string_equal(r[i].err, "");
            assert_string_equal(r[i].wrong, "");
        }
        print_message("%-32s rank 0 listens at %d addresses while it waits\n", w->what,
                      w->seen.count);
        assert_int_equal(w->seen.count, w->addresses ? w->addresses : w->allowed.count);
        assert_true(allowed(w, &w->seen));
        free(r);
    }
    folder_drop(folder);
}

static void test_an_interface_that_does_not_exist_is_named(void **state)
{
    AddressList list;
    ExitCode code;
    char err[512];
    (void)state;
    assert_false(network_own(&list, "no0", &code, err, sizeof err));
    assert_int_equal(code, EXIT_CONFIG);
    assert_non_null(strstr(err, "has no interface \"no0\" with an address; it has "));
    assert_non_null(strstr(err, "lo"));
    /* Nobody would look for rank 0 at the addresses of this interface. */
    MeetingOptions o = {.size = 2, .name = NAME, .master = "192.0.2.77", .port = 15000};
    Meeting m;
    o.secret = SECRET;
    o.interface = "lo";
    o.timeout = 1;
    assert_false(meeting_hold(&m, &o, &code, err, sizeof err));
    assert_int_equal(code, EXIT_CONFIG);
    assert_non_null(strstr(err, "lo does not have the address of rank 0, 192.0.2.77"));
    meeting_free(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranks_listen_only_on_the_chosen_interface),
        cmocka_unit_test(test_an_interface_that_does_not_exist_is_named),
    };
    return cmocka_run_group_tests_name("meeting listens", tests, NULL, NULL);
}

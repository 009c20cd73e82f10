/* test_nccl_net.cc -- unit tests of the emulated NCCL's sockets: data that arrives in pieces or
 * ends too early, and lists of interface names. */
#include "tests/emu/nccl/net.cc"

#include <csetjmp>
#include <cstdarg>
#include <cstddef>
#include <cstdint>

extern "C" {
#include <cmocka.h>
}

ncclResult_t last_error(ncclResult_t code, const char *, ...)
{
    return code;
}

/* The test uses a packet socket, of which each read returns at most one packet. */
static void test_data_in_pieces_is_joined_and_an_early_end_is_an_error(void **)
{
    static const char text[] = "rank 0 of 4";
    for (size_t first = 1; first < sizeof text; first++) {
        int s[2];
        char got[sizeof text] = "";
        assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, s), 0);
        assert_true(net_write(s[0], text, first));
        for (size_t at = first; at < sizeof text; at++)
            assert_true(net_write(s[0], text + at, 1));
        assert_true(net_read(s[1], got, sizeof got));
        assert_string_equal(got, text);
        assert_true(net_write(s[0], text, first));
        close(s[0]);
        assert_false(net_read(s[1], got, sizeof got));
        assert_false(net_write(s[1], text, first));
        close(s[1]);
    }
}

static void test_a_list_of_interfaces_matches_by_prefix_name_or_exclusion(void **)
{
    static const struct {
        const char *list, *in, *out;
    } lists[] = {{"eth", "eth0", "ib0"},       {"ib,eth", "eth1", "lo"},
                 {"=eth0", "eth0", "eth01"},   {"=lo,eth0", "lo", "eth1"},
                 {"^lo,docker", "eth0", "lo"}, {"^lo,docker", "ib0", "docker0"},
                 {"^=eth0", "eth01", "eth0"}};
    for (auto &l : lists) {
        assert_true(is_named(l.in, l.list));
        assert_false(is_named(l.out, l.list));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_data_in_pieces_is_joined_and_an_early_end_is_an_error),
        cmocka_unit_test(test_a_list_of_interfaces_matches_by_prefix_name_or_exclusion),
    };
    return cmocka_run_group_tests_name("NCCL's sockets", tests, NULL, NULL);
}

/* test_nccl_order.cc -- unit tests of the graph in which the emulated NCCL searches for devices
 * that wait for each other: its messages, and random launches compared with a simple simulation. */
#include "tests/emu/nccl/order.cc"

#include <csetjmp>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstring>

extern "C" {
#include <cmocka.h>
}

static OrderOperation collective(uint64_t comm, uint64_t number)
{
    return {comm, -1, -1, number};
}

static OrderLaunch launch(int device, const char *text, std::vector<OrderOperation> operations)
{
    return {"device " + std::to_string(device), text, std::move(operations)};
}

/* Two communicators are used in the same order on both devices, then in different orders. */
static void test_two_devices_with_different_orders_form_a_cycle(void **state)
{
    (void)state;
    for (int planted = 0; planted < 2; planted++) {
        OrderGraph graph;
        assert_string_equal(graph.add(launch(0, "A1", {collective(1, 0)})).c_str(), "");
        assert_string_equal(graph.add(launch(0, "B1", {collective(2, 0)})).c_str(), "");
        assert_string_equal(
            graph.add(launch(1, planted ? "B1" : "A1", {collective(1 + planted, 0)})).c_str(), "");
        std::string circle =
            graph.add(launch(1, planted ? "A1" : "B1", {collective(2 - planted, 0)}));
        assert_string_equal(circle.c_str(), planted ? "device 0 launches B1 after A1; device 1 "
                                                      "launches A1 after B1"
                                                    : "");
    }
}

/* The operations of a group are launched together, so their order inside the group does not
 * matter. */
static void test_a_launch_between_the_parts_of_a_group_forms_a_cycle(void **state)
{
    OrderGraph graph;
    (void)state;
    assert_string_equal(graph.add(launch(0, "A+B", {collective(1, 0), collective(2, 0)})).c_str(),
                        "");
    assert_string_equal(graph.add(launch(1, "B+A", {collective(2, 0), collective(1, 0)})).c_str(),
                        "");
    assert_string_equal(graph.add(launch(0, "C", {collective(3, 0)})).c_str(), "");
    assert_string_equal(graph.add(launch(1, "C", {collective(3, 0)})).c_str(), "");
    /* only one device splits the group: the other device's launch ends when both parts have
     * ended */
    assert_string_equal(graph.add(launch(0, "D+E", {collective(1, 1), collective(2, 1)})).c_str(),
                        "");
    assert_string_equal(graph.add(launch(1, "D", {collective(1, 1)})).c_str(), "");
    assert_string_equal(graph.add(launch(1, "E", {collective(2, 1)})).c_str(), "");
    /* device 1 also launches H between the two parts of the group F+G */
    assert_string_equal(graph.add(launch(0, "F+G", {collective(1, 2), collective(2, 2)})).c_str(),
                        "");
    assert_string_equal(graph.add(launch(0, "H", {collective(3, 1)})).c_str(), "");
    assert_string_equal(graph.add(launch(1, "F", {collective(1, 2)})).c_str(), "");
    assert_string_equal(graph.add(launch(1, "H", {collective(3, 1)})).c_str(), "");
    assert_string_equal(graph.add(launch(1, "G", {collective(2, 2)})).c_str(),
                        "device 0 launches H after F+G; device 1 launches G after H");
}

/* A chain of messages continues when both ends of each are launched. Two messages that cross, each
 * as its own launch, wait for each other. */
static void test_two_single_messages_that_cross_form_a_cycle(void **state)
{
    OrderGraph chain, crossed;
    (void)state;
    assert_string_equal(chain.add(launch(1, "r01+s12", {{1, 0, 1, 0}, {1, 1, 2, 0}})).c_str(), "");
    assert_string_equal(chain.add(launch(0, "s01", {{1, 0, 1, 0}})).c_str(), "");
    assert_string_equal(chain.add(launch(0, "K", {collective(2, 0)})).c_str(), "");
    assert_string_equal(chain.add(launch(2, "K", {collective(2, 0)})).c_str(), "");
    assert_string_equal(chain.add(launch(2, "r12", {{1, 1, 2, 0}})).c_str(), "");

    assert_string_equal(crossed.add(launch(0, "s01", {{1, 0, 1, 0}})).c_str(), "");
    assert_string_equal(crossed.add(launch(1, "s10", {{1, 1, 0, 0}})).c_str(), "");
    assert_string_equal(crossed.add(launch(0, "r10", {{1, 1, 0, 0}})).c_str(), "");
    assert_string_equal(crossed.add(launch(1, "r01", {{1, 0, 1, 0}})).c_str(),
                        "device 0 launches r10 after s01; device 1 launches r01 after s10");
}

/* Simulates the devices and returns whether all launches end. */
static bool runs(const std::vector<OrderLaunch> &all)
{
    std::map<std::string, std::vector<const OrderLaunch *>> queue;
    std::map<std::string, size_t> at;
    for (const OrderLaunch &one : all)
        queue[one.device].push_back(&one);
    for (bool moved = true; moved;) {
        moved = false;
        std::map<OrderOperation, size_t> takes_part, started;
        for (const OrderLaunch &one : all)
            for (const OrderOperation &operation : one.operations)
                takes_part[operation]++;
        for (auto &device : queue)
            for (size_t i = 0; i <= at[device.first] && i < device.second.size(); i++)
                for (const OrderOperation &operation : device.second[i]->operations)
                    started[operation]++;
        for (auto &device : queue) {
            size_t &i = at[device.first];
            bool over = i < device.second.size();
            for (size_t k = 0; over && k < device.second[i]->operations.size(); k++) {
                const OrderOperation &operation = device.second[i]->operations[k];
                over = started[operation] == takes_part[operation];
            }
            if (over) i++;
            moved |= over;
        }
    }
    for (auto &device : queue)
        if (at[device.first] < device.second.size()) return false;
    return true;
}

/* Each operation is on two or three of four devices. Some are swapped on one device and some are
 * grouped. Launches are added to the graph in any order that keeps the order on each device. */
static void test_random_launches_form_a_cycle_if_and_only_if_a_simulation_hangs(void **state)
{
    enum { CASES = 400, DEVICES = 4, OPERATIONS = 9 };
    int circles = 0;
    (void)state;
    srand(3);
    for (int c = 0; c < CASES; c++) {
        std::vector<std::vector<OrderLaunch>> queue(DEVICES);
        for (int i = 0; i < OPERATIONS; i++) {
            int absent = rand() % DEVICES, second = rand() % DEVICES;
            for (int d = 0; d < DEVICES; d++) {
                if (d == absent || d == second) continue;
                OrderLaunch one = launch(d, "x", {collective(1, (uint64_t)i)});
                if (!queue[d].empty() && rand() % 4 == 0)
                    queue[d].back().operations.push_back(one.operations[0]);
                else
                    queue[d].push_back(one);
                if (queue[d].size() > 1 && rand() % 24 == 0)
                    std::swap(queue[d].back(), queue[d][queue[d].size() - 2]);
            }
        }
        std::vector<OrderLaunch> all;
        std::vector<size_t> at(DEVICES);
        std::string circle;
        for (size_t left = 1; left > 0;) {
            left = 0;
            for (int d = 0; d < DEVICES; d++)
                left += queue[d].size() - at[d];
            int d = rand() % DEVICES;
            if (at[d] == queue[d].size()) continue;
            all.push_back(queue[d][at[d]++]);
        }
        OrderGraph graph;
        for (const OrderLaunch &one : all)
            if (circle.empty()) {
                OrderLaunch copy;
                assert_true(
                    order_read(order_write(one).substr(0, order_write(one).size() - 1), &copy));
                circle = graph.add(copy);
            }
        assert_int_equal(circle.empty(), runs(all));
        circles += !circle.empty();
    }
    assert_in_range(circles, CASES / 4, CASES * 3 / 4);
}

/* A line that is no launch must be reported as damaged. */
static void test_a_damaged_line_of_launches_is_refused(void **state)
{
    OrderLaunch launch;
    (void)state;
    assert_true(order_read("device 0\tx\t1 -1 -1 7 .", &launch));
    assert_int_equal(launch.operations[0].number, 7);
    for (const char *line : {"", "device 0", "device 0\tx", "device 0\tx\t1 -1 -1 7 ",
                             "device 0\tx\t1 -1 -1", "device 0\tx\t1 -1 -1 7 . ."})
        assert_int_equal(order_read(line, &launch), strstr(line, ". .") != NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two_devices_with_different_orders_form_a_cycle),
        cmocka_unit_test(test_a_launch_between_the_parts_of_a_group_forms_a_cycle),
        cmocka_unit_test(test_two_single_messages_that_cross_form_a_cycle),
        cmocka_unit_test(test_random_launches_form_a_cycle_if_and_only_if_a_simulation_hangs),
        cmocka_unit_test(test_a_damaged_line_of_launches_is_refused),
    };
    return cmocka_run_group_tests_name("order of NCCL launches", tests, NULL, NULL);
}

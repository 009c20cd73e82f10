/* order.h -- the order in which devices launch operations, as a graph. A cycle in it is a deadlock.
 *
 * A device runs one launch after the other. A launch ends when all its operations have ended, and
 * an operation ends when every rank that takes part has launched it. So a launch waits for
 * everything that the previous launch on its device waits for: that launch's operations on the
 * other devices. */
#ifndef TESTS_EMU_NCCL_ORDER_H
#define TESTS_EMU_NCCL_ORDER_H

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

/* An operation in which several ranks take part. A collective is identified by the communicator's
 * id and its number there (source and target are -1), a message by its number among those from
 * source to target. */
struct OrderOperation {
    uint64_t comm;
    int source, target;
    uint64_t number;
    bool operator<(const OrderOperation &b) const
    {
        return std::tie(comm, source, target, number) <
               std::tie(b.comm, b.source, b.target, b.number);
    }
};

/* The operations that a device launches together. */
struct OrderLaunch {
    std::string device, text; /* for example "device 0", "ncclAllReduce number 3 of communicator
                               * 1a2b" */
    std::vector<OrderOperation> operations;
};

/* The launches of several devices, in order for each device. */
class OrderGraph
{
  public:
    /* Adds the next launch of its device. Returns "" or, if it closes a cycle of launches that wait
     * for each other, a description of the cycle. */
    std::string add(const OrderLaunch &launch);
    const std::vector<OrderLaunch> &all() const
    {
        return launches;
    }

  private:
    struct Node {
        int before = -1, next = -1; /* neighbours on the same device */
        int64_t place;              /* position: every edge leads to a larger one */
        std::vector<int> from, to;
    };
    bool edge(int from, int to, std::vector<int> &circle);
    void find_ahead(int at, int64_t end, std::vector<int> &seen, std::map<int, int> &parent);
    void find_later(int at, int64_t start, std::vector<int> &seen);
    std::string describe(const std::vector<int> &circle) const;
    std::vector<OrderLaunch> launches;
    std::vector<Node> nodes;
    std::map<std::string, int> last; /* last launch of each device */
    std::map<OrderOperation, std::vector<int>> who;
};

/* Convert a launch to a line of text and back, for processes that check their launches together.
 * order_read returns false if the line is damaged. */
std::string order_write(const OrderLaunch &launch);
bool order_read(const std::string &line, OrderLaunch *launch);

#endif

/* order.h -- the order in which devices launch operations: a graph in which a circle is a deadlock.
 *
 * A device runs one launch after the other; a launch is over when all its operations are, and an
 * operation when every rank that takes part has launched it. So a launch waits for whatever the
 * launch before it on its device waits for: for that one's operations on the other devices. */
#ifndef TESTS_EMU_NCCL_ORDER_H
#define TESTS_EMU_NCCL_ORDER_H

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

/* An operation that several ranks take part in: the communicator's id and a collective's number
 * there (source and target -1), or a message's number among those from source to target. */
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

/* What a device launches at a time. */
struct OrderLaunch {
    std::string device, text; /* "device 0", "ncclAllReduce number 3 of communicator 1a2b" */
    std::vector<OrderOperation> operations;
};

/* The launches of some devices, of each in its order. */
class OrderGraph
{
  public:
    /* The next launch of its device. Empty, or a sentence: the launches that wait for each other in
     * a circle, of which this one is the last to come. */
    std::string add(const OrderLaunch &launch);
    const std::vector<OrderLaunch> &all() const
    {
        return launches;
    }

  private:
    struct Node {
        int before = -1, next = -1; /* on the same device */
        int64_t place;              /* every edge goes to a greater one */
        std::vector<int> from, to;
    };
    bool edge(int from, int to, std::vector<int> &circle);
    void find_ahead(int at, int64_t end, std::vector<int> &seen, std::map<int, int> &parent);
    void find_later(int at, int64_t start, std::vector<int> &seen);
    std::string describe(const std::vector<int> &circle) const;
    std::vector<OrderLaunch> launches;
    std::vector<Node> nodes;
    std::map<std::string, int> last; /* of each device */
    std::map<OrderOperation, std::vector<int>> who;
};

/* Launches as lines of text and back, for processes that check the union of theirs. False: damaged.
 */
std::string order_write(const OrderLaunch &launch);
bool order_read(const std::string &line, OrderLaunch *launch);

#endif

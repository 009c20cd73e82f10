/* order.cc -- finds cycles in the order of launches. The launches are kept sorted so that every
 * edge points forward (the dynamic topological order of Pearce and Kelly). An edge that points
 * backward either closes a cycle, or the launches between its ends are sorted again. */
#include "tests/emu/nccl/order.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <sstream>

/* Finds the launches that can be reached from `at` and have positions up to `end`. `parent`
 * receives the launch that each was reached from. */
void OrderGraph::find_ahead(int at, int64_t end, std::vector<int> &seen, std::map<int, int> &parent)
{
    seen.push_back(at);
    for (size_t i = seen.size() - 1; i < seen.size(); i++)
        for (int to : nodes[seen[i]].to)
            if (nodes[to].place <= end && parent.emplace(to, seen[i]).second) seen.push_back(to);
}

void OrderGraph::find_later(int at, int64_t start, std::vector<int> &seen)
{
    std::set<int> known = {at};
    seen.push_back(at);
    for (size_t i = 0; i < seen.size(); i++)
        for (int from : nodes[seen[i]].from)
            if (nodes[from].place >= start && known.insert(from).second) seen.push_back(from);
}

/* Adds an edge. Returns false if it closes a cycle. */
bool OrderGraph::edge(int from, int to, std::vector<int> &circle)
{
    if (std::find(nodes[from].to.begin(), nodes[from].to.end(), to) != nodes[from].to.end())
        return true;
    nodes[from].to.push_back(to);
    nodes[to].from.push_back(from);
    if (nodes[from].place < nodes[to].place) return true;

    std::vector<int> ahead, later;
    std::map<int, int> parent = {{to, -1}};
    find_ahead(to, nodes[from].place, ahead, parent);
    if (parent.count(from)) {
        for (int at = from; at >= 0; at = parent[at])
            circle.push_back(at);
        std::reverse(circle.begin(), circle.end());
        return false;
    }
    find_later(from, nodes[to].place, later);
    /* Reassign the positions: the launches before the edge get the first ones, those after it the
     * rest. */
    auto earlier = [this](int a, int b) { return nodes[a].place < nodes[b].place; };
    std::sort(later.begin(), later.end(), earlier);
    std::sort(ahead.begin(), ahead.end(), earlier);
    later.insert(later.end(), ahead.begin(), ahead.end());
    std::vector<int64_t> places;
    for (int i : later)
        places.push_back(nodes[i].place);
    std::sort(places.begin(), places.end());
    for (size_t i = 0; i < later.size(); i++)
        nodes[later[i]].place = places[i];
    return true;
}

std::string OrderGraph::describe(const std::vector<int> &circle) const
{
    std::string text;
    for (int i : circle) {
        int before = nodes[i].before;
        text += (text.empty() ? "" : "; ") + launches[i].device + " launches " + launches[i].text;
        if (before >= 0) text += " after " + launches[before].text;
    }
    return text;
}

std::string OrderGraph::add(const OrderLaunch &launch)
{
    int at = (int)nodes.size();
    std::vector<int> circle;
    nodes.emplace_back();
    launches.push_back(launch);
    nodes[at].place = at;
    auto known = last.find(launch.device);
    if (known != last.end()) {
        int before = nodes[at].before = known->second;
        nodes[before].next = at;
        edge(before, at, circle); /* these edges lead to the newest launch, so they close no
                                   * cycle */
        for (const OrderOperation &operation : launches[before].operations)
            for (int other : who[operation])
                if (other != before) edge(other, at, circle);
    }
    last[launch.device] = at;
    for (const OrderOperation &operation : launch.operations) {
        for (int other : who[operation])
            if (nodes[other].next >= 0 && !edge(at, nodes[other].next, circle))
                return describe(circle);
        who[operation].push_back(at);
    }
    return "";
}

std::string order_write(const OrderLaunch &launch)
{
    std::ostringstream line;
    line << launch.device << '\t' << launch.text << '\t';
    for (const OrderOperation &operation : launch.operations)
        line << operation.comm << ' ' << operation.source << ' ' << operation.target << ' '
             << operation.number << ' ';
    line << ".\n";
    return line.str();
}

bool order_read(const std::string &line, OrderLaunch *launch)
{
    size_t device = line.find('\t'),
           text = device == std::string::npos ? device : line.find('\t', device + 1);
    if (text == std::string::npos) return false;
    *launch = {line.substr(0, device), line.substr(device + 1, text - device - 1), {}};
    std::istringstream rest(line.substr(text + 1));
    OrderOperation operation;
    while (rest >> operation.comm >> operation.source >> operation.target >> operation.number)
        launch->operations.push_back(operation);
    rest.clear();
    std::string end;
    return static_cast<bool>(rest >> end) && end == ".";
}

/* launches.cc -- checks the order in which this process's devices launch operations. If
 * EMU_NCCL_ORDER names a folder, checks it together with the launches of other processes. */
#include "tests/emu/nccl/order.h"
#include "tests/emu/nccl/rules.h"

#include "tests/emu/device/door.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <dirent.h>
#include <fcntl.h>
#include <fstream>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <sys/file.h>
#include <unistd.h>

/* A communicator's first use of a stream, kept in the order of first uses. */
struct Use {
    int device;
    const ncclComm *comm;
    cudaStream_t stream;
};

static std::mutex lock;
static OrderGraph graph;
static std::vector<Use> uses;

static OrderOperation operation(const Call *call)
{
    int rank = call->comm->rank;
    if (call->verb == SEND) return {call->comm->id, rank, call->peer, call->number};
    if (call->verb == RECEIVE) return {call->comm->id, call->peer, rank, call->number};
    return {call->comm->id, -1, -1, call->number};
}

static std::string describe(const Call *call)
{
    char text[384], comm[160], of[64] = "";
    if (call->verb == SEND) snprintf(of, sizeof of, " to rank %d", call->peer);
    if (call->verb == RECEIVE) snprintf(of, sizeof of, " from rank %d", call->peer);
    snprintf(text, sizeof text, "%s number %llu%s of %s", verb_name(call->verb),
             (unsigned long long)call->number, of, comm_describe(call->comm, comm, sizeof comm));
    return text;
}

/* Ends the program if two communicators use two streams of one device although NCCL does not order
 * their launches (NCCL_LAUNCH_ORDER_IMPLICIT). */
static void check_streams(const Call *call)
{
    const char *implicit = getenv("NCCL_LAUNCH_ORDER_IMPLICIT");
    bool ordered = implicit && strcmp(implicit, "1") == 0, known = false;
    for (const Use &use : uses) {
        if (use.device != call->comm->device) continue;
        known |= use.comm == call->comm && use.stream == call->stream;
        if (!ordered && use.comm != call->comm && use.stream != call->stream)
            emu_die("%s: another communicator of device %d uses another stream, and nothing orders "
                    "their launches: set NCCL_LAUNCH_ORDER_IMPLICIT=1",
                    describe(call).c_str(), call->comm->device);
    }
    if (!known) uses.push_back({call->comm->device, call->comm, call->stream});
}

/* Returns a name of the device that is unique among all processes. */
static std::string place(int device)
{
    char host[64] = "", text[128];
    if (getenv("EMU_NCCL_ORDER") == nullptr) return "device " + std::to_string(device);
    gethostname(host, sizeof host - 1);
    snprintf(text, sizeof text, "device %d of process %d on %s", device, (int)getpid(), host);
    return text;
}

void launches_add(Call *const *calls, int n)
{
    std::lock_guard<std::mutex> held(lock);
    std::set<int> devices;
    for (int i = 0; i < n; i++)
        devices.insert(calls[i]->comm->device);
    for (int device : devices) {
        OrderLaunch launch = {place(device), "", {}};
        for (int i = 0; i < n; i++) {
            if (calls[i]->comm->device != device) continue;
            check_streams(calls[i]);
            launch.text += (launch.text.empty() ? "" : " + ") + describe(calls[i]);
            launch.operations.push_back(operation(calls[i]));
        }
        std::string circle = graph.add(launch);
        if (!circle.empty())
            emu_die("the order of launches leaves devices waiting for each other: %s",
                    circle.c_str());
    }
}

/* Adds the launches of all processes that have written a file to the folder. */
static void read_folder(const std::string &folder, OrderGraph *together)
{
    DIR *files = opendir(folder.c_str());
    std::set<std::string> names; /* sorted, so that a process's earlier files come first */
    if (files == nullptr) emu_die("EMU_NCCL_ORDER=%s: %s", folder.c_str(), strerror(errno));
    for (struct dirent *file; (file = readdir(files)) != nullptr;)
        if (strstr(file->d_name, ".launches")) names.insert(file->d_name);
    closedir(files);
    for (const std::string &name : names) {
        std::ifstream text(folder + "/" + name);
        std::string line;
        for (OrderLaunch launch; std::getline(text, line);) {
            if (!order_read(line, &launch))
                emu_die("EMU_NCCL_ORDER: %s/%s is damaged", folder.c_str(), name.c_str());
            std::string circle = together->add(launch);
            if (!circle.empty())
                emu_die("the order of launches leaves devices of several processes waiting for "
                        "each other: %s",
                        circle.c_str());
        }
    }
}

/* Writes this process's launches to the folder and checks all that are there. The last process to
 * do so checks those of all processes. */
static void check_processes(const char *folder)
{
    static int part;
    std::string path = folder;
    int one_at_a_time = open((path + "/lock").c_str(), O_RDWR | O_CREAT, 0666);
    if (one_at_a_time < 0 || flock(one_at_a_time, LOCK_EX) != 0)
        emu_die("EMU_NCCL_ORDER=%s: %s", folder, strerror(errno));
    char host[64] = "", name[128];
    gethostname(host, sizeof host - 1);
    snprintf(name, sizeof name, "/%s.%d.%06d.launches", host, (int)getpid(), part++);
    {
        std::ofstream out(path + name);
        for (const OrderLaunch &launch : graph.all())
            out << order_write(launch);
    }
    OrderGraph together;
    read_folder(path, &together);
    close(one_at_a_time);
}

void launches_comm_gone(const ncclComm *comm, bool last)
{
    std::lock_guard<std::mutex> held(lock);
    const char *folder = getenv("EMU_NCCL_ORDER");
    uses.erase(std::remove_if(uses.begin(), uses.end(),
                              [comm](const Use &use) { return use.comm == comm; }),
               uses.end());
    if (!last) return;
    if (folder != nullptr) check_processes(folder);
    graph = OrderGraph();
}

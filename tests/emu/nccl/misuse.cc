/* misuse.cc -- checks which thread may call which function, and when, according to the rules in
 * rules.h. */
#include "tests/emu/nccl/rules.h"

#include "tests/emu/device/door.h"

#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <set>

/* The calling thread's first failed call; code 0: none. */
static thread_local struct {
    ncclResult_t code;
    const char *function;
} failed;

static std::atomic<int> threads;
static thread_local int this_thread; /* 0: no number assigned yet */

/* A device's number of communicators, and the thread that issues its calls while there are any. */
struct Owner {
    int thread, comms;
};

static std::mutex lock;
static std::map<int, Owner> owners;
static std::set<ncclComm *> standing, gone;

static bool is(const char *function, const char *name)
{
    return strcmp(function, name) == 0;
}

/* Returns whether a second thread may call the function, also after an error. */
static bool looks_only(const char *function)
{
    return is(function, "ncclGetLastError") || is(function, "ncclCommGetAsyncError");
}

static bool makes_communicator(const char *function)
{
    return strncmp(function, "ncclCommInit", strlen("ncclCommInit")) == 0;
}

static int thread_number(void)
{
    if (this_thread == 0) this_thread = ++threads;
    return this_thread;
}

static void check_after_error(const char *function)
{
    if (failed.code == ncclSuccess) return;
    if (makes_communicator(failed.function))
        emu_die(
            "%s after %s failed with %d: the failure has left this thread inside a group, where "
            "calls are queued and never start",
            function, failed.function, failed.code);
    emu_die("%s after %s failed with %d: nothing but ncclGetErrorString, ncclGetLastError and "
            "ncclCommGetAsyncError may follow an error",
            function, failed.function, failed.code);
}

/* Ends the program unless the communicator is open and the thread is the device's. Called with the
 * lock held. */
static void check_comm(const char *function, ncclComm *comm)
{
    if (gone.count(comm)) emu_die("%s of a communicator that is destroyed", function);
    if (!standing.count(comm))
        emu_die("%s of %p, which is no communicator", function, (void *)comm);
    if (looks_only(function)) return;
    const Owner &owner = owners[comm->device];
    if (owner.thread != thread_number())
        emu_die("%s: two host threads issue calls for device %d", function, comm->device);
}

ncclResult_t rules_enter(const char *function, ncclComm *comm)
{
    if (!looks_only(function)) check_after_error(function);
    if (comm != nullptr) {
        std::lock_guard<std::mutex> held(lock);
        check_comm(function, comm);
    }
    if (looks_only(function)) return ncclSuccess;
    return faults_enter(function, comm ? comm->device : emu_current_device(), comm);
}

ncclResult_t rules_leave(const char *function, ncclComm *comm, ncclResult_t result)
{
    (void)comm;
    if (result != ncclSuccess && result != ncclInProgress && failed.code == ncclSuccess)
        failed = {result, function};
    return result;
}

void rules_comm_made(ncclComm *comm)
{
    std::lock_guard<std::mutex> held(lock);
    Owner &owner = owners[comm->device];
    if (owner.comms > 0 && owner.thread != thread_number())
        emu_die("a communicator is made: two host threads issue calls for device %d", comm->device);
    owner.thread = thread_number();
    owner.comms++;
    emu_driver_connected(comm->device, 1);
    if (gone.count(comm)) emu_die("a communicator has the address of one that is destroyed");
    standing.insert(comm);
}

void rules_comm_gone(ncclComm *comm)
{
    bool last;
    {
        std::lock_guard<std::mutex> held(lock);
        standing.erase(comm);
        gone.insert(comm);
        owners[comm->device].comms--;
        emu_driver_connected(comm->device, -1);
        last = standing.empty();
    }
    launches_comm_gone(comm, last);
}

std::vector<ncclComm *> misuse_standing(int device)
{
    std::lock_guard<std::mutex> held(lock);
    std::vector<ncclComm *> found;
    for (ncclComm *comm : standing)
        if (comm->device == device) found.push_back(comm);
    return found;
}

void rules_call(const Call *call)
{
    buffers_check(call);
}

bool rules_launch(Call *const *calls, int n)
{
    buffers_check_launch(calls, n);
    launches_add(calls, n);
    for (int i = 0; i < n; i++)
        buffers_pin(calls[i]);
    return !faults_never(calls[0]->comm);
}

void rules_done(Call *const *calls, int n)
{
    for (int i = 0; i < n; i++)
        buffers_unpin(calls[i]);
}

/* faults.cc -- parses and triggers the faults in EMU_NCCL_FAULT, which nccl_emu.h describes. */
#include "tests/emu/nccl/rules.h"

#include "tests/emu/device/door.h"

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <sys/socket.h>
#include <unistd.h>
#include <vector>

/* One fault: DEVICE:FUNCTION:N:KIND[=CODE]. */
struct Planted {
    int device, call, code, seen;
    std::string function, kind;
};

struct Faults {
    std::vector<Planted> list;
    std::vector<std::string> missing;
    int version = 0;
};

static std::mutex lock;
/* The calling thread has made a call that never completes. This is kept until its launch, when the
 * asynchronous error is also stored. */
static thread_local struct {
    bool planted;
    int code;
    ncclComm *comm;
} never;
static thread_local bool late;  /* its next launch is late */
static thread_local bool wrong; /* the calling thread is making a call with a wrong result */

/* Parses one fault, which is the whole variable if it has no comma. */
static bool read_part(const std::string &part, Faults *faults)
{
    char function[64], kind[16];
    Planted one = {};
    int used = 0;
    if (part.rfind("missing=", 0) == 0) {
        faults->missing.push_back(part.substr(strlen("missing=")));
        return true;
    }
    if (sscanf(part.c_str(), "version=%d%n", &faults->version, &used) == 1)
        return used == (int)part.size();
    if (sscanf(part.c_str(), "%d:%63[A-Za-z]:%d:%15[a-z]%n", &one.device, function, &one.call, kind,
               &used) != 4)
        return false;
    one.function = function;
    one.kind = kind;
    const char *rest = part.c_str() + used;
    bool coded = one.kind == "error" || one.kind == "async";
    if (coded && (sscanf(rest, "=%d%n", &one.code, &used) != 1 || rest[used] != '\0')) return false;
    faults->list.push_back(one);
    return coded ||
           (*rest == '\0' && (one.kind == "never" || one.kind == "wrong" || one.kind == "late" ||
                              one.kind == "kill" || one.kind == "vanish"));
}

static Faults read_faults(const std::string &text)
{
    Faults faults;
    for (size_t at = 0, end; at < text.size(); at = end + 1) {
        end = text.find(',', at);
        if (end == std::string::npos) end = text.size();
        if (!read_part(text.substr(at, end - at), &faults))
            emu_die("EMU_NCCL_FAULT=%s: not of the form DEVICE:FUNCTION:N:KIND, version=N or "
                    "missing=FUNCTION",
                    text.c_str());
    }
    return faults;
}

/* Returns the parsed variable. It is parsed again, and all counts are reset, when the variable
 * changes. Called with the lock held. */
static Faults &faults(void)
{
    static Faults current;
    static std::string read;
    const char *variable = getenv("EMU_NCCL_FAULT");
    if (read != (variable ? variable : "")) {
        read = variable ? variable : "";
        current = read_faults(read);
    }
    return current;
}

/* Shuts down all connections of the device's communicators without a goodbye, as if their process
 * had died. */
static void cut(int device)
{
    for (ncclComm *comm : misuse_standing(device))
        for (int rank = 0; rank < comm->ranks; rank++) {
            if (rank == comm->rank) continue;
            shutdown(comm->link[rank].data, SHUT_RDWR);
            shutdown(comm->link[rank].control, SHUT_RDWR);
        }
}

/* Returns whether the function stores numbers on the device. */
static bool has_result(const char *function)
{
    for (int verb = 0; verb < VERBS; verb++)
        if (verb != SEND && strcmp(function, verb_name(verb)) == 0) return true;
    return false;
}

static ncclResult_t play(const Planted &planted, const char *function, int device, ncclComm *comm)
{
    fprintf(stderr, "emu: EMU_NCCL_FAULT: device %d, %s number %d: %s\n", device, function,
            planted.call, planted.kind.c_str());
    bool makes = strncmp(function, "ncclCommInit", strlen("ncclCommInit")) == 0;
    if (planted.kind == "error") return (ncclResult_t)planted.code;
    if (planted.kind == "wrong") {
        if (!has_result(function)) emu_die("EMU_NCCL_FAULT: %s has no result", function);
        wrong = true;
        return ncclSuccess;
    }
    if (planted.kind == "late") {
        late = true;
        return ncclSuccess;
    }
    if (planted.kind == "kill") kill(getpid(), SIGKILL);
    if (planted.kind == "vanish") cut(device);
    while (planted.kind == "kill" || planted.kind == "vanish" || makes)
        pause();
    never = {true, planted.code, comm};
    return ncclSuccess;
}

ncclResult_t faults_enter(const char *function, int device, ncclComm *comm)
{
    const char *name = function + strlen("nccl");
    bool found = false;
    Planted planted;
    {
        std::lock_guard<std::mutex> held(lock);
        for (Planted &one : faults().list)
            if (one.device == device && (one.function == "any" || one.function == name) &&
                ++one.seen == one.call) {
                found = true;
                planted = one;
            }
    }
    return found ? play(planted, function, device, comm) : ncclSuccess;
}

bool faults_never(ncclComm *first)
{
    bool planted = never.planted;
    if (planted && never.code) (never.comm ? never.comm : first)->async = never.code;
    never = {};
    return planted;
}

void faults_delay(void)
{
    if (late) usleep(500000);
    late = false;
}

bool faults_wrong(void)
{
    bool planted = wrong;
    wrong = false;
    return planted;
}

int rules_version(int version)
{
    std::lock_guard<std::mutex> held(lock);
    return faults().version ? faults().version : version;
}

bool faults_missing(const char *function)
{
    std::lock_guard<std::mutex> held(lock);
    for (const std::string &name : faults().missing)
        if (name == function) return true;
    return false;
}

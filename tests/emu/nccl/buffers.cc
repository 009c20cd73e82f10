/* buffers.cc -- checks the memory that calls read and write, according to the rules in rules.h. */
#include "tests/emu/nccl/rules.h"

#include "tests/emu/device/door.h"

#include <vector>

/* A range of bytes that a call reads or writes. */
struct Bytes {
    const char *from, *to;
    bool written;
    const Call *call;
};

static Bytes range(const Call *call, bool written)
{
    const char *start = written ? (const char *)call->recv : (const char *)call->send;
    return {start, start + (written ? call->recv_bytes : call->send_bytes), written, call};
}

static bool overlap(const Bytes &a, const Bytes &b)
{
    return a.from < b.to && b.from < a.to;
}

static void check_range(const Bytes &bytes)
{
    const char *name = verb_name(bytes.call->verb), *what = bytes.written ? "receive" : "send";
    EmuRange memory;
    if (bytes.from == bytes.to) return;
    if (!emu_memory_range(bytes.from, &memory))
        emu_die("%s: the %s buffer %p is not in live device memory", name, what, bytes.from);
    if (memory.device != bytes.call->comm->device)
        emu_die("%s: the %s buffer is memory of device %d, the communicator is device %d's", name,
                what, memory.device, bytes.call->comm->device);
    if (bytes.to > memory.base + memory.bytes)
        emu_die("%s: the %s buffer's last %td bytes are past its allocation of %zu", name, what,
                bytes.to - (memory.base + memory.bytes), memory.bytes);
    if ((uintptr_t)bytes.from % type_size(bytes.call->type) != 0)
        emu_die("%s: the %s buffer %p is not aligned to its type's %zu bytes", name, what,
                bytes.from, type_size(bytes.call->type));
}

/* Returns whether the buffers coincide in the only way that NCCL allows for the operation. */
static bool in_place(const Call *call)
{
    size_t part = call->count * type_size(call->type) * (size_t)call->comm->rank;
    const char *send = (const char *)call->send, *recv = (const char *)call->recv;
    if (call->verb == ALL_GATHER) return send == recv + part;
    if (call->verb == REDUCE_SCATTER) return recv == send + part;
    return send == recv;
}

void buffers_check(const Call *call)
{
    Bytes send = range(call, false), recv = range(call, true);
    int device = emu_stream_device(call->stream);
    check_range(send);
    check_range(recv);
    if (overlap(send, recv) && !in_place(call))
        emu_die("%s: the send and the receive buffer overlap otherwise than in place",
                verb_name(call->verb));
    if (device < 0) emu_die("%s: %p is no stream", verb_name(call->verb), (void *)call->stream);
    if (device != call->comm->device)
        emu_die("%s: the stream is of device %d, the communicator is device %d's",
                verb_name(call->verb), device, call->comm->device);
}

void buffers_check_launch(Call *const *calls, int n)
{
    std::vector<Bytes> before;
    for (int i = 0; i < n; i++) {
        Bytes own[] = {range(calls[i], false), range(calls[i], true)};
        for (const Bytes &other : before)
            for (const Bytes &bytes : own)
                if ((bytes.written || other.written) && overlap(bytes, other))
                    emu_die("%s of a group: it %s what %s of the same group %s",
                            verb_name(calls[i]->verb), bytes.written ? "writes" : "reads",
                            verb_name(other.call->verb), other.written ? "writes" : "reads");
        before.insert(before.end(), own, own + 2);
    }
}

void buffers_pin(const Call *call)
{
    for (bool written : {false, true}) {
        Bytes bytes = range(call, written);
        if (bytes.from != bytes.to) emu_memory_pin(bytes.from, verb_name(call->verb));
    }
}

void buffers_unpin(const Call *call)
{
    for (bool written : {false, true}) {
        Bytes bytes = range(call, written);
        if (bytes.from != bytes.to) emu_memory_unpin(bytes.from);
    }
}

/* collective.cc -- collectives of a warp's lanes. Each call is a meeting of the living lanes in its
 * mask, and the last lane to arrive does the work for all. */
#include "tests/emu/device/emu.h"
#include "tests/emu/include/cuda_runtime.h"

#include <string.h>

bool emu_meeting_check(EmuWarp *warp, int i)
{
    EmuMeeting *meeting = &warp->meeting[i];
    uint32_t lanes = meeting->arrived;
    if (lanes != (meeting->mask & warp->alive)) return false;
    meeting->arrived = 0;
    warp->meetings &= ~(1u << i);
    meeting->finish(warp, lanes);
    warp->ready |= lanes;
    return true;
}

/* Ends the program if the lanes of this meeting wait for the caller, the caller would wait for at
 * least one of them, and masks or operations differ. If only one side waits for the other, that is
 * no error: the other may still make the same call later. */
static void check_agreement(const EmuMeeting *meeting, uint32_t mask, int lane,
                            const EmuPlace &place)
{
    if ((meeting->mask >> lane & 1) == 0 || (meeting->arrived & mask) == 0) return;
    if (meeting->mask != mask)
        emu_die("%s with mask %08x while lanes %08x wait in %s with mask %08x at %s:%d", place.what,
                mask, meeting->arrived, meeting->place.what, meeting->mask, meeting->place.file,
                meeting->place.line);
    if (meeting->place.what != place.what && strcmp(meeting->place.what, place.what) != 0)
        emu_die("the warp diverges: %s while lanes %08x wait in %s at %s:%d", place.what,
                meeting->arrived, meeting->place.what, meeting->place.file, meeting->place.line);
}

/* Returns the index of the meeting that the caller joins, or of a free one. */
static int meeting_of(const EmuWarp *warp, uint32_t mask, int lane, const EmuPlace &place)
{
    const EmuMeeting *only = &warp->meeting[0];
    if (warp->meetings == 1 && only->mask == mask && only->place.what == place.what) return 0;
    int same = -1;
    for (uint32_t left = warp->meetings; left != 0; left &= left - 1) {
        int i = __builtin_ctz(left);
        check_agreement(&warp->meeting[i], mask, lane, place);
        if (warp->meeting[i].mask == mask) same = i;
    }
    return same >= 0 ? same : __builtin_ctz(~warp->meetings);
}

/* Joins a meeting or begins one. Returns false if the caller has to wait for other lanes. */
static inline bool meet(EmuThread *thread, uint32_t mask, const EmuPlace &place,
                        void (*finish)(EmuWarp *warp, uint32_t lanes))
{
    EmuWarp *warp = thread->warp;
    thread->place = place;
    if ((mask >> thread->lane & 1) == 0)
        emu_die("%s with mask %08x, which leaves out the calling lane %d", place.what, mask,
                thread->lane);
    int i = meeting_of(warp, mask, thread->lane, place);
    EmuMeeting *meeting = &warp->meeting[i];
    if ((warp->meetings >> i & 1) == 0) {
        meeting->arrived = 0;
        meeting->mask = mask;
        meeting->place = place;
        meeting->finish = finish;
        warp->meetings |= 1u << i;
    }
    meeting->arrived |= 1u << thread->lane;
    return emu_meeting_check(warp, i);
}

void emu_collective(uint32_t mask, const EmuPlace &place, void *argument,
                    void (*finish)(EmuWarp *warp, uint32_t lanes))
{
    EmuThread *thread = emu_thread;
    thread->argument = argument;
    if (!meet(thread, mask, place, finish)) emu_wait_in_collective(thread);
}

/* ---- shuffles -------------------------------------------------------------------------------- */

static void shuffle_finish(EmuWarp *warp, uint32_t lanes)
{
    for (uint32_t left = lanes; left != 0; left &= left - 1) {
        int lane = __builtin_ctz(left), source = warp->source[lane];
        if ((lanes >> source & 1) == 0) {
            emu_thread = warp->lane[lane];
            emu_die("%s reads lane %d, which takes no part (lanes %08x do)", emu_thread->place.what,
                    source, lanes);
        }
        warp->taken[lane] = warp->given[source];
    }
}

uint64_t emu_shuffle(uint32_t mask, uint64_t value, int source, const EmuPlace &place)
{
    EmuThread *thread = emu_thread;
    EmuWarp *warp = thread->warp;
    int lane = thread->lane;
    warp->given[lane] = value;
    warp->source[lane] = source;
    if (!meet(thread, mask, place, shuffle_finish)) emu_wait_in_collective(thread);
    return warp->taken[lane];
}

/* ---- votes and reductions -------------------------------------------------------------------- */

typedef struct {
    uint32_t value, result;
    EmuReduce how;
    bool is_signed;
} Vote;

static void ballot_finish(EmuWarp *warp, uint32_t lanes)
{
    uint32_t bits = 0;
    for (uint32_t left = lanes; left != 0; left &= left - 1) {
        int lane = __builtin_ctz(left);
        if (((Vote *)warp->lane[lane]->argument)->value != 0) bits |= 1u << lane;
    }
    for (uint32_t left = lanes; left != 0; left &= left - 1)
        ((Vote *)warp->lane[__builtin_ctz(left)]->argument)->result = bits;
}

uint32_t emu_ballot(uint32_t mask, int predicate, EmuPlace place)
{
    Vote vote = {predicate != 0, 0, EmuReduce::OR, false};
    emu_collective(mask, place, &vote, ballot_finish);
    return vote.result;
}

static uint32_t combine(uint32_t a, const Vote *vote)
{
    uint32_t b = vote->value;
    bool less = vote->is_signed ? (int32_t)b < (int32_t)a : b < a;
    switch (vote->how) {
    case EmuReduce::ADD: return a + b;
    case EmuReduce::MIN: return less ? b : a;
    case EmuReduce::MAX: return less ? a : b;
    case EmuReduce::AND: return a & b;
    case EmuReduce::OR: return a | b;
    default: return a ^ b;
    }
}

static void reduce_finish(EmuWarp *warp, uint32_t lanes)
{
    uint32_t left = lanes & (lanes - 1);
    uint32_t result = ((Vote *)warp->lane[__builtin_ctz(lanes)]->argument)->value;
    for (; left != 0; left &= left - 1)
        result = combine(result, (Vote *)warp->lane[__builtin_ctz(left)]->argument);
    for (left = lanes; left != 0; left &= left - 1)
        ((Vote *)warp->lane[__builtin_ctz(left)]->argument)->result = result;
}

uint32_t emu_reduce(uint32_t mask, uint32_t x, EmuReduce how, bool is_signed, EmuPlace place)
{
    Vote vote = {x, 0, how, is_signed};
    emu_collective(mask, place, &vote, reduce_finish);
    return vote.result;
}

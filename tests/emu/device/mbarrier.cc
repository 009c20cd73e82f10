/* mbarrier.cc -- barriers in shared memory. Their state is kept outside shared memory; the barrier
 * itself holds a mark, so that stores over it are noticed.
 *
 * The emulation refuses more than a GPU would: a phase may complete only when some thread has
 * waited for the one before and all threads that were waiting have continued. Otherwise the parity
 * of a wait would no longer say which phase it means. Nor may a block end within a phase: the count
 * with which the barrier was initialised is then not the number of threads that arrive. */
#include "tests/emu/device/hopper.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BYTES_MOST = (1 << 20) - 1, COUNT_MOST = (1 << 20) - 1 };

static const uint64_t MARK = 0xb0a77ed0ba221e00u; /* the lowest byte is the number of the barrier */

int emu_mbarrier_describe(const EmuMbarrier *b, char *buf, size_t n)
{
    return snprintf(
        buf, n,
        "the barrier at shared address %u, made at %s:%d: its phase %llu lacks %d of %d "
        "arrivals and %lld bytes",
        emu_shared_address(b->at), b->made.file, b->made.line, (unsigned long long)b->phase,
        b->missing, b->count, (long long)b->bytes);
}

static void die_of(const EmuMbarrier *b, const char *what, const char *why)
    __attribute__((noreturn));

static void die_of(const EmuMbarrier *b, const char *what, const char *why)
{
    char text[384];
    emu_mbarrier_describe(b, text, sizeof text);
    emu_die("%s: %s (%s)", what, why, text);
}

static void check_address(const uint64_t *bar, const EmuPlace &place)
{
    emu_thread->place = place;
    if ((uintptr_t)bar % sizeof *bar != 0)
        emu_die("%s: the barrier's address %p is not a multiple of 8", place.what,
                (const void *)bar);
    emu_check_shared(bar, sizeof *bar, place.what);
}

/* Returns the barrier whose mark is stored at `bar`, or NULL. */
static EmuMbarrier *marked(EmuHopper *hopper, const uint64_t *bar)
{
    uint64_t word = *bar, i = word & 0xff;
    if ((word ^ MARK) > 0xff || i >= (uint64_t)hopper->n_mbarriers) return NULL;
    return hopper->mbarrier[i].at == bar ? &hopper->mbarrier[i] : NULL;
}

EmuMbarrier *emu_mbarrier_at(uint64_t *bar, const EmuPlace &place)
{
    check_address(bar, place);
    EmuMbarrier *b = marked(emu_hopper(), bar);
    if (b == NULL)
        emu_die(
            "%s: there is no barrier at shared address %u: it was not initialised, or something "
            "else was stored over it",
            place.what, emu_shared_address(bar));
    if (!b->fenced) die_of(b, place.what, "no mbarrier_init_fence has followed its initialisation");
    if (emu_thread != b->maker && b->made_after == emu_thread->block->barriers)
        die_of(b, place.what, "no __syncthreads has followed its initialisation by another thread");
    return b;
}

void emu_mbarrier_init(uint64_t *bar, int count, const EmuPlace &place)
{
    EmuHopper *hopper = emu_hopper();
    check_address(bar, place);
    if (count < 1 || count > COUNT_MOST)
        emu_die("%s: a count of %d; 1 to %d are possible", place.what, count, COUNT_MOST);
    if (marked(hopper, bar) != NULL)
        die_of(marked(hopper, bar), place.what, "the barrier is initialised already");
    if (hopper->n_mbarriers == EMU_MBARRIERS)
        emu_die("%s: more than %d barriers in a block", place.what, EMU_MBARRIERS);
    EmuMbarrier *b = &hopper->mbarrier[hopper->n_mbarriers];
    memset((void *)b, 0, sizeof *b);
    b->at = bar;
    b->count = b->missing = count;
    b->maker = emu_thread;
    b->made = place;
    b->made_after = emu_thread->block->barriers;
    *bar = MARK | (uint64_t)hopper->n_mbarriers++;
}

void emu_mbarrier_init_fence(const EmuPlace &place)
{
    EmuHopper *hopper = emu_hopper();
    emu_thread->place = place;
    for (int i = 0; i < hopper->n_mbarriers; i++)
        if (hopper->mbarrier[i].maker == emu_thread) hopper->mbarrier[i].fenced = true;
}

/* Completes the phase if it lacks nothing. */
static void check_phase(EmuBlock *block, EmuMbarrier *b, const char *what)
{
    if (b->missing > 0 || b->bytes != 0) return;
    if (emu_threads_count(&b->woken) > 0)
        die_of(b, what, "a phase completes before all who waited for the one before have gone on");
    if (b->phase > 0 && !b->seen)
        die_of(b, what,
               "a phase completes and nobody has waited for the one before: more arrivals than its "
               "count, or a missing wait");
    b->phase++;
    b->missing = b->count;
    b->seen = false;
    b->woken = b->waiting;
    emu_threads_wake(block, &b->waiting);
    memset((void *)&b->waiting, 0, sizeof b->waiting);
}

static void arrive(EmuMbarrier *b, const EmuPlace &place)
{
    if (b->missing == 0) die_of(b, place.what, "more arrivals than the count of its phase");
    b->missing--;
    check_phase(emu_thread->block, b, place.what);
}

/* Stops the calling thread, and those lanes of its warp that could continue, until no other thread
 * of the block can continue.
 */
static void hold_warp(EmuThread *thread)
{
    EmuWarp *warp = thread->warp;
    thread->block->hopper->held.lanes[emu_warp_number(thread)] |= warp->ready;
    warp->ready = 1u << thread->lane;
    emu_wait_in_collective(thread);
}

/* In forward order, a warp whose arrival completes a phase is then stopped until no other thread
 * can continue. If one lane arrives for the warp before the other lanes have done their part, other
 * warps then continue without that part and give a wrong result. __syncwarp or a barrier before the
 * arrival prevents this. */
void emu_mbarrier_arrive(uint64_t *bar, const EmuPlace &place)
{
    EmuMbarrier *b = emu_mbarrier_at(bar, place);
    uint64_t phase = b->phase;
    arrive(b, place);
    if (b->phase != phase && emu_thread->block->order == EmuOrder::FORWARD) hold_warp(emu_thread);
}

void emu_mbarrier_expect(uint64_t *bar, uint32_t bytes, const EmuPlace &place)
{
    EmuMbarrier *b = emu_mbarrier_at(bar, place);
    if (b->bytes + (int64_t)bytes > BYTES_MOST)
        emu_die("%s: %u bytes more make %lld in one phase; %d are the most", place.what, bytes,
                (long long)b->bytes + bytes, BYTES_MOST);
    b->bytes += bytes;
    b->promised += bytes;
    b->carried = 0;
    arrive(b, place);
}

void emu_mbarrier_bytes(EmuBlock *block, EmuMbarrier *b, size_t bytes)
{
    b->bytes -= (int64_t)bytes;
    b->carried += (int64_t)bytes;
    check_phase(block, b, "tma_load_4d");
}

static void waited(EmuMbarrier *b)
{
    b->seen = true;
    b->carried = 0;
}

void emu_mbarrier_wait(uint64_t *bar, uint32_t parity, const EmuPlace &place)
{
    EmuThread *thread = emu_thread;
    EmuMbarrier *b = emu_mbarrier_at(bar, place);
    if (parity > 1) emu_die("%s: the parity is 0 or 1, not %u", place.what, parity);
    if ((b->phase & 1) != parity) {
        if (b->phase > 0) waited(b);
        return;
    }
    emu_threads_add(&b->waiting, thread);
    emu_wait_in_collective(thread);
    emu_threads_remove(&b->woken, thread);
    waited(b);
}

void emu_mbarriers_check(EmuBlock *block)
{
    const char *what = "at the block's end";
    EmuHopper *hopper = block->hopper;
    for (int i = 0; i < hopper->n_mbarriers; i++) {
        EmuMbarrier *b = &hopper->mbarrier[i];
        emu_thread = &block->thread[b->maker - block->thread];
        if (b->bytes != 0) die_of(b, what, "bytes are expected or under way");
        if (b->missing != b->count)
            die_of(b, what, "some arrivals of a phase have come and others have not");
        if (b->carried != 0) die_of(b, what, "nobody has waited for bytes that were copied");
        emu_thread = NULL;
    }
}

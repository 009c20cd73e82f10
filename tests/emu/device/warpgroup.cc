/* warpgroup.cc -- named barriers, and registers that warpgroups give to each other. */
#include "tests/emu/device/hopper.h"

#include <stdio.h>
#include <string.h>

/* ---- named barriers -------------------------------------------------------------------------- */

static void named_release(EmuBlock *block, EmuNamedBarrier *b, const char *what)
{
    for (int i = 0; i < EMU_MAX_WARPS; i++)
        if (b->arrived.lanes[i] != 0 && b->arrived.lanes[i] != 0xffffffffu)
            emu_die("%s: only lanes %08x of warp %d take part; all lanes of a warp must", what,
                    b->arrived.lanes[i], i);
    emu_threads_wake(block, &b->waiting);
    if (b->threads == block->threads) block->barriers++;
    memset((void *)b, 0, sizeof *b);
}

void emu_named_barrier(int id, int threads, bool waits, const EmuPlace &place)
{
    EmuThread *thread = emu_thread;
    EmuBlock *block = thread->block;
    thread->place = place;
    if (id < 1 || id >= EMU_NAMED_BARRIERS)
        emu_die("%s: barrier %d; 1 to %d are possible, and 0 is __syncthreads", place.what, id,
                EMU_NAMED_BARRIERS - 1);
    if (threads < EMU_WARP || threads % EMU_WARP != 0 || threads > block->threads)
        emu_die("%s: %d threads are no number of whole warps of a block of %d threads", place.what,
                threads, block->threads);
    EmuNamedBarrier *b = &emu_hopper()->named[id];
    if (b->arrivals > 0 && b->threads != threads)
        emu_die("%s: barrier %d for %d threads, but others are at it for %d threads, at %s:%d",
                place.what, id, threads, b->threads, b->place.file, b->place.line);
    if (emu_threads_has(&b->arrived, thread))
        emu_die("%s: the thread arrives at barrier %d a second time before it completes",
                place.what, id);
    b->threads = threads;
    b->place = place;
    emu_threads_add(&b->arrived, thread);
    if (++b->arrivals == threads) {
        named_release(block, b, place.what);
    } else if (waits) {
        emu_threads_add(&b->waiting, thread);
        emu_wait_in_collective(thread);
    }
}

/* ---- registers ------------------------------------------------------------------------------- */

/* Gives each warp the registers that a launch provides: the most that let a block of the kernel's
 * __launch_bounds__ run. */
static void registers_start(EmuHopper *hopper, const EmuBlock *block)
{
    enum { OF_A_BLOCK = 65536, MOST = 256 };
    int each = OF_A_BLOCK / emu_launch_bounds(block->launch->function) & -8;
    if (each > MOST) each = MOST;
    for (int i = 0; i < block->threads / EMU_WARP; i++)
        hopper->registers[i].now = each;
    hopper->pool = each * (block->threads / EMU_WARP);
}

static int registers_free(const EmuHopper *hopper)
{
    int used = 0;
    for (int i = 0; i < EMU_MAX_WARPS; i++)
        used += hopper->registers[i].now;
    return hopper->pool - used;
}

/* Lets warps that wait for registers continue, as long as there are enough. */
static void registers_grant(EmuBlock *block)
{
    EmuHopper *hopper = block->hopper;
    for (int i = 0; i < EMU_MAX_WARPS; i++) {
        EmuRegisters *r = &hopper->registers[i];
        if (r->wanted == 0 || r->wanted - r->now > registers_free(hopper)) continue;
        r->now = r->wanted;
        r->wanted = 0;
        block->warp[i].ready |= r->waiting;
        r->waiting = 0;
    }
}

typedef struct {
    int n;
    bool more;
} Change;

/* Changes the registers of a warp whose lanes have all arrived. */
static void registers_change(EmuWarp *warp, uint32_t lanes)
{
    EmuThread *thread = warp->lane[__builtin_ctz(lanes)];
    EmuBlock *block = thread->block;
    EmuHopper *hopper = block->hopper;
    const Change *change = (const Change *)thread->argument;
    int number = emu_warp_number(thread), first = number / EMU_WARPGROUP * EMU_WARPGROUP;
    EmuRegisters *r = &hopper->registers[number];
    const char *what = thread->place.what;
    if (lanes != 0xffffffffu) emu_die("%s by a part of a warp (lanes %08x)", what, lanes);
    if (first + EMU_WARPGROUP > block->threads / EMU_WARP)
        emu_die("%s: warp %d is in no whole warpgroup", what, number);
    if (r->changes++ > 0) emu_die("%s: the warp has changed its registers before", what);
    if (change->more ? change->n < r->now : change->n > r->now)
        emu_die("%s<%d>: the warp has %d registers", what, change->n, r->now);
    for (int i = first; i < first + EMU_WARPGROUP; i++) {
        const EmuRegisters *other = &hopper->registers[i];
        int n = other->wanted != 0 ? other->wanted : other->now;
        if (i != number && other->changes > 0 && n != change->n)
            emu_die("%s<%d>: warp %d of the same warpgroup asked for %d at %s:%d", what, change->n,
                    i, n, other->place.file, other->place.line);
    }
    r->place = thread->place;
    r->wanted = change->n;
    if (!change->more) {
        r->now = change->n;
        r->wanted = 0;
    }
    registers_grant(block);
}

void emu_registers(int n, bool more, const EmuPlace &place)
{
    EmuThread *thread = emu_thread;
    EmuHopper *hopper = emu_hopper();
    if (hopper->pool == 0) registers_start(hopper, thread->block);
    Change change = {n, more};
    emu_collective(0xffffffffu, place, &change, registers_change);
    EmuRegisters *r = &hopper->registers[emu_warp_number(thread)];
    if (r->wanted == 0) return;
    r->waiting |= 1u << thread->lane;
    emu_wait_in_collective(thread);
}

/* ---- the end of a block, and deadlocks ------------------------------------------------------- */

void emu_warpgroups_check(EmuBlock *block)
{
    const EmuHopper *hopper = block->hopper;
    emu_thread = &block->thread[0];
    for (int i = 0; i < EMU_NAMED_BARRIERS; i++)
        if (hopper->named[i].arrivals > 0)
            emu_die("at the block's end: %d of %d threads have arrived at barrier %d, the last one "
                    "at %s:%d",
                    hopper->named[i].arrivals, hopper->named[i].threads, i,
                    hopper->named[i].place.file, hopper->named[i].place.line);
    for (int i = 0; i < block->threads / EMU_WARP; i++) {
        int first = i / EMU_WARPGROUP * EMU_WARPGROUP;
        if (hopper->registers[i].changes != hopper->registers[first].changes)
            emu_die(
                "at the block's end: warp %d changed its registers %d times and warp %d, of the "
                "same warpgroup, %d times",
                first, hopper->registers[first].changes, i, hopper->registers[i].changes);
    }
    emu_thread = NULL;
}

static void add(char *buf, size_t n, const char *text)
{
    size_t have = strlen(buf);
    snprintf(buf + have, n - have, "; %s", text);
}

void emu_hopper_describe(const EmuBlock *block, char *buf, size_t n)
{
    const EmuHopper *hopper = block->hopper;
    char text[512];
    buf[0] = 0;
    if (hopper == NULL) return;
    for (int i = 0; i < hopper->n_mbarriers; i++) {
        int waiting = emu_threads_count(&hopper->mbarrier[i].waiting);
        int at = snprintf(text, sizeof text, "%d wait for ", waiting);
        emu_mbarrier_describe(&hopper->mbarrier[i], text + at, sizeof text - (size_t)at);
        if (waiting > 0) add(buf, n, text);
    }
    for (int i = 0; i < EMU_NAMED_BARRIERS; i++) {
        const EmuNamedBarrier *b = &hopper->named[i];
        snprintf(text, sizeof text, "barrier %d at %s:%d has %d of %d arrivals", i, b->place.file,
                 b->place.line, b->arrivals, b->threads);
        if (b->arrivals > 0) add(buf, n, text);
    }
    for (int i = 0; i < EMU_MAX_WARPS; i++) {
        const EmuRegisters *r = &hopper->registers[i];
        snprintf(text, sizeof text, "warp %d waits for %d registers and has %d; %d are free", i,
                 r->wanted, r->now, registers_free(hopper));
        if (r->wanted > 0) add(buf, n, text);
    }
}

/* wgmma.cc -- asynchronous matrix products of a warpgroup: four adjacent warps, of which each
 * thread requests the same products in the same order, and each warp holds 16 rows of A and D.
 *
 * A product runs at a time that the kernel cannot know. EMU_ASYNC=late (the default): once all
 * threads of the warpgroup are in the wait that covers it, and no other thread of the block can
 * continue. A kernel that overwrites an operand too soon then gets a wrong result. EMU_ASYNC=early:
 * for each warp as soon as its 32 threads have requested it, and the warp leaves the wait as soon
 * as its 32 threads are in it, while other warps fall behind. A kernel that requests a product
 * before the operands are there then gets a wrong result, and so does one in which a warp announces
 * that an operand may be overwritten although products of other warps still need it. In both cases
 * D contains NaN from the request to the wait.
 *
 * Products that add to the same D one after another form a chain (wgmma_chain.h).
 *
 * The program ends if threads of a warpgroup request different products or leave some out; if a
 * descriptor is invalid, or leads to bytes outside of shared memory, to which a copy is under way,
 * or which are not visible to the product (proxy.cc); if D or A's registers change before the wait,
 * or D overlaps with that of another product; if a product comes first, or after a wait, without a
 * fence; or if a thread exits before it has waited for its products. The check of fences is
 * stricter than the PTX ISA, which allows products on registers that nothing else has accessed. Not
 * visible: registers that are written between a fence and a product, and a missing wgmma_hold.
 * wgmma_product.cc checks descriptors and computes. */
#include "tests/emu/device/wgmma_chain.h"

#include <stdlib.h>
#include <string.h>

enum {
    MOST_GROUPS = EMU_MAX_THREADS / GROUP,
    PRODUCTS = 128, /* largest number of incomplete products of a warpgroup */
    WAITS = 8       /* waits that are remembered, for comparison with other warps */
};

typedef struct {
    EmuWgmma call; /* as the first thread, number `first`, requested it */
    int first;
    int group;
    bool opens; /* it is the first of its chain */
    bool begun; /* the rows of some warp have been computed; the checksum of A was then sum_of_a */
    uint64_t sum_of_a;
    int arrived[WARPS];
    EmuChain *chain;
    const uint32_t *registers[GROUP];
    uint32_t word[GROUP][4];
} Product;

typedef struct {
    uint64_t requested, committed; /* products */
    int groups, waits;
    bool fenced;
} Lane;

/* A wait as the first warp of the warpgroup made it, its number among the waits of that warp, and
 * how many products the warp had requested. */
typedef struct {
    EmuPlace place;
    int number, target;
    uint64_t requested;
} Wait;

/* A warp. waiting: number of its threads in wgmma_wait. target: how many of its groups, from the
 * first one on, this wait must complete. waits: number of waits that have ended. groups, complete:
 * how many groups and products have ended in them. */
typedef struct {
    int waiting, target, waits, groups;
    uint64_t complete;
} Warp;

struct EmuWarpgroup {
    Lane lane[GROUP];
    Warp warp[WARPS];
    uint64_t products;         /* number of products that have been requested */
    Product product[PRODUCTS]; /* product i is at i % PRODUCTS */
    EmuChains chains;
    Wait wait[WAITS]; /* wait i is at i % WAITS */
    int waiting;      /* threads in wgmma_wait */
};

static EmuWarpgroup *warpgroup_of(const EmuThread *thread)
{
    EmuBlock *block = thread->block;
    if (block->warpgroups == NULL) {
        block->warpgroups = (EmuWarpgroup *)calloc(MOST_GROUPS, sizeof(EmuWarpgroup));
        if (block->warpgroups == NULL) emu_die("no memory for the products of warpgroups");
    }
    return &block->warpgroups[(thread - block->thread) / GROUP];
}

/* Computes the rows of some warps. Ends the program if A in shared memory was overwritten before
 * all warps of the warpgroup had requested the product: the PTX ISA does not say which warp reads
 * which rows. */
static void product_run(Product *p, int first, int warps)
{
    if (p->call.registers == NULL && warps < WARPS) {
        uint64_t sum = emu_wgmma_sum_of_a(&p->call);
        if (p->begun && sum != p->sum_of_a)
            emu_die("A of %s at %s:%d was overwritten before all warps of the warpgroup had "
                    "requested the product",
                    p->call.place.what, p->call.place.file, p->call.place.line);
        p->begun = true;
        p->sum_of_a = sum;
    }
    emu_wgmma_multiply(&p->call, p->chain->sum, p->word, first, warps);
}

/* ---- requests -------------------------------------------------------------------------------- */

/* Ends the program unless the warpgroup has 128 threads and none has left the kernel. */
static void check_whole(const EmuThread *thread, const EmuWgmma *call)
{
    const EmuBlock *block = thread->block;
    int first = (int)(thread - block->thread) / GROUP * GROUP;
    if (first + GROUP > block->threads)
        emu_die("%s by a warpgroup of %d threads; it takes 128", call->place.what,
                block->threads - first);
    for (int i = 0; i < WARPS; i++)
        if (block->warp[first / EMU_WARP + i].alive != ~0u)
            emu_die("%s after threads of the warpgroup have left the kernel", call->place.what);
}

static inline bool same_place(const EmuPlace &a, const EmuPlace &b)
{
    return a.line == b.line && strcmp(a.file, b.file) == 0 && strcmp(a.what, b.what) == 0;
}

/* Ends the program unless this thread requests what the first one did. */
static void check_same(const Product *p, const EmuWgmma *call, const Lane *lane)
{
    const EmuWgmma *first = &p->call;
    const char *differs =
        !same_place(first->place, call->place)                                        ? "the place"
        : first->n != call->n || first->f16 != call->f16 || first->b_mn != call->b_mn ? "the shape"
        : first->a != call->a || first->b != call->b ? "a descriptor"
        : first->accumulate != call->accumulate      ? "whether D is added"
        : p->group != lane->groups                   ? "the group"
                                                     : NULL;
    if (differs != NULL)
        emu_die("the warpgroup diverges: %s with n = %d, A %016lx, B %016lx, in group %d; its "
                "thread %d made that call number %lu as %s with n = %d, A %016lx, B %016lx, in "
                "group %d, at %s:%d (%s differs)",
                call->place.what, call->n, call->a, call->b, lane->groups, p->first,
                lane->requested, first->place.what, first->n, first->a, first->b, p->group,
                first->place.file, first->place.line, differs);
}

static Product *product_begin(EmuWarpgroup *group, int number, const EmuWgmma *call, const float *d)
{
    Lane *lane = &group->lane[number];
    uint64_t complete = group->products;
    for (int i = 0; i < WARPS; i++)
        complete = group->warp[i].complete < complete ? group->warp[i].complete : complete;
    if (group->products - complete == PRODUCTS)
        emu_die("%s: more than %d products for which nothing has waited", call->place.what,
                PRODUCTS);
    Product *p = &group->product[group->products++ % PRODUCTS];
    p->call = *call;
    p->first = number;
    p->group = lane->groups;
    p->begun = false;
    p->chain = emu_chain_on(&group->chains, number, call, d);
    p->opens = p->chain == NULL;
    if (p->opens) p->chain = emu_chain_new(&group->chains, call);
    for (int i = 0; i < WARPS; i++)
        p->chain->incomplete[i]++;
    memset(p->arrived, 0, sizeof p->arrived);
    emu_wgmma_check(call);
    return p;
}

void emu_wgmma(const EmuWgmma &call, float *d)
{
    EmuThread *thread = emu_thread;
    thread->place = call.place;
    EmuWarpgroup *group = warpgroup_of(thread);
    int number = number_of(thread), warp = number / EMU_WARP;
    Lane *lane = &group->lane[number];
    if (!lane->fenced)
        emu_die("%s without a wgmma_fence since the kernel's start or the last wgmma_wait",
                call.place.what);
    Product *p;
    if (lane->requested == group->products) {
        check_whole(thread, &call);
        p = product_begin(group, number, &call, d);
    } else {
        p = &group->product[lane->requested % PRODUCTS];
        check_same(p, &call, lane);
    }
    lane->requested++;
    if (p->opens) {
        if (p->first != number && emu_chain_on(&group->chains, number, &call, d) != NULL)
            emu_die("the warpgroup diverges: D of %s is that of an earlier product, but not in "
                    "thread %d",
                    call.place.what, p->first);
        emu_chain_join(p->chain, number, d, call.accumulate);
    } else if (p->chain->d[number] != d) {
        emu_die("the warpgroup diverges: %s has another D than thread %d's, which is that of %s "
                "at %s:%d",
                call.place.what, p->first, p->chain->place.what, p->chain->place.file,
                p->chain->place.line);
    }
    p->registers[number] = call.registers;
    if (call.registers != NULL) memcpy(p->word[number], call.registers, sizeof p->word[number]);
    if (++p->arrived[warp] == EMU_WARP && !emu_async_late()) product_run(p, warp, 1);
}

void emu_wgmma_fence(EmuPlace place)
{
    emu_thread->place = place;
    warpgroup_of(emu_thread)->lane[number_of(emu_thread)].fenced = true;
}

void emu_wgmma_commit(EmuPlace place)
{
    emu_thread->place = place;
    Lane *lane = &warpgroup_of(emu_thread)->lane[number_of(emu_thread)];
    lane->committed = lane->requested;
    lane->groups++;
}

/* ---- waits ----------------------------------------------------------------------------------- */

/* Ends the program if a warp's registers of A have changed since the product was requested. */
static void check_registers(const Product *p, int warp)
{
    const EmuPlace *place = &p->call.place;
    for (int number = warp * EMU_WARP; number < (warp + 1) * EMU_WARP; number++)
        if (memcmp(p->word[number], p->registers[number], sizeof p->word[number]) != 0) {
            emu_thread = thread_of(number);
            emu_die("the registers of A of %s at %s:%d changed, or their scope ended, before a "
                    "wait that covers the product",
                    place->what, place->file, place->line);
        }
}

/* Lets a warp return from the wait that its threads are in. All products before it have run. */
static void warp_continue(EmuWarpgroup *group, int number)
{
    Warp *warp = &group->warp[number];
    for (; warp->complete < group->products; warp->complete++) {
        Product *p = &group->product[warp->complete % PRODUCTS];
        if (p->group >= warp->target) break;
        if (p->call.registers != NULL) check_registers(p, number);
        if (--p->chain->incomplete[number] == 0) emu_chain_end(p->chain, number);
    }
    warp->groups = warp->target;
    warp->waiting = 0;
    warp->waits++;
    thread_of(number * EMU_WARP)->warp->ready = ~0u;
}

/* Runs the products for which a warpgroup waits. All its threads are in the wait. */
static void wait_end(EmuWarpgroup *group)
{
    for (uint64_t i = group->warp[0].complete; i < group->products; i++) {
        Product *p = &group->product[i % PRODUCTS];
        if (p->group >= group->warp[0].target) break;
        product_run(p, 0, WARPS);
    }
    group->waiting = 0;
    for (int i = 0; i < WARPS; i++)
        warp_continue(group, i);
}

/* Ends the program unless this thread's wait has the same place, target and number of requested
 * products as that of the first thread in this wait. */
static void check_wait(EmuWarpgroup *group, const Lane *lane, int target, EmuPlace place)
{
    Wait *first = &group->wait[lane->waits % WAITS];
    if (first->number < lane->waits) *first = {place, lane->waits, target, lane->requested};
    if (first->number != lane->waits) return; /* another warp is many waits ahead */
    if (first->target != target || !same_place(first->place, place))
        emu_die("the warpgroup diverges: wgmma_wait for %d groups while others wait for %d at "
                "%s:%d",
                target, first->target, first->place.file, first->place.line);
    if (first->requested != lane->requested)
        emu_die("the warpgroup diverges: in wgmma_wait, the thread has requested %lu products and "
                "another one %lu",
                lane->requested, first->requested);
}

/* Warp `number` has just left a wait. Stops the warps of its warpgroup that have not reached this
 * wait yet, until no other thread of the block can continue. So they request products only after
 * other threads have done all that the end of this wait allows them to do. Does nothing in reverse
 * order, where all warps of the warpgroup run before any other warp. */
static void hold_others(const EmuWarpgroup *group, int number)
{
    EmuBlock *block = emu_thread->block;
    int first = (int)(thread_of(0) - block->thread) / EMU_WARP;
    if (block->order == EmuOrder::REVERSE) return;
    for (int i = 0; i < WARPS; i++)
        if (group->warp[i].waits < group->warp[number].waits) emu_hold(block, first + i);
}

void emu_wgmma_wait(int pending, EmuPlace place)
{
    EmuThread *thread = emu_thread;
    EmuWarpgroup *group = warpgroup_of(thread);
    Lane *lane = &group->lane[number_of(thread)];
    int number = number_of(thread) / EMU_WARP, target = lane->groups - pending;
    Warp *warp = &group->warp[number];
    thread->place = place;
    lane->fenced = false;
    if (target <= warp->groups) return;
    lane->waits++;
    check_wait(group, lane, target, place);
    warp->target = target;
    group->waiting++;
    if (++warp->waiting < EMU_WARP || emu_async_late()) {
        emu_wait_in_collective(thread);
        return;
    }
    group->waiting -= EMU_WARP;
    warp_continue(group, number);
    hold_others(group, number);
}

bool emu_wgmma_progress(EmuBlock *block)
{
    for (int i = 0; block->warpgroups != NULL && i < block->threads / GROUP; i++) {
        EmuWarpgroup *group = &block->warpgroups[i];
        if (group->waiting < GROUP) continue;
        emu_thread = &block->thread[i * GROUP];
        wait_end(group);
        emu_thread = NULL;
        return true;
    }
    return false;
}

/* ---- blocks ---------------------------------------------------------------------------------- */

void emu_wgmma_start(EmuBlock *block)
{
    if (block->warpgroups == NULL) return;
    for (int i = 0; i < MOST_GROUPS; i++) {
        EmuWarpgroup *group = &block->warpgroups[i];
        memset(group->lane, 0, sizeof group->lane);
        memset(group->warp, 0, sizeof group->warp);
        memset((void *)group->wait, 0, sizeof group->wait);
        group->products = 0;
        group->waiting = 0;
    }
}

void emu_wgmma_exit(const EmuThread *thread)
{
    if (thread->block->warpgroups == NULL) return;
    const EmuWarpgroup *group = warpgroup_of(thread);
    const Lane *lane = &group->lane[number_of(thread)];
    const Product *p = &group->product[lane->requested % PRODUCTS];
    uint64_t complete = group->warp[number_of(thread) / EMU_WARP].complete;
    if (lane->requested < group->products)
        emu_die("the thread exits without taking part in %s at %s:%d of its warpgroup",
                p->call.place.what, p->call.place.file, p->call.place.line);
    if (lane->requested > lane->committed)
        emu_die("the thread exits with %d products that no wgmma_commit has put in a group",
                (int)(lane->requested - lane->committed));
    if (lane->requested > complete)
        emu_die("the thread exits with %d products under way for which no wgmma_wait has waited",
                (int)(lane->requested - complete));
}

/* proxy.cc -- shared memory as the async proxy sees it, that is, the tiled copies and the products
 * of warpgroups, which access memory asynchronously. Plain stores of a kernel cannot be noticed
 * when they happen. So a second copy of the block's shared memory, the shadow, holds what the async
 * proxy sees: tiled copies write to both, and proxy_fence copies all memory to the shadow. Where
 * the two differ, a store was not followed by a fence. The shadow exists in blocks that use the
 * async proxy.
 *
 * A fence by one thread also publishes what others have stored, so a fence that only some threads
 * leave out can remain unnoticed, and so does a store of the value that was there. */
#include "tests/emu/device/hopper.h"

#include <stdlib.h>
#include <string.h>

/* Returns the shadow of p. It begins as poison, like shared memory itself. */
static unsigned char *shadow_of(const void *p)
{
    EmuHopper *hopper = emu_hopper();
    const EmuBlock *block = emu_thread->block;
    if (hopper->shadow == NULL) hopper->shadow = (unsigned char *)malloc(EMU_SHARED_MOST);
    if (hopper->shadow == NULL) emu_die("no memory for a copy of shared memory");
    if (!hopper->shadowed) memset(hopper->shadow, EMU_POISON, block->launch->shared);
    hopper->shadowed = true;
    return hopper->shadow + ((const unsigned char *)p - block->shared);
}

void emu_proxy_wrote(const void *p, size_t bytes)
{
    memcpy(shadow_of(p), p, bytes);
}

void emu_proxy_fence(const EmuPlace &place)
{
    const EmuBlock *block = emu_thread->block;
    emu_thread->place = place;
    memcpy(shadow_of(block->shared), block->shared, block->launch->shared);
}

void emu_proxy_check(const void *p, size_t bytes)
{
    const EmuHopper *hopper = emu_hopper();
    const unsigned char *at = (const unsigned char *)p, *shadow = shadow_of(p);
    for (int i = 0; i < hopper->n_tiles; i++) {
        const EmuTile *tile = &hopper->tile[i];
        if ((const char *)p < tile->shared + tile->bytes && tile->shared < (const char *)p + bytes)
            emu_die(
                "%s reads %zu bytes at shared address %u, to which the copy started at %s:%d is "
                "still under way",
                emu_thread->place.what, bytes, emu_shared_address(p), tile->place.file,
                tile->place.line);
    }
    if (memcmp(shadow, at, bytes) == 0) return;
    while (*shadow == *at)
        shadow++, at++;
    emu_die("%s reads shared address %u, which was stored without a proxy_fence by the thread that "
            "stored it",
            emu_thread->place.what, emu_shared_address(at));
}

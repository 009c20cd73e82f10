/* shared.cc -- a block's dynamic shared memory, and asynchronous copies into it.
 *
 * The memory ends at a guard, except for slack that is checked after the block. It starts at an odd
 * multiple of 128 bytes, because a kernel must not rely on more alignment; and where there is room
 * for tiles that must be aligned to 1,024, it starts 128 bytes after such a place, so that a kernel
 * that aligns its tiles to less than 1,024 does not get a right place by chance. It is poisoned for
 * each block; on a GPU it contains what another kernel left. */
#include "tests/emu/device/emu.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "tests/emu/device/sanitizer.h"

enum { ALIGNMENT = 128, TILE_ALIGNMENT = 1024, SMALL = 4096 };
enum { SPACE = (EMU_SHARED_MOST + TILE_ALIGNMENT + EMU_PAGE - 1) & -EMU_PAGE };

char *emu_shared_space(void)
{
    char *space = (char *)mmap(NULL, SPACE + 2 * EMU_GUARD, PROT_NONE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (space == MAP_FAILED || mprotect(space + EMU_GUARD, SPACE, PROT_READ | PROT_WRITE) != 0)
        emu_die("no memory for shared memory");
    memset(space + EMU_GUARD, EMU_POISON, SPACE);
    return space + EMU_GUARD;
}

static unsigned char *shared_place(const EmuBlock *block)
{
    uintptr_t end = (uintptr_t)block->shared_space + SPACE;
    uintptr_t multiple = block->launch->shared < SMALL ? 2 * ALIGNMENT : TILE_ALIGNMENT;
    uintptr_t last = end - block->launch->shared - ALIGNMENT;
    return (unsigned char *)((last & ~(multiple - 1)) + ALIGNMENT);
}

void emu_shared_prepare(EmuBlock *block)
{
    size_t bytes = block->launch->shared;
    unsigned char *end = (unsigned char *)block->shared_space + SPACE;
    sanitizer_allow(block->shared_space, SPACE);
    block->shared = shared_place(block);
    memset(block->shared, EMU_POISON, (size_t)(end - block->shared));
    sanitizer_forbid(block->shared_space,
                     (size_t)(block->shared - (unsigned char *)block->shared_space));
    sanitizer_forbid(block->shared + bytes, (size_t)(end - block->shared) - bytes);
}

void emu_shared_check(EmuBlock *block)
{
    const unsigned char *end = (unsigned char *)block->shared_space + SPACE;
    sanitizer_allow(block->shared_space, SPACE);
    for (const unsigned char *p = block->shared + block->launch->shared; p < end; p++)
        if (*p != EMU_POISON)
            emu_die("kernel %s (launched at %s:%d), block (%u,%u,%u), wrote %zd bytes past its "
                    "%zu bytes of shared memory",
                    block->launch->kernel, block->launch->file, block->launch->line, block->index.x,
                    block->index.y, block->index.z, p - block->shared - block->launch->shared,
                    block->launch->shared);
}

void *emu_shared_memory(void)
{
    return emu_thread->block->shared;
}

uint32_t emu_shared_address(const void *p)
{
    enum { MOST_ALIGNMENT = 1024 };
    uintptr_t start = (uintptr_t)emu_thread->block->shared;
    emu_check_shared(p, 0, "an address of shared memory");
    return (uint32_t)((uintptr_t)p - start + start % MOST_ALIGNMENT + MOST_ALIGNMENT);
}

void emu_check_shared(const void *p, size_t bytes, const char *what)
{
    const EmuBlock *block = emu_thread->block;
    uintptr_t start = (uintptr_t)block->shared, at = (uintptr_t)p;
    if (at < start || at - start > block->launch->shared ||
        bytes > block->launch->shared - (at - start))
        emu_die("%s: %zu bytes at %p are not all in the block's %zu bytes of shared memory, which "
                "start at %p",
                what, bytes, p, block->launch->shared, (void *)block->shared);
}

/* ---- asynchronous copies --------------------------------------------------------------------- */

static void copies_grow(EmuCopies *copies)
{
    copies->capacity = copies->capacity ? 2 * copies->capacity : 16;
    copies->copy = (EmuCopy *)realloc(copies->copy, (size_t)copies->capacity * sizeof(EmuCopy));
    if (copies->copy == NULL) emu_die("no memory for a thread's copies");
}

void emu_copy_start(void *shared, const void *global, int bytes, EmuPlace place)
{
    EmuCopies *copies = &emu_thread->copies;
    emu_thread->place = place;
    if ((uintptr_t)shared % 16 != 0 || (uintptr_t)global % 16 != 0)
        emu_die("%s: from %p to %p: both must be multiples of 16", place.what, global, shared);
    if (bytes < 0 || bytes > 16) emu_die("%s: %d bytes; 0 to 16 are possible", place.what, bytes);
    emu_check_shared(shared, 16, place.what);
    if (bytes > 0) emu_check_device(global, (size_t)bytes, place.what);
    if (copies->n == copies->capacity) copies_grow(copies);
    memset(shared, EMU_POISON, 16);
    copies->copy[copies->n++] = {shared, global, bytes, copies->group};
}

void emu_copy_commit(void)
{
    emu_thread->copies.group++;
}

void emu_copy_wait(int groups_under_way)
{
    EmuCopies *copies = &emu_thread->copies;
    int done = 0;
    for (; done < copies->n; done++) {
        const EmuCopy *copy = &copies->copy[done];
        if (copy->group >= copies->group - groups_under_way) break;
        memset(copy->shared, 0, 16);
        memcpy(copy->shared, copy->global, (size_t)copy->bytes);
    }
    copies->n -= done;
    memmove(copies->copy, copies->copy + done, (size_t)copies->n * sizeof(EmuCopy));
}

/* tma.cc -- tiled copies from device memory to shared memory, and the state of a block's Hopper
 * features. */
#include "tests/emu/device/hopper.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROW = 128, ATOM = 1024 };
static const size_t CHUNK = 16; /* bytes that a swizzle keeps together */

bool emu_async_late(void)
{
    const char *word = getenv("EMU_ASYNC");
    if (word == NULL || strcmp(word, "late") == 0) return true;
    if (strcmp(word, "early") == 0) return false;
    emu_die("EMU_ASYNC is late or early, not \"%s\"", word);
}

/* ---- state ----------------------------------------------------------------------------------- */

EmuHopper *emu_hopper(void)
{
    EmuBlock *block = emu_thread->block;
    if (block->hopper != NULL) return block->hopper;
    block->hopper = (EmuHopper *)calloc(1, sizeof *block->hopper);
    if (block->hopper == NULL) emu_die("no memory for a block's barriers");
    return block->hopper;
}

void emu_hopper_start(EmuBlock *block)
{
    EmuHopper *hopper = block->hopper;
    block->barriers = 0;
    if (hopper == NULL) return;
    hopper->n_mbarriers = hopper->n_tiles = hopper->pool = 0;
    hopper->shadowed = false;
    memset((void *)&hopper->held, 0, sizeof hopper->held);
    memset((void *)hopper->named, 0, sizeof hopper->named);
    memset((void *)hopper->registers, 0, sizeof hopper->registers);
}

void emu_hopper_end(EmuBlock *block)
{
    if (block->hopper == NULL) return;
    emu_mbarriers_check(block);
    emu_warpgroups_check(block);
}

/* ---- copies ---------------------------------------------------------------------------------- */

/* Returns where byte `at` of a tile lies: with the swizzle of 128 bytes, bits 4 to 6 of the shared
 * address are XORed with bits 7 to 9, which number the row of 128 bytes. */
static char *place_of(const EmuTile *tile, size_t at)
{
    uint32_t address = emu_shared_address(tile->shared) + (uint32_t)at;
    uint32_t swizzled = address;
    if (tile->map.swizzle == CU_TENSOR_MAP_SWIZZLE_128B)
        swizzled = address ^ (address >> 7 & 7) << 4;
    return tile->shared + at + (int)(swizzled - address);
}

/* Copies line `line` of the tile: elements along the innermost dimension. */
static void line_copy(const EmuTile *tile, size_t line, const int (&index)[4])
{
    const EmuMap *map = &tile->map;
    size_t bytes = (size_t)map->box[0] * map->element;
    const char *source = map->address;
    bool inside = true;
    for (int d = 1; d < map->rank; d++) {
        inside = inside && index[d] >= 0 && (uint64_t)index[d] < map->size[d];
        source += (int64_t)index[d] * (int64_t)map->stride[d - 1];
    }
    for (size_t at = 0; at < bytes; at += CHUNK) {
        int64_t column = index[0] + (int64_t)(at / map->element),
                left = (int64_t)map->size[0] - column;
        char *to = place_of(tile, line * bytes + at);
        int64_t inner = inside && left > 0 ? left * map->element : 0;
        size_t part = inner < (int64_t)CHUNK ? (size_t)inner : CHUNK;
        memcpy(to, source + column * map->element, part);
        memset(to + part, 0, CHUNK - part);
    }
}

static void tile_copy(const EmuTile *tile)
{
    const uint32_t(&box)[5] = tile->map.box;
    size_t line = 0;
    emu_thread = tile->thread;
    emu_thread->place = tile->place;
    for (uint32_t i = 0; i < box[3]; i++)
        for (uint32_t j = 0; j < box[2]; j++)
            for (uint32_t k = 0; k < box[1]; k++, line++)
                line_copy(tile, line,
                          {tile->at[0], tile->at[1] + (int)k, tile->at[2] + (int)j,
                           tile->at[3] + (int)i});
    emu_proxy_wrote(tile->shared, tile->bytes);
}

bool emu_hopper_progress(EmuBlock *block)
{
    EmuHopper *hopper = block->hopper;
    if (hopper == NULL) return false;
    if (emu_threads_count(&hopper->held) > 0) {
        emu_threads_wake(block, &hopper->held);
        memset((void *)&hopper->held, 0, sizeof hopper->held);
        return true;
    }
    for (int i = 0; i < hopper->n_tiles; i++) {
        EmuTile tile = hopper->tile[i];
        if (emu_threads_count(&tile.barrier->waiting) == 0) continue;
        memmove(hopper->tile + i, hopper->tile + i + 1,
                (size_t)(--hopper->n_tiles - i) * sizeof *hopper->tile);
        tile_copy(&tile);
        emu_mbarrier_bytes(block, tile.barrier, tile.bytes);
        emu_thread = NULL;
        return true;
    }
    return false;
}

/* ---- starting a copy ------------------------------------------------------------------------- */

static void check_tile(const EmuTile *tile)
{
    const EmuMap *map = &tile->map;
    const char *what = tile->place.what;
    bool swizzled = map->swizzle == CU_TENSOR_MAP_SWIZZLE_128B;
    uint32_t address = emu_shared_address(tile->shared);
    if (map->rank != 4) emu_die("%s: the map has %d dimensions, not 4", what, map->rank);
    if (swizzled ? map->box[0] * map->element != ROW : map->swizzle != CU_TENSOR_MAP_SWIZZLE_NONE)
        emu_die("%s: the emulation knows boxes that are 128 bytes wide and swizzled by 128, and "
                "boxes without a swizzle",
                what);
    if (address % (swizzled ? ATOM : ROW) != 0)
        emu_die("%s: the target, shared address %u, is not a multiple of %d", what, address,
                swizzled ? ATOM : ROW);
    emu_check_shared(tile->shared, tile->bytes, what);
    for (int d = 0; d < map->rank; d++)
        if (d != 2 && (tile->at[d] < 0 || (uint64_t)tile->at[d] >= map->size[d]))
            emu_die(
                "%s: coordinate %d is %d, outside the tensor's %llu; only the rows of a box may "
                "be outside",
                what, d, tile->at[d], (unsigned long long)map->size[d]);
}

static void check_overlap(const EmuHopper *hopper, const EmuTile *tile)
{
    for (int i = 0; i < hopper->n_tiles; i++) {
        const EmuTile *other = &hopper->tile[i];
        if (tile->shared < other->shared + other->bytes &&
            other->shared < tile->shared + tile->bytes)
            emu_die("%s: the copy started at %s:%d to the same shared memory is still under way",
                    tile->place.what, other->place.file, other->place.line);
    }
}

static void tiles_grow(EmuHopper *hopper)
{
    hopper->capacity = hopper->capacity ? 2 * hopper->capacity : 16;
    hopper->tile =
        (EmuTile *)realloc((void *)hopper->tile, (size_t)hopper->capacity * sizeof(EmuTile));
    if (hopper->tile == NULL) emu_die("no memory for a block's copies");
}

void emu_tma_load(void *shared, const CUtensorMap *map, uint64_t *bar, const int (&at)[4],
                  const EmuPlace &place)
{
    EmuThread *thread = emu_thread;
    EmuHopper *hopper = emu_hopper();
    EmuMbarrier *barrier = emu_mbarrier_at(bar, place);
    EmuTile tile = {{}, {at[0], at[1], at[2], at[3]}, (char *)shared, 0, barrier, thread, place};
    emu_check_map(thread->block->launch, map);
    memcpy((void *)&tile.map, (const void *)map, sizeof tile.map);
    tile.bytes = tile.map.element;
    for (int d = 0; d < tile.map.rank; d++)
        tile.bytes *= tile.map.box[d];
    check_tile(&tile);
    check_overlap(hopper, &tile);
    if (barrier->promised < (int64_t)tile.bytes)
        emu_die("%s: a copy of %zu bytes, but mbarrier_expect has announced only %lld more",
                place.what, tile.bytes, (long long)barrier->promised);
    barrier->promised -= (int64_t)tile.bytes;
    if (emu_async_late()) {
        memset(shared, EMU_POISON, tile.bytes);
        emu_proxy_wrote(shared, tile.bytes);
        if (hopper->n_tiles == hopper->capacity) tiles_grow(hopper);
        hopper->tile[hopper->n_tiles++] = tile;
    } else {
        tile_copy(&tile);
        emu_mbarrier_bytes(thread->block, barrier, tile.bytes);
    }
}

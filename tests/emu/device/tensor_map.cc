/* tensor_map.cc -- the driver's encoder of tensor maps. It refuses what the driver's documentation
 * says that it refuses, and prints the reason, because the driver's code says only that an argument
 * is invalid. EMU_DRIVER=no_maps: the driver does not have this function. */
#include "tests/emu/device/hopper.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ADDRESS_MULTIPLE = 16, MAP_MULTIPLE = 64, BOX_MOST = 256, RANK_MOST = 5 };

static const uint64_t MARK = 0x3a70f7e450f00001u;

static CUresult refuse(const char *why, long long value)
{
    fprintf(stderr, "emu: cuTensorMapEncodeTiled: %s (%lld)\n", why, value);
    return CUDA_ERROR_INVALID_VALUE;
}

/* Returns the bytes of an element, or 0. */
static int element_bytes(CUtensorMapDataType type)
{
    static const int BYTES[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2};
    return (unsigned)type < sizeof BYTES / sizeof *BYTES ? BYTES[type] : 0;
}

static CUresult check_shape(const EmuMap *m, const cuuint32_t *step)
{
    for (int d = 0; d < m->rank; d++) {
        if (m->size[d] == 0 || m->size[d] > (uint64_t)1 << 32)
            return refuse("a size is not 1 to 2^32", (long long)m->size[d]);
        if (m->box[d] == 0 || m->box[d] > BOX_MOST)
            return refuse("a box is not 1 to 256 elements", m->box[d]);
        if (d > 0 && step[d] != 1) return refuse("the emulation knows steps of 1 only", step[d]);
        if (d + 1 < m->rank &&
            (m->stride[d] % ADDRESS_MULTIPLE != 0 || m->stride[d] >= (uint64_t)1 << 40))
            return refuse("a stride is no multiple of 16 below 2^40", (long long)m->stride[d]);
    }
    return CUDA_SUCCESS;
}

static CUresult check_modes(const EmuMap *m, CUtensorMapInterleave interleave,
                            CUtensorMapSwizzle swizzle, CUtensorMapFloatOOBfill fill)
{
    static const uint32_t SPAN[] = {0, 32, 64, 128};
    uint32_t inner = m->box[0] * m->element;
    if (inner % ADDRESS_MULTIPLE != 0)
        return refuse("the box's innermost bytes are no multiple of 16", inner);
    if (interleave != CU_TENSOR_MAP_INTERLEAVE_NONE)
        return refuse("the emulation knows no interleaving", interleave);
    if ((unsigned)swizzle > CU_TENSOR_MAP_SWIZZLE_128B)
        return refuse("the emulation does not know the swizzle", swizzle);
    if (swizzle != CU_TENSOR_MAP_SWIZZLE_NONE && inner > SPAN[swizzle])
        return refuse("the box's innermost bytes exceed the swizzle", inner);
    if (fill != CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE)
        return refuse("the emulation fills with zeros only", fill);
    return CUDA_SUCCESS;
}

CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank,
                                void *address, const cuuint64_t *size, const cuuint64_t *stride,
                                const cuuint32_t *box, const cuuint32_t *step,
                                CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion, CUtensorMapFloatOOBfill fill)
{
    static_assert(sizeof(EmuMap) <= sizeof *map, "a map has room for what it encodes");
    EmuMap m;
    memset((void *)&m, 0, sizeof m);
    if ((uintptr_t)map % MAP_MULTIPLE != 0) return refuse("the map is not aligned to 64 bytes", 0);
    if (element_bytes(type) == 0) return refuse("no such type", type);
    if (rank < 1 || rank > RANK_MOST) return refuse("the rank is not 1 to 5", rank);
    if (address == NULL || (uintptr_t)address % ADDRESS_MULTIPLE != 0)
        return refuse("the tensor's address is not aligned to 16 bytes",
                      (long long)(uintptr_t)address);
    m.mark = MARK;
    m.address = (const char *)address;
    m.rank = (uint16_t)rank;
    m.element = (uint8_t)element_bytes(type);
    m.swizzle = (uint8_t)swizzle;
    memcpy(m.size, size, rank * sizeof *size);
    memcpy(m.stride, stride, (rank - 1) * sizeof *stride);
    memcpy(m.box, box, rank * sizeof *box);
    CUresult code = check_shape(&m, step);
    if (code == CUDA_SUCCESS) code = check_modes(&m, interleave, swizzle, fill);
    if (code != CUDA_SUCCESS) return code;
    memset((void *)map, 0, sizeof *map);
    memcpy((void *)map, (const void *)&m, sizeof m);
    return CUDA_SUCCESS;
}

void emu_check_map(const EmuLaunch *launch, const CUtensorMap *map)
{
    EmuMap m;
    size_t left = 0;
    int owner;
    memcpy((void *)&m, (const void *)map, sizeof m);
    if (m.mark != MARK)
        emu_die("%s, launched at %s:%d, uses a tensor map that cuTensorMapEncodeTiled has not made",
                launch->kernel, launch->file, launch->line);
    uint64_t bytes = m.size[0] * m.element;
    for (int d = 1; d < m.rank; d++)
        bytes += (m.size[d] - 1) * m.stride[d - 1];
    emu_check_pointer(launch, m.address);
    if (!emu_memory_find(m.address, &left, &owner) || left < bytes)
        emu_die("%s, launched at %s:%d: the tensor of a map, %llu bytes from %p, is not all in "
                "device memory",
                launch->kernel, launch->file, launch->line, (unsigned long long)bytes,
                (const void *)m.address);
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned version,
                                             unsigned long long flags,
                                             cudaDriverEntryPointQueryResult *found)
{
    EMU_CALL();
    enum { FIRST_VERSION = 12000 };
    const char *word = getenv("EMU_DRIVER");
    bool there = strcmp(symbol, "cuTensorMapEncodeTiled") == 0 &&
                 (word == NULL || strcmp(word, "no_maps") != 0);
    if (flags != cudaEnableDefault) return emu_error(cudaErrorInvalidValue);
    *found = !there                    ? cudaDriverEntryPointSymbolNotFound
             : version < FIRST_VERSION ? cudaDriverEntryPointVersionNotSufficent
                                       : cudaDriverEntryPointSuccess;
    *function = *found == cudaDriverEntryPointSuccess ? (void *)cuTensorMapEncodeTiled : NULL;
    return cudaSuccess;
}

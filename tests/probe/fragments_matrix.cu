/* fragments_matrix.cu -- determines to which registers ldmatrix loads, and from which registers
 * stmatrix stores, each element of 8 x 8 matrices of 16-bit elements: one, two or four matrices,
 * with and without .trans. Lane l gives the address of row l % 8 of matrix l / 8. Elements and
 * slots hold their own index. In the maps, row r of matrix m is printed as 8 m + r: (19,5) is
 * matrix 2, row 3, column 5. */
#include "tests/probe/fragments.h"

enum { MATRICES = 4, SIDE = 8, ELEMENTS = MATRICES * SIDE * SIDE };

/* Slot (lane, r, half) is stored in out[lane][r], as one of two 16-bit halves. */
template <int COUNT, bool TRANS> static __global__ void ldmatrix_kernel(uint32_t (*out)[MATRICES])
{
    __shared__ __align__(128) uint16_t matrix[ELEMENTS];
    const int lane = (int)threadIdx.x;
    uint32_t r[MATRICES] = {0xffffffffu, 0xffffffffu, 0xffffffffu, 0xffffffffu};
    for (int i = lane; i < ELEMENTS; i += LANES)
        matrix[i] = (uint16_t)i;
    __syncwarp();
    const uint32_t row = (uint32_t)__cvta_generic_to_shared(matrix + lane * SIDE);
#define LDMATRIX(count, trans, registers, ...)                                                     \
    asm volatile("ldmatrix.sync.aligned.m8n8." count trans ".shared.b16 " registers:__VA_ARGS__    \
                 : "r"(row)                                                                        \
                 : "memory")
#define R1 "=r"(r[0])
#define R2 R1, "=r"(r[1])
#define R4 R2, "=r"(r[2]), "=r"(r[3])
    if (COUNT == 1 && !TRANS) LDMATRIX("x1", "", "{%0}, [%1];", R1);
    if (COUNT == 1 && TRANS) LDMATRIX("x1", ".trans", "{%0}, [%1];", R1);
    if (COUNT == 2 && !TRANS) LDMATRIX("x2", "", "{%0,%1}, [%2];", R2);
    if (COUNT == 2 && TRANS) LDMATRIX("x2", ".trans", "{%0,%1}, [%2];", R2);
    if (COUNT == 4 && !TRANS) LDMATRIX("x4", "", "{%0,%1,%2,%3}, [%4];", R4);
    if (COUNT == 4 && TRANS) LDMATRIX("x4", ".trans", "{%0,%1,%2,%3}, [%4];", R4);
    for (int i = 0; i < MATRICES; i++)
        out[lane][i] = r[i];
}

/* Each register slot holds its own number, lane * 8 + 2 r + half. `out` receives the resulting
 * contents of shared memory, 0xffff where nothing was stored. */
template <int COUNT, bool TRANS> static __global__ void stmatrix_kernel(uint16_t *out)
{
    __shared__ __align__(128) uint16_t matrix[ELEMENTS];
    const int lane = (int)threadIdx.x;
    uint32_t r[MATRICES];
    for (int i = lane; i < ELEMENTS; i += LANES)
        matrix[i] = 0xffff;
    __syncwarp();
    for (int i = 0; i < MATRICES; i++)
        r[i] = (uint32_t)(lane * 8 + 2 * i) | (uint32_t)(lane * 8 + 2 * i + 1) << 16;
    const uint32_t row = (uint32_t)__cvta_generic_to_shared(matrix + lane * SIDE);
#define STMATRIX(count, trans, registers)                                                          \
    asm volatile("stmatrix.sync.aligned.m8n8." count trans ".shared.b16 [%0], " registers          \
                 :                                                                                 \
                 : "r"(row), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])                            \
                 : "memory")
    if (COUNT == 1 && !TRANS) STMATRIX("x1", "", "{%1};");
    if (COUNT == 1 && TRANS) STMATRIX("x1", ".trans", "{%1};");
    if (COUNT == 2 && !TRANS) STMATRIX("x2", "", "{%1,%2};");
    if (COUNT == 2 && TRANS) STMATRIX("x2", ".trans", "{%1,%2};");
    if (COUNT == 4 && !TRANS) STMATRIX("x4", "", "{%1,%2,%3,%4};");
    if (COUNT == 4 && TRANS) STMATRIX("x4", ".trans", "{%1,%2,%3,%4};");
    __syncwarp();
    for (int i = lane; i < ELEMENTS; i += LANES)
        out[i] = matrix[i];
}

/* Fills in the manual's layout of `count` matrices in a warp. */
static void map_expect(Map *map, int count, bool trans)
{
    map->slots = 2 * count;
    map->per_register = 2;
    for (int lane = 0; lane < LANES; lane++) {
        for (int i = 0; i < map->slots; i++) {
            int line = lane / 4, along = lane % 4 * 2 + i % 2, matrix = i / 2;
            map->at[lane][i] =
                trans ? Place{matrix * SIDE + along, line} : Place{matrix * SIDE + line, along};
        }
    }
}

static void map_from_loads(Map *map, uint32_t (*got)[MATRICES])
{
    for (int lane = 0; lane < LANES; lane++) {
        for (int i = 0; i < map->slots; i++) {
            int code = (int)(got[lane][i / 2] >> (i % 2 * 16) & 0xffff);
            map->at[lane][i] = Place{code / SIDE, code % SIDE};
        }
    }
}

static void map_from_stores(Map *map, const uint16_t *got)
{
    for (int lane = 0; lane < LANES; lane++)
        for (int i = 0; i < map->slots; i++)
            map->at[lane][i] = Place{-1, -1};
    for (int i = 0; i < ELEMENTS; i++)
        if (got[i] < LANES * 8 && got[i] % 8 < map->slots)
            map->at[got[i] / 8][got[i] % 8] = Place{i / SIDE, i % SIDE};
}

/* Prints the verdict and, for four matrices, the map. */
static void answer(const char *name, const Map *found, const Map *expected, cudaError_t code)
{
    if (code != cudaSuccess) {
        probe_word(probe_name("%s.expected", name),
                   probe_name("failed: %s", cudaGetErrorString(code)));
        return;
    }
    map_print_verdict(name, found, expected);
    if (found->slots == 2 * MATRICES) map_print(name, found);
}

template <int COUNT, bool TRANS> static void ask(void)
{
    static Map found, expected;
    uint32_t loaded[LANES][MATRICES];
    uint16_t stored[ELEMENTS];
    void *d;
    char kind[16];
    snprintf(kind, sizeof kind, "x%d%s", COUNT, TRANS ? ".trans" : "");
    CUDA_OK(cudaMalloc(&d, sizeof loaded));
    map_expect(&expected, COUNT, TRANS);
    found = expected;
    ldmatrix_kernel<COUNT, TRANS><<<1, LANES>>>((uint32_t(*)[MATRICES])d);
    cudaError_t code = cudaGetLastError();
    if (code == cudaSuccess) code = cudaMemcpy(loaded, d, sizeof loaded, cudaMemcpyDeviceToHost);
    map_from_loads(&found, loaded);
    answer(probe_name("ldmatrix.%s", kind), &found, &expected, code);
    stmatrix_kernel<COUNT, TRANS><<<1, LANES>>>((uint16_t *)d);
    code = cudaGetLastError();
    if (code == cudaSuccess) code = cudaMemcpy(stored, d, sizeof stored, cudaMemcpyDeviceToHost);
    map_from_stores(&found, stored);
    answer(probe_name("stmatrix.%s", kind), &found, &expected, code);
    CUDA_OK(cudaFree(d));
}

int main(void)
{
    probe_device();
    ask<1, false>();
    ask<1, true>();
    ask<2, false>();
    ask<2, true>();
    ask<4, false>();
    ask<4, true>();
    return 0;
}

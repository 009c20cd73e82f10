/* bits_contracted.cu -- runs the comparisons of bits.cu on code that nvcc compiled with its
 * default, which contracts products and sums. Differences here show that the comparison can detect
 * errors and what -fmad=false prevents. Philox uses only integers, so it should still agree. */
#include "tests/probe/bits.h"

int main(void)
{
    probe_device();
    uint32_t *words = (uint32_t *)host_array(sizeof(uint32_t) * 4 * N);
    ask_bits("contracted", words);
    free(words);
    return 0;
}

/* bits_contracted.cu -- what bits.cu asks, of the same code compiled as nvcc does unasked, products
 * and sums contracted: that results differ here shows that the comparison can fail, and what
 * -fmad=false is for. Philox has integers only and should still agree. */
#include "tests/probe/bits.h"

int main(void)
{
    probe_device();
    uint32_t *words = (uint32_t *)host_array(sizeof(uint32_t) * 4 * N);
    ask_bits("contracted", words);
    free(words);
    return 0;
}

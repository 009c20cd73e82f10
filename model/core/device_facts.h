/* device_facts.h -- the properties of the devices that ranks will open, on which a config may
 * depend. */
#ifndef MODEL_CORE_DEVICE_FACTS_H
#define MODEL_CORE_DEVICE_FACTS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    /* Compute capability of a CUDA device, ten times the major version plus the minor one: 90 for
     * Hopper. 0: no device, or one whose memory is host memory. */
    int capability;
    int64_t bytes; /* total size of device memory; 0: device memory is host memory */
    /* True: this program is built without the attention kernels for Hopper. */
    bool lacks_hopper;
} DeviceFacts;

#endif

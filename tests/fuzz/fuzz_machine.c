/* fuzz_machine.c -- fuzz target: reads any bytes as a machine file. What is accepted is within the
 * limits of the keys, and everything else is refused with a message that names the file. */
#include "configs/machine_file/keys.h"
#include "model/core/check.h"

#include <string.h>

int fuzz_machine(const uint8_t *data, size_t size);
int fuzz_machine(const uint8_t *data, size_t size)
{
    char err[2048] = "";
    Hardware h;
    if (!hardware_parse(&h, "fuzz", (const char *)data, size, err, sizeof err)) {
        CHECK(strncmp(err, "fuzz:", 5) == 0, "%s", err);
        return 0;
    }
    CHECK(strlen(h.name) > 0 && strlen(h.name) < sizeof h.name, "%s", h.name);
    for (int i = 0; i < MACHINE_KEYS; i++) {
        const MachineKey *key = &machine_key[i];
        if (!machine_key_is_number(key)) continue;
        double x = machine_key_number(&h, key);
        HardwareLimits limits = machine_key_limits(key, h.cuda);
        CHECK(x >= limits.least && x <= limits.most, "%s: %g", key->name, x);
    }
    CHECK(h.cuda == (h.device.capability > 0) && h.cuda == (h.device.bytes > 0), "%d", h.cuda);
    return 0;
}

/* libFuzzer's entry point. It is weak because the test program links all fuzz targets together. */
__attribute__((weak)) int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
__attribute__((weak)) int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    return fuzz_machine(data, size);
}

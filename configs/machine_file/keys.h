/* keys.h -- the table of a machine file's keys; private to configs/machine_file. */
#ifndef CONFIGS_MACHINE_FILE_KEYS_H
#define CONFIGS_MACHINE_FILE_KEYS_H

#include "configs/machine_file/hardware.h"

typedef enum { KEY_TEXT, KEY_DEVICE, KEY_INT, KEY_INT64, KEY_NUMBER } MachineKeyType;

/* One key. A text has from `least` to `most` bytes. A number is from `least` to `most`, and on GPUs
 * within machine_key_limits; these limits are physical, so that a figure in a wrong unit is
 * detected. All keys are required, and every number needs a source. */
typedef struct {
    const char *name;
    MachineKeyType type;
    size_t at; /* offset of the field in Hardware */
    double least, most;
    const char *unit;    /* what the number is, for messages */
    const char *example; /* a valid value, as written in a file */
} MachineKey;

enum { MACHINE_KEYS = 32 };
extern const MachineKey machine_key[MACHINE_KEYS];

/* Returns the row of a key, or -1. */
int machine_key_find(const char *name);
/* Returns the value of a key, which must be a number. */
double machine_key_number(const Hardware *hardware, const MachineKey *key);
/* Returns the limits of a number on a GPU or a CPU. */
HardwareLimits machine_key_limits(const MachineKey *key, bool cuda);

static inline bool machine_key_is_number(const MachineKey *key)
{
    return key->type >= KEY_INT;
}

#endif
